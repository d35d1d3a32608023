"""What a run says of its revision, in a folder with git and in ones without."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from farm import __version__
from farm.shipping import revision


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, timeout=30)


def test_a_folder_without_git_has_its_version(tmp_path: Path) -> None:
    assert revision.of(tmp_path) == {"name": __version__, "commit": "", "dirty": False, "version": __version__}


def test_a_repository_without_a_commit_is_none(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert revision.of(tmp_path)["name"] == __version__


@pytest.mark.parametrize("change", [False, True])
def test_a_commit_is_named_and_changes_to_the_measured_code_are_told(tmp_path: Path, change: bool) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.py").write_text("1")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    (tmp_path / "notes.txt").write_text("no part of what is measured")
    if change:
        (tmp_path / "kernels" / "a.py").write_text("2")
    found = revision.of(tmp_path)
    assert len(found["commit"]) == 40
    assert found["dirty"] is change
    assert found["name"] == found["commit"][:12] + ("+" if change else "")
