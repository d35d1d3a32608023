"""One folder per op: contract.py (NumPy only), and where the op is ours, its kernels, dispatch and public function."""
