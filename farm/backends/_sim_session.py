"""The session of backend `sim`, in the child: plays each cell's script (`farm.backends.sim` says what one may hold)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farm.backends import _simulated
from farm.cell import spends
from farm.child.protocol import Failed, Measured, Message, Phase, Run, Trial, Tried

#: What a script keeps that does nothing else any more.
_HARMLESS = ("time_us", "noise", "process_noise", "wall_s", "telemetry")


class SimSession:
    """Plays each cell's script."""

    def __init__(self, device_id: str, options: Mapping[str, Any]):
        model = str(options.get("model", "sim-1"))
        self.device_id, self.options = device_id, options
        self.plays = _simulated.played(options)
        self.target: dict[str, Any] = {"backend": "sim", "model": model}
        self.device_name = f"{model} #{device_id}"
        self.fingerprint: dict[str, Any] = {"python": ".".join(map(str, sys.version_info[:3]))}
        self.fingerprint["uuid"] = f"{model}-{device_id}"
        if self.plays:
            self.target = _simulated.target(options)
            self.device_name = f"simulated {self.target['model']} #{device_id}"
            self.fingerprint |= {**_simulated.versions(options), "uuid": _simulated.uuid(device_id, options)}
            self.fingerprint["python"] = ".".join(map(str, sys.version_info[:3]))  # the process's, whatever is played
        self.pipe: int | None = None  # the protocol's own descriptor, from `farm.child`; for lies
        self._leaks: list[bytes] = []
        self._profiled = False
        self._trials = 0
        self._tries: tuple[Any, int] = (None, 0)  # (attempt, how often it was run in this process)

    def run(self, message: Run, say: Callable[[Message], None]) -> Measured | Tried | Failed:
        """One attempt, or one trial of its capture, as scripted."""
        script = dict(message.call.get("sim") or {})
        over = "until_attempt" in script and message.attempt >= int(script["until_attempt"])
        if over or message.round < int(script.get("from_round", 0)):
            script = {k: v for k, v in script.items() if k in _HARMLESS}
        trial = isinstance(message, Trial)
        if not trial:
            self._show(message, script)
        method = message.call.get("timing_override") or message.cell["timing"]["method"]
        try:
            fault = _simulated.behaviour(self.plays or "cuda", str(script["fault"])) if "fault" in script else None
        except ValueError as error:
            return Failed(message.revision, message.round, message.attempt, "infra_error", "harness", str(error))
        if self._profiled and not spends(method):
            reason = f"a process that was already profiled cannot time with {method}"
            return Failed(message.revision, message.round, message.attempt, "infra_error", "harness", reason)
        for phase in ("import", "compile", "check"):
            if not (trial and phase == "check"):  # what a first call meets it meets as soon as there is one
                say(Phase(message.revision, message.round, message.attempt, phase))
            if script.get("hang") == phase or (script.get("hang") is True and phase == "check"):
                time.sleep(1e6)
            if fault and fault.phase == phase:
                return self._fail(message, fault)
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
        samples = _samples(script, message)
        if samples:
            say(Phase(message.revision, message.round, message.attempt, "timing"))
            if script.get("hang") == "timing":
                time.sleep(1e6)
            self._trials += trial
            if trial and script.get("passes_trial"):
                fault = None
            if script.get("after_trials") and not (trial and self._trials > 1):
                fault = None
            if trial and fault and fault.differs:
                return Tried(message.revision, message.round, message.attempt, fault.text, 0.0)
            if fault and fault.phase == "timing" and (method == "rotating_graph" or not fault.graph_only):
                return self._fail(message, fault)
        if trial:
            return Tried(message.revision, message.round, message.attempt, "", float(script.get("compile_s", 0.0)))
        outputs = _outputs(message, float(script.get("error", 0.0)), int(script.get("unwritten", 0)))
        facts = {"mode_resolved": message.cell["mode"], "launch": {"kernels": []}, "flags": [], "check_s": 0.0}
        timing = self._timing(script, method, samples)
        return Measured(message.revision, message.round, message.attempt, outputs, facts, timing)

    def _fail(self, message: Run, fault: _simulated.Behaviour) -> Failed:
        """Fail as the device that is played does; the process may not survive it."""
        if fault.hangs:
            time.sleep(1e6)
        if fault.signal is not None:
            os.write(2, fault.text.encode() + b"\n")  # as the vendor's runtime does, from native code
            os.kill(os.getpid(), fault.signal)
            time.sleep(10)
        ids = (message.revision, message.round, message.attempt)
        text = " ".join(f"{fault.error}: {fault.text}".split())
        if fault.graph_only:
            return Failed(*ids, "capture_failed", "harness", text, fatal=True)
        found = _simulated.classified(self.plays, f"{fault.error}: {fault.text}") if self.plays else None
        if found is None:
            return Failed(*ids, "crashed", "kernel", f"{text} (in phase {fault.phase})", fatal=True)
        reason = "; ".join(w for w in (found.what, f"{text} (in phase {fault.phase})") if w)
        return Failed(*ids, found.status, found.owner, reason, fatal=found.lost)

    def measurer(self, policy: Mapping[str, Any]) -> Any:
        """What `farm calibrate` measures here: a scripted clock."""
        from farm.calibration.scripted import ScriptedDevice

        del policy
        return ScriptedDevice()

    def _timing(self, script: Mapping[str, Any], method: str, samples: list[float]) -> dict[str, Any]:
        """What a real policy would say beside the samples."""
        if not samples:
            return {"method": "none", "samples_us": []}
        self._profiled = self._profiled or spends(method)
        told = {k: script[k] for k in ("floor_us", "outside_us") if k in script}
        host = {"host_us": [float(script["host_us"])] * len(samples)} if "host_us" in script else {}
        return {
            "method": method,
            "samples_us": samples,
            "cold": bool(script.get("cold")),
            "profiled": self._profiled,
            **told,
            **host,
        }

    def _show(self, message: Run, script: Mapping[str, Any]) -> None:
        """Write what the device says of itself from now on."""
        attempt = (message.cell["index"], message.attempt)
        count = self._tries[1] + 1 if self._tries[0] == attempt else 1
        self._tries = (attempt, count)
        said = dict(script.get("telemetry") or {})
        if count >= int(said.pop("until_try", count + 1)):
            said = {}
        file = _simulated.state_file(Path(message.out_dir).parent, self.device_id, self.options)
        state: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            state = json.loads(file.read_text(encoding="utf-8"))
        state["ecc_uncorrected"] = state.get("ecc_uncorrected", 0) + int(said.pop("ecc_uncorrected", 0))
        state["xid"] = [*state.get("xid", []), *said.pop("xid", [])]
        if script.get("keep_mib"):
            state["keep_mib"] = float(script["keep_mib"])
            state["keep_until"] = time.time() + float(script.get("keep_s", 1e9))
        state.update(pid=os.getpid(), telemetry=said)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(file)  # a reader sees the old state or the new one


