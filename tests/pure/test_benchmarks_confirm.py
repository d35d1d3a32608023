"""Confirming: which cells, in what order, and the verdict from made-up processes with known differences."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import confirm
from benchmarks.cases import Case, case_of
from farm.compare import intervals
from farm.deadline import Deadline

CASES = [Case("rms_norm", o, "bfloat16", 4096, h) for o in ("forward", "backward") for h in (1024, 4096, 16384)]


def report(*ratios: float | None, peer: str = "liger") -> dict[str, Any]:
    rows = [{"case": c.to_dict(), "id": c.id, "best_peer": peer, "ratio": r} for c, r in zip(CASES, ratios)]
    return {"groups": [{"rows": rows[:3]}, {"rows": rows[3:]}]}


def chosen(*ratios: float | None, cells: list[str] | None = None) -> list[str]:
    return [p.case.id for p in confirm.pairs(report(*ratios), cells or [])]


def test_the_cells_in_doubt_the_worst_first() -> None:
    found = chosen(1.019, 1.02, 0.5, 1.049, 1.05, None)
    assert found == [CASES[2].id, CASES[0].id, CASES[3].id]


def test_named_cells_whatever_their_ratio() -> None:
    assert chosen(2.0, 2.0, 2.0, 2.0, 2.0, 2.0, cells=["*/backward/*"]) == [c.id for c in CASES[3:]]
    assert len(chosen(2.0, 2.0, 2.0, cells=["*x1024", CASES[0].id])) == 1
    with pytest.raises(ValueError, match="matches no cell"):
        chosen(2.0, 2.0, cells=["*/fp64/*"])
    with pytest.raises(ValueError, match="matches no cell"):
        chosen(None, cells=[CASES[0].id])


def test_each_side_measures_its_own_subject() -> None:
    pair = confirm.Pair(CASES[0], "quack", 0.9)
    assert confirm.items([pair], "ours")[0]["subjects"] == ["farm"]
    assert confirm.items([pair], "peer")[0]["subjects"] == ["quack"]
    assert not any(i["check"] or i["roof"] for s in confirm.SIDES for i in confirm.items([pair], s))


def test_rounds_alternate_and_share_the_time() -> None:
    asked: list[tuple[str, float]] = []
    confirm.rounds([], 5, Deadline(100.0), lambda side, seconds: asked.append((side, seconds)) or [])  # type: ignore[func-returns-value]
    assert [side for side, _ in asked] == [
        "ours",
        "peer",
        "peer",
        "ours",
        "ours",
        "peer",
        "peer",
        "ours",
        "ours",
        "peer",
    ]
    assert asked[0][1] == pytest.approx(10.0, rel=0.01) and asked[-1][1] == pytest.approx(100.0, rel=0.01)


def simulated(slow: dict[str, float], seed: int = 0, rounds: int = 5, lost: tuple[int, str, str] | None = None):
    """Outcomes over made-up processes: 0.4 % noise of their own, 1 % of the round's; `slow`: case id -> factor."""
    rng = random.Random(seed)
    pairs = [confirm.Pair(c, "liger", 1.0) for c in CASES]
    drift = [1.0] * rounds
    number = {"ours": 0, "peer": 0}

    def measure(side: str, seconds: float) -> list[dict[str, Any]]:
        at = number[side]
        number[side] += 1
        if drift[at] == 1.0:
            drift[at] = math.exp(rng.gauss(0, 0.01))
        events = []
        for i in confirm.items(pairs, side):
            case, subject = case_of(i["case"]), i["subjects"][0]
            us = 40.0 * drift[at] * math.exp(rng.gauss(0, 0.004))
            us *= slow.get(case.id, 1.0) if side == "ours" else 1.0
            result = {"event": "result", "case": case.id, "subject": subject, "status": "ok", "us": us, "gbps": 1.0}
            if lost and lost == (at, side, case.id):
                result = {**result, "status": "crashed", "reason": "signal 9", "us": None, "gbps": None}
            events.append(result)
        return events

    return confirm.outcomes(pairs, confirm.rounds(pairs, rounds, Deadline(100.0), measure))


def test_equal_sides_are_not_confirmed_and_a_planted_slow_down_is() -> None:
    planted = {CASES[0].id: 1.03, CASES[3].id: 1.03}
    slower = {c.id: 0 for c in CASES}
    for seed in range(60):
        for o in simulated(planted, seed):
            slower[o.pair.case.id] += o.verdict == intervals.SLOWER
    assert all(slower[c] >= 56 for c in planted), slower
    assert all(n <= 3 for c, n in slower.items() if c not in planted), slower


