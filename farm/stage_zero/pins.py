"""Which versions of compilers a repository asks for, read from its own files.  Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Files that say it, by their names at the repository's root or in a wheel's metadata.
FILES = ("pyproject.toml", "setup.py", "setup.cfg", "METADATA")
_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.txt")
#: Backend -> the distributions whose version decides what its compiler makes.
COMPILERS: Mapping[str, tuple[str, ...]] = {"cuda": ("triton",), "rocm": ("triton",), "ascend": ("triton-ascend",)}
_PIN = re.compile(
    r"(?<![\w-])(triton(?:-ascend)?)\s*\(?((?:[=<>~!]=|[<>])\s*[\w.*+!-]+(?:\s*,\s*[=<>~!]+\s*[\w.*+!-]+)*)", re.I
)


def says(name: str) -> bool:
    """Whether a file of that name may say it."""
    last = name.rpartition("/")[2]
    return last in FILES or bool(_REQUIREMENTS.fullmatch(last))


def pins(texts: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Distribution -> (what is asked for, the file that says so): the first that says it."""
    out: dict[str, tuple[str, str]] = {}
    for file, text in sorted(texts.items()):
        for found in _PIN.finditer(text):
            out.setdefault(found[1].lower(), ("".join(found[2].split()), file))
    return out


def unlike(chain: Mapping[str, str], asked: Mapping[str, tuple[str, str]]) -> str:
    """A clause where a repository asks for another compiler than one of the `chain` (distribution -> version); ""
    where it does not, or where nothing is said."""
    for name, used in chain.items():
        spec, file = asked.get(name, ("", ""))
        if spec and not _meets(used, spec):
            return f"compiled by {name} {used}, but {file} asks for {name}{spec}"
    return ""


def _meets(version: str, spec: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return bool(version) and SpecifierSet(spec).contains(version, prereleases=True)
    except InvalidSpecifier:
        return False
