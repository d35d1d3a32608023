"""What a vendor's profiler said of the kernels of one call: read from its output, and put into words.  Pure."""
