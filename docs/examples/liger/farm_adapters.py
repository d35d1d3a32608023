"""From the farm's calls to Liger-Kernel's: inputs in the contract's order, then eps, then keywords that differ.

The two modules are loaded bare: the package's own `__init__` imports every op and every backend that it has.
"""

from farm.subject import bare

MOST_COLUMNS = 65536  # a row is one block


def rms_norm(x, weight, eps, *, offset=0.0, casting="llama", in_place=False):
    """x: [rows, hidden]; weight: [hidden] or None.  Returns [rows, hidden].

    Liger's own default is in_place=True: its backward then writes dx into the upstream gradient's memory.
    """
    _refuse(x)
    function = bare("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    return function.apply(x, weight, eps, offset, casting, in_place)


def fused_add_rms_norm(x, residual, weight, eps, *, offset=0.0, casting="llama"):
    """x, residual: [rows, hidden]; weight: [hidden].  Returns the norm of the sum, and the sum."""
    _refuse(x)
    if weight is None:
        raise NotImplementedError("Liger's fused add-and-norm always has a weight")
    function = bare("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction
    return function.apply(x, residual, weight, eps, offset, casting, False)


def _refuse(x):
    if x.shape[-1] > MOST_COLUMNS:
        raise NotImplementedError(f"Liger keeps a row in one block of at most {MOST_COLUMNS} elements")
