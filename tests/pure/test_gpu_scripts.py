"""The scripts for GPU hosts, with a Python that only writes down how it was called: order, GPUs, options that exist,
what is left when the time is up."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tarfile
import time
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path

import pytest

from farm.cli import main

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").glob("gpu_*.sh"))
PYTHON = """#!/usr/bin/env bash
[ "$1" != - ] || cat > /dev/null
printf '%s\\t%s\\n' "${CUDA_VISIBLE_DEVICES-all}" "$(printf '%q ' "$@")" >> "$RECORD"
if [ -n "$SLOW" ] && [[ "$*" == *"$SLOW"* ]]; then
  echo "a result that was there"
  setsid sleep "$ORPHAN" &
  sleep 60
fi
"""
SMI = """#!/usr/bin/env bash
[ "$1" = -L ] || { echo "index, uuid"; exit 0; }
for n in $GPUS; do echo "GPU $n: NVIDIA H200 (UUID: GPU-$n)"; done
"""


@dataclass
class Called:
    """One command of the script, and the GPU that it was shown."""

    gpu: str
    words: list[str]

    @property
    def module(self) -> str:
        return self.words[self.words.index("-m") + 1] if "-m" in self.words else ""

    @property
    def arguments(self) -> list[str]:
        return self.words[self.words.index("-m") + 2 :]


@dataclass
class Ended:
    code: int
    said: str
    calls: list[Called]
    rows: list[list[str]]  # of the table: step, gpus, code, seconds, said
    files: list[str]


def prepared(folder: Path, gpus: str = "0 1", slow: str = "", **environ: str) -> dict[str, str]:
    """The script's environment, with its record and its folder of work in `folder`."""
    folder.mkdir(exist_ok=True)
    for name, text in (("python3", PYTHON), ("nvidia-smi", SMI)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "GPU_ALL"))},
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(folder / "python3"),
        "RECORD": str(folder / "record"),
        "GPUS": gpus,
        "SLOW": slow,
        "ORPHAN": "61",
        "WORK": str(folder / "work"),
        **environ,
    }


def run(folder: Path, *steps: str, **how: str) -> Ended:
    whole = prepared(folder, **how)
    record, out = folder / "record", folder / "out"
    done = subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu_all.sh"), str(out), *steps],
        env=whole,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = record.read_text().splitlines() if record.exists() else []
    calls = [Called(line.partition("\t")[0], shlex.split(line.partition("\t")[2])) for line in lines]
    table = (out / "table.txt").read_text().splitlines() if (out / "table.txt").exists() else []
    begin = next((i + 1 for i, line in enumerate(table) if line.startswith("step ")), len(table))
    files = sorted(str(p.relative_to(out)) for p in out.rglob("*")) if out.exists() else []
    return Ended(done.returncode, done.stdout + done.stderr, calls, [r.split(None, 4) for r in table[begin:]], files)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_each_script_can_be_read_by_bash(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, check=False).stderr == b""
    for name in re.findall(r"(?:-m benchmarks\.|^\s*module )(\w+)", script.read_text(), re.M):
        assert util.find_spec(f"benchmarks.{name}") or name == "split_check", name


