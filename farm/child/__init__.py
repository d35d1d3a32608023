"""The process that opens the device: torch, kernels and the standard library, never Ray."""
