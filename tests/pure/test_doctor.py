"""`farm doctor`: each fault is planted in facts that are otherwise sound; looking, on processes that misbehave."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm import address
from farm.cli import main
from farm.cli.doctor import report
from farm.doctor import BackendFacts, Facts, Finding, Level, Space, Trial, examine, exit_code
from farm.doctor.gather import space, trials
from farm.ops import ROOT

GIB = 1 << 30
CUDA = BackendFacts("cuda", True, tool="nvidia-smi")
ROCM = BackendFacts("rocm", True, not_yet="backend rocm is not in this version yet", tool="amd-smi")
SOUND = Facts(
    python=(3, 11, 7),
    executable="/usr/bin/python3",
    farm="0.1.0",
    packages={"numpy": "2.0", "pyarrow": "15.0"},
    trials={
        "torch": Trial("ok", "2.13.0", {"built_for": "the CPU"}),
        "triton": Trial("ok", "3.7.1"),
        "ray": Trial("ok", "2.60.0"),
        "accelerator": Trial("ok", "none", {"kind": "", "count": 0}),
        "kernels": Trial("ok", "/farm/kernels"),
        "provider torch": Trial("ok", "torch 2.13.0"),
        "provider liger": Trial("ok", "liger-kernel 0.8.5"),
    },
    peers={"torch": "", "liger": "liger-kernel"},
    backends=(BackendFacts("cpu", devices=("cpu-x86_64",) * 2), CUDA, ROCM),
    our_kernels="/farm/kernels",
    foreign_kernels=None,
    memory=Space("/dev/shm", 8 * GIB, 16 * GIB),
    store=Space("farm-results", 80 * GIB, 100 * GIB),
    scratch=Space("/tmp", 80 * GIB, 100 * GIB),
    cache=Space("/home/x/.cache", 80 * GIB, 100 * GIB),
    cxx="/usr/bin/g++",
    cc="/usr/bin/gcc",
    python_header=True,
    variables={},
    ray_written="",
    ray_file="/tmp/ray/ray_current_cluster",
    ray_silent=None,
    now=1_800_000_000.0,
    newest_source=1_790_000_000.0,
)


def tried(facts: Facts, **how: Trial) -> Facts:
    return replace(facts, trials={**facts.trials, **how})


TWO = replace(CUDA, tool_path="/usr/bin/nvidia-smi", devices=("NVIDIA H200",) * 2)
GPUS = replace(
    tried(
        SOUND,
        torch=Trial("ok", "2.13.0", {"built_for": "CUDA 12.8"}),
        accelerator=Trial("ok", "cuda", {"kind": "cuda", "count": 2}),
    ),
    backends=(SOUND.backends[0], TWO, ROCM),
)


def unsound(facts: Facts) -> list[Finding]:
    """What is neither ok nor the note that rocm is not there yet."""
    return [f for f in examine(facts) if f.level is not Level.OK and f.section not in ("backend rocm", "backend cuda")]


@pytest.mark.parametrize("facts", [SOUND, GPUS], ids=["cpu", "gpus"])
def test_a_sound_host_has_no_fault(facts: Facts) -> None:
    found = examine(facts)
    assert {f.level for f in found} <= {Level.OK, Level.NOTE}
    assert unsound(facts) == []
    assert exit_code(found) == 0


def test_a_sound_host_says_what_it_has() -> None:
    told = {f.section: f.what for f in examine(GPUS)}
    assert told["backend cuda"] == "2 x NVIDIA H200"
    assert told["backend rocm"] == "not in this version yet"
    assert told["torch"] == "torch 2.13.0, built for CUDA 12.8"
    assert told["memory"] == "8.0 GiB free in /dev/shm"


def gpu(**change: Any) -> Facts:
    return replace(GPUS, **change)


def backend(**change: Any) -> Facts:
    return replace(SOUND, backends=(replace(CUDA, **change),))


F, W, N = Level.FAIL, Level.WARN, Level.NOTE
MASKED = {"CUDA_VISIBLE_DEVICES": "0"}
FAULTS: dict[str, tuple[Facts, str, Level, str]] = {
    "old python": (replace(SOUND, python=(3, 9, 1)), "python", F, "3.9.1 is too old"),
    "package": (replace(SOUND, packages={"numpy": "2", "rich": None}), "packages", F, "not installed: rich"),
    "no torch": (tried(SOUND, torch=Trial("missing", "No module named 'torch'")), "torch", F, "No module named"),
    "torch crashes": (tried(SOUND, torch=Trial("died", "signal 11 (SIGSEGV)")), "torch", F, "ended with signal 11"),
    "torch hangs": (tried(SOUND, torch=Trial("hung", "60 s")), "torch", F, "did not answer within 60 s"),
    "no triton": (tried(SOUND, triton=Trial("missing", "No module")), "triton", W, "provider farm end as unsupported"),
    "no ray": (tried(SOUND, ray=Trial("missing", "No module")), "ray", F, "only --address inline runs"),
    "old ray": (tried(SOUND, ray=Trial("ok", "2.9.3")), "ray", F, "2.9.3 is too old"),
    "no time": (tried(SOUND, ray=Trial("skipped", "no time is left")), "ray", F, "not looked at: no time is left"),
    "smi fails": (
        backend(tool_path="/usr/bin/nvidia-smi", tool_failure="exit code 9: driver"), "backend cuda", W, "exit code 9",
    ),
    "driver, no smi": (backend(device_file="/dev/nvidiactl"), "backend cuda", W, "no nvidia-smi on PATH"),
    "torch sees what smi does not": (
        replace(GPUS, backends=SOUND.backends), "backend cuda", W, "a GPU that torch sees, but no nvidia-smi",
    ),
    "torch for the cpu": (
        replace(SOUND, backends=(TWO,)), "backend cuda", F, "torch (built for the CPU) sees none",
    ),
    "torch sees fewer": (
        tried(GPUS, accelerator=Trial("ok", "cuda", {"kind": "cuda", "count": 1})), "backend cuda", W, "torch sees 1",
    ),
    "device hangs": (tried(GPUS, accelerator=Trial("hung", "60 s")), "backend cuda", F, "within 60 s"),
    "masked": (gpu(variables=MASKED), "backend cuda", F, "CUDA_VISIBLE_DEVICES=0 shows 1 of the 2 GPUs"),
    "masked whole": (gpu(variables={"CUDA_VISIBLE_DEVICES": "-1"}), "backend cuda", F, "shows 0 of the 2"),
    "no C compiler": (gpu(cc=None), "backend cuda", F, "there is no C compiler"),
    "no headers": (gpu(python_header=False), "backend cuda", F, "Python.h is missing"),
    "stale ray address": (
        replace(SOUND, ray_written="h:6379", ray_silent="nothing answers there"), "ray", W, "--address auto fails",
    ),
    "ROCR alone": (replace(SOUND, variables={"ROCR_VISIBLE_DEVICES": "0"}), "ray", W, "without HIP_VISIBLE_DEVICES"),
    "ROCR alone, AMD": (
        replace(SOUND, variables={"ROCR_VISIBLE_DEVICES": "0"}, backends=(replace(ROCM, device_file="/dev/kfd"),)),
        "ray", F, "without HIP_VISIBLE_DEVICES",
    ),
    "token mode without token": (replace(SOUND, variables={"RAY_AUTH_MODE": "token"}), "ray", N, "RAY_AUTH_TOKEN_PATH"),
    "kernels broken": (tried(SOUND, kernels=Trial("failed", "SyntaxError: x")), "kernels", F, "SyntaxError"),
    "kernels foreign": (tried(SOUND, kernels=Trial("ok", "/site/kernels")), "kernels", F, "not from /farm/kernels"),
    "clash": (replace(SOUND, foreign_kernels="/site/kernels"), "kernels", N, "at /site/kernels"),
    "no shm": (replace(SOUND, memory=None), "memory", W, "there is no /dev/shm"),
    "small shm": (replace(SOUND, memory=Space("/dev/shm", 64 << 20, 64 << 20)), "memory", W, "64 MiB are free"),
    "locked shm": (replace(SOUND, memory=Space("/dev/shm", failure="Read-only")), "memory", W, "Read-only"),
    "store locked": (replace(SOUND, store=Space("s", failure="Permission denied")), "store", F, "Permission denied"),
    "store full": (replace(SOUND, store=Space("s", 1 << 20, GIB)), "store", F, "1 MiB are free in s"),
    "store tight": (replace(SOUND, store=Space("s", 500 << 20, GIB)), "store", W, "only 500 MiB"),
    "cache locked": (replace(SOUND, cache=Space("/proc/c", failure="No such file")), "cache", W, "makes them anew"),
    "cache full": (replace(SOUND, cache=Space("/c", 1 << 20, 100 * GIB)), "cache", W, "only 1 MiB are free"),
    "scratch locked": (replace(SOUND, scratch=Space("/tmp", failure="Read-only")), "scratch", F, "Read-only"),
    "scratch nearly full": (replace(SOUND, scratch=Space("/tmp", 4 * GIB, 100 * GIB)), "scratch", W, "96% full"),
    "no C++ compiler": (replace(SOUND, cxx=None), "compiler", N, "torch_compile on the CPU end as unsupported"),
    "peer absent": (
        tried(SOUND, **{"provider liger": Trial("missing", "No module named 'liger_kernel'")}),
        "provider liger", N, "its cells end as unsupported",
    ),
    "peer broken": (
        tried(SOUND, **{"provider liger": Trial("died", "signal 6 (SIGABRT)")}), "provider liger", W, "signal 6",
    ),
    "clock": (replace(SOUND, now=1_000.0), "clock", W, "the clock says 1970-01-01"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_its_cure(fault: str) -> None:
    facts, section, level, words = FAULTS[fault]
    (found,) = [f for f in examine(facts) if words in f.what]
    assert (found.section, found.level) == (section, level)
    assert found.cure
    assert exit_code([found]) == (3 if level is Level.FAIL else 0)
    assert [f for f in unsound(facts) if f is not found and f.section != section] == []  # and nothing else is accused


def test_what_is_worth_knowing_is_no_fault() -> None:
    (told,) = unsound(replace(SOUND, variables={"RAY_ADDRESS": "h:1"}))
    assert (told.level, "without --address it is unused" in told.what) == (Level.NOTE, True)
    (told,) = unsound(replace(SOUND, ray_written="h:6379"))
    assert (told.level, "--address auto joins it" in told.what) == (Level.NOTE, True)
    assert "/dev/kfd" in examine(replace(SOUND, backends=(replace(ROCM, device_file="/dev/kfd"),)))[4].what


def test_the_report_puts_a_cure_under_its_finding_and_shows_no_escapes() -> None:
    lines = report([Finding("ray", Level.FAIL, "is \x1b[31mred", "paint it"), Finding("x", Level.OK, "fine")])
    assert lines[0] == "fail  ray  is \\x1b[31mred"
    assert lines[1].strip() == "cure: paint it"
    assert lines[-1] == "1 ok, 1 fail: farm run would fail here"


# Looking


@pytest.fixture
def children(tmp_path: Path) -> list[str]:
    """A stand-in for `farm.doctor.attempts` whose steps do what they are called."""
    script = tmp_path / "attempts.py"
    script.write_text(
        "import json, os, sys, time\n"
        "def say(**what):\n"
        "    os.write(1, (json.dumps(what) + '\\n').encode())\n"
        "for step in sys.argv[1:]:\n"
        "    say(step=step, ended='begun')\n"
        "    if step == 'crash': os.abort()\n"
        "    if step == 'exit': os._exit(7)\n"
        "    if step == 'hang': time.sleep(60)\n"
        "    if step == 'half': os.write(1, b'{\"step\": \"ha'); os._exit(0)\n"
        "    say(step=step, ended='ok', text='v1')\n"
    )
    return [sys.executable, str(script)]


def test_what_crashes_or_hangs_stops_nothing_else(children: list[str]) -> None:
    found = trials(["a", "crash", "b", "hang", "exit", "half", "c"], step_s=0.5, total_s=30, command=children)
    assert list(found) == ["a", "crash", "b", "hang", "exit", "half", "c"]
    assert {s: t.ended for s, t in found.items() if t.ok} == dict.fromkeys("abc", "ok")
    assert "SIGABRT" in str(found["crash"])
    assert str(found["hang"]) == "did not answer within 0.5 s"
    assert str(found["exit"]) == "its process ended with exit code 7"
    assert found["half"].ended == "died"


def test_when_the_time_is_over_the_rest_is_skipped(children: list[str]) -> None:
    found = trials(["hang", "b"], step_s=30, total_s=0.2, command=children)
    assert {s: t.ended for s, t in found.items()} == {"hang": "skipped", "b": "skipped"}


def test_a_program_that_cannot_even_start_is_told(tmp_path: Path) -> None:
    found = trials(["a", "b"], command=[sys.executable, str(tmp_path / "absent.py")])
    assert {t.ended for t in found.values()} == {"died"}


def test_a_missing_module_is_missing_and_a_broken_one_failed() -> None:
    from farm.doctor.attempts import attempt

    assert attempt("no_such_module_at_all")["ended"] == "missing"
    assert attempt("provider no_such_provider")["ended"] == "missing"
    assert attempt("kernels") == {"ended": "ok", "text": str(ROOT / "kernels"), "data": {}}


def test_space_looks_at_the_nearest_folder_and_leaves_nothing(tmp_path: Path) -> None:
    found = space(tmp_path / "a" / "b")
    assert found.free > 0 and not found.failure
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "is not a folder" in space(tmp_path / "file" / "store").failure


def test_an_address_file_is_read_and_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert address.written() == ""
    (tmp_path / "ray").mkdir()
    address.address_file().write_text("127.0.0.1:1\n")
    assert address.written() == "127.0.0.1:1"
    assert "nothing answers" in str(address.silent("127.0.0.1", 1))


# The whole


def test_this_host_is_described_without_leaving_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "do-not-print-me")
    monkeypatch.setenv("RAY_ADDRESS", "10.9.8.7:1234")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    code = main(["doctor", "--json", "--out", str(tmp_path / "store")])
    out = capsys.readouterr().out
    said = json.loads(out)
    assert code == said["exit_code"]
    sections = {f["section"] for f in said["findings"]}
    assert {"python", "torch", "triton", "ray", "kernels", "store", "clock", "backend cuda", "backend rocm"} <= sections
    assert "10.9.8.7:1234" in out
    assert "do-not-print-me" not in out
    assert list(tmp_path.iterdir()) == []
    for finding in said["findings"]:
        assert finding["level"] in ("ok", "note") or finding["cure"], finding


def test_a_store_that_cannot_be_written_is_the_farms_fault_to_tell(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    facts = replace(SOUND, store=space(tmp_path / "file"))
    assert exit_code(examine(facts)) == 3
