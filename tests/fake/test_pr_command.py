"""`farm pr` from an event file to a comment, over a git repository, without a device."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from farm_process import ROOT, clean_environ

from farm.pr import decision, patches
from farm.pr.commands import Command
from farm.pr.events import Request
from farm.pr.patches import Suggestion

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pure"))
from github_double import TOKEN, Forge, serving
from subject_repositories import SUBJECT, committed, git, write

KERNEL = """import torch, triton
import triton.language as tl

@triton.jit
def _norm(x_ptr, w_ptr, y_ptr, eps, n: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x) / n + eps)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n + cols, x * rstd * w, mask=mask)

def norm(x, w, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, w, y, eps, x.shape[1], triton.next_power_of_2(x.shape[1]))
    return y
"""
MATRIX = (
    "name: norm\nop: rms_norm\naxes:\n  shape: [{rows: 3, hidden: [64, 100]}]\n  operation: [no-grad-forward]\n"
    "providers: {liger: {}}\n"
)
KNOWN = "known: [{match: {op: rms_norm}, reason: not yet, owner: jane, until: 2999-01-01}]\n"
TEST = """import pathlib

def test_scale():
    assert '1.01' not in pathlib.Path('src/mylib/ops/norm.py').read_text()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    tests = {"farm_yaml": SUBJECT + "tests: [tests/test_norm.py]\n", "tests__test_norm_dot_py": TEST}
    tests["bench__known_dot_yaml"] = KNOWN.replace("rms_norm", "rms_norm, hidden: 777")
    write(folder, src__mylib__ops__norm_dot_py=KERNEL, bench__norm_dot_yaml=MATRIX, **tests)
    committed(folder)
    for name, old, new in (
        ("wrong", "x * rstd * w, mask", "x * rstd * w * 1.01, mask"),
        ("comment", "    row = tl", "    # which row\n    row = tl"),
    ):
        git(folder, "checkout", "-qb", name, "base")
        (folder / "src/mylib/ops/norm.py").write_text(KERNEL.replace(old, new))
        if name == "wrong":  # it excuses itself
            (folder / "bench/known.yaml").write_text(KNOWN)
            (folder / "bench/norm.yaml").write_text(MATRIX.replace("[64, 100]", "64"))  # and runs less
        git(folder, "commit", "-qam", name)
    return folder


def event(folder: Path, head: str, body: str = "") -> Path:
    of = {"sha": git(folder, "rev-parse", head), "repo": {"full_name": "someone/kernels"}}
    pull = {"number": 7, "state": "open", "draft": False, "body": body, "labels": [], "head": of}
    pull["base"] = {"sha": git(folder, "rev-parse", "base")}
    place = folder / f"{head}.json"
    text = {"action": "opened", "repository": {"full_name": "someone/kernels"}, "pull_request": pull}
    place.write_text(json.dumps(text))
    return place


def pr(folder: Path, head: str, *more: str, body: str = "") -> tuple[int, str, str]:
    told = ["pr", "--repo", str(folder), "--event", str(event(folder, head, body)), "--out", str(folder / "store")]
    told += ["--result", str(folder / "r.json"), "--comment", str(folder / "c.md"), *more]
    env = {**clean_environ(), "PYTHONPATH": str(ROOT), "FARM_CACHE": str(folder / "cache")}
    words = [sys.executable, "-m", "farm", *told]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_a_wrong_change_is_found_with_place_and_own_test(repository: Path) -> None:
    git(repository, "checkout", "-q", "wrong")
    code, out, err = pr(repository, "wrong", "bench/norm.yaml", "--target", "none")
    assert code == 1, out + err
    text = (repository / "c.md").read_text()
    assert "2 cells broken" in text.splitlines()[1] and "scaled by 1.01" in text
    assert "no NVIDIA GPU" not in text  # nothing was compiled, so nothing is known of other backends
    assert (
        "in base): tests/test\\_norm.py::test\\_scale" in text
        and "**Kernels whose source differs**, or that only one of both has: 1 of 1: " in text
    )
    result = json.loads((repository / "r.json").read_text())
    assert [e["state"] for e in result["known"]] == ["idle"] and "known failures in bench/known.yaml" in text
    assert "the matrix bench/norm.yaml); base's is used for both arms" in text
    assert (result["number"], result["head"]["sha"]) == (7, git(repository, "rev-parse", "wrong"))
    assert result["repeat"].startswith("farm pr bench/norm.yaml ") and result["repeat"].endswith("--target none")
    assert result["head"]["tree"] == git(repository, "rev-parse", "wrong^{tree}")
    assert _published(repository, result) == ["failure"]  # the canary: a change that is known to be wrong is blocked


