"""A fake device that obeys a script, so that the whole control plane runs where there is no accelerator.

A cell's script is a mapping; what is not there does not happen:

    time_us, noise       device time of each sample, and its relative spread
    cold, floor_us       what its policy says of itself: whether inputs came from memory, its launch floor
    host_us, outside_us  the host's time of a call; how long the device worked on after the timed stream had finished
    wall_s               how long the attempt really takes
    error                relative error of every output element (0.01: one per cent too large)
    unwritten            leave this many elements NaN
    status, owner, reason    fail with this status
    exit, signal         end the process with this code, or by this signal
    hang                 never answer (true, or the phase to hang in)
    leak_mib             memory the process takes and keeps
    lie                  write this text (true: nonsense) on the private pipe, where only messages belong
    until_attempt        the above holds only for attempts below this number
    telemetry            what the fake device says of itself while the cell is timed: sm_clock_mhz, mem_clock_mhz,
                         temperature_c, power_w, throttle (list of reasons), foreign (list of names); ecc_uncorrected
                         and xid (list), which it adds to its counters; with until_try, only in tries below that number
    keep_mib, keep_s     device memory that stays in use when the process ends, and for how long (else for good)
    fault                fail as a device of the backend that is played does: illegal_access, hang, ub_overflow, aicore,
                         abort, capture (`farm.backends._simulated`); classified by that backend's own `fault`.  Where
                         rocm is played also capture_refused, capture_hang, capture_differs
    passes_trial         the fault is not met in a trial of the cell's capture (true)
    after_trials         it is met only in a trial that is not the first of its process (true)

A node's configuration may say `simulate:` and a backend; its devices are then fakes that play devices of that backend
(option `as`): target, identity and failures are the vendor's, the name begins with `simulated`.

A fake is the run's own and needs no lock.  One that plays a vendor's device on a node with a configuration, or any with
FARM_SIM_HOST in the environment, is device N of a host of a name, which all farms on this machine share as they would
share an accelerator.  Its state is a file in the run's spool, so that the supervising side reads it as a driver is
read: also while the process hangs, and after it died.

Its evidence is `simulated`: it proves something of the farm and nothing of a kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farm.backends import HostDevice, Identity, _simulated
from farm.child.protocol import Failed, Measured, Message, Phase, Run, Trial, Tried
from farm.guard.telemetry import Counters, Process, Sample
from farm.timing.methods import spends

NAME = "sim"
ACCELERATOR = False
EVIDENCE = "simulated"
DEFAULT_TIMING = "host"
RESOURCE = {"farm_sim": 1}
PAUSES, MEMORY_SECONDS = (0.02, 0.05), 1.5
AT_REST = {"sm_clock_mhz": 1500.0, "mem_clock_mhz": 2600.0, "temperature_c": 40.0, "power_w": 100.0}


def peaks(model: str) -> tuple[float, float] | None:
    """(memory bandwidth in 1e9 B/s, matrix rate in 1e12 op/s) of a fake's made-up datasheet."""
    del model
    return (1200.0, 200.0)


def detect(count: int | None = None) -> list[HostDevice]:
    """`count` fakes (2 unless asked for otherwise)."""
    return [HostDevice(id=str(i), name="sim-1") for i in range(count or 2)]


def child_env(device_id: str) -> dict[str, str]:
    """A fake needs no mask; one thread keeps NumPy from filling the host."""
    del device_id
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def physical_id(device_id: str, options: Mapping[str, Any]) -> str:
    """What the fake's lock is named by: nothing, unless it stands on a host of a name, where others share it."""
    return f"sim-{_simulated.place(options)}-{device_id}" if _simulated.host(options) else ""


def identity(device_id: str, options: Mapping[str, Any]) -> Identity | None:
    """Who the fake says it is where it plays a vendor's device, else None."""
    return _simulated.identity(device_id, options)


def telemetry(device_id: str, options: Mapping[str, Any], spool: str) -> SimReader:
    """What the fake says of itself to the supervising side."""
    return SimReader(_state_file(spool, device_id, options))


def _state_file(spool: str | Path, device_id: str, options: Mapping[str, Any]) -> Path:
    """One file a fake: several hosts that this machine pretends to be may share a spool."""
    return Path(spool, "-".join(w for w in ("sim-device", _simulated.place(options), device_id) if w) + ".json")


class SimReader:
    """Reads the state that the fake's process writes.  At rest: 1500 MHz, 40 degrees, 100 W, no reason."""

    def __init__(self, file: Path):
        self._file = file

    def _state(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self._file.read_text(encoding="utf-8")))
        return {}

    def sample(self) -> Sample:
        said = self._state().get("telemetry", {})
        now = {name: said.get(name, rest) for name, rest in AT_REST.items()}
        return Sample(0.0, **now, throttle=tuple(said.get("throttle", ())))

    def counters(self) -> Counters:
        state = self._state()
        processes = [Process(int(state["pid"]), "sim")] if "pid" in state else []
        processes += [Process(10_000_000 + i, n) for i, n in enumerate(state.get("telemetry", {}).get("foreign", ()))]
        return Counters(state.get("ecc_uncorrected", 0), tuple(state.get("xid", ())), tuple(processes))

    def memory_used_mib(self) -> float | None:
        state = self._state()
        kept = 0.0 if time.time() > state.get("keep_until", 0) else float(state.get("keep_mib", 0))
        return 512.0 + kept

    def close(self) -> None:
        return


def open_session(device_id: str, options: dict[str, Any]) -> SimSession:
    """In the child.  `options` may delay the start (`start_s`) or refuse it (`refuse`)."""
    time.sleep(float(options.get("start_s", 0)))
    if options.get("refuse"):
        raise RuntimeError(str(options["refuse"]))
    return SimSession(device_id, options)


class SimSession:
    """Plays each cell's script."""

    def __init__(self, device_id: str, options: Mapping[str, Any]):
        model = str(options.get("model", "sim-1"))
        self.device_id, self.options = device_id, options
        self.plays = _simulated.played(options)
        self.target: dict[str, Any] = {"backend": NAME, "model": model}
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
        if "until_attempt" in script and message.attempt >= int(script["until_attempt"]):
            script = {k: v for k, v in script.items() if k in ("time_us", "noise", "wall_s", "telemetry")}
        trial = isinstance(message, Trial)
        if not trial:
            self._show(message, script)
        method = message.call.get("timing_override") or message.cell["timing"]["method"]
        try:
            fault = _simulated.behaviour(self.plays or "cuda", str(script["fault"])) if "fault" in script else None
        except ValueError as error:
            return Failed(message.revision, message.round, message.attempt, "infra_error", "harness", str(error))
        if self._profiled and not spends(method):
            reason = f"a process that the profiler has spent was asked to time by {method}"
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
        samples = _samples(script, message.cell["timing"], message.cell["seed"])
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
        return {"method": method, "samples_us": samples, "cold": bool(script.get("cold")), "profiled": self._profiled,
                **told, **host}  # fmt: skip

    def _show(self, message: Run, script: Mapping[str, Any]) -> None:
        """Write what the device says of itself from now on."""
        attempt = (message.cell["index"], message.attempt)
        count = self._tries[1] + 1 if self._tries[0] == attempt else 1
        self._tries = (attempt, count)
        said = dict(script.get("telemetry") or {})
        if count >= int(said.pop("until_try", count + 1)):
            said = {}
        file = _state_file(Path(message.out_dir).parent, self.device_id, self.options)
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
