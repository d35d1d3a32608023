"""`farm ab` with real children: revisions of a repository on the CPU, and simulated devices whose arms fail."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_command import FarmCommand
from farm_process import marked, wait_for

from farm.cli.main import main
from farm.contracts import discovery
from farm.store import Run, Store

sys.path.append(str(Path(__file__).resolve().parents[1] / "pure"))

from subject_repositories import FILES, SUBJECT, committed, git, write

from tests.pure.outside_contracts import write as contracts

MATRIX = """name: norm
op: rms_norm
axes:
  shape: [{rows: 3, hidden: [64, 65]}]
providers: {liger: {}}
"""
MATRIX_OF_OWN = """name: own
op: copied
axes: {shape: [{rows: 3, columns: 4}], dtype: float32}
providers: {liger: {}}
"""
YAML = SUBJECT.replace("    ops:\n", "    ops:\n      copied: {call: 'my_adapters:copied'}\n")
YAML = YAML.replace("[bench/norm.yaml]", "[bench/norm.yaml, bench/own.yaml]\ncontracts: [bench/contracts]")
ADAPTERS = FILES["my_adapters.py"] + "\ndef copied(x):\n    return bare('mylib.ops.shared').copied(x)\n"
BASE_FILE = FILES["src/mylib/ops/shared.py"] + "\ndef copied(x):\n    return x * 1\n"
#: Breaks one cell of the norm; and the copy, which its own contract would then call right.
HEAD_FILE = BASE_FILE.replace("w.float()", "w.float() * (1.01 if x.shape[-1] == 65 else 1)").replace(
    "x * 1\n", "x * 2\n"
)
OF_HEAD = "def reference(self, inputs, cell, block):\n    return {'y': 2 * inputs['x'].astype(np.float64)}"
#: As tests/fake/test_subject.py has it: mylib is what an editable install says it is.
INTRUDER = """import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "mylib":
            return importlib.util.spec_from_file_location(name, {file!r})
sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With revisions v0 and HEAD; in the working tree, v0 again."""
    home = tmp_path / "repo"
    more = {
        "bench__own_dot_yaml": MATRIX_OF_OWN,
        "my_adapters_dot_py": ADAPTERS,
        "src__mylib__ops__shared_dot_py": BASE_FILE,
    }
    write(home, farm_yaml=YAML, bench__norm_dot_yaml=MATRIX, **more)
    (home / "bench/contracts/own_op/contract.py").unlink()
    contracts(home / "bench/contracts", "copied")
    git(committed(home), "tag", "v0")
    (home / "src/mylib/ops/shared.py").write_text(HEAD_FILE)
    contracts(home / "bench/contracts", "copied", OF_HEAD)
    git(home, "commit", "-q", "-am", "change")
    git(home, "checkout", "-q", "v0", "--", ".")
    monkeypatch.chdir(home)
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    yield home
    discovery.forget()


def ab(*words: str) -> int:
    return main(["ab", *words, "--out", "st", "--run-id", "r", "--backend", "cpu", "--address", "inline", "--no-page"])


def test_two_revisions_on_a_cpu(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ab("--a", "revision=v0", "--b", "revision=HEAD", "--devices", "1") == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == "worse: exit 1" and "bits equal: 1 of 3; the first that differs: cpu/" in out, (
        out + err
    )
    assert "broken: 2 cells" in out and "passed -> inaccurate" in out and "times: none" in out
    assert "arm b changes contracts (contracts/copied/contract.py); for both arms those of arm a count" in err
    run = Store("st").run("r")
    base, head = (git(repository, "rev-parse", name)[:12] for name in ("v0", "HEAD"))
    assert {(r["cell_id"][-1], r["subject_revision"]) for r in run.rows} == {("a", base), ("b", head)}
    proven = next(e["arms"] for e in run.journal() if e["event"] == "device_up")
    digests = {name: run.head["arms"][name]["subject"]["digest"] for name in ("a", "b")}
    assert {name: arm["subject"]["digest"] for name, arm in proven.items()} == digests and len(
        set(digests.values())
    ) == 2
    assert [r["change"] for r in run.table("pairs")] == ["same", "broken", "broken"]


def test_the_same_files_say_so_and_nothing_runs(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ab("--a", "revision=v0", "--b", "revision=.") == 0
    assert "hold the same files" in capfd.readouterr().out and not Path("st").exists()


@pytest.mark.long  # of one child, and without arms: pure/test_subject_child.py
def test_an_overlay_that_did_not_take_effect_in_one_arm_ends_the_run(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "mylib.py").write_text("")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import os\nif os.environ.get('TAKEN') == 'no':\n"
        + "".join(f"    {line}\n" for line in INTRUDER.format(file=str(tmp_path / "mylib.py")).splitlines())
    )
    words = ("ab", "--a", "revision=v0", "--b", "revision=HEAD,env.TAKEN=no", "--backend", "cpu", "--run-id", "r")
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    run = FarmCommand(
        repository, repository / "farm-results", "r", *words, "--devices", "1", environment={"PYTHONPATH": path}
    ).start()
    try:
        assert run.process is not None
        assert run.process.wait(timeout=120) == 2, run.said()
        assert "mylib would be imported from" in run.said()
        assert not any(e["event"] == "started" for e in Run(repository / "farm-results/runs/r").journal())
    finally:
        run.end()


def test_arms_of_simulated_devices_crash_and_hang_each_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rules = [
        {"when": {"hidden": 64, "arm": "b"}, "signal": 11},
        {"when": {"hidden": 65, "arm": "a"}, "hang": "check"},
        {"when": {"hidden": 66}, "exit": 3},
    ]
    data = {
        "name": "m",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64, 65, 66, 67]}], "dtype": "float32"},
        "providers": ["farm"],
        "deadlines": {"check": 2},
        "sim": {"default": {}, "rules": rules},
    }
    Path("m.yaml").write_text(json.dumps(data))
    words = ["ab", "m.yaml", "--a", "env.X=1", "--b", "env.X=2", "--backend", "sim", "--devices", "1"]
    assert main([*words, "--out", "st", "--run-id", "r", "--address", "inline", "--no-page"]) == 1
    pairs = Store("st").run("r").table("pairs")
    assert [(p["change"], p["status_a"], p["status_b"]) for p in pairs] == [
        ("broken", "passed", "crashed"),
        ("fixed", "timed_out", "passed"),
        ("failing", "crashed", "crashed"),
        ("same", "passed", "passed"),
    ]
    assert capfd.readouterr().out.startswith("worse: exit 1\n  1 cell broken")


def test_a_later_round_is_timed_only_and_other_bits_are_judged_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An arm against itself; in later rounds one of its cells gives wrong outputs, and another right ones."""
    monkeypatch.chdir(tmp_path)
    data = {
        "name": "m",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64, 65, 66]}], "dtype": "float32"},
        "providers": ["farm"],
        "sim": {
            "default": {"time_us": 10, "noise": 0.01, "process_noise": 0.002},
            "rules": [
                {"when": {"hidden": 65, "arm": "b"}, "error": 0.5, "from_round": 1},
                {"when": {"hidden": 66, "arm": "b"}, "error": 1e-7, "from_round": 1},
            ],
        },
    }
    Path("m.yaml").write_text(json.dumps(data))
    out = ["--out", "st"]
    words = ["ab", "m.yaml", "--same", "--backend", "sim", "--devices", "1", "--run-id", "r", "--address", "inline"]
    assert main([*words, *out, "--no-page"]) == 1
    told = capfd.readouterr().out
    assert told.startswith("false alarms: exit 1\n  1 cell passed in one arm only: first sim/rms_norm/farm/auto")
    run = Store("st").run("r")
    notes = {p["shape"]: p["note"] for p in run.table("pairs")}
    assert notes["2x64"] == "" and "arm b was inaccurate in round 1: y: " in notes["2x65"]
    assert notes["2x66"] == "arm b gave other output bits in round 1 than in round 0; they were judged in full"
    judged = [e for e in run.journal() if e["event"] == "judged"]
    in_full = Counter(bool(e.get("metrics")) for e in judged)
    rounds = run.table("rounds")
    others = [r for r in rounds if r["arm"] == "b" and r["round"] and "2x64" not in r["cell"]]
    assert in_full[True] == 6 + len(others) and in_full[False] == len(rounds) - in_full[True]
    kept = json.loads(Path("st/noise/r.json").read_text())
    assert kept["same"] and len(kept["cells"]) == 3 and {c["evidence"] for c in kept["cells"]} == {"simulated"}
    assert main(["ab", "--tally", *out]) == 0
    assert "identical code (simulated): 0 of" in capfd.readouterr().out


