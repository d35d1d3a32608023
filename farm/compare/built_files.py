"""Built extensions and device binaries of two trees, function by function, as ELF itself tells.  Pure.

A function is its symbol and the bytes of its code.  Equal bytes are the same code.  On a host, code holds addresses
that move with what stands around it, so a function whose bytes differ may still do the same; a kernel's code (a cubin,
an AMD code object) stands for itself.  Device code within an extension is read where it is not compressed; what cannot
be read is unknown, never the same.

Sources of the formats: System V ABI, chapters 4 and 5 (ELF); LLVM, "Clang Offload Bundler" (bundles of HIP); the header
of a CUDA fat binary, magic 0xBA55ED50, as LLVM's own CUDA code generation writes it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

ENDINGS = (".so", ".cubin", ".hsaco", ".co", ".o", ".pyd", ".dll", ".dylib", ".fatbin")
_ELF, _BUNDLE, _FATBIN = b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__", 0xBA55ED50
_FUNCTION, _GNU_FUNCTION, _RESERVED = 2, 10, 0xFF00
_SYMBOLS = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_EMPTY = 8  # SHT_NOBITS
_FAT_SECTIONS = (".nv_fatbin", ".hip_fatbin", "__nv_relfatbin")
#: e_machine -> what a reader calls it; others are host code.
_MACHINES: Mapping[int, str] = {190: "cuda", 224: "amdgpu"}
MOST_IMAGES = 1000


def is_built(name: str) -> bool:
    """Whether a file is machine code, by its name."""
    return name.endswith(ENDINGS) or ".so." in name.rpartition("/")[2]


@dataclass(frozen=True)
class Image:
    """The functions of one file: (where, name) -> digest of its code.  `where`: "" for the file's own, else the device
    code within it.  `unknown`: what could not be read, with why."""

    functions: Mapping[tuple[str, str], str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuiltChange:
    """A built file that is not the same in both trees.  Names of functions; `same`: how many have equal code."""

    path: str
    changed: tuple[str, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    same: int
    unknown: tuple[str, ...]

    @property
    def text(self) -> str:
        """`pkg/_C.so: 2 of 120 functions differ (f, g); 1 new (h); unknown: ...`"""
        total = self.same + len(self.changed)
        told = []
        if total and not (self.changed or self.new or self.gone or self.unknown):
            told.append(f"none of {total} functions differs, other bytes do")
        elif total:
            told.append(f"{len(self.changed)} of {total} functions differ{_named(self.changed)}")
        told += [f"{len(of)} {word}{_named(of)}" for word, of in (("new", self.new), ("gone", self.gone)) if of]
        told += [f"unknown: {why}" for why in self.unknown]
        return f"{self.path}: {'; '.join(told) or 'no function differs, other bytes do'}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" ({', '.join(names[:3])}{more})" if names else ""


def compare(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> list[BuiltChange]:
    """The built files of both trees that differ, by path."""
    out = []
    for path in sorted(a.keys() | b.keys()):
        if a.get(path) == b.get(path):
            continue
        before, after = (read(tree[path]) if path in tree else Image() for tree in (a, b))
        x, y = before.functions, after.functions
        names = [tuple(_name(k) for k in keys) for keys in (_unlike(x, y), y.keys() - x.keys(), x.keys() - y.keys())]
        changed, new, gone = (tuple(sorted(found)) for found in names)
        unknown = tuple(dict.fromkeys((*before.unknown, *after.unknown)))
        out.append(BuiltChange(path, changed, new, gone, len(x.keys() & y.keys()) - len(changed), unknown))
    return out


def _unlike(x: Mapping[tuple[str, str], str], y: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
    return [key for key in x.keys() & y.keys() if x[key] != y[key]]


def _name(key: tuple[str, str]) -> str:
    where, name = key
    return f"{name} [{where}]" if where else name


def read(data: bytes) -> Image:
    """The functions of a file.  Nothing that it holds is an error."""
    try:
        if data[:4] != _ELF:
            return Image({}, ("not an ELF file",))
        return _read(data, "")
    except (struct.error, IndexError, ValueError, OverflowError):
        return Image({}, ("damaged, or of an unknown form",))


def _read(data: bytes, where: str) -> Image:
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    machine = struct.unpack_from(order + "H", data, 18)[0]
    at, (size, count, names) = (
        struct.unpack_from(order + ("Q" if wide else "I"), data, 40 if wide else 32)[0],
        struct.unpack_from(order + "HHH", data, 58 if wide else 46),
    )
    form = order + ("IIQQQQIIQQ" if wide else "IIIIIIIIII")
    sections = [struct.unpack_from(form, data, at + i * size) for i in range(count)]
    strings = sections[names] if names < count else None
    called = [_text(data, strings[4] + s[0]) if strings else "" for s in sections]
    where = where or _MACHINES.get(machine, "")
    found_at: dict[tuple[str, str], set[str]] = {}
    for section in sections:
        if section[1] in _SYMBOLS:
            for name, digest in _functions(data, sections, section, order, wide):
                found_at.setdefault((where, name), set()).add(digest)  # static functions of one name, or two tables
    functions = {key: ",".join(sorted(digests)) for key, digests in found_at.items()}
    unknown: list[str] = [] if functions else ["it has no symbols of functions (stripped)"]
    for name, section in zip(called, sections):
        if name in _FAT_SECTIONS and section[1] != _EMPTY:
            found = _device_code(data[section[4] : section[4] + section[5]])
            functions |= found.functions
            unknown += found.unknown
    return Image(functions, tuple(unknown))


def _functions(
    data: bytes, sections: Sequence[tuple[int, ...]], table: tuple[int, ...], order: str, wide: bool
) -> Iterator[tuple[str, str]]:
    """(name, digest of its code) of each function of a table of symbols."""
    strings = sections[table[6]]
    size = 24 if wide else 16
    for at in range(table[4], table[4] + table[5] - size + 1, size):
        if wide:
            name, info, _, index, value, length = struct.unpack_from(order + "IBBHQQ", data, at)
        else:
            name, value, length, info, _, index = struct.unpack_from(order + "IIIBBH", data, at)
        if info & 15 not in (_FUNCTION, _GNU_FUNCTION) or not length or not 0 < index < _RESERVED:
            continue
        section = sections[index]
        begin = section[4] + value - section[3]
        code = data[begin : begin + length] if section[1] != _EMPTY and begin >= 0 else b""
        if len(code) == length:
            yield _text(data, strings[4] + name), hashlib.sha256(code).hexdigest()[:16]


def _text(data: bytes, at: int) -> str:
    end = data.index(b"\0", at)
    return data[at:end].decode("utf-8", "backslashreplace")


def _device_code(data: bytes) -> Image:
    """The device code in an extension: bundles of HIP, fat binaries of CUDA."""
    functions: dict[tuple[str, str], str] = {}
    unknown: list[str] = []
    for number, (name, image) in enumerate(_images(data)):
        if number >= MOST_IMAGES:
            unknown.append(f"more than {MOST_IMAGES} pieces of device code")
            break
        if image[:4] == _ELF:
            found = _read(image, name)
            for (where, function), digest in found.functions.items():  # the same for several parts of a library
                at = where if (where, function) not in functions else f"{where} #{number}"
                functions[at, function] = digest
            unknown += [f"device code for {name}: {why}" for why in found.unknown]
        elif image:
            unknown.append(f"device code for {name} is compressed or not machine code")
    return Image(functions, tuple(dict.fromkeys(unknown)) or (() if functions else ("device code of an unknown form",)))


def _images(data: bytes) -> Iterator[tuple[str, bytes]]:
    """(what it is for, its bytes)."""
    start = data.find(_BUNDLE)
    while start >= 0:
        (count,) = struct.unpack_from("<Q", data, start + len(_BUNDLE))
        at = start + len(_BUNDLE) + 8
        for _ in range(min(count, MOST_IMAGES)):
            offset, size, length = struct.unpack_from("<QQQ", data, at)
            name = data[at + 24 : at + 24 + length].decode("utf-8", "replace")
            at += 24 + length
            yield name.rpartition("-")[2] or name, data[start + offset : start + offset + size]
        start = data.find(_BUNDLE, at)
    at = 0
    while at + 16 <= len(data) and struct.unpack_from("<I", data, at)[0] == _FATBIN:
        head, size = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + head, at + head + size
        while entry + 64 <= min(end, len(data)):
            kind, _, header, length = struct.unpack_from("<HHIQ", data, entry)
            (arch,) = struct.unpack_from("<I", data, entry + 28)
            yield f"{'sm' if kind == 2 else 'compute'}_{arch}", data[entry + header : entry + header + length]
            entry += header + length
            if not header + length:
                return
        at = end + (-end) % 8
