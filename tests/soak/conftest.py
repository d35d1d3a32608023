"""`make soak`: checks too slow for `make test`, in a seeded order, within a budget.

    SOAK_MINUTES   the budget (default 45: everything)
    SOAK_SEED      decides the order and what is random in the checks (default: a new one, printed)

A check is a test of this folder with the marker `soak(seconds=N)`, its estimated duration on two quiet cores.  One that
does not fit in what is left of the budget is not started, and listed at the end; that fails nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from selection import Check, Selection

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / room) for room in ("fake", "pure", "golden")]  # their helpers

from farm_fixture import farm as farm  # noqa: E402
from nodes_cluster import carrying  # noqa: E402

SEED = os.environ.get("SOAK_SEED") or str(secrets.randbelow(10**6))
STATE: pytest.StashKey[tuple[Selection, float]] = pytest.StashKey()
CHECK: pytest.StashKey[Check] = pytest.StashKey()
MINE = "SOAK_CHECK"  # in the environment of everything that a check starts


def minutes() -> float:
    given = os.environ.get("SOAK_MINUTES") or "45"
    try:
        return float(given)
    except ValueError:
        raise pytest.UsageError(f"SOAK_MINUTES is a number of minutes, not {given!r}") from None


def pytest_report_header() -> str:
    return f"soak: {minutes():g} minutes, seed {SEED}; to repeat: SOAK_MINUTES={minutes():g} SOAK_SEED={SEED} make soak"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = {item.nodeid: item for item in items if item.path.parent == Path(__file__).parent}
    for item in ours.values():
        marker = item.get_closest_marker("soak")
        if marker is None:
            raise pytest.UsageError(f"{item.nodeid} has no marker soak(seconds=...)")
        item.stash[CHECK] = Check(item.nodeid, marker.kwargs["seconds"])
    selection = Selection.seeded((item.stash[CHECK] for item in ours.values()), SEED, 60 * minutes())
    items[:] = [item for item in items if item.nodeid not in ours] + [ours[c.name] for c in selection.order]
    config.stash[STATE] = selection, time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if check := item.stash.get(CHECK, None):
        selection, began = item.config.stash[STATE]
        if not selection.starts(check, time.monotonic() - began):
            pytest.skip("not reached")


@contextlib.contextmanager
def _deadline(item: pytest.Item) -> Iterator[None]:
    """Fail the test that is still going; again every ten seconds, should somebody catch it."""
    check = item.stash.get(CHECK, None)
    if check is None:
        yield
        return

    seconds = item.config.stash[STATE][0].deadline(check)

    def over(*_: Any) -> None:
        pytest.fail(f"still going after {seconds:.0f} s; {check.seconds:g} s were estimated")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with _deadline(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report: pytest.TestReport = yield
    check = item.stash.get(CHECK, None)
    if check is None:
        return report
    selection, _ = item.config.stash[STATE]
    if report.skipped and check not in selection.not_reached:
        selection.skipped[check.name] = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    elif not report.skipped and check.name not in selection.skipped and check not in selection.not_reached:
        selection.ran[check.name] = selection.ran.get(check.name, 0.0) + call.duration
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if STATE not in config.stash:
        return
    selection, _ = config.stash[STATE]
    tell, counts = terminalreporter.write_line, (len(selection.ran), len(selection.skipped), len(selection.not_reached))
    terminalreporter.section("soak")
    for check in selection.order:
        if check.name in selection.ran:
            tell(f"ran          {selection.ran[check.name]:4.0f} s of {check.seconds:3g} s  {check.name}")
    for name, reason in selection.skipped.items():
        tell(f"skipped      {name}: {reason}")
    for check in selection.not_reached:
        tell(f"not reached  {check.seconds:13g} s  {check.name}")
    tell(f"{counts[0]} ran, {counts[1]} skipped, {counts[2]} not reached; seed {SEED}")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """This check's seed: another for every check and every SOAK_SEED."""
    return f"{SEED}/{request.node.name}"


@pytest.fixture
def dice(seed: str) -> random.Random:
    return random.Random(seed)


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a check started and left ends with it."""
    token = secrets.token_hex(8)
    monkeypatch.setenv(MINE, token)
    yield
    for pid in carrying(MINE, token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
