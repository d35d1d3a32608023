"""Which device a name means: `MI300X` is `AMD Instinct MI300X OAM`; `H200:mig-1g.18gb` is one slice of one part.  Pure.

A pattern is `MODEL[:PARTITION][:POWERW][:CLOCKS]`, any of the parts after the model left out.  It is held against
`str(Target)` of a device (farm.cell), so what a page or a journal shows of a device is what a matrix may ask for.
"""

from __future__ import annotations

import re

#: What separates the words of a model's name.  `_` and `.` belong to a word: Ascend910_9391, mig-1g.18gb.
_SEPARATORS = re.compile(r"[^A-Za-z0-9_.]+")
_ASCEND = re.compile(r"^ascend(?=\d)")  # Ascend910B3 and Ascend 910B3 are one name
#: Ascend sells one part in bins (910B1 to 910B4, 910B2C); their common name means each of them.
_FAMILY = re.compile(r"^\d{3}[a-z]$")
_BIN = re.compile(r"\d+[a-z]?")
#: How partitions are named: a MIG profile, AMD's compute and memory modes.
_PARTITION = re.compile(r"(mig|spx|dpx|tpx|qpx|cpx|nps\d)(-|$)")
_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(:[A-Za-z0-9][A-Za-z0-9._+-]*)*")


def same_part(pattern: str, model: str) -> bool:
    """Whether a model's name means the part that `pattern` names: its words stand in the name, in order, side by side.

    Case, spaces and dashes say nothing.  `GB200` fits `NVIDIA GB200` and not `NVIDIA GB200X`; `910B3` fits
    `Ascend910B3`; `910B` fits every bin of it.  An empty pattern fits nothing.
    """
    wanted, have = _words(pattern), _words(model)
    if not wanted:
        return False
    places = range(len(have) - len(wanted) + 1)
    return any(all(map(_same_word, wanted, have[i : i + len(wanted)])) for i in places)


def serves(pattern: str, target_text: str) -> bool:
    """Whether a device whose target reads `target_text` (`cuda:NVIDIA-H200:mig-1g.18gb:600W`) is what `pattern`
    (without a backend: `H200:mig-1g.18gb`) asks for: the model by `same_part`, each further part exactly, but for
    case.  A pattern without a partition asks for a whole device in the vendor's default mode, never for a slice of one;
    power and clocks that it leaves out may be anything."""
    model, *wanted = pattern.lower().split(":")
    _, _, rest = target_text.lower().partition(":")
    name, *have = rest.split(":")
    return same_part(model, name) and set(wanted) <= set(have) and _partitions(wanted) == _partitions(have)


def _partitions(parts: list[str]) -> set[str]:
    return {part for part in parts if _PARTITION.match(part)}


def pattern_of(target: str) -> str:
    """The pattern in the target of a planned cell: `GB200` of `cuda:GB200`, "" of one that any device may run."""
    return target.partition(":")[2]


def malformed(pattern: str) -> str:
    """What is wrong with a pattern as a matrix or a command line gives it; "" where nothing is."""
    if " " in pattern.strip():
        return f'write it without spaces, like "{"-".join(pattern.split())}"'
    if not _PATTERN.fullmatch(pattern):
        return "write it MODEL[:PARTITION][:POWERW][:CLOCKS], like GB200 or H200:mig-1g.18gb"
    return ""


def _words(text: str) -> list[str]:
    return [w for w in _SEPARATORS.split(_ascend_apart(text.lower())) if w]


def _ascend_apart(text: str) -> str:
    return " ".join(_ASCEND.sub("ascend ", word) for word in _SEPARATORS.split(text))


def _same_word(wanted: str, have: str) -> bool:
    if wanted == have:
        return True
    return bool(_FAMILY.match(wanted)) and have.startswith(wanted) and bool(_BIN.fullmatch(have[len(wanted) :]))