def _published(folder: Path, result: dict[str, Any]) -> list[str]:
    """The conclusions of the check, after a publishing job that blocks."""
    forge = Forge()
    base, head = (result[arm] for arm in ("base", "head"))
    forge.pull |= {"head": {"sha": head["sha"], "repo": None}, "base": {"sha": base["sha"], "repo": None}}
    forge.trees, forge.merge_base = {arm["sha"]: arm["tree"] for arm in (base, head)}, base["sha"]
    with serving(forge) as address:
        env = {**clean_environ(), "PYTHONPATH": str(ROOT), "GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": address}
        words = ["pr", "--publish", "r.json", "--repository", "someone/kernels", "--voice", "block"]
        done = subprocess.run(
            [sys.executable, "-m", "farm", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1 and len(forge.comments) == 1 and TOKEN not in done.stdout + done.stderr
    assert "2 cells broken" in forge.comments[0]["body"]
    return [check["conclusion"] for check in forge.checks]


@pytest.mark.long
def test_comments_alone_change_nothing_on_any_target(repository: Path) -> None:
    code, out, err = pr(repository, "comment", "--all")
    assert code == 0 and "No kernel changed" in out, out + err
    assert "| sm\\_90 | 2 | rows 3; hidden 64, 100 | 0 | 2 | 0 | 0 |" in (repository / "c.md").read_text()


@pytest.mark.long
def test_comments_alone_are_read_and_only_the_own_tests_run(repository: Path) -> None:
    begun = time.monotonic()
    code, out, err = pr(repository, "comment", "--sandbox")
    assert code == 0 and "No kernel changed" in out and time.monotonic() - begun < 60, out + err
    text = (repository / "c.md").read_text()
    assert "cells: head changes comments and docstrings alone; --all runs them" in text and "arm a" not in err
    assert [t["status_b"] for t in json.loads((repository / "r.json").read_text())["tests"]] == ["passed"]


def decided(folder: Path, command: Command, *more: str) -> tuple[int, str, dict[str, Any]]:
    """Measure what a decision about the branch `wrong` asks for."""
    shas = {name: git(folder, "rev-parse", branch) for name, branch in (("head", "wrong"), ("base", "base"))}
    (folder / "d.json").write_text(decision.written(Request("someone/kernels", 7, **shas, command=command)))
    told = ["pr", "--repo", str(folder), "--decision", str(folder / "d.json"), "--out", str(folder / "store")]
    told += ["--result", str(folder / "r.json"), "--target", "none", "--no-sandbox", *more]
    env = {**clean_environ(), "PYTHONPATH": str(ROOT), "FARM_CACHE": str(folder / "cache")}
    words = [sys.executable, "-m", "farm", *told]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    result = json.loads((folder / "r.json").read_text()) if (folder / "r.json").exists() else {}
    return done.returncode, done.stdout + done.stderr, result


@pytest.mark.long
def test_what_comments_ask_for_is_measured_and_a_cell_is_repeated(repository: Path) -> None:
    right = "    tl.store(y_ptr + row * n + cols, x * rstd * w, mask=mask)"
    name = "src/mylib/ops/norm.py"
    wrong = git(repository, "show", f"wrong:{name}") + "\n"
    line = wrong.split("\n").index(right.replace("w, mask", "w * 1.01, mask")) + 1
    patch = patches.of_suggestion(wrong, Suggestion(name, line, line, right))
    code, said, found = decided(repository, Command("what-if", patch=patch, on="head"))
    assert code == 0, said
    assert [(p["status_a"], p["status_b"]) for p in found["pairs"]] == [("inaccurate", "passed")] * 2
    assert found["asked"]["files"] == [name] and found["base"]["sha"] == found["head"]["sha"]
    cell = found["pairs"][0]["cell"]
    code, said, found = decided(repository, Command("rerun", cell=cell))
    assert code == 1 and [p["cell"] for p in found["pairs"]] == [cell] and not found["tests"], said
    code, said, found = decided(repository, Command("run", matrix="bench/norm.yaml", backends=("cpu",)))
    assert code == 1 and len(found["pairs"]) == 2 and "bench/norm.yaml" in found["repeat"], said
    code, said, _ = decided(repository, Command("run", matrix="bench/none.yaml"))
    assert code == 2 and "base has no matrix" in said
    env = {**clean_environ(), "PYTHONPATH": str(ROOT), "FARM_CACHE": str(repository / "cache")}
    git(repository, "checkout", "-qb", "more", "base")  # a kernel that no cell launches is new
    with (repository / name).open("a") as file:
        file.write("\n@triton.jit\ndef _other(x_ptr):\n    tl.store(x_ptr, 1.0)\n")
    git(repository, "commit", "-qam", "more")
    more = "farm ab --a revision=base --b revision=more --backend cpu"
    for words, exit_code in ((found["pairs"][0]["repeat"], 1), (f"{more} --select id={cell}", 0)):
        told = [sys.executable, "-m", *shlex.split(words), "--no-page"]
        done = subprocess.run(told, cwd=repository, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == exit_code, done.stdout + done.stderr


def test_what_cannot_begin_is_one_sentence(repository: Path) -> None:
    for more, words in (
        (["--bdy"], "unrecognized"),
        (["--repo", str(repository / "none")], "no git repository"),
        (["--head", "nothing-of-that-name"], "no revision"),
        (["--head", "--upload-pack=x"], "expected one argument"),
    ):
        code, _, err = pr(repository, "comment", *more)
        assert code == 2 and words in err and "Traceback" not in err, err
    code, _, err = pr(repository, "comment", body="```yaml\nconfig: {test: [opss]}\n```")
    assert code == 2 and 'did you mean "ops"' in err


def test_a_change_beside_the_subject_runs_nothing_and_says_so(repository: Path) -> None:
    git(repository, "checkout", "-qb", "notes", "base")
    (repository / "NOTES").write_text("what is planned\n")
    git(repository, "add", "NOTES")
    git(repository, "commit", "-qm", "notes")
    code, out, err = pr(repository, "notes", "--target", "none")
    assert code == 0 and "No kernel changed" in out, out + err
    assert "own tests and benchmarks: head changes none" in (repository / "c.md").read_text()
