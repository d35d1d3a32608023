"""Which devices a name means: `MI300X` is `AMD Instinct MI300X OAM`; `H200:mig-1g.18gb` is one MIG slice.  Pure.

A pattern is `MODEL[:PARTITION][:POWERW][:CLOCKS]`; every part after the model is optional.  It is compared with
`str(Target)` of a device (farm.cell), so a matrix may ask for a device by the name that a page or a journal shows.
"""

from __future__ import annotations

import re

from farm.errors import Message

#: Separates the words of a model's name.  `_` and `.` belong to a word: Ascend910_9391, mig-1g.18gb.
_SEPARATORS = re.compile(r"[^A-Za-z0-9_.]+")
_ASCEND = re.compile(r"^ascend(?=\d)")  # Ascend910B3 and Ascend 910B3 are one name
#: Ascend sells one part in bins (910B1 to 910B4, 910B2C); their common name means any of them.
_FAMILY = re.compile(r"^\d{3}[a-z]$")
_BIN = re.compile(r"\d+[a-z]?")
#: How partitions are named: a MIG profile, AMD's compute and memory modes.
_PARTITION = re.compile(r"(mig|spx|dpx|tpx|qpx|cpx|nps\d)(-|$)")
_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(:[A-Za-z0-9][A-Za-z0-9._+-]*)*")


def same_part(pattern: str, model: str) -> bool:
    """Whether a model's name matches `pattern`: the pattern's words occur in the name, in order and adjacent.

    Case, spaces and dashes do not matter.  `GB200` matches `NVIDIA GB200` and not `NVIDIA GB200X`; `910B3` matches
    `Ascend910B3`; `910B` matches every bin of it.  An empty pattern matches nothing.
    """
    wanted, have = _words(pattern), _words(model)
    if not wanted:
        return False
    places = range(len(have) - len(wanted) + 1)
    return any(all(map(_same_word, wanted, have[i : i + len(wanted)])) for i in places)


def serves(pattern: str, target_text: str) -> bool:
    """Whether a device with the target `target_text` (`cuda:NVIDIA-H200:mig-1g.18gb:600W`) matches `pattern` (without
    a backend: `H200:mig-1g.18gb`): the model by `same_part`, every other part exactly, ignoring case.  A pattern
    without a partition matches a complete device in the vendor's default mode, never a slice of one; power and clocks
    that it leaves out may have any value."""
    model, *wanted = pattern.lower().split(":")
    _, _, rest = target_text.lower().partition(":")
    name, *have = rest.split(":")
    return same_part(model, name) and set(wanted) <= set(have) and _partitions(wanted) == _partitions(have)


def _partitions(parts: list[str]) -> set[str]:
    return {part for part in parts if _PARTITION.match(part)}


def pattern_of(target: str) -> str:
    """The pattern in the target of a planned cell: `GB200` of `cuda:GB200`, "" of a cell that any device may run."""
    return target.partition(":")[2]


def malformed(pattern: str) -> Message | None:
    """How to correct a pattern of a matrix or a command line; None if it is well formed."""
    if " " in pattern.strip():
        return Message(
            f'write the target without spaces, like "{"-".join(pattern.split())}"', id="matrix-target-spaces"
        )
    if not _PATTERN.fullmatch(pattern):
        form = "write the target as MODEL[:PARTITION][:POWERW][:CLOCKS], like GB200 or H200:mig-1g.18gb"
        return Message(form, id="matrix-target-form")
    return None


def _words(text: str) -> list[str]:
    return [w for w in _SEPARATORS.split(_ascend_apart(text.lower())) if w]


def _ascend_apart(text: str) -> str:
    return " ".join(_ASCEND.sub("ascend ", word) for word in _SEPARATORS.split(text))


def _same_word(wanted: str, have: str) -> bool:
    if wanted == have:
        return True
    return bool(_FAMILY.match(wanted)) and have.startswith(wanted) and bool(_BIN.fullmatch(have[len(wanted) :]))
