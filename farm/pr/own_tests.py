"""Runs the repository's own tests and benchmarks in one arm: in processes of their own, with a deadline."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from farm.child import perf_reports
from farm.pr.test_reports import MAX_REPORT, OwnResult, junit, perf
from farm.process import command
from farm.process.group import describe_exit
from farm.process.own_modules import module_words

SECONDS = 600.0
_TAIL = 400
#: (a command line, the tree that it reads, the folder that it writes to) -> the command line that is run: in a sandbox,
#: or the same.
Wrap = Callable[[Sequence[str], Path, Path], Sequence[str]]


def run(
    folder: Path,
    tests: Sequence[str],
    benchmarks: Sequence[str],
    *,
    python: str,
    variables: Mapping[str, str],
    path: Sequence[Path] = (),
    seconds: float = SECONDS,
    wrap: Wrap = lambda words, tree, writable: words,
) -> list[OwnResult]:
    """What the files of the tree `folder` say, each in a process of its own.  `path`: folders to import from first;
    `variables`: the whole environment; `seconds`: for each file."""
    env = {**variables, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    out: list[OwnResult] = []
    for name in tests:
        out += _missing(folder, name, "test") or _pytest(folder, name, python, env, seconds, wrap)
    for name in benchmarks:
        out += _missing(folder, name, "benchmark") or _benchmark(folder, name, python, env, seconds, wrap)
    return out


def _missing(folder: Path, name: str, kind: str) -> list[OwnResult]:
    """A file that this arm does not have is not run in it."""
    return [] if (folder / name).exists() else [OwnResult(name, kind, "skipped", "this arm has no such file")]


def _pytest(
    folder: Path, name: str, python: str, env: Mapping[str, str], seconds: float, wrap: Wrap
) -> list[OwnResult]:
    with tempfile.TemporaryDirectory(prefix="farm-tests-") as scratch:
        report = Path(scratch, "report.xml")
        words = [*module_words("pytest", python), "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        words += [f"--junitxml={report}", f"--rootdir={folder}", "--", name]
        done = command.run(wrap(words, folder, Path(scratch)), seconds, env=env, cwd=folder, longest=1 << 20)
        found: list[OwnResult] = []
        why = ""
        try:
            if report.is_file() and not report.is_symlink():
                with report.open("rb") as file:
                    found = junit(file.read(MAX_REPORT + 1))
        except (OSError, ValueError) as error:
            why = str(error)
    if done.code in (0, 1, 5) and (found or done.code == 5):
        return found or [OwnResult(name, "test", "skipped", "pytest collected nothing")]
    # pytest's own exit codes end at 5; whatever else ended it took the tests that were not reported with it
    return [*found, OwnResult(name, "test", *_ending(done, why, seconds))]


def _benchmark(
    folder: Path, name: str, python: str, env: Mapping[str, str], seconds: float, wrap: Wrap
) -> list[OwnResult]:
    with tempfile.TemporaryDirectory(prefix="farm-tests-") as scratch:
        program = Path(scratch, "perf_reports.py")
        program.write_bytes(Path(perf_reports.__file__).read_bytes())  # where a sandbox sees it
        words = [python, str(program), str(folder / name)]
        done = command.run(wrap(words, folder, Path(scratch)), seconds, env=env, cwd=folder, longest=8 << 20)
    found = [OwnResult(f"{name}::{t.id}", *_rest(t)) for t in perf(done.out.splitlines())]
    return found if done.code == 0 and found else [*found, OwnResult(name, "benchmark", *_ending(done, "", seconds))]


def _rest(test: OwnResult) -> tuple[str, str, str, float | None]:
    return test.kind, test.status, test.reason, test.us


def _ending(done: command.Completed, why: str, seconds: float) -> tuple[str, str]:
    """(status, reason) of a process that did not report everything."""
    if done.code is None:
        return "timed_out", f"not done within {seconds:g} s"
    text = " ".join((done.err.strip() or done.out.strip()).split())[-_TAIL:]
    if "No module named pytest" in text:
        return "unsupported", "the environment has no pytest"
    if done.code == 0:
        return "skipped", why or "nothing was reported"
    return "crashed", f"{why or describe_exit(done.code)}: {text}"
