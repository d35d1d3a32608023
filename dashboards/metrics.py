"""The newest night as metrics, for Prometheus and whatever reads its text format or OpenMetrics.

Every metric is a gauge: a night is a state, not a counter.  Texts in labels come from runs and are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from farm.dashboards.views import Newest
from farm.report.nights import standings

PREFIX = "kernel_farm_"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass
class Gauge:
    """A metric with its samples: (labels, value)."""

    name: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: object) -> None:
        self.samples.append(({name: str(text or "") for name, text in labels.items()}, value))

    def lines(self) -> Iterator[str]:
        name = PREFIX + self.name
        yield f"# HELP {name} {_escaped(self.help)}"
        yield f"# TYPE {name} gauge"
        for labels, value in self.samples:
            shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def gauges(found: Newest | None, now: float, runs: int = 0, left_out: int = 0) -> list[Gauge]:
    """now: Unix time; runs: those of the index; left_out: those that are unfinished, damaged or of a later schema."""
    out = []

    def gauge(name: str, text: str) -> Gauge:
        out.append(Gauge(name, text))
        return out[-1]

    gauge("runs", "Complete runs in the index of the store.").add(runs)
    gauge("runs_left_out", "Runs that are unfinished, damaged, or of a later schema.").add(left_out)
    if found is None:
        return out
    night, nights = found.run, found.nights
    info = gauge("night_info", "The newest night: its run and revision; 1.")
    told = {"simulated": str(found.simulated).lower(), "imported": str(night.kind == "imported").lower()}
    info.add(1, run=night.id, revision=night.revision, verdict=night.verdict, **told)
    _time(gauge("night_timestamp_seconds", "When the newest night began, Unix time."), night.created)
    _time(gauge("night_age_seconds", "Time since the newest night began, seconds."), night.created, now)
    gauge("nights", "Nights that the newest one is compared with, and itself.").add(len(found.runs))
    counted = Counter(tuple(str(r[n] or "") for n in ("backend", "role", "evidence", "status")) for r in found.rows)
    of = gauge("night_cells", "Cells of the newest night.")
    for (backend, role, evidence, status), count in sorted(counted.items()):
        of.add(count, backend=backend, role=role, evidence=evidence, status=status)
    times = gauge("backend_timestamp_seconds", "When the last night with results of a backend began, Unix time.")
    ages = gauge("backend_age_seconds", "Time since the last night with results of a backend began, seconds.")
    silent = gauge("backend_silent", "1 if a backend with earlier results has none in the newest night, else 0.")
    last = dict.fromkeys(dict.fromkeys(str(r["backend"]) for r in found.rows), night.created)
    for backend, created in {**last, **{b: n.created for b, n in nights.silent.items() if ":" not in b}}.items():
        _time(times, created, backend=backend)
        _time(ages, created, now, backend=backend)
        silent.add(backend in nights.silent, backend=backend)
    lost = gauge("target_silent", "1 if a target of a backend that reports has no results in the newest night, else 0.")
    for target in (*found.targets, *(t for t in nights.silent if ":" in t)):
        lost.add(target in nights.silent, target=target)
    share = gauge("backend_share_of_roof", "Median share of the roof of a backend's subjects, 0 to 1.")
    ratio = gauge("backend_ratio_to_best_peer", "Geometric mean of our time / the best peer's.")
    for s in standings(nights):
        for of_backend, value in ((share, s.share), (ratio, s.ratio)):
            if value is not None:
                of_backend.add(value, backend=s.backend)
    news = gauge("news_cells", "Cells of subjects that are new failures, slower, failing, known, faster or fixed.")
    for (kind, word, *place), count in sorted(_news(found).items()):
        names = ("backend", "target", "op", "provider", "mode")
        news.add(count, kind=kind, state=word, **dict(zip(names, place)))
    _devices(found, gauge)
    return out


def _time(gauge: Gauge, created: str, now: float | None = None, **labels: str) -> None:
    try:
        then = datetime.fromisoformat(created)
    except ValueError:  # of a run from elsewhere
        return
    seconds = (then if then.tzinfo else then.replace(tzinfo=timezone.utc)).timestamp()
    gauge.add(seconds if now is None else now - seconds, **labels)


def _news(found: Newest) -> Counter[tuple[str, ...]]:
    out: Counter[tuple[str, ...]] = Counter()
    for n in found.nights.news:
        out[n.kind, n.word, n.backend, n.target, n.op, n.provider, n.mode] += len(n.rows)
    return out


def _devices(found: Newest, gauge: Callable[[str, str], Gauge]) -> None:
    made = {
        "cells": gauge("device_cells", "Cells that a device ran in the newest night."),
        "failed": gauge("device_failed_cells", "Cells that failed on a device in the newest night."),
        "throttled": gauge("device_throttled_cells", "Cells that a device was throttled in."),
        "by": gauge("device_ratio_to_siblings", "A device's times over those of its siblings of one target."),
        "temperature": gauge("device_temperature_celsius", "Median over cells of the highest temperature."),
        "clock": gauge("device_sm_clock_mhz", "Median SM clock."),
    }
    for target in found.targets:
        for device in found.devices(target):
            for name, of in made.items():
                value = getattr(device, name)
                if value is not None:
                    of.add(value, target=target, device=device.name, node=device.node)


def text(found: list[Gauge], openmetrics: bool = False) -> str:
    """The metrics in Prometheus' text format, or in that of OpenMetrics."""
    lines = [line for gauge in found if gauge.samples for line in gauge.lines()]
    return "\n".join([*lines, *(["# EOF"] if openmetrics else [])]) + "\n"
