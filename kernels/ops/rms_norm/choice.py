"""What every family's chooser answers with, and the small integer arithmetic that they share.  Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed", "column_tiled")
OPERATIONS = ("forward", "backward")


def is_launch(mode: str) -> bool:
    """Whether a mode is no name of MODES but a launch that is stated in full (gpu/forced.py)."""
    return "+" in mode


@dataclass(frozen=True)
class Choice:
    """One launch, decided: `programs` programs, each on tiles of `rows` rows by `block` columns."""

    mode: str  # what runs, never "auto"
    rows: int  # of one tile
    block: int  # columns of one tile
    num_warps: int  # 0 on Ascend, which has no such knob
    num_stages: int
    programs: int  # the grid's size
    options: tuple[tuple[str, int | bool | str], ...] = ()  # further constexprs of the kernel, sorted by name

    @cached_property
    def kernel(self) -> str:
        """The option of that name; "" on Ascend, whose choices name none."""
        return str(dict(self.options).get("kernel", ""))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record; `options` as a dict."""
        return {**asdict(self), "options": dict(self.options)}


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n (1 for n < 2)."""
    return 1 << max(n - 1, 0).bit_length()


def previous_power_of_2(n: int) -> int:
    """The largest power of two that is at most n (1 for n < 2)."""
    return 1 << max(n.bit_length() - 1, 0)


def divide_up(a: int, b: int) -> int:
    """The smallest integer that is at least a / b, for b > 0."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of b that is at least a, for b > 0."""
    return divide_up(a, b) * b
