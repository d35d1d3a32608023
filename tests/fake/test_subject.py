"""A repository's own kernels through `farm run`: real children import them and prove it; failures are findings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from farm_command import FarmCommand

sys.path.append(str(Path(__file__).resolve().parents[1] / "pure"))

from subject_repositories import SUBJECT, committed, git, write

PROVIDERS = """providers:
  liger:
    ops:
      rms_norm:
        call: "my_adapters:with_modes"
        modes: "my_adapters:modes"
  own_backward:
    ops: {rms_norm: {call: "my_adapters:saving", backward: "my_adapters:backward"}}
    backends: {cpu: {variables: {MY_SWITCH: "on"}}}
  quack:
    ops: {rms_norm: {call: "wrong:rms_norm"}}
"""
WRONG = """import os
from my_adapters import rms_norm as right

def rms_norm(x, weight, eps):
    assert os.environ["MY_SWITCH"] == "on"
    return right(x, weight, eps) * 1.005
"""
MATRIX = """name: norm
op: rms_norm
axes:
  shape: [{rows: 3, hidden: 64}]
  operation: [forward, backward]
providers: {liger: {mode: [auto, fast]}, own_backward: {}, quack: {}, torch: {}}
"""
#: Runs in every Python that has its folder on the path: mylib is what an editable install says it is.
INTRUDER = """import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "mylib":
            return importlib.util.spec_from_file_location(name, {file!r})
sys.meta_path.insert(0, Finder())
"""


def farm(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    run = FarmCommand(folder, folder / "farm-results", "r", *words, environment=environment).start()
    try:
        assert run.process is not None
        code = run.process.wait(timeout=120)
        return code, run.said()
    finally:
        run.end()


def test_a_repositorys_kernels_are_tested_under_the_names_of_peers(tmp_path: Path) -> None:
    text = SUBJECT[: SUBJECT.index("providers:")] + PROVIDERS + "matrices: [bench/norm.yaml]\n"
    repository = committed(write(tmp_path / "repo", farm_yaml=text, wrong_dot_py=WRONG, bench__norm_dot_yaml=MATRIX))
    words = ("run", "--repo", "repo", "--backend", "cpu", "--address", "inline", "--run-id", "r", "--no-page")
    code, said = farm(tmp_path, *words)
    head = json.loads((tmp_path / "farm-results/runs/r/run.json").read_text())
    rows = pq.read_table(tmp_path / "farm-results/runs/r/cells.parquet").to_pylist()
    commit, digest = git(repository, "rev-parse", "HEAD")[:12], head["subject"]["digest"]
    told = {(r["provider"], r["mode"], r["operation"]): (r["status"], r["role"]) for r in rows}
    good = [("liger", "auto"), ("liger", "fast"), ("own_backward", "auto")]
    expected = {(*who, o): ("passed", "subject") for who in good for o in ("forward", "backward")}
    expected |= {("quack", "auto", o): ("inaccurate", "subject") for o in ("forward", "backward")}
    expected |= {("torch", "auto", o): ("passed", "peer") for o in ("forward", "backward")}
    assert (code, told) == (1, expected), said
    assert {(r["subject"], r["subject_revision"], r["subject_digest"], r["provider_version"]) for r in rows} == {
        ("mylib", commit, digest, commit),
        ("", "", "", next(r["provider_version"] for r in rows if r["provider"] == "torch")),
    }
    proven = [d["subject"] for d in head["backends"]["cpu"]["devices"]]
    assert {p["digest"] for p in proven} == {digest} and all("/overlay/mylib/" in p["modules"]["mylib"] for p in proven)


def test_an_overlay_that_is_not_taken_ends_the_run_before_a_cell_and_the_run_goes_on_once_it_is(tmp_path: Path) -> None:
    write(tmp_path / "repo")
    (tmp_path / "site/mylib").mkdir(parents=True)
    (tmp_path / "site/mylib/__init__.py").write_text("")
    (tmp_path / "site/sitecustomize.py").write_text(INTRUDER.format(file=str(tmp_path / "site/mylib/__init__.py")))
    path = f"{Path(__file__).resolve().parents[2]}:{tmp_path / 'site'}"
    words = ("run", "--repo", "repo", "--backend", "sim", "--address", "inline", "--run-id", "r", "--no-page")
    code, said = farm(tmp_path, *words, PYTHONPATH=path)
    assert code == 2 and "[subject-not-taken]" in said and "site/mylib/__init__.py" in said, said
    events = [json.loads(line) for line in (tmp_path / "farm-results/runs/r/journal.jsonl").read_text().splitlines()]
    assert not {"started", "measured", "ended"} & {e["event"] for e in events}
    code, said = farm(tmp_path, "resume", "r", "--no-page")
    assert code == 0, said
    (tmp_path / "repo/beside.py").write_text("def through(function, *rest):\n    return function(*rest)  # changed\n")
    rows = pq.read_table(tmp_path / "farm-results/runs/r/cells.parquet").to_pylist()
    assert {(r["provider"], r["subject"]) for r in rows} == {("liger", "mylib"), ("torch", "")}
