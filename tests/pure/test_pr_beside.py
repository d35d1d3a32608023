"""What is said beside the verdict: answers to what people asked, what a run waits for, merge groups, checks that nobody
concluded; and how a decision starts a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from github_double import TOKEN, Forge, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from pr_results import BASE, HEAD, TREE_A, TREE_B, TREES, pair, result, slower, static
from test_pr_words import DIFF
from test_pr_words import comment as comment_event

from farm.cli import main
from farm.errors import InfraError
from farm.pr import asides, decision, publishing, queue
from farm.pr import comment as comments
from farm.pr import ledger as ledgers
from farm.pr import result as results
from farm.pr.publishing import Comment, Pull

WIDE = "cuda/rms_norm/liger/auto/forward/bf16/8192x4096/llama"
PULL = Pull("someone/kernels", 7, HEAD, True, (BASE,), TREES)
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=timezone.utc)
GROUP = f"gh-readonly-queue/main/pr-7-{BASE}"


def asked(kind: str = "what-if", **given: Any) -> dict[str, Any]:
    made = {"kind": kind, "head": HEAD, "matrix": "", "backends": [], "cell": "", "on": "", "patch": "", "files": []}
    if kind == "what-if":
        made |= {"on": "head", "patch": "f" * 64, "files": ["src/x.py"]}
    return {**made, **given}


def what_if(*pairs: dict[str, Any], sha: str = HEAD, tree: str = TREE_B, **given: Any) -> dict[str, Any]:
    arm = {"sha": sha, "tree": tree, "digest": "1" * 64, "name": "x"}
    return result(*pairs, base=arm, head={**arm, "digest": "3" * 64}, asked=asked(**given))


def rerun(*pairs: dict[str, Any], **given: Any) -> dict[str, Any]:
    return result(*pairs, asked=asked("rerun", cell=WIDE, **given))


def narrow(*pairs: dict[str, Any], **given: Any) -> dict[str, Any]:
    return result(*pairs, asked=asked("run", **given))


# answers


def test_an_answer_stands_beside_the_verdict_and_is_kept_until_the_next_push() -> None:
    own = [Comment(1, "farm", comments.comment(result(slower(WIDE))))]
    done = publishing.publish([what_if(pair(WIDE, speed="improved", ratio=0.9))], PULL, own, "block")
    assert done.check is None and done.exit_code == 0
    (write,) = done.writes
    assert write.id == 1 and "1 of 1 timed cells slower: cuda/rms" in write.body
    assert "What if src/x.py changes" in write.body and "not part of the verdict" in write.body
    state = ledgers.read(write.body)
    assert state and state.ratios == {WIDE: 1.18} and len(state.asides) == 1
    again = publishing.publish([what_if(slower(WIDE))], PULL, [Comment(1, "farm", write.body)], "block")
    assert again.writes[0].body.count("#### What if") == 1 and again.check is None  # the newest answer to a question
    other = publishing.publish([what_if(pair(), on="base", patch="e" * 64)], PULL, [Comment(1, "farm", write.body)])
    assert other.writes[0].body.count("#### What if") == 2
    full = publishing.publish([result(pair())], PULL, [Comment(1, "farm", write.body)], "block")
    assert "#### What if" in full.writes[0].body and full.check and full.check.conclusion == "success"
    newer = {**result(pair()), "head": {**result()["head"], "sha": "9" * 40}}
    moved = Pull("someone/kernels", 7, "9" * 40, True, (BASE,), {**TREES, "9" * 40: TREE_B})
    after = publishing.publish([newer], moved, [Comment(1, "farm", write.body)], "block")
    assert "#### What if" not in after.writes[0].body and after.stale == HEAD


def test_an_answer_without_a_verdict_makes_the_comment() -> None:
    (write,) = publishing.publish([what_if(pair())], PULL, []).writes
    assert write.id == 0 and "no result of this pull request yet" in write.body
    own = [Comment(1, "farm", write.body)]
    assert publishing.acknowledge(own, 7, HEAD, "m", "2026", "y").refused == "There is no regression to acknowledge."
    assert publishing.publish([what_if(pair())], PULL, [], "silent").writes == ()
    assert len(publishing.publish([result(slower(WIDE))], PULL, own, "block").writes) == 1


def test_an_acknowledgement_keeps_the_answers_behind_it() -> None:
    body = publishing.publish([what_if(pair())], PULL, [Comment(1, "farm", comments.comment(result(slower(WIDE))))])
    own = [Comment(1, "farm", body.writes[0].body)]
    text = publishing.acknowledge(own, 7, HEAD, "maintainer", "2026-11-23", "wide rows").writes[0].body
    assert text.index("Acknowledged by maintainer") < text.index("#### What if")
    later = publishing.publish([rerun(pair(WIDE))], PULL, [Comment(1, "farm", text)]).writes[0].body
    assert "Acknowledged by maintainer" in later and "Run again" in later and "#### What if" in later


def test_a_chosen_measurement_changes_no_verdict() -> None:
    own = [Comment(1, "farm", comments.comment(result(slower(WIDE))))]
    for found in (rerun(pair(WIDE)), rerun(slower(WIDE)), what_if(slower(WIDE)), narrow(pair(), matrix="a.yaml")):
        done = publishing.publish([found], PULL, own, "block")
        assert done.check is None and len(done.writes) == 1
    found = publishing.publish([narrow(slower(WIDE), matrix="a.yaml")], PULL, own, "block")
    assert found.check and found.check.conclusion == "failure"  # but what a wider run finds counts
    only = narrow(pair(), backends=["cuda"])
    assert publishing.publish([only], PULL, own, "block").check is None
    first = publishing.publish([only], PULL, [], "block").check  # nothing ran on a device before
    assert first and first.conclusion == "success"


@pytest.mark.parametrize(
    "found, words",
    [
        (what_if(pair(), head="9" * 40), "has moved"),
        (what_if(pair(), sha="8" * 40), "another commit"),
        (what_if(pair(), tree="e" * 40), "another content"),
        (what_if(pair(), patch=""), "without a patch"),
        (rerun(pair(), patch="f" * 64), "no what-if"),
        ({**result(pair(), asked=asked()), "number": 7}, "another commit"),
        ({**rerun(pair()), "base": {**result()["base"], "sha": HEAD, "tree": TREE_B}}, "where head left"),
        ({**rerun(pair()), "head": {**result()["head"], "sha": BASE, "tree": TREE_A}}, "another commit"),
    ],
)
def test_answers_that_lie_are_not_published(found: dict[str, Any], words: str) -> None:
    done = publishing.publish([results.read(json.dumps(found))], PULL, [], "block")
    assert words in done.refused and not done.writes and done.check is None


def test_a_what_if_on_base_and_one_with_hostile_names() -> None:
    done = publishing.publish([what_if(pair(), sha=BASE, tree=TREE_A, on="base")], PULL, [])
    assert not done.refused and "base as it is (aaaaaaaaaaaa)" in done.writes[0].body
    evil = ["<!-- kernel-farm answers -->", "@all ```\n# x", "](http://x)"]
    cell = "cuda/<!-- kernel-farm answers -->/@all"
    text = publishing.publish([what_if(slower(cell), files=evil)], PULL, []).writes[0].body
    assert text.count(comments.ANSWERS) == 1 and "@all" not in text.replace("&#64;", "") and "://x" not in text
    assert len(text) < comments.LIMIT and text.count("```") % 2 == 0


def test_answers_stay_within_their_room() -> None:
    many = [slower(f"cuda/op{n}/liger/auto/forward/bf16/{n}x64", reason="x" * 900) for n in range(900)]
    one = asides.answer(what_if(*many))
    assert len(one) <= ledgers.MAX_ASIDE and one.count("```") % 2 == 0
    state = ledgers.Ledger(7)
    for n in range(9):
        state = state.answered(str(n), HEAD, one)
    assert len(state.asides) == ledgers.MAX_ASIDES
    back = ledgers.read(state.line())
    assert back is not None and len(state.line()) < 25_000


# what a run waits for


def job(number: int, status: str, minutes: float, took: float = 0, **given: Any) -> dict[str, Any]:
    at = NOW + timedelta(minutes=minutes)
    made = {"status": status, "head_branch": f"pull-request/{number}", "created_at": at.isoformat()}
    made |= {"run_started_at": at.isoformat(), "updated_at": (at + timedelta(minutes=took)).isoformat()}
    return {**made, "conclusion": "success", **given}


DONE = [job(n, "completed", -100 - n, 20) for n in range(5)] + [job(9, "completed", -50, 1, conclusion="cancelled")]


@pytest.mark.parametrize(
    "found, words",
    [
        ([], "first in the queue, with no estimate of its end."),
        (DONE, "first in the queue, estimated end 12:20 UTC."),
        ([*DONE, job(7, "in_progress", -5)], "goes since 11:55 UTC, estimated end 12:15 UTC."),
        ([*DONE, job(3, "in_progress", -5)], "pull request 3 has it since 11:55 UTC, estimated end 12:15 UTC; this one "
         "is estimated to end at 12:35 UTC."),
        ([*DONE, job(3, "in_progress", -5), job(4, "queued", -4), job(7, "queued", -3), job(5, "queued", -2)],
         "12:15 UTC; 1 more before this one; this one is estimated to end at 12:55 UTC."),
        ([*DONE, job(3, "in_progress", -50)], "pull request 3 has it since 11:10 UTC, with no estimate of its end."),
        ([job(3, "in_progress", -5, head_branch="main")], "another run has it since 11:55 UTC"),
        ([{}, {"status": 1}, job(3, "in_progress", -5, created_at="x", run_started_at="y")], "first in the queue"),
    ],
)  # fmt: skip
def test_which_run_has_the_device_and_when_it_ends(found: list[dict[str, Any]], words: str) -> None:
    assert queue.words(queue.jobs(found), 7, NOW).endswith(words) or words in queue.words(queue.jobs(found), 7, NOW)


def test_a_store_says_more_of_the_run_that_goes() -> None:
    found = queue.of_store("r1", NOW - timedelta(minutes=10), NOW, 100, 25)
    text = queue.words(queue.jobs([*DONE, job(3, "in_progress", -10)]), 7, NOW, found)
    assert "pull request 3 (run r1) has it since 11:50 UTC, estimated end 12:30 UTC" in text
    assert queue.of_store("r1", NOW, NOW, 100, 0).until is None


def test_a_registry_names_the_run_that_goes(
    forge: Forge, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = {"d": {"node": "n", "backend": "cuda", "target": "", "since": 5.0}}
    both = {**devices, "e": {**devices["d"], "since": 1.0}}
    held = (("r1", "<b>", both), ("r2", "x", devices), ("r3", "x", {}))
    runs = {name: {"run": name, "user": user, "devices": its} for name, user, its in held}
    assert queue.of_registry(runs) == queue.Progress("r1 of <b>", None) and queue.of_registry({}) is None
    monkeypatch.setattr("farm.cluster.registry_client.RegistryClient.__init__", lambda self, address: None)
    monkeypatch.setattr("farm.cluster.registry_client.RegistryClient.runs", lambda self: runs)
    monkeypatch.setattr("farm.cluster.registry_client.RegistryClient.close", lambda self: None)
    forge.runs = [{**job(3, "in_progress", 0), "run_started_at": datetime.now(timezone.utc).isoformat()}]
    assert pr(tmp_path, "--waiting", "--number", "7", "--address", "host:1") == 0
    assert "pull request 3 (run r1 of &lt;b&gt;) has it" in forge.comments[0]["body"]

    def gone(self: Any) -> None:
        raise InfraError("gone")

    monkeypatch.setattr("farm.cluster.registry_client.RegistryClient.runs", gone)
    assert pr(tmp_path, "--waiting", "--number", "7", "--address", "host:1") == 0
    assert "the cluster is not asked: gone" in capsys.readouterr().err and len(forge.comments) == 1


def test_waiting_is_the_first_line_and_ends_with_the_result() -> None:
    own = [Comment(1, "farm", comments.comment(result(slower(WIDE))))]
    first = publishing.waiting(7, HEAD, "The run waits.", own, "block")
    assert (
        first.check and first.check.conclusion == "" and first.writes[0].body.splitlines()[1] == "> ⏳ The run waits."
    )
    own = [Comment(1, "farm", first.writes[0].body)]
    second = publishing.waiting(7, HEAD, "It goes <b>@all", own, "report", concludes=False)
    text = second.writes[0].body
    assert (
        second.check is None and text.count("⏳") == 1 and "slower" in text and "<b>" not in text and "@all" not in text
    )
    for after in (result(pair()), what_if(pair())):
        assert "⏳" not in publishing.publish([after], PULL, own).writes[0].body
    assert publishing.ended(7, "It died.", own)[0].body.splitlines()[1] == "> ⏳ It died."
    assert publishing.ended(7, "It died.", []) == () and publishing.waiting(7, HEAD, "x", [], "silent").writes == ()
    assert "no result" in publishing.waiting(7, HEAD, "x", [], "report").writes[0].body


STEPS = st.sampled_from(["same", "slower", "broken", "what-if", "rerun", "matrix", "wait", "died", "ack", "push"])


@given(st.lists(STEPS, min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_whatever_happens_the_verdict_is_that_of_the_last_whole_result(steps: list[str]) -> None:
    head, body, check, want = "1" * 40, "", "", ""
    for n, step in enumerate(steps):
        own = [Comment(1, "farm", body)] if body else []
        arm = {**result()["head"], "sha": head}
        pull = Pull("someone/kernels", 7, head, True, (BASE,), {**TREES, head: TREE_B})
        pairs = {"slower": [slower(WIDE)], "broken": [pair(WIDE, status_b="crashed")]}.get(step, [pair(WIDE)])
        if step == "push":
            head = f"{n + 2:040x}"
            continue
        if step == "wait":
            done = publishing.waiting(7, head, "It waits.", own, "block", concludes=False)
        elif step == "died":
            done = publishing.Publication(writes=publishing.ended(7, "It died.", own))
        elif step == "ack":
            done = publishing.acknowledge(own, 7, head, "m", "2026-11-23", "y", "block")
        elif step == "what-if":
            done = publishing.publish([what_if(slower(WIDE), sha=head, head=head)], pull, own, "block")
        elif step in ("rerun", "matrix"):
            more = {"cell": WIDE} if step == "rerun" else {"matrix": "a.yaml"}
            of = asked("rerun" if step == "rerun" else "run", head=head, **more)
            done = publishing.publish([result(*pairs, head=arm, asked=of)], pull, own, "block")
        else:
            done = publishing.publish([result(*pairs, head=arm)], pull, own, "block")
            want = "success" if step == "same" else done.check.conclusion if done.check else "missing"
            assert (want == "failure") == (step == "broken" or (step == "slower" and done.exit_code == 1))
        if step == "ack" and done.check:
            want = done.check.conclusion
        check = done.check.conclusion if done.check else check
        for write in done.writes:
            body = write.body
        assert check == want, steps
        if body:
            state = ledgers.read(body)
            assert state is not None and len(body) < 62_000 and len(state.asides) <= ledgers.MAX_ASIDES
            assert body.count("⏳") <= 1 and body.count("<!-- kernel-farm:1") == 1 and body.count(comments.ANSWERS) <= 1
            assert body.count("#### ") == len(state.asides) or state.asides == ()


def test_a_long_comment_gives_way_to_an_answer() -> None:
    many = [slower(f"cuda/op{n}/liger/auto/forward/bf16/{n}x64", place="x" * 150) for n in range(400)]
    own = [Comment(1, "farm", comments.comment(result(*many)))]
    body = publishing.publish([what_if(*many)], PULL, own).writes[0].body
    assert len(own[0].body) > 40_000 and len(body) <= comments.LIMIT
    assert "#### What if" in body and body.count("<details>") == body.count("</details>")
    assert body.count("\n```") % 2 == 0


# against the double of the forge


@pytest.fixture
def forge() -> Forge:
    return Forge()


@pytest.fixture
def address(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(forge) as at:
        monkeypatch.setenv("GITHUB_API_URL", at)
        monkeypatch.setenv("GITHUB_REPOSITORY", "someone/kernels")
        yield at


def pr(folder: Path, *words: str, event: Any = None) -> int:
    os.environ["GITHUB_TOKEN"] = TOKEN  # the command takes it out of its environment
    if event is not None:
        (folder / "event.json").write_text(json.dumps(event))
        words = (*words, "--event", str(folder / "event.json"))
    return main(["pr", *words])


def publish(folder: Path, found: Any, event: Any = None, *more: str) -> int:
    (folder / "result.json").write_text(json.dumps(found))
    return pr(folder, "--publish", str(folder / "result.json"), "--voice", "block", *more, event=event)


def job_event(event: str = "workflow_dispatch", branch: str = "pull-request/7", **given: Any) -> dict[str, Any]:
    of = {"head_sha": HEAD, "event": event, "head_branch": branch, "head_repository": {"full_name": "someone/kernels"}}
    return {"repository": {"full_name": "someone/kernels"}, "workflow_run": {**of, **given}}


def start(folder: Path, body: str, *more: str, **given: Any) -> int:
    return pr(folder, "--decide", "--start", "farm-device.yml", *more, event={**comment_event(body), **given})


def test_an_approval_starts_a_run_and_says_what_it_waits_for(
    forge: Forge, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge.runs = [{**job(3, "in_progress", 0), "run_started_at": datetime.now(timezone.utc).isoformat()}]
    assert start(tmp_path, f"/ok to test {HEAD}", "--voice", "block") == 0
    assert forge.branches == {"pull-request/7": HEAD}
    (made,) = forge.started
    assert (made["workflow"], made["ref"]) == ("farm-device.yml", "pull-request/7")
    found = decision.read(made["inputs"]["decision"])
    assert (found.head, found.base, found.command.kind, found.from_fork) == (HEAD, BASE, "ok", True)
    assert decision.read(capsys.readouterr().out) == found
    assert "pull request 3 has it" in forge.comments[0]["body"] and forge.checks[0]["status"] == "in_progress"
    assert publish(tmp_path, result(pair()), job_event()) == 0
    assert [c["conclusion"] for c in forge.checks] == ["success"] and "⏳" not in forge.comments[0]["body"]
    assert len(forge.comments) == 1


def test_a_head_without_the_workflow_is_refused_in_a_sentence(forge: Forge, address: str, tmp_path: Path) -> None:
    event = comment_event(f"/ok to test {HEAD}")
    assert pr(tmp_path, "--decide", "--start", "other.yml", "--voice", "block", event=event) == 0
    assert "cannot start other.yml" in forge.comments[-1]["body"] and not forge.checks


def test_a_what_if_starts_a_run_without_a_check(forge: Forge, address: str, tmp_path: Path) -> None:
    forge.branches["pull-request/7"] = HEAD  # it was approved
    assert publish(tmp_path, result(slower(WIDE))) == 1
    assert start(tmp_path, f"/farm what-if\n```diff\n{DIFF}\n```", "--voice", "block") == 0
    assert decision.read(forge.started[0]["inputs"]["decision"]).command.patch == DIFF
    assert [c["conclusion"] for c in forge.checks] == ["failure"] and "⏳" in forge.comments[0]["body"]
    assert publish(tmp_path, what_if(pair()), job_event()) == 0
    assert [c["conclusion"] for c in forge.checks] == ["failure"]
    assert "#### What if" in forge.comments[0]["body"] and "⏳" not in forge.comments[0]["body"]


def test_a_suggestion_of_a_review_comment_is_asked_of_the_forge(forge: Forge, address: str, tmp_path: Path) -> None:
    forge.branches["pull-request/7"] = HEAD
    forge.reviews[12] = {
        "body": "try\n```suggestion\nx = 1\n```", "commit_id": HEAD, "path": "src/x.py", "line": 4, "start_line": 3,
        "side": "RIGHT", "updated_at": "2026-11-23T10:00:00Z", "pull_request_url": f"{address}/repos/x/pulls/7",
    }  # fmt: skip
    event = comment_event("/farm what-if r12")
    event["comment"]["created_at"] = "2026-11-23T10:05:00Z"
    assert pr(tmp_path, "--decide", "--start", "farm-device.yml", event=event) == 0
    suggestion = decision.read(forge.started[0]["inputs"]["decision"]).suggestion
    assert suggestion and (suggestion.path, suggestion.first, suggestion.last) == ("src/x.py", 3, 4)
    forge.reviews[12]["updated_at"] = "2026-11-23T10:06:00Z"
    assert pr(tmp_path, "--decide", "--start", "farm-device.yml", event=event) == 0
    assert len(forge.started) == 1 and "edited after" in forge.comments[-1]["body"]


@pytest.mark.parametrize(
    "body, given, words",
    [
        ("/farm run", {}, "Nobody has approved"),
        ("/farm rerun cuda/x/y", {}, "Nobody has approved"),
        ("/farm what-if\n```diff\n--- a/.github/x\n+++ b/.github/x\n@@ -1 +1 @@\n-a\n+b\n```", {}, "plain files"),
        ("/farm what-if r99", {"approved": HEAD}, "review comment"),
    ],
)
def test_what_is_refused_starts_nothing(
    forge: Forge, address: str, tmp_path: Path, body: str, given: dict[str, Any], words: str
) -> None:
    if given:
        forge.branches["pull-request/7"] = HEAD
    assert start(tmp_path, body) == 0
    assert not forge.started and words in forge.comments[-1]["body"]


def test_a_merge_group_has_its_check_and_no_comment(forge: Forge, address: str, tmp_path: Path) -> None:
    queued = job_event("merge_group", GROUP)
    forge.pull["head"] = {"sha": "9" * 40, "repo": None}  # the queue's commit is not the pull request's
    assert publish(tmp_path, result(pair()), queued) == 0
    assert [(c["head_sha"], c["conclusion"]) for c in forge.checks] == [(HEAD, "success")] and not forge.comments
    assert publish(tmp_path, result(slower(WIDE, 1.1)), queued) == 1
    assert forge.checks[-1]["conclusion"] == "failure" and not forge.comments
    body = comments.comment(result(slower(WIDE, 1.1)))
    done = publishing.acknowledge([Comment(1, "x", body)], 7, HEAD, "m", "2026-11-23", "wide rows")
    forge.say(forge.login, done.writes[0].body)  # on the pull request itself
    assert publish(tmp_path, result(slower(WIDE, 1.1)), queued) == 0
    assert forge.checks[-1]["conclusion"] == "success" and len(forge.comments) == 1


@pytest.mark.parametrize(
    "found, queued, change",
    [
        (result(pair(), base={**result()["base"], "sha": HEAD, "tree": TREE_B}), job_event("merge_group", GROUP), {}),
        (result(pair(), number=8), job_event("merge_group", GROUP), {}),
        (result(pair()), job_event("merge_group", GROUP), {"merge_base": "5" * 40}),
        (result(pair()), job_event("merge_group", GROUP, head_sha="9" * 40), {}),
        (rerun(pair()), job_event("merge_group", GROUP), {}),
        (rerun(pair()), job_event("pull_request", "x"), {}),
        ("{", job_event("merge_group", GROUP), {}),
    ],
)
def test_what_a_job_cannot_have_measured_concludes_neutral(
    forge: Forge, address: str, tmp_path: Path, found: Any, queued: Any, change: dict[str, Any]
) -> None:
    vars(forge).update(change)
    head = queued["workflow_run"]["head_sha"]
    forge.checks.append({"id": 1, "name": "kernel farm", "head_sha": head, "status": "in_progress"})
    assert publish(tmp_path, found, queued) in (2, 3)
    assert [(c["conclusion"], c["head_sha"]) for c in forge.checks] == [("neutral", head)] and not forge.comments


def test_halves_of_characters_stop_nothing(forge: Forge, address: str, tmp_path: Path) -> None:
    assert publish(tmp_path, result(slower("cuda/\ud800/x"), static=static(changed=["\udfff"]))) == 1
    assert [c["conclusion"] for c in forge.checks] == ["failure"] and len(forge.comments) == 1
    assert start(tmp_path, "/farm ack \ud800 it is meant so", "--voice", "block") == 0
    assert forge.checks[-1]["conclusion"] == "success" and "it is meant so" in forge.comments[0]["body"]
    assert start(tmp_path, f"/farm what-if\n```diff\n{DIFF}\ud800\n```") == 0 and not forge.started


def test_a_run_that_died_ends_the_waiting(forge: Forge, address: str, tmp_path: Path) -> None:
    assert start(tmp_path, f"/ok to test {HEAD}", "--voice", "block") == 0
    told = ("--publish", str(tmp_path / "none.json"), "--voice", "block")
    assert pr(tmp_path, *told, event=job_event()) == 3
    assert [c["conclusion"] for c in forge.checks] == ["neutral"]
    assert "left no result" in forge.comments[0]["body"] and len(forge.comments) == 1


@pytest.mark.parametrize("voice, kept", [("block", "failure"), ("advise", "neutral")])
def test_what_is_no_result_replaces_no_conclusion(
    forge: Forge, address: str, tmp_path: Path, voice: str, kept: str
) -> None:
    """A stranger opens the pull request again, and leaves nothing, a lie, or a result without devices."""
    told = ("--voice", voice)
    interpreted = result(pair("cpu/rms_norm/liger/auto/forward/fp32/1x8"))
    theirs = job_event("pull_request", "x", head_repository={"full_name": "stranger/kernels"})
    assert publish(tmp_path, result(slower(WIDE)), None, *told) == 1
    for found in ("{", result(pair(WIDE)), interpreted):
        assert pr(tmp_path, "--waiting", *told, event=theirs) == 0
        publish(tmp_path, found, theirs, *told)
        assert [c["conclusion"] for c in forge.checks] == [kept]
    for found in ("{", rerun(pair(WIDE), head="9" * 40)):  # what an approved job made, which died or lies
        assert start(tmp_path, f"/ok to test {HEAD}", *told) == 0
        assert forge.checks[-1]["status"] == "in_progress"
        publish(tmp_path, found, job_event(), *told)
        assert {c["status"] for c in forge.checks} <= {"completed"} and forge.checks[-1]["conclusion"] == kept
    lost = {
        "id": 1 + len(forge.checks),
        "head_sha": HEAD,
        "status": "in_progress",
        "started_at": "2020-01-01T00:00:00Z",
    }
    forge.checks.append(lost)
    assert pr(tmp_path, "--sweep", "6") == 0 and forge.checks[-1]["conclusion"] == kept
    assert publish(tmp_path, result(pair(WIDE)), job_event(), *told) == 0  # but a result does
    assert forge.checks[-1]["conclusion"] == "success"


def test_waiting_of_a_job_by_its_event(forge: Forge, address: str, tmp_path: Path) -> None:
    assert pr(tmp_path, "--waiting", "--voice", "block", event=job_event("pull_request", "feature")) == 0
    assert [c["status"] for c in forge.checks] == ["in_progress"] and not forge.comments
    assert pr(tmp_path, "--waiting", "--voice", "report", event=job_event("push")) == 0
    assert "first in the queue" in forge.comments[0]["body"]
    assert pr(tmp_path, "--waiting", "--voice", "report") == 2
    forge.checks[0].update(status="completed")
    assert pr(tmp_path, "--waiting", "--voice", "block", event=job_event()) == 0  # of a question: no check
    assert len(forge.checks) == 1


def test_checks_that_nobody_concluded_are_swept(forge: Forge, address: str, tmp_path: Path) -> None:
    now = datetime.now(timezone.utc)
    for n, (sha, hours, status) in enumerate(
        [(HEAD, 9, "in_progress"), (HEAD, 1, "in_progress"), ("8" * 40, 7, "queued"), ("8" * 40, 9, "completed")]
    ):
        begun = (now - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
        forge.checks.append({"id": n + 1, "head_sha": sha, "status": status, "started_at": begun, "conclusion": ""})
    forge.open = [{"head": {"sha": "8" * 40}}, {"head": {"sha": "not a commit"}}, {"head": None}]
    assert pr(tmp_path, "--sweep", "6") == 0
    assert [c["conclusion"] for c in forge.checks] == ["neutral", "", "neutral", ""]
    assert pr(tmp_path, "--sweep", "0") == 2
    forge.say(forge.login, comments.comment(result(pair(), head={**result()["head"], "sha": "8" * 40})))
    forge.checks.append({"id": 5, "head_sha": "8" * 40, "status": "in_progress", "started_at": ""})
    assert publish(tmp_path, result(pair())) == 0
    assert forge.checks[4]["conclusion"] == "neutral"  # of the head before
