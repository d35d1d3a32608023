"""One folder per op: its kernels, dispatch and public function.  Contracts are in `farm/contracts/ops/`."""
