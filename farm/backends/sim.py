"""A fake device that obeys a script, so that the whole control plane runs where there is no accelerator.

A cell's script is a mapping; what is not there does not happen:

    time_us, noise       device time of each sample, and its relative spread
    process_noise        relative standard deviation of a process's times about time_us, drawn for each arm and round
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
    from_round           the above, except times, holds only from this round of a comparison on
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
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.backends import _simulated, api
from farm.backends.api import Counters, HostDevice, Identity, Process, Sample, Session

NAME = "sim"
ACCELERATOR = False
EVIDENCE = "simulated"
DEFAULT_TIMING = "host"
RESOURCE = {"farm_sim": 1}
NOT_YET, TRIAL_CAPTURE, CAPTURE_MAY_KILL, granted = "", False, False, None
FALLBACK_TIMING = api.FALLBACK_TIMING
fault, unfit, complaints, child_options = api.no_fault, api.no_health_check, api.no_complaints, api.no_options
PAUSES: tuple[float, ...] = (0.02, 0.05)  # a fake heals, and frees its memory, sooner than a device
MEMORY_SECONDS = 1.5
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
    return SimReader(_simulated.state_file(spool, device_id, options))


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


def open_session(device_id: str, options: dict[str, Any]) -> Session:
    """In the child.  `options` may delay the start (`start_s`) or refuse it (`refuse`)."""
    time.sleep(float(options.get("start_s", 0)))
    if options.get("refuse"):
        raise RuntimeError(str(options["refuse"]))
    from farm.backends._sim_session import SimSession

    return SimSession(device_id, options)
