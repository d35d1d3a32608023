"""A fake device that obeys a script, so that the whole control plane runs where there is no accelerator.

A cell's script is a mapping; what is not there does not happen:

    time_us, noise       device time of each sample, and its relative spread
    wall_s               how long the attempt really takes
    error                relative error of every output element (0.01: one per cent too large)
    unwritten            leave this many elements NaN
    status, owner, reason    fail with this status
    exit, signal         end the process with this code, or by this signal
    hang                 never answer (true, or the phase to hang in)
    leak_mib             memory the process takes and keeps
    lie                  write this text (true: nonsense) on the private pipe, where only messages belong
    until_attempt        the above holds only for attempts below this number

Its evidence is `simulated`: it proves something of the farm and nothing of a kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.backends import HostDevice
from farm.child.protocol import Failed, Measured, Message, Phase, Run

NAME = "sim"
ACCELERATOR = False
EVIDENCE = "simulated"
DEFAULT_TIMING = "host"
RESOURCE = {"farm_sim": 1}


def detect(count: int | None = None) -> list[HostDevice]:
    """`count` fakes (2 unless asked for otherwise)."""
    return [HostDevice(id=str(i), name="sim-1") for i in range(count or 2)]


def child_env(device_id: str) -> dict[str, str]:
    """A fake needs no mask; one thread keeps NumPy from filling the host."""
    del device_id
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def open_session(device_id: str, options: dict[str, Any]) -> SimSession:
    """In the child.  `options` may delay the start (`start_s`) or refuse it (`refuse`)."""
    time.sleep(float(options.get("start_s", 0)))
    if options.get("refuse"):
        raise RuntimeError(str(options["refuse"]))
    return SimSession(device_id, str(options.get("model", "sim-1")))


class SimSession:
    """Plays each cell's script."""

    def __init__(self, device_id: str, model: str):
        self.target: dict[str, Any] = {"backend": NAME, "model": model}
        self.device_name = f"{model} #{device_id}"
        self.fingerprint: dict[str, Any] = {"python": ".".join(map(str, __import__("sys").version_info[:3]))}
        self.pipe: int | None = None  # the protocol's own descriptor, from `farm.child`; for lies
        self._leaks: list[bytes] = []

    def run(self, message: Run, say: Callable[[Message], None]) -> Measured | Failed:
        """One attempt, as scripted."""
        script = dict(message.call.get("sim") or {})
        if "until_attempt" in script and message.attempt >= int(script["until_attempt"]):
            script = {k: v for k, v in script.items() if k in ("time_us", "noise", "wall_s")}
        for phase in ("import", "compile", "check"):
            say(Phase(message.revision, message.round, message.attempt, phase))
            if script.get("hang") == phase or (script.get("hang") is True and phase == "check"):
                time.sleep(1e6)
        if script.get("leak_mib"):
            self._leaks.append(b"\x01" * (int(script["leak_mib"]) << 20))
        time.sleep(float(script.get("wall_s", 0.001)))
        if script.get("lie"):
            told = script["lie"] if isinstance(script["lie"], str) else "all cells passed"
            os.write(2 if self.pipe is None else self.pipe, told.encode() + b"\n")
        if "signal" in script:
            os.kill(os.getpid(), int(script["signal"]))
            time.sleep(10)
        if "exit" in script:
            os._exit(int(script["exit"]))
        if "status" in script:
            return Failed(
                message.revision,
                message.round,
                message.attempt,
                str(script["status"]),
                str(script.get("owner", "kernel")),
                str(script.get("reason", "scripted")),
            )
        outputs = _outputs(message, float(script.get("error", 0.0)), int(script.get("unwritten", 0)))
        facts = {"mode_resolved": message.cell["mode"], "launch": {"kernels": []}, "flags": [], "check_s": 0.0}
        samples = _samples(script, message.cell["timing"], message.cell["seed"])
        timing = {"method": "host" if samples else "none", "samples_us": samples, "cold": False}
        return Measured(message.revision, message.round, message.attempt, outputs, facts, timing)


def _samples(script: dict[str, Any], policy: dict[str, Any], seed: int) -> list[float]:
    if policy["method"] == "none" or "time_us" not in script:
        return []
    import random

    dice = random.Random(seed)
    time_us, noise = float(script["time_us"]), float(script.get("noise", 0.0))
    return [time_us * (1 + noise * dice.uniform(-1, 1)) for _ in range(int(policy["min_samples"]))]


def _outputs(message: Run, error: float, unwritten: int) -> list[dict[str, Any]]:
    """The contract's own answer, bent as the script says: a fake may know what a kernel under test may not."""
    import numpy as np

    from farm.accuracy import dtypes
    from farm.cell import Cell
    from farm.ops import contract

    cell = Cell.from_dict(message.cell)
    op = contract(cell.op)
    rows = (0, next(iter(cell.dims.values())))
    inputs = {
        t["name"]: dtypes.decode(
            np.fromfile(t["file"], dtype=dtypes.storage_dtype(t["dtype"])).reshape(t["shape"]), t["dtype"]
        )
        for t in message.tensors
        if t.get("file")
    }
    reference = op.reference(inputs, cell, rows)
    out = []
    for t in message.tensors:
        if t["role"] not in ("output", "gradient"):
            continue
        value = np.asarray(reference[t["name"]]).reshape(t["shape"])
        if value.dtype.kind == "f":
            value = value * (1.0 + error)
            value.reshape(-1)[:unwritten] = np.nan
        path = Path(message.out_dir, f"out-{t['name']}.bin")
        dtypes.encode(value, t["dtype"]).tofile(path)
        out.append({"name": t["name"], "path": str(path), "dtype": t["dtype"], "shape": list(t["shape"])})
    return out
