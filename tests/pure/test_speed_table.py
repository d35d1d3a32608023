"""Tables of speeds: every cell of a run is in one, only times that may be compared are, and losses can come first."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
import made_runs
from synthetic_runs import HOSTILE, FakeRun, fake_run, interrupted_run, row

from farm.cli import common
from farm.cli.main import main
from farm.errors import UsageError
from farm.report import speed_table
from farm.report.exports import as_table
from farm.report.format import label
from farm.report.speed_table import NOT_PLANNED, SpeedTables, speed_tables


@pytest.fixture(scope="module")
def large() -> FakeRun:
    return fake_run()


def timed(index: int, provider: str, us: float, **given: Any) -> dict[str, Any]:
    """A cell of 4096x4096 that passed on an H200 in `us` microseconds."""
    role = "subject" if provider in ("farm", "mine") else "peer"
    made = {"backend": "cuda", "evidence": "executed", "provider": provider, "role": role, "dtype": "bfloat16"}
    made |= {"time_us_p50": us, "timing_method": "rotating_graph", "timing_quality": "ok"}
    made |= {"bytes_moved": 67_108_864, "bandwidth_gbps": 67_108.864 / us, "operations": 10**8}
    found = row(index, **{**made, **given})
    return {**found, "target": given["target"]} if "target" in given else found


def failed(index: int, provider: str, status: str, **given: Any) -> dict[str, Any]:
    none = dict.fromkeys(("time_us_p50", "bandwidth_gbps", "bytes_moved", "operations"))
    return {**timed(index, provider, 1.0, status=status, timing_quality="none", **given), **none}


def run_of(*rows: dict[str, Any], **head: Any) -> FakeRun:
    return FakeRun("r", {"planned": len(rows), "created": "2026-11-23T00:00:00Z", **head}, True, list(rows))


def missing(run: FakeRun, found: SpeedTables) -> set[tuple[str, str]]:
    """(cell, what) of the run's cells that no table shows as they are."""
    shown = {
        (t.place, t.target, li.op, li.operation, li.shape, li.dtype, li.parameters, name): e.word
        for t in found.tables
        for li in t.lines
        for name, e in li.entries.items()
    }
    out = set()
    for r in run.rows:
        targets = {t.target for t in found.tables if t.place == r["backend"]} if not r["evidence"] else {r["target"]}
        key = (r["op"], r["operation"], r["shape"], r["dtype"], "llama", speed_table.column_of(r))
        for target in targets:
            word = shown.get((r["backend"], target, *key), NOT_PLANNED)
            want = label(r["status"]) if r["status"] != "passed" else ""
            if (want and word != want) or (not want and word not in ("", "not timed", "⊘ impossible")):
                out.add((r["cell_id"], word))
    return out


