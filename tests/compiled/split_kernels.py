"""`python split_kernels.py TARGET CASES.json`: launches the kernels of split.py offline, and prints as JSON what was
compiled.

A case: {"op": "forward" | "backward", "fused", "hidden", "dtype", "config": of `choose.build`}.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch

from farm.compile import amd, nvidia
from farm.compile.offline import offline
from farm.compile.targets import TARGETS
from kernels import launches
from kernels.ops.rms_norm.gpu import choose, launch

ROWS = 8192
NVIDIA = {"sm_90": "cuda:90", "sm_100": "cuda:100"}


def compiled(driver: Any, name: str, case: dict[str, Any]) -> dict[str, Any]:
    dtype, hidden = getattr(torch, case["dtype"]), case["hidden"]

    def matrix(rows: int = ROWS) -> torch.Tensor:
        return torch.empty(rows, hidden, dtype=dtype, device="meta")

    target = NVIDIA.get(name, f"hip:{name}")
    config = {"mode": "static_persistent", "kernel": f"{case['op']}_split", "per_core": 1, **case["config"]}
    choice = choose.build(case["op"], config, ROWS, hidden, dtype.itemsize, 132, target)
    x, weight, rstd = matrix(), matrix(1)[0], torch.empty(ROWS, device="meta")
    other = matrix() if case["fused"] else None
    driver.launches.clear()
    launches.enable()
    launches.drain()
    if case["op"] == "forward":
        launch.forward(choice, x, other, weight, 1e-6, 0.0, True, matrix(), matrix() if case["fused"] else None, rstd)
    else:
        launch.backward(choice, matrix(), other, x, weight, rstd, 0.0, True, matrix(), matrix(1)[0])
    kernel = driver.kernels[driver.launches[0].hash]
    found = {"name": kernel.name, "grid": driver.launches[0].grid, "recorded": launches.drain()[0]["options"]}
    if name not in NVIDIA:
        return {**found, **amd.resources(kernel)}
    text, tiles = kernel.asm["ptx"], kernel.asm["ttgir"]
    (asked,) = (line for line in tiles.splitlines() if "ld.relaxed.gpu" in line)
    lanes, layout = re.search(r"-> tensor<(\d+)xi64, (#\w+)>", asked).groups()  # type: ignore[union-attr]
    return {
        **found,
        **nvidia.resources(kernel),
        "lanes": int(lanes),
        "layout": re.search(rf"{layout} = #ttg\.blocked<(.*?)>", tiles).group(1),  # type: ignore[union-attr]
        "asked": len(re.findall(r"ld\.relaxed\.gpu\.global\.b64", text)),
        "published": re.findall(r"atom\.global[\w.:]*", text),
        "moved": sorted(set(re.findall(r"(?:ld|st)\.global[\w.:]*", text))),
        "copies": sorted({int(n, 16) for n in re.findall(r"cp\.async\.cg\.shared\.global[^;]*, 0x([0-9a-f]+),", text)}),
        "local": "ld.local" in text or "st.local" in text,
        "waits_before": text.index("griddepcontrol.wait")
        < min(text.index(word) for word in ("ld.global", "ld.relaxed", "atom.global", "cp.async") if word in text),
    }


if __name__ == "__main__":
    with offline(TARGETS[sys.argv[1]]) as made:
        print(json.dumps([compiled(made, sys.argv[1], case) for case in json.loads(sys.argv[2])]))
