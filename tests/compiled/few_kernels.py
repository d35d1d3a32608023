"""`python few_kernels.py TARGET CASES.json`: launches the kernels of few.py offline, and prints as JSON what was
compiled, the two launches of each case.

A case: {"op": "forward" | "backward", "fused", "rows", "hidden", "dtype", "pdl"}; its configuration is that of fit.py.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch

from farm.compile import nvidia
from farm.compile.offline import offline
from farm.compile.targets import TARGETS
from kernels.ops.rms_norm.gpu import choose, fit, launch

_EVENT = re.compile(r"griddepcontrol\.\w+|(?:ld|st|atom|red)\.global[\w.:]*")


def compiled(driver: Any, name: str, case: dict[str, Any]) -> list[dict[str, Any]]:
    dtype, rows, hidden = getattr(torch, case["dtype"]), case["rows"], case["hidden"]
    cores, target = TARGETS[name].cores, f"cuda:{TARGETS[name].arch}"

    def matrix(count: int = rows) -> torch.Tensor:
        return torch.empty(count, hidden, dtype=dtype, device="meta")

    config = {**(fit.few_rows(case["op"], rows, hidden, dtype.itemsize, cores) or {}), "pdl": case["pdl"]}
    choice = choose.build(case["op"], config, rows, hidden, dtype.itemsize, cores, target)
    x, weight, rstd = matrix(), matrix(1)[0], torch.empty(rows, device="meta")
    other = matrix() if case["fused"] else None
    driver.launches.clear()
    if case["op"] == "forward":
        launch.forward(choice, x, other, weight, 1e-6, 0.0, True, matrix(), matrix() if case["fused"] else None, rstd)
    else:
        launch.backward(choice, matrix(), other, x, weight, rstd, 0.0, True, matrix(), matrix(1)[0])
    found = []
    for launched in driver.launches:
        kernel = driver.kernels[launched.hash]
        events = _EVENT.findall(kernel.asm["ptx"])
        found.append({"name": kernel.name, "grid": launched.grid, "events": events, **nvidia.resources(kernel)})
    return found


if __name__ == "__main__":
    with offline(TARGETS[sys.argv[1]]) as made:
        print(json.dumps([compiled(made, sys.argv[1], case) for case in json.loads(sys.argv[2])]))
