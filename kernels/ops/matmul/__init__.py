"""The op matmul."""
