"""The pytest plugin: `pytest --farm MATRIX` collects the cells of matrices as tests and runs them in one run.

pytest imports this module in every session, so it imports nothing more until --farm is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from farm.testing.cells import FarmFile

READER = pytest.StashKey[Any]()  # farm.testing.session.Reader
CONTROLLER = pytest.StashKey[Any]()  # farm.testing.session.Controller


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("farm", "cells of the kernel farm").addoption(
        "--farm",
        action="append",
        metavar="'MATRIX... [OPTION...]'",
        help="collect the cells of these matrices as tests, and run them in one farm run; takes the options of farm "
        "run, all in one argument; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.farm or config.option.help:
        return
    from farm.testing.session import Controller, Reader

    sent = getattr(config, "workerinput", {}).get("farm")
    if sent is None:
        controller = config.stash[CONTROLLER] = Controller(config.option.farm, Path(config.invocation_params.dir))
        config.pluginmanager.register(_Failures(controller, config.option.maxfail), "farm.testing.failures")
        sent = controller.plan
    reader = config.stash[READER] = Reader(sent)
    config.addinivalue_line(
        "markers", "farm(backend, op, provider, mode, operation, dtype): a cell of pytest --farm, with these values"
    )
    for name in reader.marks:
        config.addinivalue_line("markers", f"{name}: cells of pytest --farm with this backend, op, provider or dtype")
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    named = {Path(config.invocation_params.dir, word.partition("::")[0]).resolve() for word in given}
    config.args[:] = [*given, *(str(path) for path in reader.files if path not in named)]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> FarmFile | None:
    reader = parent.config.stash.get(READER, None)
    if reader is None or file_path.resolve() not in reader.files:
        return None
    from farm.testing.cells import FarmFile

    return FarmFile.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Begin the run, once it is known which cells are selected."""
    failed = session.testsfailed and not session.config.option.continue_on_collection_errors
    if not session.config.option.collectonly and not failed:
        _begin(session.config, [item.nodeid for item in session.items if item.get_closest_marker("farm")])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist what to collect, and where the results will be."""
    controller = node.config.stash.get(CONTROLLER, None)
    if controller is not None:
        node.workerinput["farm"] = controller.plan


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Begin the run with what a worker has selected; every worker selects the same."""
    if not node.config.option.collectonly:
        _begin(node.config, ids)


class _Failures:
    """Cancels the run at the failure after which pytest stops (-x): its workers wait for results until then."""

    def __init__(self, controller: Any, most: int | None):
        self._controller, self._left = controller, most or 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._controller.cancel()


def _begin(config: pytest.Config, ids: list[str]) -> None:
    controller = config.stash.get(CONTROLLER, None)
    if controller is not None:
        controller.begin([cell for node_id in ids if (cell := controller.cell_of(node_id))])


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist waits for workers that wait for a result
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Wait for the end of the run; cancel it where pytest does not want the other results any more."""
    controller = session.config.stash.get(CONTROLLER, None)
    if controller is not None:
        stopped = bool(session.shouldfail or session.shouldstop)
        controller.end(cancel=stopped or exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    controller = config.stash.get(CONTROLLER, None)
    if controller is not None and (lines := controller.summary()):
        terminalreporter.section("farm")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    controller = config.stash.get(CONTROLLER, None)
    if controller is not None:
        controller.close()
