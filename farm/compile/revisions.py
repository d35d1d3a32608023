"""Compiles the kernels of two git revisions and says what differs."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from farm.compile.diff import Difference, compare
from farm.compile.run import CompileOutcome, CompileRequest, execute
from farm.errors import InfraError, UsageError
from farm.kernel_package import ROOT
from farm.shipping import files

WORKING_TREE = "."
GIT_SECONDS = 60.0


def between(request: CompileRequest, before: str, after: str) -> Difference:
    """The plan of `request` compiled with the `kernels` of both revisions.  UsageError for one that git does not know,
    or that has no such package; KeyboardInterrupt ends both."""
    repository = find_repository()
    with tempfile.TemporaryDirectory(prefix="farm-revisions-") as folder:
        places = [checkout(repository, name, Path(folder, str(i))) for i, name in enumerate((before, after))]
        outcomes = [_compile(request, place) for place in places]
    return compare((before, after), outcomes[0].rows, outcomes[1].rows)


def find_repository() -> Path:
    """The git repository of the working folder, if it contains our kernels; else the farm's own.  UsageError if neither
    is one."""
    for folder in (Path.cwd(), ROOT):
        top = _git(folder, "rev-parse", "--show-toplevel").decode().strip()
        if top and (Path(top) / "kernels" / "launches.py").is_file():
            return Path(top)
    raise UsageError(
        "--diff: neither this folder nor the farm's own folder is a git repository with a package `kernels`; run "
        "this command in such a repository",
        id="compile-diff-repository",
    )


def checkout(repository: Path, name: str, folder: Path) -> Path:
    """A folder with the revision's `kernels`; for the working tree, the repository itself."""
    if name == WORKING_TREE:
        return repository
    commit = _git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    if not commit:
        raise UsageError(
            f'--diff: {repository} has no revision "{name}"; git log lists its revisions', id="compile-diff-revision"
        )
    packed = _git(repository, "archive", commit, "--", "kernels")
    if not packed:
        raise UsageError(
            f'--diff: revision "{name}" has no package `kernels`; choose a later revision', id="compile-diff-kernels"
        )
    try:
        return files.write_all(files.members(packed, strict=False), folder)
    except files.NotInside as error:
        raise UsageError(f'--diff: revision "{name}" {error}', id="compile-diff-entry") from None


def _compile(request: CompileRequest, kernels: Path) -> CompileOutcome:
    outcome = execute(replace(request, kernels=kernels, machine_code=True), None)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome


def _git(folder: Path, *words: str) -> bytes:
    """What git prints; nothing if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, timeout=GIT_SECONDS, check=False)
    except FileNotFoundError:
        raise UsageError("--diff: git is not installed on this host; install git", id="compile-diff-git") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise InfraError(
            f"git {' '.join(words)} failed in {folder} ({error}); run this command by hand",
            id="compile-diff-git-failed",
        ) from None
    return done.stdout if done.returncode == 0 else b""
