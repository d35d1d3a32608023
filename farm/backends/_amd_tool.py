"""AMD's command `amd-smi`, where its Python package cannot be imported: one reading in seconds.

Words and fields are those of "AMD SMI CLI tool usage" (rocm.docs.amd.com/projects/amdsmi, read 2026-11-21).  With
`--json` each section of its text is an object in lower case; a value is plain, {"value": n, "unit": u}, or "N/A".  The
list of GPUs is bare, or, in newer releases, under "gpu_data"; warnings may stand before it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from farm.backends import _amd
from farm.backends._amd import Found
from farm.backends.api import Counters, Identity, Process, Sample
from farm.process import command, host

#: Seconds that the tool may take.  It is a Python program that opens every device.
DEADLINE_S = 30.0
#: What it said is good for so many seconds.
KEPT_SECONDS = 5.0
#: Its words for what throttles, by a part of the field's name -> reason of farm.guard.telemetry.
_VIOLATIONS = (
    ("prochot", "hw_thermal"),
    ("ppt", "sw_power_cap"),
    ("socket_thermal", "sw_thermal"),
    ("vr_thermal", "hw_thermal"),
    ("hbm_thermal", "hw_thermal"),
)
Smi = Callable[..., str]


def smi(*words: str, deadline_s: float | None = None) -> str:
    """What `amd-smi WORDS` prints; "" where there is none, it fails, or it does not answer in time."""
    beside = Path(os.environ.get("ROCM_PATH") or "/opt/rocm", "bin", "amd-smi")
    tool = shutil.which("amd-smi") or shutil.which(str(beside))
    if not tool:
        return ""
    with contextlib.suppress(OSError):
        done = command.run([tool, *words], DEADLINE_S if deadline_s is None else deadline_s)
        return "" if done.code is None else done.out
    return ""


def entries(text: str) -> list[dict[str, Any]]:
    """The GPUs of a `--json` answer, whatever stands before it; [] for what is none."""
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        line_end = text.find("\n", at)
        if text[at : at + 1] in ("[", "{"):
            with contextlib.suppress(ValueError):
                found, _ = decoder.raw_decode(text, at)
                listed = found.get("gpu_data", [found] if "gpu" in found else []) if isinstance(found, dict) else found
                if isinstance(listed, list):
                    return [e for e in listed if isinstance(e, dict) and "gpu" in e]
        at = len(text) if line_end < 0 else line_end + 1
    return []


def listing(smi: Smi) -> list[Found]:
    """The host's GPUs and partitions, in the order of ROCm's runtimes; [] where the tool tells none."""
    listed = entries(smi("list", "--json"))
    if not listed:
        return []
    asics = {str(e["gpu"]): _section(e, "asic") for e in entries(smi("static", "--asic", "--json"))}
    counted = {str(e["gpu"]): e for e in entries(smi("list", "-e", "--json"))}
    found: list[Found] = []
    for entry in listed:
        gpu = str(entry["gpu"])
        asic, more = asics.get(gpu, {}), counted.get(gpu, {})
        place, function = _amd.located(entry.get("bdf", ""))
        partition = _amd.integer(entry.get("partition_id"))
        device = _amd.integer(asic.get("device_id"))
        uuids = dict.fromkeys(u for u in (_amd.text(more.get("hip_uuid")), _amd.text(entry.get("uuid"))) if u)
        found.append(
            Found(
                gpu,
                _amd.part(asic.get("market_name", ""), device),
                place,
                function if partition is None else partition,
                tuple(uuids),
                device,
                gpu,
            )
        )
    return _amd.numbered(found, [counted.get(d.tool, {}).get("hip_id") for d in found])


def identity(smi: Smi, device: Found) -> Identity:
    """What the device is, by two calls of the tool; ROCm's version is not its business here."""
    which = ("--gpu", device.tool)
    static = _one(smi("static", *which, "--asic", "--driver", "--limit", "--partition", "--json"), device.tool)
    static = static or _one(smi("static", *which, "--json"), device.tool)
    metric = _one(smi("metric", *which, "--clock", "--perf-level", "--json"), device.tool)
    modes = _section(static, "partition")
    compute = modes.get("compute_partition", modes.get("accelerator_partition"))
    return Identity(
        device.name,
        device.uuids[0] if device.uuids else "",
        _amd.partition(_amd.text(compute), _amd.text(modes.get("memory_partition"))),
        _limit(_section(static, "limit")),
        _amd.clocks(metric.get("perf_level"), _clock(metric, "gfx", "max_clk")),
        _amd.text(_section(static, "driver").get("version")),
        module=f"amd-{device.place}" if device.place else "",
    )


