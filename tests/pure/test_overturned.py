"""Past verdicts that are measured again."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cli import ab, common, main, pr_remeasure
from farm.compare import overturned
from farm.compare.overturned import Past
from farm.errors import UsageError

CELL = "sim/rms_norm/mine/auto/forward/bf16/8x64/llama"


def row(cell: str = CELL, verdict: str = "same", **given: Any) -> dict[str, Any]:
    made = {"cell": cell, "target": "sim X", "role": "subject", "control": 0, "change": "same", "verdict": verdict}
    return {**made, "evidence": "executed", "ratio": 1.0, **given}


@pytest.mark.parametrize(
    "given, said",
    [
        ({"verdict": "regressed"}, "regressed"),
        ({"verdict": "same"}, "same"),
        ({"verdict": "inconclusive"}, ""),
        ({"verdict": ""}, ""),
        ({"verdict": "", "change": "broken"}, "broken"),
        ({"verdict": "regressed", "role": "peer"}, ""),
        ({"verdict": "same", "control": 1}, ""),
        ({"verdict": "", "change": "broken", "evidence": "interpreted"}, ""),
        ({"verdict": "better than ever"}, ""),
    ],
)
def test_what_counts_as_a_verdict(given: dict[str, Any], said: str) -> None:
    assert overturned.said_of(row(**given)) == said
    assert [v.said for v in overturned.past("r", [row(**given)])] == ([said] if said else [])


@pytest.mark.parametrize(
    "before, after, said, why",
    [
        ("regressed", {"verdict": "regressed"}, "regressed", ""),
        ("regressed", {"verdict": "same"}, "same", ""),
        ("same", {"verdict": "regressed"}, "regressed", ""),
        ("regressed", {"verdict": "inconclusive"}, "", "it is inconclusive now"),
        ("regressed", {"verdict": "same", "target": "sim Y"}, "", "it ran on sim Y, not on sim X"),
        ("regressed", {"verdict": "", "change": "broken"}, "broken", ""),
        ("broken", {"verdict": "", "change": "broken"}, "broken", ""),
        ("broken", {"verdict": "", "change": "same"}, "same", ""),
        ("broken", {"verdict": "regressed", "change": "same"}, "same", ""),
        ("broken", {"verdict": "", "change": "lost"}, "", "it is lost now"),
        ("same", {"cell": "another"}, "", "the cell has no result"),
    ],
)
def test_what_a_second_run_says(before: str, after: dict[str, Any], said: str, why: str) -> None:
    (found,) = overturned.answers([Past("r", CELL, "sim X", before)], [row(**after)])
    assert (found.said, found.why) == (said, why)
    assert found.overturned == bool(said and said != before)


@given(st.integers(1, 300), st.floats(0.001, 1), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_a_share_is_drawn_by_its_seed(count: int, share: float, seed: int) -> None:
    every = [Past(f"r{n % 7}", f"c{n}", "t", "same") for n in range(count)]
    mixed = random.Random(0).sample(every, count)
    chosen = overturned.drawn(every, share, seed)
    assert chosen == overturned.drawn(mixed, share, seed) and len(set(chosen)) == len(chosen)
    assert len(chosen) == min(count, max(1, round(share * count)))


def test_a_bound_is_that_of_clopper_and_pearson() -> None:
    assert overturned.at_most(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100), abs=1e-9)  # the rule of three, exactly
    assert overturned.at_most(1, 10) == pytest.approx(0.39416, abs=1e-4)
    assert overturned.at_most(3, 60) == pytest.approx(0.12364, abs=1e-3)
    assert overturned.at_most(0, 0) == overturned.at_most(4, 4) == 1.0
    assert overturned.at_most(0, 10_000) < 0.001


@given(st.integers(1, 400), st.data())
@settings(max_examples=60, deadline=None)
def test_a_bound_leaves_one_in_twenty(of: int, data: Any) -> None:
    k = data.draw(st.integers(0, of - 1))
    p = overturned.at_most(k, of)
    assert k / of < p < 1
    assert math.fsum(math.comb(of, i) * p**i * (1 - p) ** (of - i) for i in range(k + 1)) == pytest.approx(
        0.05, abs=1e-6
    )


class Kept:
    """A run of the store, as far as it is asked."""

    def __init__(self, argv: list[str], **arms: dict[str, Any]):
        self.head = {"argv": argv, "arms": arms}


def command(*argv: str, **arms: dict[str, Any]) -> list[str]:
    args = main_parser().parse_args(["pr", "--remeasure", "0.5", "--repo", "/here", "--out", "store"])
    args.debug = False
    of_subject = {"name": "mine", "revision": "1" * 12}
    known = {"a": {"kind": "revision", "source": "main", "revision": "f" * 12, "subject": of_subject}, **arms}
    known.setdefault("b", {"kind": "revision", "source": "topic", "revision": "2" * 12, "variables": {"X": "1"}})
    return list(pr_remeasure._command(args, Kept(["ab", *argv], **known), ["cpu/a/b", "cpu/a/c"], "n").argv)  # type: ignore[arg-type]


def main_parser() -> Any:
    from farm.cli.main import parser

    return parser("pr")


def test_a_run_is_repeated_at_its_commits_for_the_drawn_cells() -> None:
    given = ["m.yaml", "--a", "revision=main", "--b", "revision=topic,env.X=1", "--repo", "/gone", "--select", "op=x"]
    found = command(*given, "--backend", "sim", "--set", "seed=3", "--strict-peers", "--run-id", "old", "--wait", "60")
    assert found[:6] == ["ab", "m.yaml", "--a", f"revision={'1' * 12}", "--b", f"revision={'2' * 12},env.X=1"]
    assert found[found.index("--select") + 1] == "id=cpu/a/b|cpu/a/c" and "op=x" not in found
    assert found[found.index("--repo") + 1] == "/here" and found[found.index("--run-id") + 1] == "n"
    for kept in ("--strict-peers", "sim", "seed=3", "60.0"):
        assert kept in found
    assert common.names_cells(found) and not common.names_cells(["ab", "--select", "op=id=x"])
    assert common.names_cells(["--select=op=a, id = b"])


@pytest.mark.parametrize(
    "arm, words",
    [
        ({"kind": "revision", "source": ".", "revision": "1" * 12 + "+"}, "working tree"),
        ({"kind": "revision", "source": ".", "revision": ""}, "working tree"),
        ({"kind": "revision", "source": "x", "revision": "1" * 12, "patch": "/tmp/none.diff"}, "not there any more"),
    ],
)
def test_what_cannot_be_repeated_exactly_is_not(arm: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        command("--a", "revision=main", "--b", "revision=.", b=arm)
    with pytest.raises(UsageError, match="command line"):
        command("--never-heard-of")


def test_wrong_shares_and_empty_stores_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    for share, words in (("0", "share"), ("1.5", "share"), ("nan", "share"), ("0.5", "no verdict")):
        assert main(["pr", "--remeasure", share, "--out", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
    assert main(["pr", "--seed", "3"]) == 2 and main(["pr", "--start", "x.yml"]) == 2
    monkeypatch.setenv("GITHUB_TOKEN", "x")
    assert main(["pr", "--remeasure", "0.5", "--out", str(tmp_path)]) == 2  # it runs code


def test_a_report_and_its_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake:
        def __init__(self, pairs: list[dict[str, Any]], digest: str = "d", **head: Any):
            arms = {"a": {"digest": digest, "kind": "version", "source": "x==1"}, "b": {"digest": "e"}}
            self.id, self.complete, self.pairs = "r1", True, pairs
            self.head = {"kind": "ab", "argv": ["ab", "--a", "mode=x", "--b", "mode=y"], "arms": arms, **head}

        def table(self, name: str) -> list[dict[str, Any]]:
            return self.pairs

    cells = [f"{CELL}{n}" for n in range(20)]
    first = Fake([row(cell) for cell in cells])
    monkeypatch.setattr(pr_remeasure, "_comparisons", lambda store: [first])
    monkeypatch.setattr(ab, "run", lambda args: 0)
    for second, code, words in (
        (
            Fake(first.pairs),
            0,
            "0 of 20 verdicts overturned; at most 13.9 % of such verdicts are (95 %); seed 3: exit 0",
        ),
        (Fake([row(c, "regressed" if c == cells[3] else "same") for c in cells]), 1, "1 of 20 verdicts overturned"),
        (Fake([row(c, "inconclusive") for c in cells]), 4, "not decided again: 20 verdicts: it is inconclusive now"),
        (Fake(first.pairs, digest="other"), 4, "arm a has other files than then"),
        (Fake(first.pairs), 3, "the comparison ended early"),
    ):
        second.complete = code != 3
        monkeypatch.setattr("farm.store.Store.run", lambda self, name, found=second: found)
        told = ["--seed", "3", "--out", str(tmp_path), "--result", str(tmp_path / "r.json")]
        assert main(["pr", "--remeasure", "1", *told]) == code
        assert words in capsys.readouterr().out
    assert '"overturned": 0' in (tmp_path / "r.json").read_text()
