"""`python ring_kernels.py TARGET CASES.json`: launches the ring kernels offline, and prints what was compiled as JSON.

A case: {"op": "forward" | "backward", "fused", "hidden", "dtype", "config": of `choose.build`, "shift": by how many
elements x begins after a multiple of 16 bytes, "weight_shift": the weight, "weight": its dtype where that is another}.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch

from farm.compile import nvidia
from farm.compile.offline import constants, offline
from farm.compile.targets import TARGETS
from kernels import launches
from kernels.ops.rms_norm.gpu import choose, launch

ROWS = 8192


def compiled(driver: Any, case: dict[str, Any]) -> dict[str, Any]:
    dtype, hidden = getattr(torch, case["dtype"]), case["hidden"]

    def matrix(rows: int = ROWS) -> torch.Tensor:
        return torch.empty(rows, hidden, dtype=dtype, device="meta")

    x = torch.empty(ROWS * hidden + 8, dtype=dtype, device="meta")[case.get("shift", 0) :][: ROWS * hidden]
    x, rstd = x.view(ROWS, hidden), torch.empty(ROWS, device="meta")
    parameters = torch.empty(hidden + 8, dtype=getattr(torch, case.get("weight", case["dtype"])), device="meta")
    weight = parameters[case.get("weight_shift", 0) :][:hidden]
    config = {"mode": "static_persistent", "kernel": f"{case['op']}_ring", "per_core": 1, **case["config"]}
    choice = choose.build(case["op"], config, ROWS, hidden, dtype.itemsize, 132, "cuda:90")
    other = matrix() if case["fused"] else None
    driver.launches.clear()
    launches.enable()
    launches.drain()
    if case["op"] == "forward":
        total = matrix() if case["fused"] else None
        launch.forward(choice, x, other, weight, 1e-6, 0.0, True, matrix(), total, rstd)
    else:
        launch.backward(choice, matrix(), other, x, weight, rstd, 0.0, True, matrix(), matrix(1)[0])
    kernel = driver.kernels[driver.launches[0].hash]
    text = kernel.asm["ptx"]
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*, 0x([0-9a-f]+),", text)
    return {
        **nvidia.resources(kernel),
        "name": kernel.name,
        "constants": constants(kernel),
        "recorded": launches.drain()[0]["options"],
        "copies": [int(size, 16) for size in copies],
        "waits": [int(n) for n in re.findall(r"cp\.async\.wait_group\s+(\d+)", text)],
        "loads": sorted(set(re.findall(r"ld\.global[\w.:]*", text))),
        "stores": sorted(set(re.findall(r"st\.global[\w.:]*", text))),
        "barriers": len(re.findall(r"bar\.sync", text)),
        "dependents": "griddepcontrol.wait" in text,
    }


if __name__ == "__main__":
    with offline(TARGETS[sys.argv[1]]) as made:
        print(json.dumps([compiled(made, case) for case in json.loads(sys.argv[2])]))
