"""From reports of `benchmarks.tune` to the text of `kernels/ops/rms_norm/gpu/tuned.py`."""

from __future__ import annotations

import json

from benchmarks.tune_space import Config, mode_of
from kernels.ops.rms_norm.gpu import tuned
from kernels.ops.rms_norm.gpu.options import DEFAULTS, RINGS, SPLITS, UNALIGNED

HEADER = '''"""What `benchmarks/tune.py` found on the chips that were measured.  Pure; made by it, not edited.

    python -m benchmarks.tune --table REPORT.json... > kernels/ops/rms_norm/gpu/tuned.py

{measured}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

#: (op, operation, dtype) -> (rows, hidden, configuration): what `choose.build` takes, but for the kernel's defaults.
# fmt: off
_TEXT: dict[tuple[str, str, str], tuple[tuple[int, int, str], ...]] = {{
{entries}}}
# fmt: on


def _value(text: str) -> int | bool | str:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else text


def _parsed(text: str) -> dict[str, Any]:
    """ "mode kernel key=value ..." as a dict."""
    mode, kernel, *pairs = text.split()
    return {{"mode": mode, "kernel": kernel, **{{k: _value(v) for k, v in (p.split("=") for p in pairs)}}}}


#: The same with each configuration parsed.
TABLE: dict[tuple[str, str, str], tuple[tuple[int, int, dict[str, Any]], ...]] = {{
    key: tuple((rows, hidden, _parsed(text)) for rows, hidden, text in entries) for key, entries in _TEXT.items()
}}

#: Measured on sm_90; sm_100 and sm_103 take the same (reasoned: the same registers and threads a multiprocessor).
TARGETS = ("cuda:90", "cuda:100", "cuda:103")
#: How many times fewer rows than the measured shape a configuration is still trusted with, and a forward's with how
#: many times more (reasoned).  A backward's fixed grid loops over any number: more rows only repeat what was measured.
_FAR = 16


def _tile(hidden: int, vector: int, kernel: str) -> int:
    """The tile of a row; the unaligned kernels' holds its whole vectors."""
    columns = hidden // vector * vector if kernel.endswith("_unaligned") else hidden
    return 1 << max(columns - 1, 0).bit_length()


def find(
    target: str,
    op: str,
    operation: str,
    dtype: str,
    rows: int,
    hidden: int,
    serves: Callable[[str, int], bool] = lambda kernel, measured: True,
    own: Mapping[tuple[str, str, str], tuple[tuple[int, int, dict[str, Any]], ...]] = MappingProxyType({{}}),
) -> tuple[int, dict[str, Any]] | None:
    """(measured columns, configuration) for a shape: of the shapes measured in the same tile the nearest one; None
    where there is none.

    `serves` says which kernels, measured at so many columns, can serve; of one shape's configurations the first that
    does was the fastest.  `own`: what was measured on this target besides; it comes first where both are as near.
    """
    vector = 4 if dtype == "float32" else 8  # elements in 16 bytes
    entries: tuple[tuple[int, int, dict[str, Any]], ...] = ()
    for kind in (dtype, "bfloat16") if dtype == "float16" else (dtype,):  # as large, where it was not measured itself
        entries += own.get((op, operation, kind), ())
        entries += TABLE.get((op, operation, kind), ()) if target in TARGETS else ()
    near = []
    for place, (measured_rows, measured_hidden, config) in enumerate(entries):
        ratio, kernel = math.log2(measured_rows / rows), config["kernel"]
        same_tile = _tile(measured_hidden, vector, kernel) == _tile(hidden, vector, kernel)
        same_loads = (measured_hidden % vector == 0) == (hidden % vector == 0)  # in rows that are aligned, or not
        most = math.inf if operation == "backward" else math.log2(_FAR)
        if serves(kernel, measured_hidden) and same_tile and same_loads and -most <= ratio <= math.log2(_FAR):
            far = abs(ratio) + 4 * abs(math.log2(measured_hidden / hidden))
            near.append((far, place, measured_hidden, config))
    return min(near, key=lambda n: n[:2])[2:] if near else None
'''


def _text(config: Config) -> str:
    usual = {"rows": 1, "num_stages": 1, "per_core": 0, **DEFAULTS[config["kernel"]]}
    pairs = [f"{k}={v}" for k, v in sorted(config.items()) if k not in ("mode", "kernel") and usual.get(k) != v]
    return " ".join([config["mode"], config["kernel"], *pairs])


def _kept(tried: list[Config]) -> list[Config]:
    """Of a task's configurations, the fastest first, those that the table holds: the best; where not every tensor, or
    not every machine, can have its kernel, the best of the others to stand in; and the best of unaligned.py in any
    case, which dense rows take before all others."""
    kept: dict[str, Config] = {}
    for config in tried:
        special = config["kernel"] in (*UNALIGNED, *RINGS, *SPLITS)
        kind = config["kernel"] if special else ""
        if kind not in kept and ("" not in kept or kind in UNALIGNED):
            kept[kind] = config
    return list(kept.values())


def _present() -> dict[str, list[Config]]:
    """The tasks of the table that is there, with their configurations."""
    tasks: dict[str, list[Config]] = {}
    for (op, operation, dtype), entries in tuned.TABLE.items():
        for rows, hidden, config in entries:
            tasks.setdefault(f"{op}/{operation}/{dtype}/{rows}x{hidden}", []).append(config)
    return tasks


def table(reports: list[str], measured: str, keep: bool = False) -> str:
    """The text of tuned.py: the best configurations of each task of all reports, a later report before an earlier;
    with `keep` the table that is there stands for the earliest."""
    best: dict[str, list[Config]] = _present() if keep else {}
    for path in reports:
        with open(path) as file:
            best.update({name: _kept([c for _, c in found["tried"]]) for name, found in json.load(file).items()})
    groups: dict[tuple[str, str, str], list[tuple[int, int, Config]]] = {}
    for name, configs in best.items():
        op, operation, dtype, shape = name.split("/")
        rows, hidden = (int(n) for n in shape.split("x"))
        groups.setdefault((op, operation, dtype), []).extend(
            (rows, hidden, config if "mode" in config else {"mode": mode_of(config, hidden), **config})
            for config in configs
        )
    lines = []
    for key in sorted(groups):
        lines.append(f"    {key!r}: (")
        for rows, hidden, config in sorted(groups[key], key=lambda e: (e[1], e[0])):
            lines.append(f'        ({rows}, {hidden}, "{_text(config)}"),')
        lines.append("    ),")
    return HEADER.format(measured=measured, entries="\n".join(lines) + "\n")
