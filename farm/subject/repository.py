"""A subject's repository: a working tree, a revision of a repository on this host, or of one at a URL.

A revision becomes a folder of the cache, by its commit; a working tree is read where it is.  Git runs without prompts,
without hooks of the repository and with a deadline.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farm.errors import InfraError, UsageError
from farm.process import command
from farm.shipping import files
from farm.subject import cache

GIT_SECONDS, FETCH_SECONDS = 60.0, 900.0
_URL = re.compile(r"([a-z][a-z0-9+]*://|[\w.-]+@[\w.-]+:).+", re.I)
#: Over a commit's own attributes: its files are as they are.
_LITERAL = "* -export-ignore -export-subst -text -eol -ident -filter -working-tree-encoding\n"
#: Git runs no program that a URL or a repository names.
_SAFE = ("-c", "protocol.ext.allow=never", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


@dataclass(frozen=True)
class Repository:
    """`folder`: its files.  `revision`: the commit, shortened, with `+` for uncommitted changes; "" where it is under
    no version control.  `source`: what was asked for, for people.  `not_files`: what the commit holds that its archive
    lacks, as `src/x (a link)`; links and submodules are not followed."""

    folder: Path
    revision: str
    source: str
    not_files: tuple[str, ...] = ()


def top(folder: Path) -> Path | None:
    """The root of the git repository that a folder is in, or None."""
    place = folder.resolve()
    return next((p for p in (place, *place.parents) if (p / ".git").exists()), None)


def find(text: str) -> Repository:
    """`--repo`: PATH, PATH@REV or URL[@REV].  UsageError for what cannot be had."""
    if Path(text).is_dir():
        return working_tree(Path(text))
    place, at, revision = text.rpartition("@")
    if at and place and (Path(place).is_dir() or _URL.fullmatch(place)) and revision:
        return _revision(Path(place), revision, text) if Path(place).is_dir() else _remote(place, revision, text)
    if _URL.fullmatch(text):
        return _remote(text, "HEAD", text)
    raise UsageError(
        f"--repo {text}: no such folder; write PATH, PATH@REVISION or URL@REVISION", id="subject-repo-missing"
    )


def working_tree(folder: Path) -> Repository:
    """The repository as it lies there, with its uncommitted changes."""
    home = top(folder)
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").strip() if home else ""
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return Repository(folder, "", str(folder))
    dirty = bool(_git(folder, "status", "--porcelain", "--", "."))
    return Repository(folder, f"{commit[:12]}{'+' if dirty else ''}", str(folder))


def at(place: str, revision: str, what: str) -> Repository:
    """A revision of the repository in a folder of this host, or at a URL.  `what`: the option, for messages."""
    if Path(place).is_dir():
        return _revision(Path(place), revision, revision, what)
    if _URL.fullmatch(place):
        return _remote(place, revision, f"{place}@{revision}")
    raise UsageError(
        f"--repo {place}: no such folder; write PATH or URL, and the revision with the arm", id="subject-repo-missing"
    )


@dataclass(frozen=True)
class History:
    """Two commits of a repository.  `base`: where head left the other branch; `behind`: how many commits that branch
    has since; `trees`: commit -> git tree, of base and head."""

    base: str
    head: str
    behind: int
    trees: dict[str, str]


def history(folder: Path, base: str, head: str) -> History:
    """Where `head` left the branch `base`.  UsageError for what the repository does not have."""
    tip, at = commit_of(folder, base, "--base"), commit_of(folder, head, "--head")
    left = _git(folder, "merge-base", tip, at).strip()
    if not left:
        raise UsageError(
            f"{base} and {head} have no common commit here; fetch the whole history (fetch-depth: 0)",
            id="subject-repo-unrelated",
        )
    behind = _git(folder, "rev-list", "--count", f"{left}..{tip}").strip()
    trees = {sha: _git(folder, "rev-parse", "--verify", "--quiet", f"{sha}^{{tree}}").strip() for sha in (left, at)}
    return History(left, at, int(behind or 0), trees)


def commit_of(folder: Path, revision: str, what: str, shown: str = "") -> str:
    """The full SHA of a revision.  UsageError if there is none; `what`: the option, `shown`: its value."""
    commit = ""
    if not revision.startswith("-"):
        commit = _git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
    if not commit:
        raise UsageError(
            f'{what} {shown or revision}: the repository has no revision "{revision}"; fetch it, or name another: git '
            "log lists what is there",
            id="subject-repo-revision",
        )
    return commit


def kept(folder: Path) -> list[str] | None:
    """The files of a working tree that git would keep, relative to `folder`; None where there is no git."""
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard") if top(folder) else ""
    return sorted({name for name in listed.split("\0") if name}) or None


def _not_files(folder: Path, commit: str) -> tuple[str, ...]:
    kinds = {"120000": "a link", "160000": "a submodule"}
    entries = (line.partition("\t") for line in _git(folder, "ls-tree", "-r", "-z", commit).split("\0"))
    return tuple(f"{name} ({kinds[told[:6]]})" for told, _, name in entries if told[:6] in kinds)


def _revision(folder: Path, revision: str, source: str, what: str = "--repo") -> Repository:
    """A revision of a repository on this host."""
    commit = commit_of(folder, revision, what, source)
    place = cache.root() / "trees" / commit
    if not place.is_dir():
        done = _archive(folder, commit)
        try:
            files.write_all(files.members(done, strict=False), place)
        except files.NotInside as error:
            raise UsageError(f"{what} {source}: the revision {error}", id="subject-repo-content") from None
        except OSError as error:
            raise _cannot_keep(place, error) from None
    return Repository(place, commit[:12], source, _not_files(folder, commit))


def _archive(folder: Path, commit: str) -> bytes:
    """A commit's files as they are in it, as a tar archive: what its own .gitattributes would leave out or change is
    what is merged.  They count for less than those of the repository, so it is made in one of its own."""
    objects = Path(folder, _git(folder, "rev-parse", "--git-path", "objects").strip())
    with tempfile.TemporaryDirectory(prefix="farm-archive-") as scratch:
        _run("init", "--quiet", "--bare", f"--object-format={'sha256' if len(commit) > 40 else 'sha1'}", scratch)
        info, alternates = Path(scratch, "info", "attributes"), Path(scratch, "objects", "info", "alternates")
        for file, text in ((info, _LITERAL), (alternates, f"{objects.resolve()}\n")):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        longest = files.MOST_BYTES + (64 << 20)
        return _run("-C", scratch, "archive", "--format=tar", commit, longest=longest)


def _of_git(err: str) -> str:
    """What git says is wrong: its last lines are often advice, such as that one should make sure of one's rights."""
    lines = err.strip().splitlines()
    named = [line.partition(": ")[2] for line in lines if line.startswith(("fatal: ", "error: "))]
    return (named or lines[-1:] or [""])[0]


