"""What a comment asks a measuring job for, over a git repository."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from subject_repositories import SUBJECT, committed, git, write

from farm.cli.pr_asked import Asked
from farm.errors import UsageError
from farm.pr.commands import Command
from farm.pr.events import Request
from farm.pr.patches import Suggestion
from farm.subject import arms, repository

NAME = "src/mylib/ops/norm.py"
KERNEL = "import triton\n\ndef norm(x, w, eps):\n    return x\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "repository"
    matrix = "name: norm\nop: rms_norm\naxes: {shape: [{rows: 3, hidden: 64}]}\nproviders: {liger: {}}\n"
    write(made, src__mylib__ops__norm_dot_py=KERNEL, bench__norm_dot_yaml=matrix, farm_yaml=SUBJECT)
    committed(made)
    git(made, "checkout", "-qb", "topic")
    (made / NAME).write_text(KERNEL.replace("return x", "return x * w"))
    (made / "bench" / "norm.yaml").write_text("head's own\n")
    git(made, "commit", "-qam", "topic")
    return made


def asked(folder: Path, command: Command, suggestion: Suggestion | None = None) -> Asked:
    found = repository.history(folder, "base", "topic")
    request = Request("someone/kernels", 7, found.head, found.base, command=command, suggestion=suggestion)
    return Asked(command, request, folder, found)


def patch(name: str, old: str, new: str) -> str:
    return f"--- a/{name}\n+++ b/{name}\n@@ -4 +4 @@\n-    {old}\n+    {new}\n"


def contents(of: Asked, folder: Path) -> tuple[Any, Any]:
    with of.patched():
        a, b = arms.contents(*arms.pair(*of.arms()), repo=str(folder), rules=of.rules)
        of.check(a, b)
    return a, b


def test_a_what_if_is_a_commit_against_itself_with_the_patch(folder: Path) -> None:
    of = asked(folder, Command("what-if", patch=patch(NAME, "return x * w", "return w * x"), on="head"))
    a, b = contents(of, folder)
    assert "return x * w" in a.sources()["overlay/mylib/ops/norm.py"]
    assert "return w * x" in b.sources()["overlay/mylib/ops/norm.py"]
    assert of.base == of.head == of.history.head and of.told()["asked"]["files"] == [NAME]
    assert of.shown()[-1].endswith(",patch=what-if.diff")
    base = asked(folder, Command("what-if", patch=patch(NAME, "return x", "return w"), on="base"))
    a, b = contents(base, folder)
    assert base.base == base.head == base.history.base and base.told()["asked"]["head"] == base.history.head
    made = Suggestion(NAME, 3, 4, "def norm(x, w, eps):\n    return 2 * x\n")
    suggested = asked(folder, Command("what-if", on="head", review=1), made)
    assert "return 2 * x" in contents(suggested, folder)[1].sources()["overlay/mylib/ops/norm.py"]


def test_a_what_if_on_head_is_described_by_base(folder: Path) -> None:
    (folder / "farm.yaml").write_text(f"{SUBJECT}contracts: [bench/contracts]\ntests: [more.py]\n")
    git(folder, "commit", "-qam", "rules")
    of = asked(folder, Command("what-if", patch=patch(NAME, "return x * w", "return w * x"), on="head"))
    a, b = contents(of, folder)
    assert a.subject is not None and b.subject is not None
    for one in (a.subject.subject, b.subject.subject):
        assert "name: norm" in Path(one.matrices[0]).read_text() and not one.contracts and not one.tests
    assert "farm.yaml of the arms is not base's, which counts for both" in b.notes
    on_base = Command("what-if", patch=patch(NAME, "return x", "return w"), on="base")
    assert asked(folder, on_base).rules == asked(folder, Command("run")).rules == ""


@pytest.mark.parametrize(
    "text, words",
    [
        ("--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+x = 1\n", "conftest.py, which is not part of the subject"),
        ("--- /dev/null\n+++ b/src/other.py\n@@ -0,0 +1 @@\n+x = 1\n", "src/other.py"),
        ("--- a/bench/norm.yaml\n+++ b/bench/norm.yaml\n@@ -1 +1 @@\n-head's own\n+x\n", "bench/norm.yaml"),
        (patch(NAME, "return y", "return z"), "does not apply"),
        (patch("src/mylib/none.py", "return y", "return z"), "does not apply"),
    ],
)
def test_a_patch_of_anything_else_is_refused(folder: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        contents(asked(folder, Command("what-if", patch=text, on="head")), folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["src/mylib/link.py", "src/mylib/none.py", ".git/config", "src/mylib/bytes.bin"])
def test_a_suggestion_for_no_plain_text_is_refused(folder: Path, name: str) -> None:
    (folder / "src/mylib/link.py").symlink_to("/etc/passwd")
    (folder / "src/mylib/bytes.bin").write_bytes(b"\xff\xfe\x00")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "more")
    with pytest.raises(UsageError):
        asked(folder, Command("what-if", on="head", review=1), Suggestion(name, 1, 1, "x"))


def test_what_a_command_line_becomes(folder: Path) -> None:
    def narrowed(command: Command, **given: Any) -> argparse.Namespace:
        args = argparse.Namespace(select=None, all=False, backend=None, no_device=False, matrices=[], **given)
        asked(folder, command).narrow(args)
        return args

    found = narrowed(Command("rerun", cell="cuda/rms_norm/x/auto/forward/bf16/8x64@sm_90"))
    assert (found.select, found.backend, found.all) == ("id=*/rms_norm/x/auto/forward/bf16/8x64", "cuda", True)
    assert narrowed(Command("rerun", cell="cpu/rms_norm/x")).no_device
    assert narrowed(Command("run", backends=("cpu", "rocm"))).backend == "rocm"
    plain = narrowed(Command("run"))
    assert (plain.select, plain.backend, plain.no_device) == (None, None, False)
    of = asked(folder, Command("run", matrix="bench/norm.yaml"))
    of.narrow(args := argparse.Namespace(select=None, backend=None, no_device=False))
    assert "name: norm" in args.matrices[0].read_text()  # base's, not head's
    assert of.notes == ["the matrix bench/norm.yaml"]
    for bad in (Command("rerun", cell="nowhere/x/y"), Command("rerun", cell="cuda"), Command("rerun", cell="cuda/a,b")):
        with pytest.raises(UsageError, match="no id of a cell"):
            narrowed(bad)
    with pytest.raises(UsageError, match="no matrix"):
        narrowed(Command("run", matrix="bench/none.yaml"))
    assert asked(folder, Command("run")).told() == {}
