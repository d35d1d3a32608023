"""The Ascend family: kernels for vector cores, what to launch, and the launch itself."""