def test_a_bar_is_missed_only_where_it_is_confirmed() -> None:
    forward, backward = CASES[0].id, CASES[3].id
    found = {o.pair.case.id: o for o in simulated({forward: 1.06, backward: 1.04})}
    assert found[forward].under and found[forward].bar == 0.98
    assert found[backward].under and found[backward].bar == 1.0
    assert confirm.exit_code(list(found.values())) == 1
    mild = {o.pair.case.id: o for o in simulated({forward: 1.015})}
    assert mild[forward].verdict == intervals.SLOWER and not mild[forward].under  # slower, but within 2 %


def test_a_faster_side_is_confirmed_too() -> None:
    found = {o.pair.case.id: o for o in simulated({CASES[1].id: 0.95})}
    assert found[CASES[1].id].verdict == intervals.FASTER


def test_a_round_that_one_side_lost_is_no_round() -> None:
    (o, *_) = simulated({}, lost=(2, "peer", CASES[0].id))
    assert len(o.ours_us) == len(o.peer_us) == 4 and o.found is not None and o.found.rounds == 4
    assert o.trouble == "liger: signal 9"
    assert not o.under and confirm.exit_code([o]) == 1 and confirm.exit_code([o], 4) == 0


def test_too_few_rounds_confirm_nothing_and_are_an_error() -> None:
    pair = confirm.Pair(CASES[0], "liger", 0.9)
    one = {"event": "result", "case": CASES[0].id, "subject": "farm", "status": "ok", "us": 9.0, "gbps": 1.0}
    (o,) = confirm.outcomes([pair], [{"ours": [one], "peer": []}] * 5)
    assert (o.verdict, o.trouble) == (intervals.UNKNOWN, "liger: out of time")
    assert confirm.exit_code([o]) == 1
    assert "not measured (liger: out of time)" in confirm.text([o])


def test_the_tables_say_what_was_found() -> None:
    found = simulated({CASES[0].id: 1.06})
    line = confirm.text(found).splitlines()[1]
    assert line.startswith(CASES[0].id) and line.endswith("confirmed slower, UNDER THE BAR of 0.98")
    table = confirm.markdown(found).splitlines()
    assert len(table) == 2 + len(found) and len({row.count("|") for row in table}) == 1
    assert "**confirmed slower, under 0.98**" in table[2]
    kept = json.loads(json.dumps(confirm.data(found, [])))
    assert kept["cells"][0]["under_the_bar"] and len(kept["cells"][0]["ours_us"]) == 5
    (unknown,) = confirm.outcomes([confirm.Pair(CASES[0], "liger", 0.9)], [])
    assert confirm.markdown([unknown]).splitlines()[2].count("|") == table[0].count("|")


@pytest.mark.parametrize(
    "content, argv, said",
    [
        (None, [], "run python -m benchmarks.kernels"),
        ("{", [], "is no JSON"),
        ("{}", [], "was not written by benchmarks.kernels"),
        ("[]", [], "was not written by benchmarks.kernels"),
        (json.dumps(report(0.9)), ["--cells", "x"], "matches no cell"),
        (json.dumps(report(0.9)), ["--rounds", "2"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(content, argv, said, tmp_path: Path, capsys) -> None:
    file = tmp_path / "kernels.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit) as stop:
        confirm.parse([str(file), *argv])
    assert stop.value.code == 2 and said in capsys.readouterr().err.splitlines()[-1]


def test_nothing_in_doubt_needs_no_device(tmp_path: Path, capsys) -> None:
    file = tmp_path / "kernels.json"
    file.write_text(json.dumps(report(1.5, 1.5)))
    assert confirm.main([str(file)]) == 0
    assert "no cell is in doubt" in capsys.readouterr().out


def test_from_the_report_to_the_files(tmp_path: Path, capsys, monkeypatch) -> None:
    file = tmp_path / "kernels.json"
    file.write_text(json.dumps(report(0.9, 1.5)))

    def supervise(plan: Any, seconds: float) -> list[dict[str, Any]]:
        (i,) = plan["items"]
        us = 44.0 if i["subjects"] == ["farm"] else 40.0
        case = case_of(i["case"]).id
        return [{"event": "result", "case": case, "subject": i["subjects"][0], "status": "ok", "us": us, "gbps": 1.0}]

    monkeypatch.setattr(confirm.processes, "supervise", supervise)
    assert confirm.main([str(file), "--out", str(tmp_path / "out")]) == 1
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["confirm.json", "confirm.md", "confirm.txt"]
    assert "1 confirmed slower, 0 not distinguishable, 0 confirmed faster; under the bar: 1" in capsys.readouterr().out
    monkeypatch.setattr(
        confirm.processes, "supervise", lambda *a: [{"event": "end", "why": "no device", "reason": "none"}]
    )
    assert confirm.main([str(file)]) == 2
