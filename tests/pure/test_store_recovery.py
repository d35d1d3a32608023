"""What a journal says of an interrupted run, and what is cut off before lines are added to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farm.cell import Cell, Status
from farm.cli import merge, resume
from farm.cli.main import parser
from farm.errors import StoreError
from farm.store import Store
from farm.store import journal as journals
from farm.store.recovery import read, samples
from farm.store.results import NO_RESULT, finish_row, planned_row
from farm.store.run_reader import fold

HEAD = {"event": "run", "schema": 4, "run_id": "r", "created": "2026-11-21T12:00:00+00:00", "planned": 4}
BEGUN = 1795262400.0  # the same moment


def a_cell(index: int) -> Cell:
    return Cell(
        backend="sim",
        op="rms_norm",
        provider="farm",
        mode="auto",
        operation="forward",
        dtypes={"x": "float32", "weight": "float32"},
        dims={"rows": 2, "hidden": 64 + index},
        params={"eps": 1e-6},
        index=index,
        matrix="m",
        cell_id=f"sim/rms_norm/farm/{index}",
    )


CELLS = [a_cell(i) for i in range(4)]


def started(index: int, attempt: int, at: float = 1.0) -> dict[str, Any]:
    return {"event": "started", "time": BEGUN + at, "device": "sim:0", "cell": index, "attempt": attempt}


def measured(index: int, attempt: int, us: float = 10.0) -> dict[str, Any]:
    timing = {"method": "host", "samples_us": [us, us], "sets": 3}
    telemetry = {"raw": [[0.0, 1500.0]]}
    return {"event": "measured", "cell": index, "attempt": attempt, "timing": timing, "telemetry": telemetry}


def result(index: int, status: Status = Status.PASSED, attempt: int = 1) -> dict[str, Any]:
    row = finish_row(CELLS[index], status=status, reason="", owner="", attempt=attempt, evidence="simulated")
    return {"event": "result", "row": row}


def journal(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    plan = [{"event": "cell", "cell": c.to_dict()} for c in CELLS]
    found: list[dict[str, Any]] = json.loads(json.dumps([HEAD, *plan, {"event": "planned"}, *lines]))
    return found


def samples_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(samples(read(lines).rows, lines.__getitem__))


def test_results_stand_but_what_only_the_farm_failed_is_open() -> None:
    known = read(journal(result(0), result(1, Status.LOST), result(2, Status.INFRA_ERROR)))
    assert sorted(known.rows) == [0]
    assert [c.index for c in known.open] == [1, 2, 3]
    assert known.planned and known.cells == tuple(CELLS)
    assert known.head["planned"] == 4 and "event" not in known.head


def test_a_later_result_takes_the_place_of_an_earlier_one() -> None:
    assert read(journal(result(0, Status.LOST), result(0))).rows[0]["status"] == "passed"
    assert read(journal(result(0, Status.INFRA_ERROR), result(0))).rows[0]["status"] == "passed"


@pytest.mark.parametrize(("owner", "stands"), [("", True), ("kernel", True), ("device", False), ("infra", False)])
def test_a_failure_stands_only_if_it_is_the_kernels(owner: str, stands: bool) -> None:
    line = result(0, Status.CRASHED)
    line["row"]["fault_owner"] = owner
    assert bool(read(journal(line)).rows) is stands


def test_samples_are_those_of_the_attempt_that_counted() -> None:
    lines = [started(0, 1), measured(0, 1, 99.0), started(0, 2), measured(0, 2, 7.0), result(0, attempt=2)]
    (sample,) = samples_of(journal(*lines))
    assert (sample["cell_id"], sample["attempt"], sample["samples_us"]) == (CELLS[0].cell_id, 2, "[7.0, 7.0]")
    assert (sample["sets"], sample["telemetry"], sample["method"]) == (3, "[[0.0, 1500.0]]", "host")


@pytest.mark.parametrize("status", [Status.INFRA_ERROR, Status.LOST])
def test_what_no_judge_has_seen_has_no_samples(status: Status) -> None:
    assert samples_of(journal(started(0, 1), measured(0, 1), result(0, status))) == []


def test_an_attempt_that_began_keeps_its_number_though_nothing_came_of_it() -> None:
    assert read(journal(started(0, 1), started(0, 2), started(1, 1), result(0))).attempts == {0: 2, 1: 1}


def test_samples_of_an_attempt_that_was_cut_off_are_not_the_next_ones() -> None:
    again: dict[str, Any] = {"event": "resumed", "time": BEGUN + 9}
    lines = [started(0, 1), measured(0, 1, 99.0), again, started(0, 2), result(0, Status.CRASHED, 2)]
    assert samples_of(journal(*lines)) == []


def test_time_worked_is_the_sum_of_the_sessions() -> None:
    assert read([]).seconds == 0.0
    again: dict[str, Any] = {"event": "resumed", "time": BEGUN + 1000.0, "argv": ["resume", "r"]}
    known = read(journal(started(0, 1, 10.0), again, started(0, 2, 1005.0)))
    assert known.seconds == 15.0
    assert known.resumed == ({"time": BEGUN + 1000.0, "argv": ["resume", "r"]},)


def test_devices_and_what_served_them_are_known() -> None:
    lines: list[dict[str, Any]] = [
        {"event": "device_up", "time": BEGUN, "device": "sim:0", "backend": "sim", "target": {"backend": "sim"}},
        {"event": "roof", "device": "sim:0", "choice": {"id": "c1"}, "calibration": {"id": "c1", "curve": []}},
        {"event": "device_up", "time": BEGUN, "device": "sim:1", "backend": "sim", "target": {"backend": "sim"}},
        {"event": "roof", "device": "sim:1", "choice": {"id": "c1"}},
    ]
    known = read(journal(*lines))
    assert sorted(known.devices) == ["sim:0", "sim:1"]
    assert known.choices == {"sim:0": {"id": "c1"}, "sim:1": {"id": "c1"}}
    assert list(known.calibrations) == ["c1"]
    assert read(journal(*lines, lines[0])).choices == {"sim:1": {"id": "c1"}}  # it came up again, and has none now


def test_a_plan_that_was_cut_is_not_whole() -> None:
    assert not read(journal()[:3]).planned


# What a kill leaves


def written(tmp_path: Path) -> Path:
    writer = Store(tmp_path).create("r")
    writer.plan({"planned": 4}, CELLS)
    writer.append(result(0))
    writer.close()
    return tmp_path / "runs/r/journal.jsonl"


def mend(path: Path) -> None:
    journals.cut(path, journals.Journal(path).read_through().end)


@pytest.mark.parametrize("tail", [b'{"event":"result","row":{"ind', b"\0\0\0\0", b'{"event"\n', b"\xff\xfe\n\0"])
def test_a_torn_end_is_cut_off_and_kept(tmp_path: Path, tail: bytes) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    for _ in range(2):
        mend(path)
        assert path.read_bytes() == whole
        assert path.with_name(journals.CUT).read_bytes() == tail + b"\n"


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    mend(path)
    assert path.read_bytes() == whole and not path.with_name(journals.CUT).exists()


def test_every_cut_of_a_journal_is_mended_by_the_first_line_that_follows(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 41):
        path.write_bytes(whole[:length])
        writer = Store(tmp_path).reopen("r")
        assert path.read_bytes() == whole[:length]  # nothing has changed yet
        at = writer.append({"event": "resumed", "time": 1.0})
        writer.close()
        lines = path.read_bytes()[:at]
        assert whole.startswith(lines) and (lines == b"" or lines.endswith(b"\n"))
        *before, last = Store(tmp_path).run("r").journal()
        assert last == {"event": "resumed", "time": 1.0} and len(before) == lines.count(b"\n")


def test_damage_in_the_middle_costs_that_line_only(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0\0\0\n", *lines[3:]]))
    writer = Store(tmp_path).reopen("r")
    assert writer.journal.read_through().damage == journals.Damage(lines=1, first=3, behind=len(lines) - 3, results=1)
    with pytest.raises(StoreError) as refused:  # a line of the plan
        resume._known(Store(tmp_path).run("r"), writer.journal)
    assert refused.value.id == "resume-plan-hash"
    writer.close()
    assert path.read_bytes().splitlines(keepends=True)[2] == b"\0\0\0\n"


def test_a_complete_run_is_not_opened_again(tmp_path: Path) -> None:
    writer = Store(tmp_path).create("r")
    writer.plan({"planned": 4}, CELLS)
    writer.finish([planned_row(c) for c in CELLS], [], {})
    writer.close()
    before = {p.name: p.read_bytes() for p in writer.dir.iterdir() if p.is_file()}
    with pytest.raises(StoreError) as refused:
        Store(tmp_path).reopen("r")
    assert refused.value.id == "store-run-complete"
    assert {p.name: p.read_bytes() for p in writer.dir.iterdir() if p.is_file()} == before


def test_a_run_that_was_killed_before_its_first_line_says_so(tmp_path: Path) -> None:
    Store(tmp_path).create("r").close()
    with pytest.raises(StoreError) as refused:
        resume._opened(Store(tmp_path), "r")
    assert refused.value.id == "resume-plan-incomplete"


def test_options_given_now_replace_those_that_the_run_began_with() -> None:
    begun = ["run", "m.yaml", "--wait-for-devices", "600", "--devices", "4", "--strict-peers"]
    args = parser().parse_args(["resume", "r", "--wait-for-devices", "0", "--devices", "2"])
    resume._as_begun(args, begun)
    assert (args.wait_for_devices, args.devices, args.strict_peers, args.address) == (0.0, 2, True, None)
    silent = parser().parse_args(["resume", "r"])
    resume._as_begun(silent, begun)
    assert (silent.wait_for_devices, silent.devices) == (600.0, 4)


def test_an_interrupted_run_that_is_damaged_is_not_merged(tmp_path: Path) -> None:
    """Without a word a result would be lost that its site still has."""
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"\0\0\n", lines[-1]]))
    with pytest.raises(StoreError, match=f"line {len(lines)} ") as refused:
        merge._reports([Store(tmp_path).run("r")])
    assert refused.value.id == "store-journal-damaged"
    path.write_bytes(b"".join([*lines, b'{"event":"res']))  # a kill's doing, and no damage
    assert [r["status"] for r in merge._reports([Store(tmp_path).run("r")])[0].rows] == ["passed"] + 3 * ["lost"]


def test_a_cell_that_was_lost_has_no_result_once_its_run_resumes() -> None:
    lost, again = result(1, Status.LOST), {"event": "resumed", "time": BEGUN + 9}
    lost["row"]["reason"] = "no device of sim for 600 s"
    before, after = fold(journal(result(0), lost)), fold(journal(result(0), lost, again))
    assert [r["reason"] for r in before[:2]] == ["", "no device of sim for 600 s"]
    assert [r["reason"] for r in after[:2]] == ["", NO_RESULT] and after[0]["status"] == "passed"
