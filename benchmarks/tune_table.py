"""From reports of `benchmarks.tune` to the text of `kernels/ops/rms_norm/gpu/tuned.py`."""

from __future__ import annotations

import json

from benchmarks.tune_space import Config, mode_of
from kernels.ops.rms_norm.gpu.choose import DEFAULTS

HEADER = '''"""What `benchmarks/tune.py` found on the chips that were measured.  Pure; made by it, not edited.

    python -m benchmarks.tune --table REPORT.json... > kernels/ops/rms_norm/gpu/tuned.py

{measured}
"""

from __future__ import annotations

import math
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

#: How many times more or fewer rows than the measured shape a configuration is still trusted with (reasoned).
_FAR = 16


def find(target: str, op: str, operation: str, dtype: str, rows: int, hidden: int) -> dict[str, Any] | None:
    """The configuration for a shape: of the shapes measured in the same tile the nearest one; None where there is none.

    Measured on sm_90; sm_100 takes the same (reasoned: the same registers and threads a multiprocessor).
    """
    if target not in ("cuda:90", "cuda:100"):
        return None
    block = 1 << max(hidden - 1, 0).bit_length()
    entries = TABLE.get((op, operation, dtype), ())
    if dtype == "float16":  # as large as bfloat16, which stands in where it was not measured itself
        entries += TABLE.get((op, operation, "bfloat16"), ())
    near = []
    for place, (measured_rows, measured_hidden, config) in enumerate(entries):
        ratio = math.log2(measured_rows / rows)
        same_tile = 1 << max(measured_hidden - 1, 0).bit_length() == block
        same_loads = (measured_hidden % 8 == 0) == (hidden % 8 == 0)  # as wide, or an element at a time
        if same_tile and same_loads and abs(ratio) <= math.log2(_FAR):
            far = abs(ratio) + 4 * abs(math.log2(measured_hidden / hidden))
            near.append((far, place, config))
    return min(near, key=lambda n: n[:2])[2] if near else None
'''


def _text(config: Config) -> str:
    usual = {"rows": 1, "num_stages": 1, "per_core": 0, **DEFAULTS[config["kernel"]]}
    pairs = [f"{k}={v}" for k, v in sorted(config.items()) if k not in ("mode", "kernel") and usual.get(k) != v]
    return " ".join([config["mode"], config["kernel"], *pairs])


def table(reports: list[str], measured: str) -> str:
    """The text of tuned.py: the best configuration of each task of all reports, a later report before an earlier."""
    best: dict[str, Config] = {}
    for path in reports:
        with open(path) as file:
            best.update({name: found["tried"][0][1] for name, found in json.load(file).items()})
    groups: dict[tuple[str, str, str], list[tuple[int, int, Config]]] = {}
    for name, config in best.items():
        op, operation, dtype, shape = name.split("/")
        rows, hidden = (int(n) for n in shape.split("x"))
        groups.setdefault((op, operation, dtype), []).append(
            (rows, hidden, {"mode": mode_of(config, hidden), **config})
        )
    lines = []
    for key in sorted(groups):
        lines.append(f"    {key!r}: (")
        for rows, hidden, config in sorted(groups[key], key=lambda e: (e[1], e[0])):
            lines.append(f'        ({rows}, {hidden}, "{_text(config)}"),')
        lines.append("    ),")
    return HEADER.format(measured=measured, entries="\n".join(lines) + "\n")
