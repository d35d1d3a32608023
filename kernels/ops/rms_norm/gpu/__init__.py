"""NVIDIA and AMD: kernels, which of them for which shape, and their launches."""