def children(mark: str) -> list[int]:
    return [pid for pid, words in marked(mark).items() if "farm.child" in words]


@pytest.mark.long
@pytest.mark.parametrize("whom", ["supervisor", "child"])
def test_a_comparison_goes_on_after_a_kill_within_a_round(tmp_path: Path, whom: str) -> None:
    """Twice: the command itself, which is then resumed, or a child, whose cell runs again."""
    data = {
        "name": "m",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64, 65, 66, 67]}], "dtype": "float32"},
        "providers": ["farm"],
        "sim": {
            "default": {"time_us": 10, "noise": 0.01, "process_noise": 0.004, "wall_s": 0.1},
            "rules": [{"when": {"hidden": 65, "arm": "b"}, "time_us": 10.5}],
        },
    }
    (tmp_path / "m.yaml").write_text(json.dumps(data))
    out = ("--out", "st", "--no-page", "--address", "inline", "--devices", "1")
    words = ("ab", "m.yaml", "--a", "env.X=1", "--b", "env.X=2", "--backend", "sim", "--run-id", "r", *out)
    run = FarmCommand(tmp_path, tmp_path / "st", "r", *words).start()
    again = FarmCommand(tmp_path, tmp_path / "st", "r", "resume", "r", *out)
    last = run
    try:
        assert run.process is not None
        for rounds in (6, 14):
            last.wait_for("round", rounds)
            if whom == "child":
                os.kill(wait_for("a child", lambda: children(run.mark))[0], signal.SIGKILL)
                continue
            assert last.process is not None
            last.process.kill()
            last.process.wait(timeout=20)
            last.assert_nothing_left()
            last = again.start()
        assert last.wait() == 1, last.said()
    finally:
        run.end()
        again.end()
    pairs = {p["shape"]: p["verdict"] for p in run.run.table("pairs")}
    assert pairs == {"2x64": "same", "2x65": "regressed", "2x66": "same", "2x67": "same"}
    rounds_ = [(r["cell"], r["arm"], r["round"]) for r in run.run.table("rounds")]
    assert len(rounds_) == len(set(rounds_)) == 2 * (3 * 2 + 15)
