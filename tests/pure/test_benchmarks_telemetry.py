"""What `benchmarks.telemetry` says of made-up times; its turns; its reader's process."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import cases, child, telemetry
from farm.child.timing import POLICIES, Bench, TimingResult


def result(case: str, subject: str, off: float, on: float) -> dict[str, Any]:
    return {
        "event": "result",
        "case": case,
        "subject": subject,
        "status": "ok",
        "off_us": [off, off * 1.001],
        "on_us": [on, on * 1.001],
        "telemetry_samples": 7,
    }


def rounds(slower: float, count: int = 6, noise: float = 0.001) -> list[list[dict[str, Any]]]:
    """Six cells in so many processes, each with a level of its own, slower by so much while the device is read."""
    dice = random.Random(3)
    out = []
    for _ in range(count):
        level = dice.gauss(1.0, 0.01)
        out.append(
            [
                result(
                    f"c{i}",
                    "farm|rotating_graph",
                    us := 10.0 * level * dice.gauss(1, noise),
                    us * slower * dice.gauss(1, noise),
                )
                for i in range(6)
            ]
        )
    return out


def test_half_a_per_cent_is_found_through_what_processes_differ_by() -> None:
    found = telemetry.compared(rounds(1.005))
    estimate, low, high = found["all"]["rotating_graph"]["on_over_off"]
    assert found["all"]["rotating_graph"]["cells"] == 6 and found["all"]["events"] == {"cells": 0, "on_over_off": None}
    assert low > 1.0 and low < estimate < high and estimate == pytest.approx(1.005, abs=0.001)
    assert all(len(row["off_us"]) == 6 and row["telemetry_samples"] == 42 for row in found["rows"])


def test_nothing_is_found_where_nothing_is() -> None:
    _, low, high = telemetry.compared(rounds(1.0))["all"]["rotating_graph"]["on_over_off"]
    assert low < 1.0 < high and high / low < 1.003


def test_a_cell_that_a_process_did_not_reach_is_in_no_mean(tmp_path: Path) -> None:
    some = rounds(1.0)
    del some[2][0]
    some[3][1]["status"] = "crashed"
    found = telemetry.compared(some)
    assert found["all"]["rotating_graph"]["cells"] == 4 and len(found["rows"]) == 6
    text = telemetry.save(tmp_path, found, some)
    assert "mean of 4 cells" in text and json.loads((tmp_path / "telemetry.json").read_text())["rounds"] == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["telemetry.json", "telemetry.md", "telemetry.txt"]
    assert "too few rounds" in telemetry.save(None, telemetry.compared(some[:2]), some[:2])
    assert telemetry.compared([])["rows"] == []


def test_neither_side_is_always_first() -> None:
    for n in range(4):
        assert sorted(telemetry.turns(n)) == [False, False, True, True]
    assert telemetry.turns(0)[0] is not telemetry.turns(1)[0]
    planned = telemetry.items("farm")
    assert len(planned) == len(telemetry.CELLS) and all(i["check"] for i in planned)


class Reader:
    """Tells the policies of this test whether the device is being read."""

    def __init__(self) -> None:
        self.on, self.samples = False, 0

    @contextlib.contextmanager
    def sampling(self, on: bool) -> Iterator[None]:
        self.on = on
        yield
        self.samples += 5 * on
        self.on = False


def test_the_measuring_process_times_each_cell_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, reader = telemetry.measuring(), Reader()
    kind.sampler = reader
    seen: list[bool] = []

    def timer(bench: Bench) -> TimingResult:
        seen.append(reader.on)
        outputs = bench.make().run(bench.function)
        return TimingResult("events", [11.0 if reader.on else 10.0] * 20, [50.0], outputs)

    monkeypatch.setitem(POLICIES, "events", timer)
    case = cases.Case("rms_norm", "forward", "float32", 6, 40)
    plan = {
        "items": [cases.item(case, ["torch|events"], check=True)],
        "until": time.time() + 60,
        "policy": {},
        "round": 1,
    }
    events: list[dict[str, Any]] = []
    kind(plan, events.append, child.Device(torch.device("cpu"), "a cpu", 4, 1 << 20)).run()
    (found,) = [e for e in events if e["event"] == "result"]
    assert seen == [True, False, False, True]
    assert (found["off_us"], found["on_us"], found["telemetry_samples"]) == ([10.0, 10.0], [11.0, 11.0], 10)
    row = telemetry.compared([events] * 3)["rows"][0]
    assert row["on_over_off"][0] == pytest.approx(1.1) and math.isfinite(row["on_over_off"][2])


ANSWERS = """
import sys, time
print({first!r}, flush=True)
for line in sys.stdin:
    if {hangs}:
        time.sleep(60)
    print("on" if line.strip() == "on" else "12", flush=True)
"""


def command(folder: Path, first: str, hangs: bool = False) -> tuple[str, str]:
    (folder / "reader.py").write_text(ANSWERS.format(first=first, hangs=hangs))
    return sys.executable, str(folder / "reader.py")


def test_the_readers_process_is_switched_on_and_off(tmp_path: Path) -> None:
    sampler = telemetry.Sampler("0", command(tmp_path, "ready"))
    for on in (True, False, True):
        with sampler.sampling(on):
            pass
    assert sampler.samples == 24
    sampler.process.kill()
    sampler.process.wait(10)


def test_a_reader_that_is_silent_is_waited_for_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = telemetry.Sampler("0", command(tmp_path, "ready", hangs=True))
    monkeypatch.setattr(telemetry, "ANSWER_S", 0.2)
    with pytest.raises(RuntimeError, match="did not answer"), sampler.sampling(True):
        pass
    sampler.process.kill()
    sampler.process.wait(10)


def test_a_host_without_telemetry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="cannot be read here"):
        telemetry.Sampler("0", command(tmp_path, "none"))
    monkeypatch.setattr("farm.backends.cuda.telemetry", lambda *_: None)
    assert telemetry.sample("0") == 0


def test_what_has_no_device_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = [{"event": "end", "why": "no device", "reason": "torch sees no GPU"}]
    monkeypatch.setattr(telemetry.processes, "supervise", lambda *_, **__: told)
    assert telemetry.main(["--budget", "60"]) == 2
    assert capsys.readouterr().err == "benchmarks.telemetry: torch sees no GPU\n"


@pytest.mark.parametrize("argv", [["--rounds", "2"], ["--budget", "0"], ["--provider", "nobody"]])
def test_wrong_usage_is_one_sentence(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        telemetry.parse(argv)
    assert refused.value.code == 2 and f"argument {argv[0]}" in capsys.readouterr().err