def _one(text: str, gpu: str) -> dict[str, Any]:
    return next((e for e in entries(text) if str(e["gpu"]) == gpu), {})


def _section(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = entry.get(name)
    return found if isinstance(found, Mapping) else {}


def _limit(limit: Mapping[str, Any]) -> int | None:
    """The power limit in W: under "socket_power", or, from ROCm 7 on, under the lower of two points."""
    return _amd.watts(limit.get("socket_power")) or _amd.watts(_section(limit, "ppt0").get("socket_power_limit"))


def _clock(metric: Mapping[str, Any], kind: str, field: str) -> float | None:
    """The mean over the dies of a clock domain's field, MHz: "gfx_0", "gfx_1", ... or "mem_0"."""
    domains = [v for k, v in _section(metric, "clock").items() if k.startswith(f"{kind}_") and isinstance(v, Mapping)]
    values = [v for v in (_amd.number(d.get(field)) for d in domains) if v]
    return sum(values) / len(values) if values else None


def sampled(metric: Mapping[str, Any]) -> Sample:
    """One GPU of `amd-smi metric --json`."""
    power, temperature = _section(metric, "power"), _section(metric, "temperature")
    told = [(name, value) for name, value in _deep(metric) if name.endswith("violation_status")]
    reasons = [r for name, value in told for part, r in _VIOLATIONS if part in name and value == "ACTIVE"]
    known = any(value in ("ACTIVE", "NOT ACTIVE") for _, value in told)
    if not known and _amd.text(power.get("throttle_status")):
        known, reasons = True, ["hw_slowdown"] if power["throttle_status"] == "THROTTLED" else []
    if known and _amd.clocks(metric.get("perf_level"), None):
        reasons.append("clocks_set")
    return Sample(
        0.0,
        _clock(metric, "gfx", "clk"),
        _clock(metric, "mem", "clk"),
        _amd.celsius(temperature.get("hotspot")),
        _amd.number(power.get("socket_power")),
        tuple(dict.fromkeys(reasons)) if known else None,
    )


def _deep(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _deep(inner, str(key))
    else:
        yield name, value


def processes(text: str, gpu: str) -> list[int] | None:
    """Pids of `amd-smi process --json`; None where it tells nothing of that GPU."""
    entry = _one(text, gpu)
    listed = entry.get("process_list")
    if not isinstance(listed, list):
        return None
    infos = [p.get("process_info") for p in listed if isinstance(p, Mapping)]
    pids = [_amd.integer(i.get("pid")) for i in infos if isinstance(i, Mapping)]
    return [p for p in pids if p]


class ToolReader:
    """One device by the tool; what the first partition alone can tell is read there."""

    def __init__(self, device: Found, whole: Found, smi: Smi):
        self._device, self._whole, self._smi = device, whole, smi
        self._kept: dict[str, tuple[float, Any]] = {}

    def sample(self) -> Sample:
        return sampled(self._metric(self._whole))

    def counters(self) -> Counters:
        errors = _amd.number(_section(self._metric(self._whole), "ecc").get("total_uncorrectable_count"))
        pids = self._lately("processes", self._pids)
        seen = None if pids is None else tuple(Process(p, host.process_name(p)) for p in pids)
        return Counters(None if errors is None else int(errors), None, seen)

    def memory_used_mib(self) -> float | None:
        self._kept.pop(self._device.tool, None)
        return _amd.number(_section(self._metric(self._device), "mem_usage").get("used_vram"))

    def close(self) -> None:
        return

    def _metric(self, device: Found) -> dict[str, Any]:
        found: dict[str, Any] = self._lately(device.tool, lambda: self._read(device.tool))
        return found

    def _read(self, gpu: str) -> dict[str, Any]:
        return _one(self._smi("metric", "--gpu", gpu, "--json"), gpu)

    def _pids(self) -> list[int] | None:
        return processes(self._smi("process", "--gpu", self._device.tool, "--json"), self._device.tool)

    def _lately(self, what: str, read: Callable[[], Any]) -> Any:
        at, value = self._kept.get(what, (-math.inf, None))
        if time.monotonic() - at > KEPT_SECONDS:
            value = read()
            self._kept[what] = (time.monotonic(), value)
        return value
