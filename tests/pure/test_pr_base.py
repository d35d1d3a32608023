"""Files of the repository on the command line of `farm pr` are base's: a head that edits them decides nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from pr_results import pair, result
from subject_repositories import SUBJECT, committed, git, write

from farm.cli import pr_base, pr_inputs
from farm.cli.pr_base import Named, inside
from farm.errors import UsageError
from farm.pr import comment as comments
from farm.pr import merging
from farm.pr import result as results
from farm.subject import repository


def given(folder: Path, working: bool = False, **named: object) -> tuple[argparse.Namespace, Named]:
    args = argparse.Namespace(**{"matrices": [], "contracts": [], "subject": None, "working_tree": working, **named})
    return args, Named.of(args, folder, repository.history(folder, "base", "topic"))


def test_what_head_edits_links_or_adds_does_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "repository"
    monkeypatch.setenv("FARM_CACHE", str(folder / "cache"))  # base's files may lie inside, too
    write(folder, farm_yaml=SUBJECT, more__kept_dot_yaml="kept\n", linked__m_dot_yaml="base's\n")
    committed(folder)
    git(folder, "checkout", "-qb", "topic")
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("m.yaml", "secret"):
        (outside / name).write_text("not base's\n")
    (folder / "bench/norm.yaml").write_text("head's\n")
    (folder / "farm.yaml").write_text("head's\n")
    (folder / "bench/contracts/own_op/more.py").write_text("head's\n")
    (folder / "bench/new.yaml").write_text("head's\n")
    (folder / "linked/m.yaml").unlink()
    (folder / "linked").rmdir()
    (folder / "linked").symlink_to(outside)
    (folder / "loop").symlink_to(".")
    git(folder, "add", "-A", "bench", "farm.yaml", "linked", "loop")
    git(folder, "commit", "-qam", "topic")
    monkeypatch.chdir(folder)
    names = ["bench/norm.yaml", "more/kept.yaml", "linked/m.yaml", str(outside / "m.yaml")]
    args, found = given(folder, matrices=names, subject="farm.yaml", contracts=["bench/contracts"])
    assert "name: norm" in args.matrices[0].read_text() and args.matrices[2].read_text() == "base's\n"
    assert args.matrices[3] == outside / "m.yaml", "the operator's own"
    assert Path(args.subject).read_text() == SUBJECT
    assert not (args.contracts[0] / "own_op/more.py").exists()
    of = ("the matrix bench/norm.yaml", "the matrix linked/m.yaml", "the folder of contracts bench/contracts")
    assert found.notes == [*of, "the subject's description farm.yaml"] and not found.working
    assert [*map(found.called, args.matrices)] == names and found.called(args.subject) == "farm.yaml"
    assert pr_inputs.given(args, folder) == [], "what the commits have is not kept again"
    for name in ("bench/new.yaml", "loop/bench/norm.yaml", "linked/secret", "bench/gone.yaml"):
        with pytest.raises(UsageError, match="has no such file, and head's does not decide") as caught:
            given(folder, matrices=[name])
        assert "\n" not in str(caught.value)
    args, found = given(folder, working=True, matrices=["bench/norm.yaml"])
    assert args.matrices[0].read_text() == "head's\n" and found.working == ["bench/norm.yaml"]


def test_a_link_of_head_is_neither_the_operators_nor_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "repository"
    top.mkdir()
    (tmp_path / "secret").write_text("a key")
    (top / "known.yaml").symlink_to(tmp_path / "secret")
    (tmp_path / "also").symlink_to(top)
    monkeypatch.chdir(top)
    args = argparse.Namespace(matrices=[], known=Path("known.yaml"), subject=None)
    assert pr_inputs.given(args, top) == []
    for name in ("known.yaml", top / "known.yaml", tmp_path / "also/known.yaml", "../repository/x/../known.yaml"):
        assert pr_base.inside(Path(name), top) == Path("known.yaml"), name
    assert inside(tmp_path / "secret", top) is None and inside(Path("../secret"), top) is None


def test_the_comment_says_what_was_not_bases() -> None:
    a, b = (result(pair(), working_tree=[name]) for name in ("bench/<b>.yaml", "m.yaml"))
    results.read(json.dumps(a))
    text = comments.comment(merging.merged([a, b]))
    assert "Read from the working tree of who ran this, which may be head's, and not from base: bench/" in text
    assert "m.yaml" in text and "<b>" not in text
    assert results.repeat("farm pr m.yaml --base 0123456789ab --head 0123456789ab --working-tree")