def _samples(script: dict[str, Any], message: Run) -> list[float]:
    policy, cell = message.cell["timing"], message.cell
    if policy["method"] == "none" or "time_us" not in script:
        return []
    import random

    dice = random.Random(cell["seed"])
    time_us, noise = float(script["time_us"]), float(script.get("noise", 0.0))
    if script.get("process_noise"):
        process = random.Random(f"{cell['cell_key']} {cell.get('arm', '')} {message.round}")
        time_us *= 1 + float(script["process_noise"]) * process.gauss(0, 1)
    return [time_us * (1 + noise * dice.uniform(-1, 1)) for _ in range(int(policy["min_samples"]))]


def _outputs(message: Run, error: float, unwritten: int) -> list[dict[str, Any]]:
    """The contract's own answer, bent as the script says: a fake may know what a kernel under test may not."""
    import numpy as np

    from farm.accuracy import dtypes
    from farm.cell import Cell
    from farm.contracts.discovery import contract

    cell = Cell.from_dict(message.cell)
    op = contract(cell.op)
    rows = (0, next(iter(cell.dims.values())))
    kinds = {t.name: t.dtype for t in op.tensors(cell)}
    inputs = {
        t["name"]: dtypes.decode(
            np.fromfile(t["file"], dtype=dtypes.storage_dtype(t["dtype"])).reshape(t["shape"]), kinds[t["name"]]
        )
        for t in message.tensors
        if t.get("file")
    }
    reference = op.reference(inputs, cell, rows)
    out = []
    for t in message.tensors:
        if t["role"] not in ("output", "gradient", "mutated"):
            continue
        value = np.asarray(reference[t["name"]]).reshape(t["shape"])
        if value.dtype.kind == "f":
            value = value * (1.0 + error)
            value.reshape(-1)[:unwritten] = np.nan
        path = Path(message.out_dir, f"out-{t['name']}.bin")
        dtypes.encode(value, t["dtype"]).tofile(path)
        out.append({"name": t["name"], "path": str(path), "dtype": t["dtype"], "shape": list(t["shape"])})
    return out
