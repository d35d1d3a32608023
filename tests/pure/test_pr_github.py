"""The forge client and `farm pr` against a local double of GitHub's REST API."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from github_double import TOKEN, Forge, serving
from pr_results import BASE, HEAD, pair, result, slower, static, target
from test_pr_words import comment as comment_event

from farm.cli import main, pr_publish
from farm.errors import InfraError, UsageError
from farm.pr.github import GitHub, again
from farm.pr.publishing import Check, Write

WIDE = "cuda/rms_norm/liger/auto/forward/bf16/8192x4096/llama"


@pytest.fixture
def forge() -> Forge:
    return Forge()


@pytest.fixture
def address(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(forge) as at:
        monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
        monkeypatch.setenv("GITHUB_API_URL", at)
        monkeypatch.setenv("GITHUB_REPOSITORY", "someone/kernels")
        yield at


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def client(address: str, **given: Any) -> tuple[GitHub, Clock]:
    clock = Clock()
    return GitHub("someone/kernels", TOKEN, address, sleep=clock.sleep, clock=clock, **given), clock


def publish(folder: Path, found: dict[str, Any], *more: str) -> int:
    (folder / "result.json").write_text(json.dumps(found))
    os.environ["GITHUB_TOKEN"] = TOKEN  # the command takes it out of its environment
    return main(["pr", "--publish", str(folder / "result.json"), *more])


def test_comment_is_written_once_and_then_updated(forge: Forge, address: str, tmp_path: Path) -> None:
    forge.say("stranger", "<!-- kernel-farm:1 7 x --> I am the farm")
    assert publish(tmp_path, result(pair())) == 0
    assert publish(tmp_path, result(pair())) == 0
    assert publish(tmp_path, result(slower(WIDE))) == 1
    assert [c["user"]["login"] for c in forge.comments] == ["stranger", "kernel-farm"]
    assert "slower" in forge.comments[1]["body"] and "I am the farm" in forge.comments[0]["body"]
    assert "GITHUB_TOKEN" not in os.environ


def test_check_is_concluded_by_voice_and_a_pending_one_is_used(forge: Forge, address: str, tmp_path: Path) -> None:
    forge.checks.append({"id": 1, "name": "kernel farm", "head_sha": HEAD, "status": "in_progress"})
    assert publish(tmp_path, result(slower(WIDE)), "--voice", "block") == 1
    assert [(c["conclusion"], c["head_sha"]) for c in forge.checks] == [("failure", HEAD)]
    assert publish(tmp_path, result(pair()), "--voice", "block") == 0
    assert forge.checks[-1]["conclusion"] == "success" and len(forge.checks) == 2
    same = result(static=static(changed=[], targets=[target(compiled=1, same_code=1)]))
    forge.comments.clear()
    assert publish(tmp_path, same, "--voice", "block") == 0 and forge.comments == []


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"schema": 1})])
def test_check_concludes_whatever_the_measuring_job_left(forge: Forge, address: str, tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    assert main(["pr", "--publish", str(tmp_path / "result.json"), "--number", "7", "--voice", "block"]) == 3
    assert [c["conclusion"] for c in forge.checks] == ["neutral"] and forge.comments == []
    os.environ["GITHUB_TOKEN"] = TOKEN
    assert main(["pr", "--publish", str(tmp_path / "none.json"), "--number", "7", "--voice", "block"]) == 3
    assert len(forge.checks) == 1  # one that is concluded stays
    forge.checks.clear()
    os.environ["GITHUB_TOKEN"] = TOKEN
    assert main(["pr", "--publish", str(tmp_path / "none.json"), "--number", "7", "--voice", "block"]) == 3
    assert [c["conclusion"] for c in forge.checks] == ["neutral"]


def test_a_job_cannot_leave_the_result_of_another(forge: Forge, address: str, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"workflow_run": {"head_sha": "9" * 40}}))
    assert publish(tmp_path, result(pair()), "--event", str(event)) == 2 and not forge.comments
    (tmp_path / "result.json").write_text("{")
    os.environ["GITHUB_TOKEN"] = TOKEN
    assert main(["pr", "--publish", str(tmp_path / "result.json"), "--event", str(event), "--voice", "advise"]) == 3
    assert [(c["head_sha"], c["conclusion"]) for c in forge.checks] == [("9" * 40, "neutral")]
    event.write_text(json.dumps({"workflow_run": {"head_sha": HEAD}}))
    assert publish(tmp_path, result(pair()), "--event", str(event)) == 0 and len(forge.comments) == 1


def test_what_a_stranger_wrote_a_workflow_for_is_no_result_of_a_device(
    forge: Forge, address: str, tmp_path: Path
) -> None:
    event = tmp_path / "event.json"
    of = {"head_sha": HEAD, "event": "pull_request", "head_repository": {"full_name": "stranger/kernels"}}
    event.write_text(json.dumps({"workflow_run": of, "repository": {"full_name": "someone/kernels"}}))
    told = ("--voice", "block", "--event", str(event))
    assert publish(tmp_path, result(slower(WIDE)), "--voice", "block") == 1
    before = [check["conclusion"] for check in forge.checks]
    assert publish(tmp_path, result(pair(WIDE)), *told) == 2
    (tmp_path / "result.json").write_text("{")
    os.environ["GITHUB_TOKEN"] = TOKEN
    assert main(["pr", "--publish", str(tmp_path / "result.json"), "--repository", "someone/kernels", *told]) == 3
    assert [check["conclusion"] for check in forge.checks] == before == ["failure"]


def test_check_concludes_where_the_comment_cannot_be_written(forge: Forge, address: str, tmp_path: Path) -> None:
    forge.trouble = lambda method, path: (403, {}) if path.endswith("/comments") and method == "POST" else None
    assert publish(tmp_path, result(slower(WIDE)), "--voice", "block") == 2
    assert [c["conclusion"] for c in forge.checks] == ["failure"]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda f: f.pull["head"].update(sha=BASE), "has moved"),
        (lambda f: f.trees.update({HEAD: "e" * 40}), "another content"),
        (lambda f: f.trees.clear(), "another content"),
        (lambda f: (f.pull["base"].update(sha="5" * 40), setattr(f, "merge_base", "6" * 40)), "where head left"),
        (lambda f: f.permissions.clear(), ""),
    ],
)
def test_result_is_held_against_the_forge(
    forge: Forge, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    change(forge)
    assert publish(tmp_path, result(pair()), "--voice", "block") == (2 if words else 0)
    assert words in capsys.readouterr().err and bool(forge.comments) == (not words)


def test_outdated_comments_are_folded_and_a_deleted_one_is_made_anew(
    forge: Forge, address: str, tmp_path: Path
) -> None:
    publish(tmp_path, result(pair()))
    forge.say(forge.login, forge.comments[0]["body"])  # two jobs at once had made one each
    publish(tmp_path, result(slower(WIDE)))
    assert "<summary>Outdated" in forge.comments[0]["body"] and "slower" in forge.comments[1]["body"]
    forge.comments.clear()
    publish(tmp_path, result(slower(WIDE)))
    assert len(forge.comments) == 1
    of, _ = client(address)
    of.write(7, Write(4242, "to a comment that was deleted meanwhile"))
    assert forge.comments[-1]["body"].startswith("to a comment")


#: What GitHub may answer to one kind of call, whenever it is asked.
TROUBLES: tuple[tuple[int, dict[str, str]], ...] = (
    (401, {}),
    (403, {}),
    (403, {"Retry-After": "3600"}),
    (403, {"X-RateLimit-Remaining": "0"}),
    (404, {}),
    (422, {}),
    (429, {}),
    (502, {}),
)


@pytest.mark.parametrize("found, name", [(result(pair()), "success"), (result(slower(WIDE)), "failure")])
def test_whatever_call_fails_the_check_concludes_and_nothing_shows_the_token(
    forge: Forge,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: dict[str, Any],
    name: str,
) -> None:
    clock = Clock()
    monkeypatch.setattr(pr_publish, "GitHub", partial(GitHub, sleep=clock.sleep, clock=clock))
    job = tmp_path / "event.json"
    job.write_text(json.dumps({"workflow_run": {"head_sha": HEAD}}))
    told = ("--voice", "block", "--event", str(job))
    pending = {"id": 1, "name": "kernel farm", "head_sha": HEAD, "status": "in_progress"}
    forge.comments.clear()
    forge.checks[:] = [dict(pending)]
    turn = publish(tmp_path, found, *told)
    kinds = list(dict.fromkeys((method, path.partition("?")[0]) for method, path in forge.calls))
    assert len(kinds) >= 8 and forge.checks[0]["conclusion"] == name
    written = json.dumps([forge.comments, forge.checks])
    for n, (method, at) in enumerate(kinds):  # each kind with two; all with all were right on 2026-11-24, in a minute
        for trouble in (TROUBLES[(2 * n + turn) % len(TROUBLES)], TROUBLES[(2 * n + 3 + turn) % len(TROUBLES)]):
            forge.comments.clear()
            forge.checks[:] = [dict(pending)]
            forge.trouble = lambda m, p: trouble if (m, p.partition("?")[0]) == (method, at) else None  # noqa: B023
            code = publish(tmp_path, found, *told)
            (check, *more) = forge.checks
            if at.endswith("/check-runs") or "/check-runs/" in at:  # concluded once the trouble is over
                forge.trouble = lambda method, path: None
                publish(tmp_path, found, *told)
                assert forge.checks[-1]["conclusion"] == name
            else:
                fine = (name, code) in (("success", 0), ("failure", 1))
                assert not more and check["conclusion"] in ((name,) if fine else (name, "neutral")), (at, trouble)
                assert check["conclusion"] != "success" or code == 0 or at.endswith("/comments"), (at, trouble, code)
            assert "GITHUB_TOKEN" not in os.environ
            written += json.dumps([forge.comments, forge.checks])
    shown = "".join(capsys.readouterr()) + written + "".join(f.read_text() for f in tmp_path.rglob("*") if f.is_file())
    assert TOKEN not in shown and "Traceback" not in shown


def test_closed_pull_request_gets_no_comment(forge: Forge, address: str, tmp_path: Path) -> None:
    forge.pull["state"] = "closed"
    assert publish(tmp_path, result(slower(WIDE))) == 1 and forge.comments == []


def test_all_pages_are_read(forge: Forge, address: str) -> None:
    for n in range(250):
        forge.say(forge.login if n % 50 == 0 else "stranger", f"{n}")
    of, _ = client(address)
    assert [c.body for c in of.comments(7, of.login())] == ["0", "50", "100", "150", "200"]


def test_rate_limits_and_broken_answers_are_waited_for(forge: Forge, address: str) -> None:
    answers = [
        (429, {"Retry-After": "7"}),
        (403, {"Retry-After": "11"}),
        (502, {}),
        (403, {"X-RateLimit-Remaining": "0"}),
    ]
    forge.trouble = lambda method, path: answers.pop(0) if answers else None
    of, clock = client(address)
    assert of.permission("maintainer") == "write"
    assert clock.slept == [7, 11, 4, 8]
    forge.trouble = lambda method, path: (429, {"Retry-After": "3600"})
    with pytest.raises(InfraError, match="in time"):
        of.permission("maintainer")
    assert sum(clock.slept) < 120


def test_comment_whose_answer_was_lost_is_not_made_twice(forge: Forge, address: str) -> None:
    forge.lost_answers = 1
    of, _ = client(address)
    of.write(7, Write(0, "once"))
    assert [c["body"] for c in forge.comments] == ["once"]
    forge.trouble = lambda method, path: (502, {}) if method == "POST" else None
    with pytest.raises(InfraError):
        of.write(7, Write(0, "never"))


def test_refusals_are_sentences_and_never_show_the_token(
    forge: Forge, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of, _ = client(address)
    assert TOKEN not in repr(of) + str(vars(of).get("_client"))
    forge.trouble = lambda method, path: (403, {}) if path.endswith("/check-runs") and method == "POST" else None
    with pytest.raises(UsageError, match="checks: write") as caught:
        of.conclude(Check(HEAD, "success", "x", "y"))
    assert TOKEN not in str(caught.value)
    with pytest.raises(UsageError, match="no pull request 8"):
        of.pull(8)
    with pytest.raises(UsageError, match="valid one"):
        GitHub("someone/kernels", "ghp_wrong", address).pull(7)
    with pytest.raises(UsageError, match="not https"):
        GitHub("someone/kernels", TOKEN, "http://example.com")
    assert of.permission("../../x") == "none" and of.permission("nobody") == "none"


def test_what_is_tried_again() -> None:
    assert again(404, {}, 0) is None and again(403, {}, 0) is None and again(422, {}, 0) is None
    assert again(503, {}, 3) == 8 and again(503, {}, 12) == 60 and again(429, {"retry-after": "9" * 30}, 0) == 1


def decide(folder: Path, payload: Any, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    (folder / "event.json").write_text(json.dumps(payload))
    os.environ["GITHUB_TOKEN"] = TOKEN
    assert main(["pr", "--decide", "--event", str(folder / "event.json"), *more]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_decide_asks_the_forge_and_answers_refusals(
    forge: Forge, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = decide(tmp_path, comment_event(f"/ok to test {HEAD}"), capsys)
    assert (found["decision"], found["head"], found["approved_by"]) == ("request", HEAD, "maintainer")
    found = decide(tmp_path, comment_event("/farm run", login="stranger"), capsys)
    assert found["decision"] == "refusal" and "write permission" in forge.comments[-1]["body"]
    forge.pull["head"]["sha"] = "c" * 40  # a force-push after the reading
    assert decide(tmp_path, comment_event(f"/ok to test {HEAD}"), capsys)["decision"] == "refusal"
    forge.pull["state"] = "closed"
    assert decide(tmp_path, comment_event(), capsys)["decision"] == "refusal"
    assert len(forge.comments) == 3


def test_acknowledgement_is_kept_in_the_farms_comment(
    forge: Forge, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path, result(slower(WIDE, 1.1)), "--voice", "block")
    capsys.readouterr()
    decide(tmp_path, comment_event("/farm ack wide rows matter more"), capsys, "--voice", "block")
    assert forge.checks[-1]["conclusion"] == "success" and "maintainer" in forge.comments[0]["body"]
    assert publish(tmp_path, result(slower(WIDE, 1.1)), "--voice", "block") == 0
    assert publish(tmp_path, result(slower(WIDE, 1.3)), "--voice", "block") == 1
    capsys.readouterr()
    decide(tmp_path, comment_event("/farm ack again", login="stranger"), capsys)
    assert "write permission" in forge.comments[-1]["body"]


def test_comment_goes_into_a_file_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    (tmp_path / "result.json").write_text(json.dumps(result(slower(WIDE))))
    assert main(["pr", "--publish", str(tmp_path / "result.json"), "--comment", str(tmp_path / "c.md")]) == 1
    assert "slower" in (tmp_path / "c.md").read_text()


def test_a_job_that_has_a_token_does_not_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    assert main(["pr", "--base", "main"]) == 2
    told = capsys.readouterr().err
    assert "another job" in told and TOKEN not in told


@pytest.mark.parametrize(
    "more, words",
    [
        (["--decide"], "needs --event"),
        (["--decide", "--event", "none.json"], "cannot be read"),
        (["--publish", "none.json", "--comment", "c.md"], "cannot be read"),
        (["--publish", "none.json"], "needs a token"),
        (["--publish", "none.json", "--repository", "--x"], "no repository"),
        ([], "--base REV"),
    ],
)
def test_wrong_command_lines_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/kernels")
    try:
        code = main(["pr", *([f"--repository={more[-1]}", *more[:-2]] if "--repository" in more else more)])
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    assert code == 2 and words in capsys.readouterr().err
