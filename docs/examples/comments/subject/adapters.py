"""From the farm's calls to Liger's functions: the default ones, and those of its Ascend backend."""

from farm.subject import bare

MODULES = "liger_kernel.ops."
ASCEND = "liger_kernel.ops.backends._ascend.ops."


def _rms(where, x, weight, eps, offset, casting):
    return bare(where + "rms_norm").LigerRMSNormFunction.apply(x, weight, eps, offset, casting, False)


def _fused(where, x, residual, weight, eps, offset, casting):
    function = bare(where + "fused_add_rms_norm").LigerFusedAddRMSNormFunction
    return function.apply(x, residual, weight, eps, offset, casting, False)


def rms_norm(x, weight, eps, *, offset=0.0, casting="llama"):
    return _rms(MODULES, x, weight, eps, offset, casting)


def fused_add_rms_norm(x, residual, weight, eps, *, offset=0.0, casting="llama"):
    return _fused(MODULES, x, residual, weight, eps, offset, casting)


def rms_norm_ascend(x, weight, eps, *, offset=0.0, casting="llama"):
    return _rms(ASCEND, x, weight, eps, offset, casting)


def fused_add_rms_norm_ascend(x, residual, weight, eps, *, offset=0.0, casting="llama"):
    return _fused(ASCEND, x, residual, weight, eps, offset, casting)
