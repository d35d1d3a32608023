"""Decisions as files, and the patches in them: what is read, and what is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cli import pr_asked
from farm.errors import UsageError
from farm.pr import decision, events, patches
from farm.pr.commands import Command
from farm.pr.decision import SCHEMA
from farm.pr.events import Policy, Refusal, Request
from farm.pr.patches import Suggestion

HEAD, BASE = "b" * 40, "a" * 40
HUNK = "@@ -1,2 +1,2 @@\n x\n-a\n+b\n"
DIFF = f"diff --git a/src/m/x.py b/src/m/x.py\nindex 12345..6789a 100644\n--- a/src/m/x.py\n+++ b/src/m/x.py\n{HUNK}"


def request(command: Command, **given: Any) -> Request:
    made: dict[str, Any] = {
        "repository": "someone/kernels",
        "number": 7,
        "head": HEAD,
        "base": BASE,
        "by": "maintainer",
    }
    return Request(**{**made, "command": command, **given})


REQUESTS = [
    request(Command("ok", sha=HEAD), approved_by="maintainer"),
    request(Command("run"), from_fork=False),
    request(Command("run", matrix="bench/x.yaml", backends=("cuda", "rocm"))),
    request(Command("rerun", cell="cuda/rms_norm/x/auto/forward/bf16/8x64")),
    request(Command("what-if", patch=DIFF, on="head")),
    request(Command("what-if", on="base", review=12), suggestion=Suggestion("src/m/x.py", 1, 2, "ü\n")),
]


@pytest.mark.parametrize("found", REQUESTS, ids=lambda r: r.command.kind)
def test_a_decision_is_read_as_it_was_written(found: Request) -> None:
    text = decision.written(found)
    assert decision.read(text) == found
    payload = {"inputs": {"decision": text}, "ref": "refs/heads/pull-request/7", "workflow": "farm-device.yml"}
    assert decision.decided({**payload, "repository": {"full_name": "someone/kernels"}}, Policy()) == found
    for wrong in (
        {"ref": "refs/heads/pull-request/8"},
        {"ref": "refs/heads/main"},
        {"repository": {"full_name": "a/b"}},
    ):
        with pytest.raises(UsageError, match="another"):
            decision.decided({"repository": {"full_name": "someone/kernels"}, **payload, **wrong}, Policy())


def plain(found: Request = REQUESTS[2]) -> dict[str, Any]:
    return dict(json.loads(decision.written(found)))


LIES: list[tuple[tuple[str, ...], Any]] = [
    (("decision",), "ignored"),
    (("head",), "HEAD"),
    (("head",), "--upload-pack=x".ljust(40, "x")),
    (("head",), HEAD + "\n"),
    (("base",), ""),
    (("repository",), "../../x"),
    (("number",), 0),
    (("number",), True),
    (("from_fork",), "no"),
    (("sandbox",), False),
    (("command", "kind"), "ack"),
    (("command", "kind"), "ok"),  # of a run: it has a matrix
    (("command", "matrix"), "/etc/x.yaml"),
    (("command", "matrix"), "../x.yaml"),
    (("command", "matrix"), "-x.yaml"),
    (("command", "matrix"), "x.yaml --no-sandbox"),
    (("command", "backends"), ["cuda", "cuda"]),
    (("command", "backends"), ["tpu"]),
    (("command", "cell"), "cuda/x"),
    (("command", "patch"), DIFF),
    (("command", "on"), "head"),
    (("by",), "\ud800"),
    (("config", "test"), ["ops"]),  # the digest is of another
    (("config", "digest"), "0" * 64),
    (("suggestion",), {"path": "x.py", "first": 1, "last": 1, "text": ""}),
    (("suggestion",), {"path": "x.py", "first": 0, "last": 1, "text": ""}),
]


@pytest.mark.parametrize("path, value", LIES)
def test_decisions_that_lie_are_refused(path: tuple[str, ...], value: Any) -> None:
    found = plain()
    at = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(UsageError) as caught:
        decision.read(json.dumps(found))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 50_000, " " * 70_000, json.dumps({"decision": "request"})]
)
def test_texts_that_are_no_decision(text: str) -> None:
    with pytest.raises(UsageError, match="decision"):
        decision.read(text)


def test_a_decision_that_is_too_long_to_be_handed_on_is_refused() -> None:
    long = DIFF.replace("+b\n", "+" + "\t" * 32_000 + "\n")
    assert patches.files(long)
    with pytest.raises(UsageError, match="handed on"):
        decision.written(request(Command("what-if", patch=long, on="head")))


def test_a_schema_for_every_field() -> None:
    assert set(SCHEMA["properties"]) == set(plain())
    assert set(SCHEMA["properties"]["command"]["properties"]) == set(plain()["command"])


def test_files_of_a_patch() -> None:
    new = "diff --git a/src/n.py b/src/n.py\nnew file mode 100644\n--- /dev/null\n+++ b/src/n.py\n@@ -0,0 +1 @@\n+x\n"
    gone = "--- a/src/o.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\n"
    assert patches.files(DIFF + new + gone) == ("src/m/x.py", "src/n.py", "src/o.py")
    tricky = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n--- a/y\n-x\n+++ b/.github/y\n+x\n"  # lines of a hunk
    assert patches.files(tricky) == ("x.py",)
    assert patches.files(DIFF.rstrip("\n")) == ("src/m/x.py",)


def of(path: str, hunk: str = HUNK) -> str:
    return f"--- a/{path}\n+++ b/{path}\n{hunk}"


@pytest.mark.parametrize(
    "patch",
    [
        "",
        "x = 1",
        HUNK,
        of("../x.py"),
        of("/etc/passwd"),
        of("src/../../x.py"),
        of(".github/workflows/farm.yml"),
        of("src/.git/config"),
        of("./x.py"),
        of("-x.py"),
        of("a b.py"),
        of('"a\\303.py"'),
        of("x\u202e.py"),
        of("x.py").replace("+++ b/x.py", "+++ b/y.py"),
        of("x.py").replace("--- a/", "--- "),
        of("x.py") + of("x.py"),
        "".join(of(f"x{n}.py") for n in range(21)),
        of("x.py", "@@ -1,9 +1,2 @@\n x\n-a\n+b\n"),
        of("x.py", "@@ -1 +1 @@\n-a\n-a\n+b\n"),
        of("x.py", "@@ -1 +1 @@\n*a\n+b\n"),
        of("x.py", ""),
        of("x.py") + "rm -rf /\n",
        of("x.py", HUNK.replace("b", "\0")),
        of("x.py", HUNK.replace("b", "\ud800")),
        "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc/passwd\n",
        "diff --git a/x b/x\nnew file mode 160000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+Subproject commit a\n",
        "diff --git a/x b/x\nnew file mode 100755\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        "diff --git a/x b/x\nnew file mode 100644\n",
        "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n",
        "diff --git a/x b/.github/y\n" + of("x"),
        "diff --git a/y b/y\n" + of("x"),
        "diff --git a/x b/x\nGIT binary patch\nliteral 4\nLcmZQzWMT#Y01f~L\n",
        "diff --git a/x b/x\nBinary files a/x and b/x differ\n",
        of("x.py", "@@ -1 +1 @@\n-a\n+" + "b" * 33_000 + "\n"),
        of("x.py", "@@ -99999999999 +1 @@\n-a\n+b\n"),
    ],
)  # fmt: skip
def test_patches_that_are_refused(patch: str) -> None:
    with pytest.raises(UsageError) as caught:
        patches.files(patch)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@given(
    st.lists(
        st.sampled_from(
            ["--- a/x.py", "+++ b/x.py", "@@ -1 +1 @@", "-a", "+b", " c", "", "\\ No", "diff --git a/x b/x"]
        )
    )
)
@settings(max_examples=200, deadline=None)
def test_any_lines_are_read_or_refused(lines: list[str]) -> None:
    with contextlib.suppress(UsageError):
        assert patches.files("\n".join(lines)) == ("x.py",)


@given(st.lists(st.text("ab \f\u2028", max_size=3), min_size=1, max_size=8), st.data())
@settings(max_examples=100, deadline=None)
def test_a_suggestion_becomes_a_patch_of_its_lines(old: list[str], data: Any) -> None:
    before = "\n".join(old)
    first = data.draw(st.integers(1, len(old)))
    last = data.draw(st.integers(first, len(old)))
    text = data.draw(st.text("xy\n", max_size=5))
    made = Suggestion("src/m/x.py", first, last, text)
    after = "\n".join([*old[: first - 1], *(text.split("\n") if text else []), *old[last:]])
    if after == before or not before or not after:
        return
    patch = patches.of_suggestion(before, made)
    assert patches.files(patch) == ("src/m/x.py",)
    assert applied(before, patch) == after


def applied(before: str, patch: str) -> str:
    """What a patch with the whole file as context in each hunk makes: read by line numbers alone."""
    lines = [f"{line}\n" for line in before.split("\n")]
    lines[-1] = lines[-1][:-1]
    out, at = list[str](), 0
    ended = list[str]()
    for line in patch.split("\n")[2:]:
        if line.startswith("@@"):
            begin = int(line.split()[1][1:].split(",")[0])
            begin = max(begin - 1, 0) if not line.split()[1].endswith(",0") else begin
            out += lines[at:begin]
            at, ended = begin, []
        elif line.startswith("\\"):
            if ended == ["+"] or ended == [" "]:
                out[-1] = out[-1][:-1]
        elif line[:1] in (" ", "+", "-"):
            ended = [line[0]]
            at += line[0] != "+"
            out += [f"{line[1:]}\n"] if line[0] != "-" else []
    return "".join([*out, *lines[at:]])


@pytest.mark.parametrize(
    "given, words",
    [
        ({"body": "no block"}, "0 suggestion blocks"),
        ({"commit_id": "c" * 40}, "present head"),
        ({"side": "LEFT"}, "present head"),
        ({"line": None}, "present head"),
        ({"path": ".github/workflows/x.yml"}, "cannot be used"),
        ({"path": "../x.py"}, "cannot be used"),
        ({"updated_at": "2026-11-23T11:00:00Z"}, "edited after"),
        ({"updated_at": None}, "edited after"),
        ({"pull_request_url": "https://api.github.com/repos/a/b/pulls/8"}, "this pull request"),
        ({"body": f"```suggestion\n{'x' * 40_000}\n```"}, "too long"),
    ],
)
def test_review_comments_whose_suggestion_is_not_taken(given: dict[str, Any], words: str) -> None:
    review = {
        "body": "```suggestion\nx = 1\n```", "commit_id": HEAD, "path": "src/m/x.py", "line": 3, "start_line": None,
        "side": "RIGHT", "updated_at": "2026-11-23T10:00:00Z",
        "pull_request_url": "https://api.github.com/repos/a/b/pulls/7",
    }  # fmt: skip
    asked = request(Command("what-if", on="head", review=12))
    found = events.suggested(review, asked, "2026-11-23T10:30:00Z")
    assert isinstance(found, Request) and found.suggestion == Suggestion("src/m/x.py", 3, 3, "x = 1")
    refused = events.suggested({**review, **given}, asked, "2026-11-23T10:30:00Z")
    assert isinstance(refused, Refusal) and words in refused.why
    assert isinstance(events.suggested({}, asked, ""), Refusal)


def test_what_a_patch_made_is_compared_file_by_file(tmp_path: Path) -> None:
    for side in "ab":
        (tmp_path / side / "src" / "m").mkdir(parents=True)
        (tmp_path / side / "src" / "m" / "x.py").write_text("x")
        (tmp_path / side / "farm.yaml").write_text("x")
    assert pr_asked._differing(tmp_path / "a", tmp_path / "b") == []
    (tmp_path / "b" / "farm.yaml").write_text("y")
    (tmp_path / "b" / "conftest.py").write_text("y")
    (tmp_path / "b" / "src" / "m" / "y.py").symlink_to("/etc/passwd")
    (tmp_path / "b" / "src" / "mine.py").write_text("y")
    found = pr_asked._differing(tmp_path / "a", tmp_path / "b")
    inside = ["src/m/", "src/m.py"]
    assert patches.outside(found, inside) == ["conftest.py", "farm.yaml", "src/mine.py"]
    assert patches.outside(["src/m.py", "src/m/y.py"], inside) == [] and patches.outside(["x"], []) == ["x"]
