"""`farm ab` with real children: revisions of a repository on the CPU, and simulated devices whose arms fail."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from farm_command import FarmCommand

from farm.cli.main import main
from farm.store import Run, Store

sys.path.append(str(Path(__file__).resolve().parents[1] / "pure"))

from subject_repositories import FILES, committed, git, write

MATRIX = """name: norm
op: rms_norm
axes:
  shape: [{rows: 3, hidden: [64, 65]}]
providers: {liger: {}}
"""
HEAD = FILES["src/mylib/ops/shared.py"].replace("w.float()", "w.float() * (1.01 if x.shape[-1] == 65 else 1)")
CONTRACT = "from farm.contracts import Contract\n"
#: As tests/fake/test_subject.py has it: mylib is what an editable install says it is.
INTRUDER = """import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "mylib":
            return importlib.util.spec_from_file_location(name, {file!r})
sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With revisions: base, and HEAD, which breaks one of two cells; in the working tree, base again."""
    made = committed(write(tmp_path / "repo", bench__norm_dot_yaml=MATRIX))
    git(made, "tag", "base")
    (made / "src/mylib/ops/shared.py").write_text(HEAD)
    git(made, "commit", "-q", "-am", "change")
    (made / "src/mylib/ops/shared.py").write_text(FILES["src/mylib/ops/shared.py"])
    monkeypatch.chdir(made)
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    return made


def ab(*words: str) -> int:
    return main(["ab", *words, "--out", "st", "--run-id", "r", "--backend", "cpu", "--address", "inline", "--no-page"])


def test_two_revisions_on_a_cpu(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ab("--a", "revision=base", "--b", "revision=HEAD", "--devices", "1") == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == "worse: exit 1" and "bits equal: 1 of 2" in out, out + err
    assert "broken: 1 cell" in out and "passed -> inaccurate" in out and "times: none" in out
    run = Store("st").run("r")
    told = {r["cell_id"].rpartition("/")[0][-4:] + r["cell_id"][-2:]: r["subject_revision"] for r in run.rows}
    base, head = (git(repository, "rev-parse", name)[:12] for name in ("base", "HEAD"))
    assert set(told.values()) == {base, head} and len(run.rows) == 4
    proven = next(e["arms"] for e in run.journal() if e["event"] == "device_up")
    digests = {name: run.head["arms"][name]["subject"]["digest"] for name in ("a", "b")}
    assert {name: arm["subject"]["digest"] for name, arm in proven.items()} == digests and len(
        set(digests.values())
    ) == 2
    assert [r["change"] for r in run.table("pairs")] == ["same", "broken"]


def test_the_same_files_say_so_and_nothing_runs(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ab("--a", "revision=base", "--b", "revision=.") == 0
    assert "hold the same files" in capfd.readouterr().out and not Path("st").exists()


def test_an_overlay_that_did_not_take_effect_in_one_arm_ends_the_run(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "mylib.py").write_text("")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import os\nif os.environ.get('TAKEN') == 'no':\n"
        + "".join(f"    {line}\n" for line in INTRUDER.format(file=str(tmp_path / "mylib.py")).splitlines())
    )
    words = ("ab", "--a", "revision=base", "--b", "revision=HEAD,env.TAKEN=no", "--backend", "cpu", "--run-id", "r")
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
        "deadlines": {"check": 0.5},
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
