"""Runs the repository's own tests and benchmarks in one arm: in processes of their own, with a deadline.

A test that ends its process, or does not end, costs itself alone: the others of its file run again without it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from farm.child import own_pytest, perf_reports
from farm.pr.own_box import Box, Open
from farm.pr.test_reports import MAX_REPORT, OwnResult, begun, junit, own_id, perf
from farm.process import command
from farm.process.group import describe_exit
from farm.process.own_modules import module_words

SECONDS = 600.0
#: A file is begun so often, and so often it may not end.
ATTEMPTS, HANGS = 4, 2
_TAIL = 400


def run(
    folder: Path,
    tests: Sequence[str],
    benchmarks: Sequence[str],
    *,
    python: str,
    variables: Mapping[str, str],
    path: Sequence[Path] = (),
    seconds: float = SECONDS,
    box: Callable[[], Box] = Open,
) -> list[OwnResult]:
    """What the files of the tree `folder` say, each in a process of its own.  `path`: folders to import from first;
    `variables`: the whole environment; `seconds`: for each file; `box`: makes what is around a process."""
    env = {**variables, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    out: list[OwnResult] = []
    for name in tests:
        out += _missing(folder, name, "test") or _pytest(folder, name, python, env, seconds, box)
    for name in benchmarks:
        out += _missing(folder, name, "benchmark") or _benchmark(folder, name, python, env, seconds, box)
    return out


def _missing(folder: Path, name: str, kind: str) -> list[OwnResult]:
    """A file that this arm does not have is not run in it."""
    return [] if (folder / name).exists() else [OwnResult(name, kind, "skipped", "this arm has no such file")]


def _pytest(
    folder: Path, name: str, python: str, env: Mapping[str, str], seconds: float, box: Callable[[], Box]
) -> list[OwnResult]:
    lost: dict[str, OwnResult] = {}
    hangs = 0
    for attempt in range(ATTEMPTS):
        around = box()
        try:
            done, report, last = _once(folder, name, python, env, seconds, around, list(lost))
            found, why = _read(report)
            found = [_limited(test, around) for test in found]
            if done.code in (0, 1, 5) and (found or lost or done.code == 5):
                out = [*lost.values(), *found]
                return out or [OwnResult(name, "test", "skipped", "pytest collected nothing")]
            # pytest's own exit codes end at 5; whatever else ended it took the tests that were not reported with it
            status, reason = _ending(done, why, seconds)
            if limit := around.limit(reason, ended=status == "crashed"):
                reason = f"{limit}; {reason}"
        finally:
            around.close()
        hangs += done.code is None
        if not last or last in lost or attempt == ATTEMPTS - 1 or hangs == HANGS:
            break
        lost[last] = OwnResult(own_id(last), "test", status, reason)
    return [*lost.values(), *found, OwnResult(name, "test", status, reason)]


def _once(
    folder: Path, name: str, python: str, env: Mapping[str, str], seconds: float, box: Box, left_out: list[str]
) -> tuple[command.Completed, bytes, str]:
    """(how it ended, its report, the test that began last).  Report and notes go through open files: nothing of the
    host is there to be written by name."""
    with (
        tempfile.TemporaryDirectory(prefix="farm-tests-") as scratch,
        tempfile.TemporaryFile() as report,
        tempfile.TemporaryFile() as notes,
    ):
        plugin = Path(scratch, "farm_own_pytest.py")
        plugin.write_bytes(Path(own_pytest.__file__).read_bytes())
        plan = {"begun": notes.fileno(), "left_out": left_out}
        plugin.with_name("plan.json").write_text(json.dumps(plan), encoding="utf-8")
        words = [*module_words("pytest", python), "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        words += ["-p", plugin.stem, f"--junitxml=/dev/fd/{report.fileno()}", f"--rootdir={folder}", "--", name]
        own = {**env, "PYTHONPATH": os.pathsep.join(filter(None, (env["PYTHONPATH"], scratch)))}
        done = command.run(
            box.words(words, [folder, Path(scratch)], folder),
            seconds,
            env=own,
            cwd=folder,
            longest=1 << 20,
            pass_fds=(report.fileno(), notes.fileno()),
        )
        return done, _content(report.fileno(), MAX_REPORT + 1), begun(_content(notes.fileno(), 1 << 24))


def _content(file: int, most: int) -> bytes:
    """What is in an open file, from its beginning."""
    parts, at = list[bytes](), 0
    while at < most and (part := os.pread(file, min(most - at, 1 << 20), at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _read(report: bytes) -> tuple[list[OwnResult], str]:
    """(tests, why there are none)."""
    try:
        return (junit(report), "") if report else ([], "")
    except ValueError as error:
        return [], str(error)


def _limited(test: OwnResult, box: Box) -> OwnResult:
    """A failed test with the limit that it ran into, if it says so itself."""
    if test.status != "crashed" or not (limit := box.limit(test.reason)):
        return test
    return replace(test, reason=f"{test.reason}; {limit}"[:600])


def _benchmark(
    folder: Path, name: str, python: str, env: Mapping[str, str], seconds: float, box: Callable[[], Box]
) -> list[OwnResult]:
    around = box()
    try:
        with tempfile.TemporaryDirectory(prefix="farm-tests-") as scratch:
            program = Path(scratch, "perf_reports.py")
            program.write_bytes(Path(perf_reports.__file__).read_bytes())  # where a sandbox sees it
            words = around.words([python, str(program), str(folder / name)], [folder, Path(scratch)], folder)
            done = command.run(words, seconds, env=env, cwd=folder, longest=8 << 20)
        found = [OwnResult(f"{name}::{t.id}", *_rest(t)) for t in perf(done.out.splitlines())]
        if done.code == 0 and found:
            return found
        status, reason = _ending(done, "", seconds)
        limit = around.limit(reason, ended=status == "crashed")
        return [*found, OwnResult(name, "benchmark", status, f"{limit}; {reason}" if limit else reason)]
    finally:
        around.close()


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
