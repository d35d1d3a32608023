"""The op block_scaled_matmul."""
