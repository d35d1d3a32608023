"""The cells of a matrix as pytest's items: each waits for its result, and is that result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from farm.cell import FINDINGS, Status
from farm.cli.progress import needs_a_look
from farm.testing.plugin import READER
from farm.testing.session import CANCELLED, FACTS, Reader, marks_of

MOST_LOG = 64 << 10  # characters of a log in a report
#: Columns of a result that a report keeps as properties.
KEPT = ("cell_key", "status", "target", "device", "time_us_p50", "bandwidth_gbps", "share_of_roof", "timing_quality")


class FarmFile(pytest.File):
    """A matrix."""

    def collect(self) -> Iterator[FarmItem]:
        for cell in self.config.stash[READER].files[self.path.resolve()]:
            yield FarmItem.from_parent(self, name=cell["id"], cell=cell)


class FarmItem(pytest.Item):
    """A cell.  It is set up once its result is there, and fails as its result does."""

    def __init__(self, *, cell: Mapping[str, Any], **more: Any):
        super().__init__(**more)
        self.cell = cell
        self.add_marker(pytest.mark.farm(**{fact: cell[fact] for fact in FACTS}))
        for name in marks_of(cell):
            self.add_marker(name)

    @property
    def reader(self) -> Reader:
        return self.config.stash[READER]

    def setup(self) -> None:
        """Wait for the result.  An error, or a skip, where it says nothing of the kernel."""
        row = self.reader.result(self.name)
        if row is None and self.reader.ended == CANCELLED:
            _skip(CANCELLED)
        if row is None:
            pytest.fail(f"the run ended without a result of this cell: {self.reader.ended}", pytrace=False)
        self.row = row
        self.user_properties += [(name, row[name]) for name in KEPT if row.get(name) not in (None, "")]
        status, reason = Status(row["status"]), str(row["reason"] or "no reason recorded")
        if status in (Status.PASSED, Status.BUILT):
            return
        if log := self.reader.log(row):
            text = log if len(log) <= MOST_LOG else f"[the begin is left out]\n{log[-MOST_LOG:]}"
            self.add_report_section("setup" if status not in FINDINGS else "call", "farm log", text)
        if status in (Status.SKIPPED, Status.UNSUPPORTED):
            _skip(f"{status.value}: {reason}")
        if not needs_a_look(row, self.reader.strict_peers):
            _skip(f"peer {status.value}: {reason}")
        if status not in FINDINGS:
            pytest.fail(f"{status.value}: {reason}", pytrace=False)  # an error, since it is raised here

    def runtest(self) -> None:
        """Raise what the judge said."""
        status = Status(self.row["status"])
        if status in FINDINGS:
            log = self.reader.path_of_log(self.row)
            told = f"{status.value}: {self.row['reason']}"
            raise AssertionError(f"{told}\nlog: {log}" if log else told)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Of what the judge says only the text."""
        if isinstance(excinfo.value, AssertionError):
            return excinfo.getrepr(style="value")
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return Path(self.path), 0, self.name


def _skip(reason: str) -> NoReturn:
    """Skip a cell, with its matrix as the place of the skip."""
    raise pytest.skip.Exception(reason, _use_item_location=True)
