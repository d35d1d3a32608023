"""One device's actor, driven without a coordinator: real children, real judges, its events as a list."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.actor.device import DeviceActor
from farm.contracts.call import call_for
from farm.contracts.discovery import contract
from farm.judge.pool import LocalJudges
from farm.matrix import load_files
from farm.matrix import plan as make_plan
from farm.matrix.sim_script import script_for
from farm.node.environment import Environment

DEADLINES = {"spawn": 60.0, "import": 20.0, "compile": 20.0, "check": 20.0, "timing": 20.0, "teardown": 5.0}


class OneDevice:
    """`backend` is what its cells are of; the node's configuration is what $FARM_NODE says."""

    def __init__(self, folder: Path, backend: str = "sim", **config: Any):
        self.folder, self.backend = folder, backend
        self.spool = folder / "spool"
        self.spool.mkdir(parents=True, exist_ok=True)
        self.judges = LocalJudges(str(self.spool), 1)
        self.events: list[dict[str, Any]] = []
        self._unread: list[dict[str, Any]] = []
        environment = config.pop("environment", Environment.named("default"))
        self.actor = DeviceActor(
            {
                "device": f"{backend}:0",
                "backend": backend,
                "device_id": "0",
                "revision": "r",
                "environment": environment.plain(),
                "deadlines": DEADLINES,
                "spool": str(self.spool),
                "run_id": "t",
                **config,
            },
            self.judges,
        )

    def wait(self, *kinds: str, seconds: float = 60.0) -> dict[str, Any]:
        """The next event of these kinds; all are kept."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._unread = self._unread or self.actor.poll(0.2)
            while self._unread:
                self.events.append(self._unread.pop(0))
                if self.events[-1]["event"] in kinds:
                    return self.events[-1]
        raise AssertionError(f"no {' or '.join(kinds)} within {seconds:g} s: {json.dumps(self.events)[:2000]}")

    def up(self, seconds: float = 60.0) -> dict[str, Any]:
        """Its `device_up`, or its `device_down` where it does not come up."""
        return self.wait("device_up", "device_down", seconds=seconds)

    def run(
        self,
        script: Mapping[str, Any] | None = None,
        *,
        hidden: int = 64,
        method: str = "host",
        deadlines: Mapping[str, float] | None = None,
        number: int = 1,
        last: bool = False,
        rows: int = 2,
        provider: str = "torch",
        seconds: float = 60.0,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the `measured` event or {}, the event that ended it) of one cell of rms_norm."""
        cell = self.cell(hidden, method, rows, provider)
        call = call_for(cell, contract(cell.op), {"name": cell.provider})
        call["sim"] = script_for({"default": {"time_us": 10, **(script or {})}}, cell)
        attempt = {
            "cell": cell.to_dict(),
            "number": number,
            "round": 0,
            "last": last,
            "call": call,
            "tolerances": [],
            "deadlines": dict(deadlines or {}),
        }
        seen = len(self.events)
        self.actor.submit({"id": 1, "attempts": [attempt]})
        ended = self.wait("judged", "ended", "device_down", seconds=seconds)
        measured = [e for e in self.events[seen:] if e["event"] == "measured"]
        return (measured[0] if measured else {}), ended

    def cell(self, hidden: int, method: str, rows: int = 2, provider: str = "torch") -> Any:
        file = self.folder / "m.yaml"
        file.write_text(
            json.dumps(
                {
                    "name": "one",
                    "op": "rms_norm",
                    "providers": [provider],
                    "axes": {"shape": [{"rows": rows, "hidden": hidden}], "dtype": "float32"},
                    "timing": {"method": method},
                }
            )
        )
        (cell,) = make_plan(load_files([file]), [self.backend]).cells
        return cell

    def stop(self) -> None:
        self.actor.stop()
        self.judges.close()