def test_every_cell_of_a_run_is_in_a_table(large: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(large.rows) == 4000 and missing(large, speed_tables(large)) == set()
    groups = speed_table._groups
    passed_only = lambda rows: groups([r for r in rows if r["status"] == "passed"])  # noqa: E731
    monkeypatch.setattr(speed_table, "_groups", passed_only)  # the plant: what failed is left out
    assert len(missing(large, speed_tables(large))) == sum(r["status"] != "passed" for r in large.rows)


def test_an_interrupted_run_names_what_is_lost() -> None:
    run = interrupted_run()
    text = as_table(run)
    assert missing(run, speed_tables(run)) == set() and "not complete" in text and " lost " in text


def test_formats_agree_hostile_text_stays_text_and_nothing_is_bold(large: FakeRun) -> None:
    text, records = as_table(large), list(csv.DictReader(as_table(large, written_as="csv").splitlines()))
    found = json.loads(as_table(large, written_as="json"))
    lines = [(t, li) for t in found["tables"] for li in t["lines"]]
    assert len(records) == len(lines) == text.count("| rms\\_norm |")
    for record, (table, li) in zip(records, lines):
        assert (record["shape"], record["dtype"], record["target"]) == (li["shape"], li["dtype"], table["target"])
        for name, entry in li["providers"].items():
            assert record[name] == (str(entry["value"]) if entry["us"] else entry["status"])
    assert "**" not in text and "<script" not in text and HOSTILE not in text
    assert all(line.count(" | ") > 5 for line in text.splitlines() if line.startswith("| rms"))
    assert found["caption"]["command"] in text and "torch 2.13.0" in found["caption"]["tool chain"]


def test_the_best_peer_is_the_fastest_of_all_their_modes_that_passed() -> None:
    run = run_of(
        timed(0, "farm", 10.0),
        timed(1, "farm", 5.0, mode="row_packed"),
        timed(2, "torch", 20.0),
        timed(3, "quack", 12.0),
        timed(4, "quack", 8.0, mode="tuned"),
        failed(5, "liger", "inaccurate", reason="y is wrong"),
        timed(6, "huggingface", 1.0, timing_quality="impossible"),
    )
    (table,) = speed_tables(run).tables
    (line,) = table.lines
    assert table.columns == ("farm", "farm/row_packed", "torch", "quack", "quack/tuned", "liger", "huggingface")
    assert (line.best, line.ratio) == ("quack/tuned", 0.8)
    assert line.entries["liger"].word == "inaccurate" and line.entries["huggingface"].us is None
    assert speed_tables(run, of="farm/row_packed").tables[0].lines[0].ratio == 1.6
    text = as_table(run)
    assert "1 of them is slower than the best peer: rms\\_norm forward 4096x4096 bf16 llama 0.800" in text
    assert "liger: inaccurate in 1 line: y is wrong" in text


def test_times_of_another_method_or_target_are_shown_but_not_compared() -> None:
    h100 = "cuda:NVIDIA-H100:700W"
    rows = [timed(0, "farm", 10.0), timed(1, "torch", 5.0, timing_method="events"), timed(2, "liger", 4.0, target=h100)]
    rows += [failed(3, "quack", "lost", evidence="")]
    first, second = speed_tables(run_of(*rows)).tables
    assert first.lines[0].ratio is None and first.lines[0].entries["torch"].note == "(events)"
    assert [first.lines[0].entries[n].word for n in ("liger", "quack")] == ["other target", "lost"]
    assert second.target == h100 and second.lines[0].entries["liger"].us == 4.0
    assert second.lines[0].entries["farm"].word == "other target" and second.lines[0].entries["quack"].word == "lost"
    assert "no line has both a time of farm and one of a peer" in as_table(run_of(*rows))


def test_training_and_inference_are_apart() -> None:
    rows = [timed(i, p, 10.0 + i, operation=o) for i, (p, o) in enumerate(
        [(p, o) for o in ("forward", "no-grad-forward", "backward", "full") for p in ("farm", "torch")]
    )]  # fmt: skip
    training, inference = speed_tables(run_of(*rows)).tables
    assert training.grad and [li.operation for li in training.lines] == ["forward", "backward", "full"]
    assert not inference.grad and [li.operation for li in inference.lines] == ["no-grad-forward"]


def test_losses_come_first_and_before_them_what_has_no_number_of_ours() -> None:
    hidden = {1024: (10.0, 20.0), 2048: (10.0, 9.0), 4096: (10.0, 5.0), 8192: (10.0, None)}
    rows = [timed(i, "farm", ours, hidden=h) for i, (h, (ours, _)) in enumerate(hidden.items())]
    rows += [timed(9 + i, "torch", t, hidden=h) for i, (h, (_, t)) in enumerate(hidden.items()) if t]
    rows += [failed(20, "farm", "crashed", hidden=512), timed(21, "torch", 3.0, hidden=512)]
    planned, worst = (speed_tables(run_of(*rows), losses_first=first).tables[0] for first in (False, True))
    assert [li.shape for li in planned.lines] == ["4096x1024", "4096x2048", "4096x4096", "4096x8192", "4096x512"]
    assert [li.shape for li in worst.lines] == ["4096x512", "4096x4096", "4096x2048", "4096x1024", "4096x8192"]
    assert [li.ratio for li in planned.losses] == [0.5, 0.9]
    assert worst.lines[-1].entries["torch"].word == NOT_PLANNED
    (mean,) = worst.means
    assert (mean.lines, mean.lowest) == (3, 0.5) and mean.mean == pytest.approx((2 * 0.9 * 0.5) ** (1 / 3))


@given(
    st.lists(st.tuples(st.sampled_from(["torch", "liger", "quack"]), st.sampled_from(["auto", "tuned"]),
                       st.sampled_from(["passed", "inaccurate", "crashed", "unsupported", "lost"]),
                       st.floats(0.5, 500.0)), max_size=6, unique_by=lambda t: t[:2]),
    st.sampled_from(["passed", "crashed"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_ratio_is_of_a_peer_that_passed_and_only_where_ours_did(
    peers: list[tuple[str, str, str, float]], ours: str, losses: bool
) -> None:
    rows = [timed(0, "farm", 10.0) if ours == "passed" else failed(0, "farm", ours)]
    for i, (provider, mode, status, us) in enumerate(peers, 1):
        made = timed if status == "passed" else (lambda i, p, us, **k: failed(i, p, status, **k))  # noqa: B023
        rows.append(made(i, provider, us, mode=mode))
    line = speed_tables(run_of(*rows), losses_first=losses).tables[0].lines[0]
    good = {us for _, _, status, us in peers if status == "passed"}
    assert line.ratio == (min(good) / 10.0 if good and ours == "passed" else None)
    assert bool(line.best) == bool(good)
    assert [n for n, e in line.entries.items() if e.word == NOT_PLANNED] == []
    assert len(line.entries) == len(rows)


def test_units_and_roofs() -> None:
    run = run_of(timed(0, "farm", 20.0, share_of_roof=0.8), timed(1, "torch", 40.0, share_of_roof=0.4))
    (gbps,), (us,) = speed_tables(run).tables, speed_tables(run, "us").tables
    line = gbps.lines[0]
    assert (gbps.unit, us.unit, line.share) == ("GB/s", "us", 0.8)
    assert line.roof("GB/s") == pytest.approx(67_108.864 / 16) and line.roof("us") == 16.0
    assert "| 20.00 | 40.00 | 16.00 | torch | 2.000 | 80 % |" in as_table(run, "us")
    flops = run_of(timed(0, "farm", 20.0, op="matmul", operations=10**11, tflops=5000.0, share_of_roof=0.5))
    assert speed_tables(flops).tables[0].unit == "TFLOP/s"
    assert speed_tables(flops).tables[0].lines[0].roof("TFLOP/s") == 10_000
    flagged = timed(0, "farm", 20.0, share_of_roof=0.8, flags='["the share of the roof is extrapolated"]')
    assert "≈ 80 %" in as_table(run_of(flagged))


def test_versions_and_settings_are_in_the_caption() -> None:
    rows = [
        timed(0, "farm", 20.0),
        {**timed(1, "quack", 40.0, mode="tuned"), "provider_version": "0.6.5", "provider_settings": "tuned entry"},
    ]
    assert speed_tables(run_of(*rows)).caption["providers"] == "farm abc1234; quack/tuned 0.6.5 (tuned entry)"


def test_what_cannot_be_a_table_is_refused() -> None:
    with pytest.raises(UsageError, match=r'"mine".*has only farm, torch') as error:
        speed_tables(run_of(timed(0, "farm", 1.0), timed(1, "torch", 2.0)), of="mine")
    assert error.value.id == "table-of-unknown"
    with pytest.raises(UsageError, match="two arms"):
        speed_tables(run_of(timed(0, "farm", 1.0, cell_id="cuda/rms_norm/farm/auto/forward/bf16/4x4/llama~a")))
    assert "no cells" in as_table(run_of())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make(tmp_path, "a")
    where = ["--out", str(tmp_path)]
    assert main(["export", "table", "a", *where, "--losses", "--unit", "us"]) == 0
    out = capsys.readouterr().out
    assert "with grad (training), us" in out and "| rms\\_norm | forward | 4x64 |" in out
    assert main(["export", "table", "a", *where, "--as", "json", "--to", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["of"] == "farm"
    assert main(["export", "csv", "a", *where, "--losses"]) == 2
    assert "--losses is only for a table" in capsys.readouterr().err
    assert main(["export", "table", "a", *where, "--of", "nobody"]) == 2
    from farm.cli import export

    assert set(export.TABLE_FORMATS) == set(speed_table_writers()) and export.UNITS == speed_table.UNITS
    assert "table" in common.FORMATS


def speed_table_writers() -> tuple[str, ...]:
    from farm.report.speed_text import WRITERS

    return tuple(WRITERS)


def test_settings_and_peers_other_modes_count_on_the_page_too() -> None:
    from farm.dashboards import pages
    from farm.report import provenance
    from farm.report.nights import against_peers

    rows = [timed(0, "farm", 10.0), timed(1, "quack", 12.0), timed(2, "quack", 8.0, mode="tuned")]
    told = {"auto": "its own rules", "tuned": 'a "search"'}
    rows = [{**r, "provider_version": "0.6.5", "provider_settings": told[r["mode"]]} for r in rows]
    assert [by for _, by in against_peers(rows)] == [1.25]
    run = run_of(*rows)
    assert provenance.settings(run)["cuda"]["quack"] == 'auto: its own rules; tuned: a "search"'
    links = pages.Links("index.html", lambda run_id: None, lambda name: None)
    assert "called with: auto: its own rules; tuned: a &#34;search&#34;" in pages.run_page(run, links)
