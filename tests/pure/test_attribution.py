"""To what a slowdown is attributed: never to a commit that cannot be it."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from farm.compare.attribution import NO_COMMIT, Attribution, Side, attribute
from farm.report.night_series import Night, of_rows
from farm.report.nights import News, Nights, line

TOOLS = {"torch": "2.11.0", "triton": "3.6.0", "driver": "575"}


def side(**changed: Any) -> Side:
    return Side(**{"revision": "aaaa", "code": "1", "tools": TOOLS, **changed})


@pytest.mark.parametrize(
    ("after", "more", "text", "commits"),
    [
        (side(revision="bbbb", code="2"), {}, "code", True),
        (side(revision="bbbb"), {}, NO_COMMIT, False),  # a commit that changed no file of the kernels
        (side(revision="bbbb", code=""), {}, "code", True),  # unknown whether it did
        (side(revision="bbbb", code="2"), {"touched": ()}, NO_COMMIT, False),
        (side(revision="bbbb", code="2"), {"touched": ("_norm_kernel",)}, "code", True),
        (side(revision="bbbb", code="2"), {"peers_too": True}, NO_COMMIT, False),
        (side(tools=TOOLS | {"driver": "580"}), {}, "driver", False),
        (side(revision="bbbb", code="2", tools=TOOLS | {"triton": "3.7"}), {}, "code or tool chain", True),
        (side(revision="bbbb", tools=TOOLS | {"triton": "3.7"}), {}, "tool chain", False),
        (side(tools=TOOLS | {"uuid": "other", "node": "b"}), {}, NO_COMMIT, False),
        (side(tools=TOOLS | {"environment": "triton37"}), {}, NO_COMMIT, False),  # only one side recorded it
        (side(nodes=frozenset("b")), {}, "node", False),
        (side(), {}, NO_COMMIT, False),
    ],
)
def test_only_what_changed_is_accused(after: Side, more: Any, text: str, commits: bool) -> None:
    found = attribute(side(nodes=frozenset("a")) if after.nodes else side(), after, **more)
    assert found.text == text and (found.commits == ("aaaa", "bbbb")) == commits
    assert any("revision" in words for words in found.changed) == commits


def test_no_commit_is_ever_accused_that_cannot_be_it() -> None:
    """The law, over every combination of what is known."""
    for code, touched, peers, revision, driver in itertools.product(
        ("1", "2", ""), (None, (), ("k",)), (False, True), ("aaaa", "bbbb"), ("575", "580")
    ):
        after = side(revision=revision, code=code, tools=TOOLS | {"driver": driver})
        found: Attribution = attribute(side(), after, touched, peers)
        cleared = peers or touched == () or (not touched and (code == "1" or (revision == "aaaa" and code == "")))
        assert (found.commits is None) == cleared == ("code" not in found.causes)
        assert ("driver" in found.causes) == (driver == "580")


# a world of nights, in memory

NIGHTS, TARGET = 24, "cuda:H200"


def world(
    change: Callable[[Mapping[str, Any], int], float] = lambda cell, night: 0.0,
    tools: Callable[[int], Mapping[str, str]] = lambda night: TOOLS,
    code: Callable[[int], str] = lambda night: "1",
    ops: Callable[[int], tuple[tuple[str, str], ...]] = lambda night: (),
    peers: bool = True,
    fails: Callable[[Mapping[str, Any], int], bool] = lambda cell, night: False,
    **more: Any,
) -> Nights:
    """Two ops, our two modes and two peers, 8 shapes, on two devices; a commit every two nights."""
    rng, rows = random.Random(4), []
    providers = [("farm", "auto"), ("farm", "cached"), *([("torch", ""), ("liger", "")] if peers else [])]
    for night in range(NIGHTS):
        for i, (op, (provider, mode), shape) in enumerate(itertools.product(("norm", "add_norm"), providers, range(8))):
            cell = {
                "op": op,
                "provider": provider,
                "mode": mode,
                "shape": f"4096x{1024 << shape}",
                "device": f"cuda:{i % 2}",
            }
            us = 50 * math.exp(rng.gauss(0, 0.003) + change(cell, night))
            role = "subject" if provider == "farm" else "peer"
            status = "crashed" if fails(cell, night) else "passed"
            name = f"{op}/{provider}/{mode}/{shape}"
            row = {**cell, "run": f"n{night:02}", "cell_key": name, "cell_id": name, "named": "", "backend": "cuda"}
            row |= {"target": TARGET, "role": role, "status": status, "evidence": "executed", "node": "a"}
            row |= {"time_us_p50": us, "timing_method": "graph", "timing_quality": "ok", "operation": "forward"}
            rows.append(row | {"dtype": "bfloat16", "dims": json.dumps({"hidden": 1024 << shape}), "params": "{}"})
    nights = [Night(f"n{n:02}", f"2026-10-{n + 1:02}T02:00", f"{n // 2:040x}", code(n), ops(n)) for n in range(NIGHTS)]
    found = {n.id: {"cuda": dict(tools(i))} for i, n in enumerate(nights)}
    return Nights(nights, of_rows(rows), [r for r in rows if r["run"] == nights[-1].id], found, **more)


def slower(found: Nights) -> list[News]:
    return [n for n in found.news if n.kind == "slower"]


def ours(cell: Mapping[str, Any], night: int) -> float:
    return 0.05 if night >= 20 and (cell["op"], cell["provider"], cell["mode"]) == ("norm", "farm", "auto") else 0.0


def test_a_commit_that_changed_the_kernels_is_named_with_its_range() -> None:
    (news,) = slower(world(ours, code=lambda night: "1" if night < 20 else "2"))
    assert (len(news.rows), news.sure, news.cause) == (8, True, "code")
    assert news.commits == (f"{9:040x}", f"{10:040x}") and news.to_dict()["range"] == list(news.commits)
    assert "cause: code" in line(news)


def test_where_no_commit_touched_the_kernel_none_is_accused() -> None:
    """As with upgrades that nobody records: the kernels' files are the same, or no kernel of the op differs."""
    asked = []

    def touched(before: Night, after: Night, rows: Any) -> tuple[str, ...]:
        asked.append((before.id, after.id, rows[0]["op"]))
        return ()

    of_op = world(ours, code=lambda night: "", ops=lambda night: (("norm", "0"), ("add_norm", str(night // 2))))
    for found in (world(ours), of_op, world(ours, code=lambda night: str(night // 2), touched=touched)):
        (news,) = slower(found)
        assert news.cause == NO_COMMIT and news.commits is None and news.to_dict()["range"] == []
        assert news.with_it == ()
    assert asked == [("n19", "n20", "norm")]


def test_a_driver_that_slows_everything_down_is_told_once_and_accuses_no_kernel() -> None:
    found = world(
        lambda cell, night: 0.04 * (night >= 20), lambda night: TOOLS | {"driver": "575" if night < 20 else "580"}
    )
    assert not slower(found)
    (shift,) = found.moved
    assert (shift.all, shift.sure, shift.found.text, shift.found.commits) == (True, True, "driver", None)
    assert shift.by == pytest.approx(1.04, abs=0.005) and "driver 575 → 580" in shift.text


def test_a_slow_device_is_told_and_accuses_no_kernel() -> None:
    found = world(lambda cell, night: 0.03 * (night >= 18 and cell["device"] == "cuda:1"))
    assert not slower(found)
    (shift,) = found.moved
    assert (shift.devices, shift.all, shift.found.text) == (("cuda:1",), False, "node")


def test_without_peers_what_all_cells_share_may_be_the_code() -> None:
    found = world(lambda cell, night: 0.04 * (night >= 20), code=lambda night: str(int(night >= 20)), peers=False)
    (shift,) = found.moved
    assert shift.all and shift.found.text == "code" and shift.found.commits is not None


def test_an_unchanged_world_says_nothing() -> None:
    found = world()
    assert not found.news and not found.moved and not found.silent


def test_a_known_failure_counts_apart_and_a_confirmed_step_has_its_word() -> None:
    def fails(cell: Mapping[str, Any], night: int) -> bool:
        return night >= 22 and cell["provider"] == "farm" and cell["op"] == "add_norm" and cell["mode"] == "cached"

    names = [f"add_norm/farm/cached/{i}" for i in range(6)]
    keys = [f"norm/farm/auto/{i}" for i in range(8)]
    record = {"since": "n20", "verdict": "confirmed", "cells": [{"cell_key": k, "named": ""} for k in keys]}
    found = world(ours, lambda n: TOOLS, lambda n: str(n // 2), fails=fails, known=names, confirmations=[record])
    assert {(n.word, len(n.rows)) for n in found.news} == {
        ("confirmed regression", 8),
        ("known failure", 6),
        ("still failing", 2),
    }
    cleared = world(ours, code=lambda n: str(n // 2), confirmations=[record | {"verdict": "not confirmed"}])
    (news,) = slower(cleared)
    assert news.word == "regression, not confirmed" and news.commits is None and news.cause == NO_COMMIT
