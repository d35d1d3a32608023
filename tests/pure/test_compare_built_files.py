"""Machine code of two trees, function by function: hand-made ELF files, and one of a real extension."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy.linalg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.compare.built_files import compare, is_built, read

CODE = {"f": b"\x90" * 8, "g": b"\xc3" * 4}


def elf(functions: dict[str, bytes], machine: int = 62, fat: tuple[str, bytes] | None = None) -> bytes:
    """A 64-bit little-endian ELF file with one section of code, symbols, and perhaps one of device code."""
    code, names, symbols = b"", b"\0", bytes(24)
    for name, body in functions.items():
        symbols += struct.pack("<IBBHQQ", len(names), 0x12, 0, 1, 0x1000 + len(code), len(body))
        names, code = names + name.encode() + b"\0", code + body
    titles = b"\0.text\0.symtab\0.strtab\0" + (fat[0].encode() + b"\0" if fat else b"")
    parts = [code, symbols, names, titles, *([fat[1]] if fat else [])]
    starts = [64 + sum(map(len, parts[:i])) for i in range(len(parts))]
    heads = [struct.pack("<IIQQQQIIQQ", *(0,) * 10)]
    kinds = [(1, 1, 0x1000, 0), (7, 2, 0, 3), (15, 3, 0, 0), (0, 3, 0, 0), (23, 1, 0, 0)]
    for (title, kind, address, link), begin, part in zip(kinds, starts, parts):
        heads.append(struct.pack("<IIQQQQIIQQ", title, kind, 0, address, begin, len(part), link, 0, 1, 0))
    at = 64 + sum(map(len, parts))
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, at, 0, 64, 0, 0, 64, len(heads), 4)
    )
    return head + b"".join(parts) + b"".join(heads)


def bundle(images: dict[str, bytes]) -> bytes:
    head, body, table = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(images)), b"", b""
    size = len(head) + sum(24 + len(name) for name in images)
    for name, image in images.items():
        table += struct.pack("<QQQ", size + len(body), len(image), len(name)) + name.encode()
        body += image
    return head + table + body


def fatbin(*entries: tuple[int, int, bytes]) -> bytes:
    """(kind, architecture, image)"""
    body = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(image), 0, 0, 0, 0, arch).ljust(64, b"\0") + image
        for kind, arch, image in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def said(a: bytes | None, b: bytes | None) -> str:
    (one,) = compare({"p/_C.so": a} if a else {}, {"p/_C.so": b} if b else {})
    return one.text.removeprefix("p/_C.so: ")


def test_each_function_is_compared_by_its_code() -> None:
    assert compare({"x.so": elf(CODE)}, {"x.so": elf(CODE)}) == []
    assert said(elf(CODE), elf({**CODE, "g": b"\xc4" * 4})) == "1 of 2 functions differ (g)"
    moved = elf({"new": b"\x01" * 64, **CODE})
    assert said(elf(CODE), moved) == "0 of 2 functions differ; 1 new (new)"
    assert said(elf(CODE), elf({"f": CODE["f"]})) == "0 of 1 functions differ; 1 gone (g)"
    assert said(elf(CODE), elf(CODE) + b"data") == "none of 2 functions differs, other bytes do"
    assert said(None, elf(CODE)) == "2 new (f, g)"
    assert said(elf(CODE, 190), elf({"f": b"\x91" * 8}, 190)) == "1 of 1 functions differ (f [cuda]); 1 gone (g [cuda])"


def test_device_code_within_an_extension_is_read_or_unknown() -> None:
    changed = {**CODE, "f": b"\x91" * 8}
    bundles = [bundle({"hipv4-amdgcn-amd-amdhsa--gfx942": elf(code, 224)}) for code in (CODE, changed)]
    hip = [elf(CODE, fat=(".hip_fatbin", one)) for one in bundles]
    assert said(*hip) == "1 of 4 functions differ (f [gfx942])"
    cuda = [elf(CODE, fat=(".nv_fatbin", fatbin((2, 90, elf(c, 190)), (1, 90, b"ptx")))) for c in (CODE, changed)]
    text = "1 of 4 functions differ (f [sm_90]); unknown: device code for compute_90 is compressed or not machine code"
    assert said(*cuda) == text
    packed = [elf(CODE, fat=(".nv_fatbin", fatbin((2, 90, b"\x28\xb5" + tail)))) for tail in (b"a", b"b")]
    assert said(*packed) == "0 of 2 functions differ; unknown: device code for sm_90 is compressed or not machine code"
    odd = [elf(CODE, fat=(".nv_fatbin", tail)) for tail in (b"a" * 64, b"b" * 64)]
    assert said(*odd).endswith("unknown: device code of an unknown form")


def test_what_cannot_be_read_is_unknown_and_never_the_same() -> None:
    assert said(b"MZ", b"MZ2") == "unknown: not an ELF file"
    assert said(elf({}), elf({}) + b"x") == "unknown: it has no symbols of functions (stripped)"
    assert "unknown: damaged" in said(elf(CODE), elf(CODE)[:100])


@settings(max_examples=60)
@given(st.data())
def test_no_file_is_an_error(data: st.DataObject) -> None:
    whole = elf(CODE, fat=(".nv_fatbin", fatbin((2, 90, elf(CODE, 190)))))
    at = data.draw(st.integers(0, len(whole) - 1))
    read(whole[:at])
    read(whole[:at] + data.draw(st.binary(min_size=1, max_size=8)) + whole[at + 1 :])


def test_a_real_extension_has_functions() -> None:
    path = next(Path(numpy.linalg.__file__).parent.glob("_umath_linalg*"), None)
    if path is None or path.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("no ELF extension of NumPy here")
    assert is_built(path.name) and len(read(path.read_bytes()).functions) > 0
    assert is_built("lib/libx.so.1") and is_built("k.cubin") and not is_built("x.py") and not is_built("a.sol")
