"""What can be said of two arms without a device: changed kernels, machine code, bits, bytes, and what was reached.

`answer` decides and tells, pure; `run` compiles and interprets both arms; `pins` reads which tool chains a repository
asks for.
"""
