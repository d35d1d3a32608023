"""The dtypes that rows are quantised to, and how a kernel makes their bits.  Pure.

`largest`: the scheme's divisor, the largest value of the dtype (int8 is used symmetrically).  A given scale may lead
beyond it, and saturates: int8 at -128 and 127, a float at plus and minus its largest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """One dtype.  `code`: how kernels make it where the target has no instruction; `native`: the name that Triton's
    conversion has, "" for none."""

    name: str
    largest: float
    lowest: float
    code: str
    native: str = ""


FORMATS = {
    f.name: f
    for f in (
        Format("int8", 127.0, -128.0, "int8"),
        Format("float8_e4m3fn", 448.0, -448.0, "e4m3fn", "fp8e4nv"),
        Format("float8_e4m3fnuz", 240.0, -240.0, "e4m3fnuz", "fp8e4b8"),
    )
}
#: Columns that share a scale; 0: all of a row.
GROUPS = (0, 128)


def code(name: str, target: str) -> str:
    """How kernels for "cuda:90", "hip:gfx942" or "interpreter" make this dtype's bits: by the target's own conversion
    where it has one, else by integer arithmetic, which gives the same bits."""
    found = FORMATS[name]
    return found.native if found.native and _converts(found.native, target) else found.code


def _converts(native: str, target: str) -> bool:
    """NVIDIA's e4m3fn from sm_89 on; AMD's e4m3fnuz on gfx94x, its e4m3fn on gfx950 and on RDNA 4 (gfx12)."""
    if target.startswith("cuda:"):
        return native == "fp8e4nv" and int(target.split(":")[1]) >= 89
    if target.startswith("hip:"):
        arch = target.split(":")[1]
        return arch.startswith("gfx94") if native == "fp8e4b8" else arch.startswith(("gfx950", "gfx12"))
    return False


def refusal(op: str, name: str, target: str) -> str | None:
    """Why a target cannot write this dtype, or None."""
    if target.startswith("npu") and name != "int8":
        return f"{op} writes int8 alone on Ascend, whose vector cores have no {name}"
    return None
