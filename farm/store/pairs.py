"""The tables of a run that compares two arms: rounds.parquet and pairs.parquet.  Pure.

rounds.parquet   one row for each cell in each round that both of its arms ended, whether or not it gave a time
pairs.parquet    one row for each cell of either arm: what both results, and all rounds, say of b against a
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.cell import ARM, Quality

#: `cell`: the id without the arm; `place`: 1 for the arm that ran first in its round; `stage`: what the round was run
#: for (screen, decide, redo, confirm), "" where the cell was not timed further.
ROUND_COLUMNS: dict[str, str] = {
    **dict.fromkeys(("cell", "cell_id", "cell_key", "arm"), "text"),
    **dict.fromkeys(("round", "place"), "int"),
    "stage": "text",
    "attempt": "int",
    **dict.fromkeys(("device", "node", "target", "status", "reason"), "text"),
    "time_us_p50": "float",
    "samples": "int",
    **dict.fromkeys(("timing_quality", "throttle"), "text"),
    "host_us_p50": "float",
    "output_hash": "text",
    "started": "float",
}
_OF_ROW = tuple(c for c in ROUND_COLUMNS if c not in ("cell", "arm", "round", "place", "stage"))
#: Columns of pairs.parquet that both arms have, with `_a` and `_b` at the end, by kind.
_BOTH: dict[str, str] = {
    **dict.fromkeys(("cell_id", "cell_key", "provider", "mode", "mode_resolved", "status", "reason"), "text"),
    **dict.fromkeys(("time_us", "bandwidth_gbps", "worst_ratio", "peak_memory_mib", "host_us"), "float"),
    **dict.fromkeys(("compile_s", "tuning_s"), "float"),
    **dict.fromkeys(("launch", "output_hash"), "text"),
}
#: `change`: of the statuses (farm.report.status_changes); `verdict`: of the times, "" where it was not timed; `ratio`:
#: time of b over that of a, with the bounds of its 99 % interval; `threshold`, `sigma`: relative; `rounds`: that count;
#: `kernels`: those that it launches and that differ between the arms, separated by commas;
#: `bits`: 1 where both arms gave the same output bits in the first round; `control`: 1 where both are the same code.
PAIR_COLUMNS: dict[str, str] = {
    **dict.fromkeys(
        ("cell", "backend", "target", "evidence", "op", "role", "operation", "dtype", "shape", "dims", "change"), "text"
    ),
    **dict.fromkeys(("verdict", "stage"), "text"),
    **dict.fromkeys(("ratio", "low", "high", "threshold", "sigma"), "float"),
    **dict.fromkeys(("rounds", "bits", "control"), "int"),
    **{f"{name}_{arm}": kind for name, kind in _BOTH.items() for arm in ("a", "b")},
    **dict.fromkeys(("kernels", "note"), "text"),
}
PER_ARM = tuple(_BOTH)
#: Qualities of a timing that say nothing of the code.
_NO_TIME = (Quality.IMPOSSIBLE.value, Quality.NONE.value, Quality.THROTTLED.value)


def without_arm(cell_id: str) -> str:
    """The id of a cell as it is without arms."""
    return cell_id.rpartition(ARM)[0] or cell_id


def round_row(row: Mapping[str, Any], number: int, place: int) -> dict[str, Any]:
    """The row of rounds.parquet of one arm, from all that is known of its cell in that round."""
    cell_id = str(row["cell_id"])
    told = {name: row.get(name) for name in _OF_ROW}
    return {"cell": without_arm(cell_id), "arm": cell_id.rpartition(ARM)[2], "round": number, "place": place, **told}


def time_of(row: Mapping[str, Any]) -> float | None:
    """The time that a round gave, in microseconds; None for none that counts."""
    found = row.get("time_us_p50")
    counts = row["status"] == "passed" and row.get("timing_quality") not in _NO_TIME
    return float(found) if counts and found else None


def comparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two results may be compared: made on one device, in one state of it."""
    return bool(a.get("device")) and a.get("device") == b.get("device") and a.get("target") == b.get("target")
