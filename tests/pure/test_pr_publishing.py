"""What is read of a result, what of it is published, and what the farm's comment remembers."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pr_results import BASE, HEAD, TREES, move, own_test, pair, result, slower, static, target

from farm.cli import pr_results
from farm.errors import UsageError
from farm.pr import comment as comments
from farm.pr import ledger as ledgers
from farm.pr import merging, publishing
from farm.pr import result as results
from farm.pr.publishing import Comment, Pull

WIDE = "cuda/rms_norm/liger/auto/forward/bf16/8192x4096/llama"
NARROW = "cuda/rms_norm/liger/auto/forward/bf16/32768x128/llama"


def test_an_acknowledged_loss_passes_and_a_worse_one_fails_again() -> None:
    first = result(slower(WIDE, 1.10))
    own = [Comment(1, "farm", comments.comment(first))]
    (write,) = acknowledged(own, "narrow rows matter <b>more</b> @all").writes
    assert write.id == 1 and "<b>" not in write.body and "@all" not in write.body
    before = ledgers.read(write.body)
    assert before and before.accepted == {WIDE: 1.1}
    assert results.outcome(result(slower(WIDE, 1.10)), before.accepted).exit_code == 0
    assert results.outcome(result(slower(WIDE, 1.119)), before.accepted).exit_code == 0
    assert results.outcome(result(slower(WIDE, 1.2)), before.accepted).exit_code == 1
    assert results.outcome(result(slower(WIDE, 1.1), slower(NARROW, 1.1)), before.accepted).exit_code == 1
    text = comments.comment(result(slower(WIDE, 1.10)), before)
    assert "maintainer, 2026-11-23: narrow rows" in text and "Slower, acknowledged" in text
    kept = ledgers.read(text)
    assert kept is not None and kept.acks == before.acks
    unmeasured = result(slower(WIDE, 1.17864, threshold=None))  # a ratio is kept with fewer digits than it has
    before = ledgers.read(acknowledged([Comment(1, "farm", comments.comment(unmeasured))]).writes[0].body)
    assert before and results.outcome(unmeasured, before.accepted).exit_code == 0


def acknowledged(own: list[Comment], reason: str = "y", head: str = HEAD) -> publishing.Publication:
    return publishing.acknowledge(own, 7, head, "maintainer", "2026-11-23T10:00:00Z", reason, "block")


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"pairs": [slower(WIDE), pair(NARROW, status_b="inaccurate")]}, "failure"),
    ({"tests": [own_test(status_b="crashed")]}, "failure"),
    ({"static": static(unreached=["_forward"])}, "failure"),
    ({"static": static(targets=[target(moves=[move(measure="spills")])])}, "failure"),
    ({"static": static(targets=[target(target="gfx942", backend="rocm")])}, "neutral"),
    ({"pairs": [slower(WIDE), pair(NARROW, status_b="lost")]}, "neutral"),
    ({"faults": ["the comparison ended early"]}, "neutral"),
    ({}, "success"),
]


@pytest.mark.parametrize("more, conclusion", OTHERS)
def test_an_acknowledgement_concludes_by_what_is_left(more: dict[str, Any], conclusion: str) -> None:
    found = {**result(slower(WIDE)), **more}
    own = [Comment(1, "farm", comments.comment(found))]
    done = acknowledged(own)
    assert done.check and done.check.conclusion == conclusion
    again = publishing.publish([found], PULL, [Comment(1, "farm", done.writes[0].body)], "block")
    assert again.check and again.check.conclusion == conclusion  # as the next result of the same says


def test_an_acknowledgement_is_of_the_head_that_was_measured() -> None:
    own = [Comment(1, "farm", comments.comment(result(slower(WIDE))))]
    for done in (acknowledged(own, head="9" * 40), acknowledged([])):
        assert done.refused and not done.writes and done.check is None


def test_a_result_without_devices_does_not_replace_one_with_them() -> None:
    interpreted = result(pair("cpu/rms_norm/liger/auto/forward/fp32/1x8"))
    own = [Comment(1, "farm", comments.comment(result(slower(WIDE))))]
    done = publishing.publish([interpreted], PULL, own, "block")
    assert not done.writes and done.stands and done.check and done.check.conclusion == "failure"
    broken = result(pair("cpu/rms_norm/liger/auto/forward/fp32/1x8", status_b="crashed"))
    done = publishing.publish([broken], PULL, own, "block")
    assert done.check and done.check.conclusion == "failure"  # but what it finds counts
    newer = {**interpreted, "head": {**interpreted["head"], "sha": "9" * 40}}
    pull = dataclasses.replace(PULL, head="9" * 40, trees={**PULL.trees, "9" * 40: newer["head"]["tree"]})
    assert publishing.publish([newer], pull, own, "block").writes


def changed(found: dict[str, Any], path: tuple[Any, ...], value: Any) -> str:
    made = copy.deepcopy(found)
    at: Any = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(made)


def test_result_is_read_back() -> None:
    found = result(pair(), slower(NARROW), static=static(targets=[target(moves=[move()])]))
    assert results.read(json.dumps(found)) == found


@pytest.mark.parametrize(
    "path, value",
    [
        (("schema",), 2),
        (("verdict",), "passed"),  # a result cannot claim one
        (("repository",), "../../x"),
        (("repository",), "a/b\n"),
        (("number",), -1),
        (("head", "sha"), "HEAD"),
        (("head", "sha"), "--upload-pack=touch x".ljust(40, "x")),
        (("head", "digest"), "<b>"),
        (("pairs", 0, "status_b"), "great"),
        (("pairs", 0, "speed"), "faster than light"),
        (("pairs", 0, "ratio"), -1),
        (("pairs", 0, "ratio"), "1"),
        (("pairs", 0, "ratio"), 1e300),
        (("pairs", 0, "cell"), "x" * 400),
        (("pairs", 0, "axes"), {str(n): "x" for n in range(50)}),
        (("pairs", 0, "axes"), {"x": {"y": 1}}),
        (("pairs", 0, "memory_a"), 1.5),
        (("pairs", 0, "extra"), 1),
        (("pairs",), [pair("cuda/x/y"), pair("cuda/x/y")]),
        (("faults",), ["x" * 2000]),
        (("faults",), ["x"] * 300),
        (("pairs",), {}),
        (("static",), []),
        (("tests",), [{"id": "x"}]),
    ],
)
def test_results_that_are_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        results.read(changed(result(pair()), path, value))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", "[" * 100_000, '{"schema": NaN}', " " * 9_000_000, '{"a":1e999}']
)
def test_texts_that_are_no_result(text: str) -> None:
    with pytest.raises(UsageError):
        results.read(text)


PULL = Pull("someone/kernels", 7, HEAD, True, (BASE,), TREES)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"repository": "other/kernels"}, "other/kernels#7"),
        ({"number": 8}, "#8"),
        ({"head": {**result()["head"], "sha": BASE}}, "has moved"),
        ({"head": {**result()["head"], "tree": "e" * 40}}, "another content"),
        ({"base": {**result()["base"], "tree": "e" * 40}}, "another content"),
        ({"base": {**result()["base"], "sha": HEAD, "tree": TREES[HEAD]}}, "where head left"),
    ],
)
def test_a_result_that_lies_about_its_arms_is_not_published(given: dict[str, Any], words: str) -> None:
    found = publishing.publish([result(pair(), **given)], PULL, [], "block")
    assert words in found.refused and not found.writes and found.check is None and found.exit_code == 2


def test_comment_is_made_once_updated_and_others_are_folded() -> None:
    first = publishing.publish([result(pair())], PULL, [])
    assert [w.id for w in first.writes] == [0]
    own = [
        Comment(3, "farm", first.writes[0].body),
        Comment(5, "farm", "hello"),
        Comment(9, "farm", first.writes[0].body),
    ]
    assert publishing.publish([result(pair())], PULL, own[:1]).writes == ()
    second = publishing.publish([result(slower(WIDE))], PULL, own)
    assert [w.id for w in second.writes] == [9, 3] and "<summary>Outdated" in second.writes[1].body
    again = [Comment(3, "farm", second.writes[1].body), Comment(9, "farm", second.writes[0].body)]
    assert publishing.publish([result(slower(WIDE))], PULL, again).writes == ()
    assert (
        publishing.publish([result(pair())], Pull("someone/kernels", 7, HEAD, False, (BASE,), TREES), []).writes == ()
    )


@pytest.mark.parametrize(
    "voice, pairs, writes, conclusion",
    [
        ("silent", [slower(WIDE)], 0, None),
        ("report", [slower(WIDE)], 1, None),
        ("advise", [slower(WIDE)], 1, "neutral"),
        ("block", [slower(WIDE)], 1, "failure"),
        ("block", [pair()], 1, "success"),
        ("block", [pair(status_b="lost")], 1, "neutral"),
        ("block", [pair("cpu/rms_norm/x/y", same_bits=False)], 1, "success"),
    ],
)
def test_voices(voice: str, pairs: list[dict[str, Any]], writes: int, conclusion: str | None) -> None:
    found = publishing.publish([result(*pairs)], PULL, [], voice)
    assert len(found.writes) == writes and (found.check.conclusion if found.check else None) == conclusion
    assert publishing.gone(HEAD, "the runner died", "block").check.conclusion == "neutral"  # type: ignore[union-attr]


def test_where_all_is_the_same_the_check_alone_speaks() -> None:
    same = result(static=static(changed=[], targets=[target(compiled=2, same_code=2)]))
    found = publishing.publish([same], PULL, [], "block")
    assert not found.writes and found.check and found.check.conclusion == "success"
    old = result(slower(WIDE), head={**same["head"], "sha": "9" * 40})
    earlier = [Comment(1, "farm", comments.comment(old))]
    assert len(publishing.publish([same], PULL, earlier, "block").writes) == 1  # it corrects what was said


def test_results_of_several_sites_are_one_comment() -> None:
    amd = pair("rocm/rms_norm/liger/auto/forward/bf16/8x64", target="MI300X")
    here = result(slower(WIDE), not_run=[{"what": "rocm", "why": "no device"}, {"what": "ascend", "why": "no device"}])
    there = result(amd, not_run=[{"what": "cuda", "why": "no device"}, {"what": "ascend", "why": "no device"}])
    found = merging.merged([here, there])
    assert [p["backend"] for p in found["pairs"]] == ["cuda", "rocm"] and [n["what"] for n in found["not_run"]] == [
        "ascend"
    ]
    bad = static(targets=[target(target="gfx942", moves=[move(measure="spills")])], unreached=["_one", "_two"])
    sites = [{**here, "static": static(unreached=["_two"])}, {**there, "static": bad}]
    for order in (sites, sites[::-1]):  # what a second site found counts, too
        both = merging.merged(order)
        assert results.outcome(both).why[-1] == "_forward spills registers on gfx942"
        assert both["static"]["unreached"] == ["_two"]
    for other in (result(amd, number=8), result(amd, config="0" * 64), result(amd, head={**here["head"], "sha": BASE})):
        with pytest.raises(UsageError):
            merging.merged([here, other])
    with pytest.raises(UsageError):
        merging.merged([])


def test_of_a_cell_that_two_sites_have_the_more_harmful_result_counts() -> None:
    """Every site runs what needs no device, and two may have devices of one model."""
    cpu = pair("cpu/rms_norm/liger/auto/forward/fp32/1x8")
    wrong = {**cpu, "status_b": "inaccurate", "same_bits": False}
    gone = {**cpu, "status_a": "lost", "status_b": "lost"}
    here = result(cpu, slower(WIDE), tests=[own_test(status_b="crashed"), own_test(id="t::b")])
    there = result(wrong, pair(WIDE), pair("rocm/x/y/z", target="MI300X"), tests=[own_test(), own_test(id="t::c")])
    for order in ([here, there], [there, here]):
        both = merging.merged(order)
        found = {p["cell"]: p for p in both["pairs"]}
        assert len(both["pairs"]) == 3 and found[cpu["cell"]] == wrong and found[WIDE]["speed"] == "regressed"
        assert {t["id"]: t["status_b"] for t in both["tests"]}[own_test()["id"]] == "crashed" and len(
            both["tests"]
        ) == 3
        text = comments.comment(both)
        assert "| NVIDIA H200 |" in text and "| MI300X |" in text
    for order in ([result(gone), result(cpu)], [result(cpu), result(gone)]):
        assert merging.merged(order)["pairs"] == [cpu]  # a site that failed takes nothing from one that did not
    blind = {"kernel": "_f", "why": "not seen"}
    saw, did_not = (result(cpu, static=static(unknown=u)) for u in ([], [blind]))
    assert all(merging.merged(o)["static"]["unknown"] == [] for o in ([saw, did_not], [did_not, saw]))


def test_a_lost_site_is_not_run_and_no_success(tmp_path: Path) -> None:
    (tmp_path / "h200.json").write_text(json.dumps(result(pair(WIDE))))
    (tmp_path / "mi300.json").write_text("{")
    found, lost = pr_results.read([tmp_path / n for n in ("h200.json", "mi300.json", "npu.json")])
    assert len(found) == 1 and list(lost) == [str(tmp_path / "mi300.json"), str(tmp_path / "npu.json")]
    one = merging.merged(found, {"mi300.json": lost[str(tmp_path / "mi300.json")]})
    assert results.outcome(merging.merged(found)).exit_code == 0
    assert (results.outcome(one).name, results.outcome(one).why) == ("not proven", ("mi300.json has no result",))
    text = comments.comment(one)
    assert "**What was not run?** mi300.json: the result is not JSON" in text and "mi300.json has no result" in text
    worse = merging.merged([result(slower(WIDE))], {"mi300.json": "gone"})
    assert results.outcome(worse).exit_code == 1  # what the others found counts
    done = publishing.publish([one], PULL, [], "block")
    assert done.check and done.check.conclusion == "neutral"
    with pytest.raises(UsageError, match=r"npu\.json"):
        pr_results.read([tmp_path / "npu.json"])


def test_states_that_others_forge_are_not_read() -> None:
    line = comments.comment(result(slower(WIDE))).partition("\n")[0]
    generator = random.Random(7)
    assert ledgers.read(line) is not None
    for _ in range(300):
        at = generator.randrange(len(line))
        ledgers.read(line[:at] + generator.choice("Ax-_= <>") + line[at + generator.randrange(3) :])
    for body in ("", "x", "<!-- kernel-farm:1 7  -->", "<!-- kernel-farm:1 7 AAAA -->", line.replace(" 7 ", " 8 ")):
        assert ledgers.read(body) is None
    assert publishing.last([Comment(1, "farm", "x"), Comment(2, "farm", line)], 8) is None
