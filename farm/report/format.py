"""How statuses and numbers are written on every page and in every export.  Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from farm.cell import DTYPE_ALIASES, SHORT_DTYPES

#: What a cell without a result is while its run is still running; never stored.
PENDING = "pending"
#: status -> (glyph in a heat map, words); in the order in which statuses are listed everywhere.
STATUSES: Mapping[str, tuple[str, str]] = {
    "passed": ("✓", "passed"),
    "built": ("✓", "built"),
    "inaccurate": ("≠", "inaccurate"),
    "crashed": ("×", "crashed"),
    "timed_out": ("∞", "timed out"),
    "compile_error": ("CE", "compile error"),
    "out_of_memory": ("OOM", "out of memory"),
    "unsupported": ("–", "unsupported"),
    "skipped": ("·", "skipped"),
    "infra_error": ("!", "infra error"),
    "lost": ("?", "lost"),
    PENDING: ("…", "pending"),
}
#: Findings, worst first: a wrong number is worse than a visible failure.
HARM = ("inaccurate", "crashed", "timed_out", "compile_error", "out_of_memory")
FARM_FAULTS = ("infra_error", "lost")
SET_ASIDE = ("unsupported", "skipped")
IMPOSSIBLE = "⊘"
#: timing quality -> mark after a number; `impossible` and `none` never have a number.
QUALITY_MARKS: Mapping[str, str] = {"launch_bound": "ʟ", "noisy": "~", "throttled": "↓"}


def glyph(status: str) -> str:
    return STATUSES.get(status, ("¿", ""))[0]


def label(status: str) -> str:
    return STATUSES.get(status, ("", status or "no status"))[1]


def number(value: Any) -> float | None:
    """`value` as a float, or None where it is absent or NaN (Parquet has either for a missing value)."""
    if value is None or isinstance(value, bool | str):
        return None
    return None if math.isnan(float(value)) else float(value)


def count(value: int) -> str:
    return f"{value:,}"


def cells(value: int) -> str:
    return f"{value:,} cell{'' if value == 1 else 's'}"


def sig(value: float, digits: int = 3) -> str:
    """Three significant digits without an exponent: `0.0123`, `12.3`, `12,345`."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"


def ratio(value: float | None) -> str:
    """An error relative to its tolerance: `0.42`, `5.3`, `120`, `2e4`; short enough for a cell of a heat map."""
    if value is None:
        return ""
    if math.isinf(value):
        return "∞"
    if value >= 1e4:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    if value >= 10:
        return f"{value:.0f}"
    if 0.995 <= value < 1.05:  # rounding never moves a value across the tolerance, nor onto it
        text = f"{math.floor(value * 1000) / 1000:.3f}"
        return "1" if value == 1 else (">1" if text == "1.000" else text)
    return f"{value:.1f}" if value >= 1 else (f"{value:.2f}" if value >= 0.01 else ("0" if value == 0 else "<.01"))


def percent(value: float | None) -> str:
    """A share in per cent, without decimals above 10 %."""
    if value is None:
        return ""
    return f"{100 * value:.0f} %" if value >= 0.095 else f"{100 * value:.1f} %"


def duration(seconds: float | None) -> str:
    """`8.4 s`, `4 min 05 s`, `2 h 10 min`."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(nbytes: int) -> str:
    return f"{nbytes} B" if nbytes < 1000 else f"{nbytes / 1e3:,.0f} kB" if nbytes < 1e6 else f"{nbytes / 1e6:,.1f} MB"


def short_dtype(name: str) -> str:
    return SHORT_DTYPES.get(DTYPE_ALIASES.get(name, name), name)


def when(iso: str) -> str:
    """`2026-08-01T02:15:00Z` as `2026-08-01 02:15`."""
    return iso[:16].replace("T", " ")


#: How reasons of older farms name a tolerance: `y.rel_l2 is 0.01, its gate 0.004`.  (No message has the word now.)
_GATE = re.compile(r", (?:its )?[g]ate (?=[-+]?[\d.]|inf|nan)")


def current(reason: str) -> str:
    """A stored reason in the words that reasons have now."""
    return _GATE.sub(", tolerance ", reason)


def clip(text: str, limit: int = 300) -> str:
    """A text on one line, in today's words, of at most so many characters."""
    text = current(" ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"
