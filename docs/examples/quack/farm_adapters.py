"""From the farm's calls to QuACK's: inputs in the contract's order, then eps, then keywords that differ."""


def rms_norm(x, weight, eps, *, offset=0.0):
    """x: [rows, hidden]; weight: [hidden] or None.  Returns [rows, hidden]."""
    from quack.rmsnorm import rmsnorm

    _refuse(x)
    return rmsnorm(x, weight, eps=eps, weight_offset=offset if weight is not None else 0.0)


def fused_add_rms_norm(x, residual, weight, eps, *, offset=0.0):
    """x, residual: [rows, hidden]; weight: [hidden].  Returns the norm of the unrounded sum, and the sum."""
    from quack.rmsnorm import rmsnorm

    _refuse(x)
    offset = offset if weight is not None else 0.0
    return rmsnorm(x, weight, residual=residual, eps=eps, prenorm=True, weight_offset=offset)


def _refuse(x):
    if x.element_size() == 2 and x.shape[-1] % 2:
        raise NotImplementedError("QuACK copies at least 4 bytes at a time, which an odd row of 2-byte elements lacks")
