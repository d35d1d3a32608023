"""What a run prints during its work and at its end."""

from __future__ import annotations

import io
from typing import Any

import pytest

from farm.cell import Cell, Status
from farm.cli import progress
from farm.cli.progress import Live, Plain, duration, summary


def cell(backend: str = "cpu") -> Cell:
    return Cell(backend, "rms_norm", "torch", "auto", "forward", {"x": "float32"}, {"rows": 1}, {})


def row(status: str, backend: str = "cpu", reason: str = "", evidence: str = "interpreted") -> dict[str, Any]:
    return {"status": status, "backend": backend, "cell_id": "an/id", "reason": reason, "evidence": evidence}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (185, "3 min 05 s"), (3600, "1 h 00 min"), (7800, "2 h 10 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_show_findings_at_once_and_the_standing_at_the_end() -> None:
    out = io.StringIO()
    with Plain([cell(), cell(), *[cell("sim")] * 3], out) as said:
        said.device("cpu:0: a processor, ready")
        said.eta({"sim": 12.0})
        said.cell(row("skipped", "sim"))
        assert "left" not in said.standing("sim"), "a skipped cell says nothing about the others"
        said.cell(row("passed", "sim"))
        said.cell(row("passed"))
        said.cell(row("inaccurate", reason="rel_l2 is 2 times its tolerance"))
    assert out.getvalue().splitlines() == [
        "  cpu:0: a processor, ready",
        "  inaccurate: an/id: rel_l2 is 2 times its tolerance",
        "  cpu: 2 of 2 done, 1 failed",
        "  sim: 2 of 3 done, 0 failed, about 12 s left",
    ]


def test_the_standing_is_not_repeated_while_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a line every five seconds, the log of a slow start was fourteen times `0 of 48 done`."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    said = Plain([cell(), cell()], out)
    for second in range(200):
        now[0] = float(second)
        said.refresh()
        if second == 100:
            said.cell(row("passed"))
    assert out.getvalue().splitlines() == [
        "  cpu: 0 of 2 done, 0 failed",
        "  cpu: 1 of 2 done, 0 failed",
        "  cpu: 1 of 2 done, 0 failed",
    ]


@pytest.mark.parametrize("status", [s.value for s in Status])
def test_what_counts_as_failed(status: str) -> None:
    said = Plain([cell()], io.StringIO())
    said.cell(row(status))
    accused = status in ("inaccurate", "compile_error", "crashed", "timed_out", "out_of_memory", "infra_error", "lost")
    assert said.failed["cpu"] == int(accused)


@pytest.mark.parametrize("kind", [Plain, Live])
def test_a_kernels_words_cannot_steer_the_terminal(kind: type[Plain]) -> None:
    out = io.StringIO()
    with kind([cell()], out) as said:
        said.device("cpu:0: \x1b]0;title\x07")
        said.cell(row("crashed", reason="RuntimeError: \x1b[2J\r[bold]gone[/bold]\nall passed"))
    shown = out.getvalue()
    assert "\\x1b[2J [bold]gone[/bold] all passed" in shown.replace("\n", " ").replace("  ", " ")
    assert "\x1b]0" not in shown and "\x1b[2J" not in shown and "\x07" not in shown


def test_a_reason_without_end_is_cut() -> None:
    out = io.StringIO()
    Plain([cell()], out).cell(row("crashed", reason="x" * 10_000))
    assert len(out.getvalue()) < 500


def test_the_summary_adds_up_and_never_sums_over_evidence() -> None:
    rows = [
        row("passed"),
        row("passed"),
        row("inaccurate"),
        row("passed", "sim", evidence="simulated"),
        row("skipped", evidence=""),
    ]
    assert summary(rows, 65.0) == [
        "cpu (not run): 1 skipped",
        "cpu (interpreted): 2 passed, 1 inaccurate",
        "sim (simulated): 1 passed",
        "5 planned = 5 accounted for, in 1 min 05 s",
    ]
    assert progress.told(rows[2]) == "inaccurate: an/id: "


def test_a_standing_that_was_just_printed_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    out = io.StringIO()
    with Plain([cell()], out) as said:
        said.cell(row("passed"))
    assert out.getvalue().splitlines() == ["  cpu: 1 of 1 done, 0 failed"]


def test_why_a_subject_was_not_tried_is_reported_and_a_peer_is_not() -> None:
    rows = [{**row("unsupported", reason=f"reason {n}"), "provider": "mine", "role": "subject"} for n in "aabcd"]
    rows += [{**row("unsupported", reason="not here"), "provider": "liger", "role": "peer"}]
    rows += [{**row("passed"), "provider": "mine", "role": "subject"}]
    said = progress.unsupported(rows)
    assert said[0] == "2 unsupported: mine: reason a" and len(said) == 4
    assert "1 more reason" in said[-1] and "reasons" not in said[-1]
    assert progress.unsupported(rows[5:]) == []


def test_a_run_in_doubt_says_so_and_what_to_do() -> None:
    wrong = {"role": "peer", "worst_metric": "max_ulp"}
    peers = [{**row("inaccurate"), "provider": name, **wrong} for name in ("torch", "liger")]
    rows = [{**row("passed"), "role": "subject", "provider": "mine"}, *peers]
    (line,) = [line for line in summary(rows, 1.0) if "doubt" in line]
    assert line.startswith("The verdict of 1 cell is in doubt, first an/id: every peer (liger, torch) is inaccurate")
    assert "mine passed" in line and "Run again" in line
    assert not [line for line in summary(rows[:2], 1.0) if "doubt" in line]