def _remote(url: str, revision: str, source: str) -> Repository:
    """A revision of a repository elsewhere: all of it is fetched into the cache, once, and brought up to date after."""
    mirror = cache.root() / "mirrors" / hashlib.sha256(url.encode()).hexdigest()[:24]
    with _alone(mirror):
        if not (mirror / "HEAD").is_file():
            _run("init", "--quiet", "--bare", str(mirror))
        refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", "+HEAD:refs/farm/head")
        words = ("-C", str(mirror), "fetch", "--quiet", "--prune", "--no-auto-gc", "--", url, *refs)
        try:
            done = command.run(["git", *_SAFE, *words], FETCH_SECONDS, env=_environment())
        except FileNotFoundError:
            raise _no_git() from None
        if done.code != 0:
            why = _of_git(done.err) or f"no answer within {FETCH_SECONDS:g} s"
            raise UsageError(
                f"--repo {source}: cannot be fetched ({why[:300]}); check the URL and your access to it",
                id="subject-repo-fetch",
            )
        return _revision(mirror, "refs/farm/head" if revision == "HEAD" else revision, source)


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Two commands on one host do not write the same mirror at once; the system frees the lock of a dead one."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = Path(f"{place}.lock").open("w")  # noqa: SIM115
    except OSError as error:
        raise _cannot_keep(place, error) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cannot_keep(place: Path, error: OSError) -> InfraError:
    message = f"{place}: cannot be written ({error.strerror or error}); make room, or set FARM_CACHE to another folder"
    return InfraError(message, id="subject-cache")


def _no_git() -> UsageError:
    return UsageError("git is not installed on this host, and --repo needs it; install git", id="subject-git")


def _environment() -> dict[str, str]:
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def _run(*words: str, longest: int = command.LONGEST) -> bytes:
    """What git prints.  InfraError if it fails."""
    try:
        done = command.run(["git", *_SAFE, *words], FETCH_SECONDS, env=_environment(), longest=longest)
    except FileNotFoundError:
        raise _no_git() from None
    if done.code != 0:
        why = (done.err.strip().splitlines() or ["it was killed at its deadline"])[-1]
        raise InfraError(
            f"git {words[2] if words[0] == '-C' else words[0]} failed ({why[:300]})", id="subject-git-failed"
        )
    return done.stdout


def _git(folder: Path, *words: str) -> str:
    """What git prints about a folder; nothing if it fails, or if there is no git."""
    with contextlib.suppress(OSError):
        done = command.run(["git", *_SAFE, "-C", str(folder), *words], GIT_SECONDS, env=_environment())
        return done.out if done.code == 0 else ""
    return ""
