"""The shared kernel package: one public function and module per op, the same on every backend.

Names are resolved when first used (PEP 562), so that importing the package imports neither torch nor triton.  In a
checkout it is imported as `kernels`, installed from its wheel as `farm_kernels`; imports inside it are relative.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "rms_norm": ".ops.rms_norm.function",
    "fused_add_rms_norm": ".ops.fused_add_rms_norm.function",
    "rms_norm_quantize": ".ops.rms_norm_quantize.function",
    "RMSNorm": ".modules",
    "FusedAddRMSNorm": ".modules",
    "use_table": ".ops.rms_norm.tables",
}

__all__ = ["FusedAddRMSNorm", "RMSNorm", "fused_add_rms_norm", "rms_norm", "rms_norm_quantize", "use_table"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_PUBLIC)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