PRESETS = {
    "one": (["doctor", "smoke", "nodes"], ["hardware"], ["timers", "wide"], []),
    "two": (["accused"], ["repeat"], ["plain"], ["calibrate", "fill", "matrices"]),
    "three": ([], ["telemetry", "counters", "ring", "bitwise"], ["split", "tune", "cells", "confirm"], []),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_goes_through_its_steps_each_on_its_gpu(preset: str, tmp_path: Path) -> None:
    before, first, second, after = PRESETS[preset]
    done = run(tmp_path / "g", preset)
    assert done.code == 0, done.said
    order = [row[0] for row in done.rows]
    assert sorted(order) == sorted([*before, *first, *second, *after])
    assert order[: len(before)] == before and order[len(order) - len(after) :] == after
    assert [s for s in order if s in first] == first and [s for s in order if s in second] == second
    gpu = {row[0]: row[1] for row in done.rows}
    assert gpu == {**dict.fromkeys((*before, *after), "all"), **dict.fromkeys(first, "0"), **dict.fromkeys(second, "1")}
    assert {row[2] for row in done.rows} <= {"0", "-"}  # `-`: left out
    assert {c.gpu for c in done.calls} <= {"all", "0", "1"}
    if preset == "one":
        assert [c.gpu for c in done.calls if "tests/hardware" in " ".join(c.words[-3:])][-1] == "0"
    if preset == "three":
        assert all(c.gpu == "1" for c in done.calls if c.module in ("benchmarks.tune", "benchmarks.confirm"))
    assert len(done.files) <= 8 and all("/" not in f for f in done.files) and "table.txt" in done.files
    with tarfile.open(tmp_path / "g" / "out" / "reports.tgz") as kept:
        assert {f"./{s}.log" for s in order if gpu[s] and s != "split"} <= set(kept.getnames())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_option_is_one_that_its_command_has(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = 0
    for call in run(tmp_path / "g", preset).calls:
        name = call.module.partition("benchmarks.")[2]
        if name:
            module = import_module(f"benchmarks.{name}")
            source = Path(str(module.__file__)).read_text(encoding="utf-8")
            for option in (a for a in call.arguments if a.startswith("--")):
                assert f'"{option}"' in source, (name, option)
            if hasattr(module, "parse") and name not in (
                "counters",
                "confirm",
            ):  # one has no such function, one reads a report
                module.parse([*call.arguments, *(["--gpus", "0"] if name == "parts" else [])])
            seen += 1
        if call.module == "farm" and call.arguments[0] == "run":
            matrices = [a for a in call.arguments[1:] if a.endswith(".yaml")]
            at = call.arguments.index("--select") if "--select" in call.arguments else None
            chosen = call.arguments[at : at + 2] if at else []
            assert matrices and main(["plan", *matrices, "--backend", "cuda", *chosen]) == 0
            said = capsys.readouterr()
            assert re.search(r"cuda: [1-9]\d* cells", said.out + said.err), said
            seen += 1
        for path in (a for a in call.words if a.startswith(str(ROOT))):
            assert Path(path).exists(), path
    assert seen >= 3


def test_on_one_gpu_the_lanes_follow_each_other(tmp_path: Path) -> None:
    done = run(tmp_path / "g", "hardware", "timers", "--", "plain", gpus="0")
    assert [(row[0], row[1]) for row in done.rows] == [("hardware", "0"), ("timers", "0"), ("plain", "0")]


def test_a_step_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    orphan = f"61.{os.getpid()}"
    begun = time.monotonic()
    done = run(tmp_path / "g", "calibrate", "matrices", slow="calibrate", ORPHAN=orphan, TOTAL_S="17", LEAST_S="2")
    assert time.monotonic() - begun < 55  # neither what it waits for nor what it left behind ends before
    (first, second) = done.rows
    assert first[:3] == ["calibrate", "all", "124"]  # what is left for it depends on how long the script took to begin
    assert re.match(r"cut off after [2-7] s; last: a result that", first[4]), first
    assert second[0] == "matrices" and second[4] == "left out: the time is up"
    with tarfile.open(tmp_path / "g" / "out" / "reports.tgz") as kept:
        log = kept.extractfile("./calibrate.log")
        assert log is not None and b"a result that was there" in log.read()
    _gone(orphan)


@pytest.mark.parametrize("steps", [("calibrate", "matrices"), ("ring", "bitwise", "--", "timers", "plain")])
def test_who_ends_the_script_ends_its_steps_and_keeps_what_there_is(steps: tuple[str, ...], tmp_path: Path) -> None:
    """Else what is measured next has them beside it on the devices, in lanes that go on with step after step."""
    orphan, folder, slow = f"62.{os.getpid()}", tmp_path / "g", "" if "--" in steps else "calibrate"
    environ = prepared(folder, slow=slow or "benchmarks", ORPHAN=orphan)
    script = subprocess.Popen(
        ["bash", str(ROOT / "benchmarks" / "gpu_all.sh"), str(folder / "out"), *steps],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wanted, record, end = 1 if slow else 2, folder / "record", time.monotonic() + 60
    try:
        while not (record.exists() and record.read_text().count("\n") >= wanted and len(_running(orphan)) >= wanted):
            assert script.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        script.terminate()
        assert script.wait(60) == 143
    finally:
        script.kill()
    _gone(orphan)
    assert record.read_text().count("\n") == wanted
    ours = re.compile(rb"\0GPU_ALL_STEP=\w+-%d\0" % script.pid)
    assert [p for p in Path("/proc").glob("[0-9]*/environ") if ours.search(b"\0" + _read(p))] == []
    with tarfile.open(folder / "out" / "reports.tgz") as kept:
        assert f"./{steps[0]}.log" in kept.getnames()


def _running(words: str) -> list[Path]:
    """Processes with `words` in their command line."""
    return [p for p in Path("/proc").glob("[0-9]*/cmdline") if words.encode() in _read(p)]


def _gone(words: str) -> None:
    """They were killed; on a busy host that takes its time to happen, and less than any of them would take to end."""
    end = time.monotonic() + 20
    while left := _running(words):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_wrong_usage_is_told(tmp_path: Path) -> None:
    done = run(tmp_path / "g", "smoke", "smoek")
    assert done.code == 2 and 'there is no step "smoek"' in done.said and done.calls == []
    assert run(tmp_path / "h").code == 2


def test_what_needs_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks import upstream

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert upstream.main() == 2 and "sees no GPU; this needs one" in capsys.readouterr().err
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert upstream.gain(1.5 * x, x) == pytest.approx(0.5)  # the worst row is half too long
