"""What bodies and comments of a pull request ask for, and what is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import UsageError
from farm.pr import commands, config_block, events
from farm.pr.commands import Command, Refused
from farm.pr.config_block import TESTS, Config
from farm.pr.events import Asked, Ignored, Policy, Refusal, Request

HEAD, BASE = "b" * 40, "a" * 40
DIFF = "--- a/src/x.py\n+++ b/src/x.py\n@@ -1 +1 @@\n-a\n+b"


def block(inside: str, fence: str = "```yaml") -> str:
    return f"A change.\n\n{fence}\n{inside}\n{fence[:3]}\n\n- [x] formatted\n"


def test_config_block_is_read_as_written() -> None:
    assert config_block.read(None) == config_block.read("no block here") == Config()
    body = block('config:\n  build: true\n  # valid options are "ops" and others\n  test: ["ops", "benchmark"]')
    assert config_block.read(body) == Config(True, ("ops", "benchmark"), given=True)
    assert config_block.read(body.replace("\n", "\r\n")) == config_block.read(body)
    assert config_block.read(block("config: {build: false, test: []}", "~~~yml")) == Config(False, (), given=True)
    assert config_block.read(block("config: {build: true}")).test == TESTS
    assert config_block.read(block("other: {build: 1}")) == Config()  # a block of another tool


def test_digest_changes_with_what_is_asked_for_only() -> None:
    one, two = (config_block.read(block(f"config: {{test: [{t}]}}")) for t in ("ops, sanity", "sanity, ops"))
    assert one.digest == two.digest != config_block.read(block("config: {test: [ops]}")).digest


@pytest.mark.parametrize(
    "inside, words",
    [
        ("config: {test: [opss]}", 'did you mean "ops"'),
        ("config: {test: ops}", "write a list"),
        ("config: {test: [ops, ops]}", "twice"),
        ("config: {build: no}", "write true or false"),
        ("config: {build: 1}", "write true or false"),
        ("config: {biuld: true}", 'did you mean "build"'),
        ("config:", "is empty"),
        ("config: []", "a mapping"),
        ("config: [ops]", "a mapping"),
        ("config: {test: [[ops]]}", "available tests"),
        ("config: {test: [null]}", "available tests"),
        ("config: {build: true\n  test: [ops]", "not valid YAML"),
        ("config: {build: true}\nconfig: {build: false}", "given twice"),
        ("config: {build: true}\nother: 1", "is not a key here"),
        ("config: !!python/object/apply:os.system [id]", "tag"),
        ("config: {build: true}\n---\nconfig: {build: false}", "2 YAML documents"),
        ("config: &a [*a]", "config"),
        ("config: {test: [" + "ops, " * 2000 + "]}", "longer than"),
        ("config: " + "[" * 60 + "]" * 60, "nested"),
        ("build: true\nconfig: {build: false}", "is not a key here"),
        (
            "\n".join(["x0: &x0 [a, a]", *(f"x{i}: &x{i} [*x{i - 1}, *x{i - 1}]" for i in range(1, 30)), "config: {}"]),
            "values",
        ),
        ("config:\n\tbuild: true", "tab"),
    ],
)
def test_config_block_that_is_not_right_is_refused(inside: str, words: str) -> None:
    body = block(inside)
    with pytest.raises(UsageError, match="pull request's body") as caught:
        config_block.read(body)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_two_config_blocks_are_refused() -> None:
    with pytest.raises(UsageError, match="2 config blocks, in lines 3 and 10"):
        config_block.read(block("config: {build: true}") + block("config: {build: false}"))
    with pytest.raises(UsageError, match="fence"):
        config_block.read("CI\n\nconfig:\n  build: true\n")
    with pytest.raises(UsageError, match="limit"):
        config_block.read("x" * 300_000)


@pytest.mark.parametrize(
    "body, wanted",
    [
        ("/ok to test " + HEAD, Command("ok", sha=HEAD)),
        ("Looks fine.\r\n/ok to test " + HEAD + "  \r\n", Command("ok", sha=HEAD)),
        ("/farm run", Command("run")),
        ("/farm run bench/rms.yaml cuda,rocm", Command("run", matrix="bench/rms.yaml", backends=("cuda", "rocm"))),
        ("/farm rerun cuda/rms_norm/liger/8x64", Command("rerun", cell="cuda/rms_norm/liger/8x64")),
        ("/farm ack the wide rows matter more", Command("ack", reason="the wide rows matter more")),
        (f"/farm what-if\n```diff\n{DIFF}\n```", Command("what-if", patch=DIFF, on="head")),
        (f"/farm what-if base\n```suggestion\n{DIFF}\n```", Command("what-if", patch=DIFF, on="base")),
        ("/farm what-if r12", Command("what-if", on="head", review=12)),
        (
            "/farm what-if https://github.com/someone/kernels/pull/7#discussion_r12",
            Command("what-if", on="head", review=12),
        ),
        ("> /farm run", None),
        ("    /farm run", None),
        ("```\n/farm run\n```", None),
        ("<!-- /farm run -->", None),
        ("please /farm run", None),
        ("/farmhouse", None),
        ("", None),
    ],
)  # fmt: skip
def test_commands(body: str, wanted: Command | None) -> None:
    assert commands.read(body) == wanted


@pytest.mark.parametrize(
    "body",
    [
        "/ok to test",
        "/ok to test HEAD",
        "/ok to test 99c6f79",
        "/ok to test " + HEAD[:39],
        "/ok to test " + HEAD + "0",
        "/ok to test " + HEAD + "; curl evil",
        "/ok to test --all",
        "/farm",
        "/farm rnu",
        "/farm run --debug",
        "/farm run ../../etc/passwd.yaml",
        "/farm run -x.yaml",
        "/farm run cuda,tpu",
        "/farm run a.yaml b.yaml",
        "/farm rerun",
        "/farm rerun $(id)",
        "/farm rerun a b",
        "/farm ack",
        "/farm ack " + "x" * 600,
        "/farm what-if",
        "/farm what-if now\n```suggestion\nx\n```",
        "/farm what-if\n```suggestion\nx = 1\n```",
        f"/farm what-if r12\n```diff\n{DIFF}\n```",
        "/farm what-if r12 r13",
        "/farm what-if https://evil.example/x#r12;id",
        "/farm what-if\n```suggestion\na\n```\n```diff\nb\n```",
        "/farm what-if\n```suggestion\n" + "x" * 40_000 + "\n```",
        "/farm run\n/farm run",
        "/ok to test " + HEAD + "\n/farm run",
        "/FARM".lower() + " Run",
    ],
)
def test_commands_that_are_refused(body: str) -> None:
    found = commands.read(body)
    assert isinstance(found, Refused) and found.why.endswith((".", "?")) and len(found.why) < 300


@given(st.text(alphabet="/farmok to test\n`~> \t<!-->run ack0123456789abcdef", max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read(text: str) -> None:
    assert isinstance(commands.read(text), Command | Refused | None)
    with contextlib.suppress(UsageError):
        config_block.read(text)


def comment(body: str = "/farm run", **given: Any) -> dict[str, Any]:
    user = {"login": given.pop("login", "maintainer"), "type": given.pop("type", "User")}
    made = {
        "action": "created",
        "repository": {"full_name": "someone/kernels"},
        "issue": {"number": 7, "pull_request": {"url": "x"}},
        "comment": {"body": body, "user": user},
    }
    return {**made, **given}


def asked(**given: Any) -> Asked:
    made: dict[str, Any] = {
        "head": HEAD, "base": BASE, "open": True, "from_fork": True, "body": "", "permission": "write",
        "approved": HEAD,
    }  # fmt: skip
    return Asked(**{**made, **given})


def test_new_comment_by_a_writer_is_a_request() -> None:
    found = events.decide(comment(), Policy(), asked())
    assert isinstance(found, Request) and (found.head, found.base, found.from_fork, found.number) == (
        HEAD,
        BASE,
        True,
        7,
    )
    assert not found.approved_by and found.by == "maintainer"
    found = events.decide(comment(f"/ok to test {HEAD}"), Policy(), asked())
    assert isinstance(found, Request) and found.approved_by == "maintainer"


@pytest.mark.parametrize(
    "payload, about, kind",
    [
        (comment(action="edited"), asked(), Ignored),
        (comment(action="deleted"), asked(), Ignored),
        (comment("thanks"), asked(), Ignored),
        (comment(login="robot[bot]", type="Bot"), asked(), Ignored),
        (comment(login="kernel-farm"), asked(), Ignored),
        (comment(issue={"number": 7}), asked(), Ignored),
        (comment(), asked(permission="read"), Refusal),
        (comment(), asked(permission="triage"), Refusal),
        (comment(), asked(permission="none"), Refusal),
        (comment("/farm rnu"), asked(permission="read"), Refusal),
        (comment(), asked(open=False), Refusal),
        (comment(f"/ok to test {'c' * 40}"), asked(), Refusal),
        (comment(f"/ok to test {HEAD}"), asked(permission="read"), Refusal),
        (comment(), asked(body=block("config: {test: [opss]}")), Refusal),
    ],
)
def test_comments_that_are_no_request(payload: dict[str, Any], about: Asked, kind: type) -> None:
    found = events.decide(payload, Policy(bot="kernel-farm"), about)
    assert isinstance(found, kind), found


@pytest.mark.parametrize("body", ["/farm run", "/farm rerun cuda/x/y", f"/farm what-if\n```diff\n{DIFF}\n```"])
def test_code_of_a_fork_runs_only_at_the_commit_that_was_approved(body: str) -> None:
    for approved, from_fork, kind in (("", True, Refusal), ("c" * 40, True, Refusal), ("", False, Request)):
        found = events.decide(comment(body), Policy(), asked(approved=approved, from_fork=from_fork))
        assert isinstance(found, kind), found
    ack = events.decide(comment("/farm ack it is meant so"), Policy(), asked(approved=""))
    assert isinstance(ack, Request)  # which runs nothing


def test_a_list_commands_without_write_permission() -> None:
    assert isinstance(events.decide(comment(), Policy(allowed=("maintainer",)), asked(permission="read")), Request)


def pull(action: str = "synchronize", **given: Any) -> dict[str, Any]:
    of = {
        "number": 7, "state": "open", "draft": False, "body": "", "labels": [],
        "head": {"sha": HEAD, "repo": {"full_name": "stranger/kernels"}}, "base": {"sha": BASE},
    }  # fmt: skip
    made = {"action": action, "repository": {"full_name": "someone/kernels"}, "pull_request": {**of, **given}}
    return made | ({"label": {"name": "hardware"}} if action == "labeled" else {})


def test_pull_request_events() -> None:
    found = events.decide(pull(), Policy())
    assert isinstance(found, Request) and found.from_fork and found.head == HEAD
    own = {"sha": HEAD, "repo": {"full_name": "someone/kernels"}}
    assert not events.decide(pull(head=own), Policy()).from_fork  # type: ignore[union-attr]
    assert events.decide(pull(head={"sha": HEAD, "repo": None}), Policy()).from_fork  # type: ignore[union-attr]
    assert isinstance(events.decide(pull("closed"), Policy()), Ignored)
    assert isinstance(events.decide(pull(state="closed"), Policy()), Ignored)
    assert isinstance(events.decide(pull(draft=True), Policy()), Ignored)
    assert isinstance(events.decide(pull(), Policy(labels=("hardware",))), Ignored)
    assert isinstance(events.decide(pull(labels=[{"name": "hardware"}]), Policy(labels=("hardware",))), Request)
    assert isinstance(
        events.decide(pull("labeled", labels=[{"name": "hardware"}]), Policy(labels=("hardware",))), Request
    )
    assert isinstance(events.decide(pull("labeled"), Policy(labels=("other",))), Ignored)
    assert isinstance(events.decide(pull(body=block("config: {x: 1}")), Policy()), Refusal)


def test_push_to_a_mirrored_branch_and_merge_group() -> None:
    push = {"repository": {"full_name": "someone/kernels"}, "ref": "refs/heads/pull-request/12", "after": HEAD}
    found = events.decide(push, Policy())
    assert isinstance(found, Request) and (found.number, found.head, bool(found.approved_by)) == (12, HEAD, True)
    for ref in (
        "refs/heads/main",
        "refs/tags/pull-request/12",
        "refs/heads/pull-request/-1",
        "refs/heads/pull-request/1/x",
    ):
        assert isinstance(events.decide({**push, "ref": ref}, Policy()), Ignored)
    assert isinstance(events.decide({**push, "deleted": True, "after": "0" * 40}, Policy()), Ignored)
    group = {"head_sha": HEAD, "base_sha": BASE, "head_ref": f"refs/heads/gh-readonly-queue/main/pr-9-{HEAD}"}
    found = events.decide({"repository": {"full_name": "someone/kernels"}, "merge_group": group}, Policy())
    assert isinstance(found, Request) and found.number == 9 and not found.from_fork


@pytest.mark.parametrize(
    "payload",
    [
        [],
        {},
        {"repository": {"full_name": "../x"}},
        {"repository": {"full_name": "someone/kernels"}},
        {"repository": {"full_name": "--upload-pack=x/y"}, "ref": "refs/heads/main", "after": HEAD},
        pull(head={"sha": "main", "repo": None}),
        pull(head={"sha": "--all", "repo": None}),
        pull(number="7"),
        pull(number=True),
        comment(comment={"body": None, "user": {"login": "x"}}),
        comment(comment="x"),
        comment(issue={"number": "7", "pull_request": {}}),
        {"repository": {"full_name": "someone/kernels"}, "ref": "refs/heads/pull-request/1", "after": "x"},
    ],
)
def test_events_that_are_none(payload: Any) -> None:
    with pytest.raises(UsageError):
        events.decide(payload, Policy(), asked())
