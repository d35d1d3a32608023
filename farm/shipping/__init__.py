"""What is sent to the devices by content hash: `bundle`, the farm and the kernels; `providers`, a user's own files."""
