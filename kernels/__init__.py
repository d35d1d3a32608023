"""The shared kernel package: one public function per op, the same on every backend.

Names are resolved when first used (PEP 562), so that importing a contract imports neither torch nor triton.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "rms_norm": "kernels.ops.rms_norm.function",
    "fused_add_rms_norm": "kernels.ops.fused_add_rms_norm.function",
}

__all__ = ["fused_add_rms_norm", "rms_norm"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'kernels' has no attribute {name!r}; it has {', '.join(_PUBLIC)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
