"""Memory instructions counted in what the compiler wrote: PTX, SASS, or AMD's assembly.  Pure.

Counts are of instructions in the text, by bits per thread; an instruction in a loop counts once.

    {"counted_in": "sass", "global_loads": {"128": 4}, "global_stores": {"128": 2}, "async_copies": {},
     "local_loads": {"32": 28}, "local_stores": {"32": 28}}

Local memory is where spilled registers (and arrays indexed at run time) live: in device memory behind the caches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

KINDS = ("global_loads", "global_stores", "async_copies", "local_loads", "local_stores")

_PTX = re.compile(r"^\s*(?:@!?%\w+\s+)?(?P<op>ld|st)\.(?:\w+\.)*?(?P<space>global|local)(?P<rest>[.:\w]*)\s", re.M)
_PTX_WIDTH = re.compile(r"(?:\.v(?P<count>[248]))?\.[bsuf](?P<bits>8|16|32|64|128)$")
_PTX_ASYNC = re.compile(r"^\s*(?:@!?%\w+\s+)?cp\.async\.(?P<kind>c[ag]|bulk)[.:\w]*\s+[^;]*;", re.M)
_PTX_BYTES = re.compile(r",\s*(0x[0-9a-fA-F]+|\d+)\s*(?:,|;)")
#: `LDG.E.128.CONSTANT R4, [R2]`; the width is 32 bits where no modifier names another.
_SASS = re.compile(r"\b(?P<op>LDG|STG|LDL|STL|LDGSTS|UBLKCP|UTMALDG)\b(?P<rest>[.\w]*)")
_SASS_BITS = re.compile(r"\.(?:ENL2\.)?(?P<bits>256|128|64|U16|S16|16|U8|S8|8)\b")
_SASS_KINDS = {
    "LDG": "global_loads",
    "STG": "global_stores",
    "LDL": "local_loads",
    "STL": "local_stores",
    "LDGSTS": "async_copies",
    "UBLKCP": "async_copies",
    "UTMALDG": "async_copies",
}
_AMD = re.compile(
    r"^\s*(?P<space>global|buffer|flat|scratch)_(?P<op>load|store)_(?P<lds>lds_)?(?P<size>[a-z0-9_]+)(?P<rest>[^\n]*)",
    re.M,
)
_AMD_BITS = {"byte": 8, "short": 16, "dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128}


def ptx(text: str) -> dict[str, Any]:
    """Counts of a PTX module."""
    found = []
    for m in _PTX.finditer(text):
        width = _PTX_WIDTH.search(m["rest"])
        bits = int(width["bits"]) * int(width["count"] or 1) if width else 0
        found.append((f"{m['space']}_{'loads' if m['op'] == 'ld' else 'stores'}", bits))
    for m in _PTX_ASYNC.finditer(text):
        size = _PTX_BYTES.search(m.group(0))
        found.append(("async_copies", 8 * int(size[1], 0) if size and m["kind"] != "bulk" else 0))
    return _counted("ptx", found)


def sass(text: str) -> dict[str, Any]:
    """Counts of nvdisasm's output."""
    found = []
    for m in _SASS.finditer(text):
        bits = _SASS_BITS.search(m["rest"])
        found.append((_SASS_KINDS[m["op"]], int(bits["bits"].lstrip("US")) if bits else 32))
    return _counted("sass", found)


def amdgcn(text: str) -> dict[str, Any]:
    """Counts of AMD assembly as LLVM prints it."""
    found = []
    for m in _AMD.finditer(text):
        size = m["size"].split("_")[0]
        bits = _AMD_BITS.get(size, _AMD_BITS.get(size[1:], 0))  # ushort, sbyte
        if m["space"] == "scratch":
            kind = f"local_{m['op']}s"
        else:
            to_lds = m["op"] == "load" and (m["lds"] or re.search(r"\blds\b", m["rest"].split(";")[0]))
            kind = "async_copies" if to_lds else f"global_{m['op']}s"
        found.append((kind, bits))
    return _counted("amdgcn", found)


def _counted(where: str, found: Iterable[tuple[str, int]]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for kind, bits in found:
        counts[kind][str(bits) if bits else "?"] += 1
    return {"counted_in": where, **{k: dict(sorted(c.items(), key=_by_width)) for k, c in counts.items()}}


def _by_width(item: tuple[str, int]) -> int:
    return -int(item[0]) if item[0].isdigit() else 1


def local_bytes(counted: dict[str, Any], kind: str) -> int:
    """Bytes per thread that the `local_loads` or `local_stores` in the text move once each."""
    return sum(int(bits) * n // 8 for bits, n in counted[kind].items() if bits.isdigit())
