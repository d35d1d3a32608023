"""What travels to the devices by its content: `bundle`, the farm and the kernels; `providers`, a user's own files."""
