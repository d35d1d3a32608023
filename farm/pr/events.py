"""What an event of the forge asks for, and whether it may.  Pure: what has to be asked of the forge comes in.

Only a new comment counts, never an edited one; only somebody with write permission, or on the list, gives a command;
an approval holds for exactly the present head and the config block as it is now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm.errors import UsageError
from farm.pr import commands, config_block, patches
from farm.pr.blocks import split
from farm.pr.commands import Command
from farm.pr.patches import Suggestion

WRITERS = ("admin", "maintain", "write")
SHA = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9._-]{1,100}")
_MIRROR = re.compile(r"refs/heads/pull-request/([1-9][0-9]{0,9})")
_QUEUE = re.compile(r"refs/heads/gh-readonly-queue/.+/pr-([1-9][0-9]{0,9})-([0-9a-f]+)")
#: Commands that run code, without naming the commit that was read.
STARTS = ("run", "rerun", "what-if")
#: Events about a pull request itself, and what they mean.
_OPENED = ("opened", "reopened", "synchronize", "ready_for_review")


@dataclass(frozen=True)
class Ignored:
    """Nothing to do, and nothing to say; `why` is for the log."""

    why: str


@dataclass(frozen=True)
class Refusal:
    """A command that is not done; `why` is a sentence for its author."""

    why: str
    number: int = 0


@dataclass(frozen=True)
class Request:
    """Validate a pull request.

    head, base: full SHAs, "" where the event does not say and the forge is to be asked; from_fork: whether head is of
    another repository; approved_by: who approved strangers' code, "" if nobody had to; suggestion: of a what-if that
    names a review comment.
    """

    repository: str
    number: int
    head: str = ""
    base: str = ""
    from_fork: bool = True
    command: Command = field(default_factory=lambda: Command("run"))
    config: config_block.Config = field(default_factory=config_block.Config)
    approved_by: str = ""
    by: str = ""
    suggestion: Suggestion | None = None


@dataclass(frozen=True)
class Asked:
    """What the forge says of the pull request of a comment, asked at that moment, and of its author.  approved: the
    commit that was approved last, "" if none was."""

    head: str
    base: str
    open: bool
    from_fork: bool
    body: str
    permission: str  # of the comment's author: admin, maintain, write, triage, read or none
    approved: str = ""


@dataclass(frozen=True)
class Policy:
    """Whom a repository lets command the farm.  labels: one of them must stand on a pull request, if any is named."""

    allowed: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    bot: str = ""  # the farm's own login, whose comments are never commands


Decision = Request | Refusal | Ignored


def pull_of(payload: Mapping[str, Any]) -> int:
    """The number of the pull request whose comment an event is; 0 for any other event."""
    issue = payload.get("issue")
    if "comment" in payload and isinstance(issue, Mapping) and isinstance(issue.get("pull_request"), Mapping):
        return _number(issue.get("number"))
    return 0


def head_of(payload: Mapping[str, Any]) -> str:
    """The head whose measuring job an event of a publishing job is about; "" where it names none.  Any pull request's
    job can leave a result that claims to be another's: this is the forge's word."""
    found = _mapping(payload.get("workflow_run")).get("head_sha")
    return _sha(found) if found is not None else ""


def queued(payload: Mapping[str, Any]) -> tuple[int, str]:
    """(pull request, base) of an event of a publishing job whose measuring job was of a merge queue; (0, "") of any
    other.  The queue names its branches `gh-readonly-queue/BRANCH/pr-NUMBER-BASE`."""
    found = _mapping(payload.get("workflow_run"))
    named = _QUEUE.fullmatch(f"refs/heads/{found.get('head_branch')}")
    if found.get("event") != "merge_group" or named is None or not SHA.fullmatch(named[2]):
        return 0, ""
    return int(named[1]), named[2]


def mirrored(payload: Mapping[str, Any]) -> int:
    """The pull request whose approved head an event of a publishing job is about; 0 for any other job."""
    named = _MIRROR.fullmatch(f"refs/heads/{_mapping(payload.get('workflow_run')).get('head_branch')}")
    return int(named[1]) if named and not unapproved(payload) else 0


def workflow_of(payload: Mapping[str, Any]) -> str:
    """The event that started the job that an event of a publishing job is about; "" where there is none."""
    return str(_mapping(payload.get("workflow_run")).get("event") or "")


def dispatched(payload: Mapping[str, Any]) -> bool:
    """Whether an event of a publishing job is about a job that a command started; True where there is no such event."""
    return workflow_of(payload) in ("", "workflow_dispatch")


def suggested(of: Mapping[str, Any], request: Request, written: str) -> Request | Refusal:
    """A what-if with the suggestion of the review comment that it names.  `of`: that comment, as the forge has it;
    `written`: when the command was written, since a suggestion must not be exchanged after it was read."""
    blocks = [b for b in split(str(of.get("body") or ""))[0] if b.language == "suggestion"]
    last, path = of.get("line"), of.get("path")
    first = of.get("start_line") or last
    why = ""
    if not str(of.get("pull_request_url")).endswith(f"/pulls/{request.number}"):
        why = "is not one of this pull request"
    elif len(blocks) != 1:
        why = f"has {len(blocks)} suggestion blocks"
    elif of.get("commit_id") != request.head or of.get("side", "RIGHT") != "RIGHT" or not isinstance(last, int):
        why = "is not of lines of the present head"
    elif not isinstance(first, int) or not isinstance(path, str):
        why = "names no lines of a file"
    elif not str(of.get("updated_at") or "~") <= written:
        why = "was edited after the command"
    if not why:
        assert isinstance(first, int) and isinstance(last, int) and isinstance(path, str)
        made = Suggestion(path, first, last, blocks[0].text)
        try:
            patches.check_path(path)
        except UsageError as error:
            why = f"cannot be used: {error}"
        if len(made.text) <= patches.MAX_CHARACTERS and not why:
            return replace(request, suggestion=made)
    return Refusal(f"The review comment {why or 'is too long'}.", request.number)


def unapproved(payload: Mapping[str, Any]) -> bool:
    """Whether an event of a publishing job is about a job of a fork that nobody approved: its author wrote the
    workflow, so that it may have left any result."""
    found = _mapping(payload.get("workflow_run"))
    ours = _name(payload.get("repository"), "full_name")
    return found.get("event") == "pull_request" and _name(found.get("head_repository"), "full_name") != ours


def decide(payload: Mapping[str, Any], policy: Policy, asked: Asked | None = None) -> Decision:
    """What to do about an event.  `asked` is needed for a comment: an event file may be old, and claims nothing about
    permissions.  UsageError if the payload is no event that the farm knows."""
    if not isinstance(payload, Mapping):
        raise UsageError("the event file is not a mapping; give the file that GITHUB_EVENT_PATH names", id="pr-event")
    repository = _repository(payload)
    if "comment" in payload:
        return _comment(payload, repository, policy, asked)
    if isinstance(payload.get("merge_group"), Mapping):
        return _merge_group(payload["merge_group"], repository)
    if isinstance(payload.get("pull_request"), Mapping):
        return _pull(payload, repository, policy)
    if "ref" in payload and "after" in payload:
        return _push(payload, repository)
    raise UsageError(
        "the event is none that the farm knows; known: issue_comment, pull_request, merge_group, and a push to "
        "pull-request/N",
        id="pr-event-unknown",
    )


def _comment(payload: Mapping[str, Any], repository: str, policy: Policy, asked: Asked | None) -> Decision:
    comment, number = payload["comment"], pull_of(payload)
    if not number:
        return Ignored("the comment is not of a pull request")
    if payload.get("action") != "created":
        return Ignored("only a new comment is a command; an edited one could say what nobody has read")
    body = comment.get("body") if isinstance(comment, Mapping) else None
    user = comment.get("user") if isinstance(comment, Mapping) else None
    login = str(user.get("login") or "") if isinstance(user, Mapping) else ""
    if not isinstance(body, str) or not login:
        raise UsageError("the event's comment has no body or no author", id="pr-event-comment")
    if login == policy.bot or (isinstance(user, Mapping) and user.get("type") == "Bot" and login not in policy.allowed):
        return Ignored(f"{login} is a bot")
    found = commands.read(body)
    if found is None:
        return Ignored("the comment has no command")
    if asked is None:
        return Ignored("the forge was not asked about the author and the head")
    if asked.permission not in WRITERS and login not in policy.allowed:
        return Refusal(f"Only people with write permission command the farm here; {login} has none.", number)
    if isinstance(found, commands.Refused):
        return Refusal(found.why, number)
    if not asked.open:
        return Refusal("The pull request is closed; nothing is run.", number)
    if found.kind == "ok" and found.sha != asked.head:
        return Refusal(
            f"{found.sha} is not the present head, {asked.head}: read what has changed, and approve that.", number
        )
    if found.kind in STARTS and asked.from_fork and asked.approved != asked.head:
        return Refusal(
            f"Nobody has approved {asked.head}, which is code of a fork: read it, and write /ok to test SHA.", number
        )
    try:
        config = config_block.read(asked.body)
    except UsageError as error:
        return Refusal(f"The config block cannot be read: {error}.", number)
    approved = login if found.kind == "ok" else ""
    return Request(
        repository, number, _sha(asked.head), _sha(asked.base), asked.from_fork, found, config, approved, login
    )


def _pull(payload: Mapping[str, Any], repository: str, policy: Policy) -> Decision:
    pull, action = payload["pull_request"], payload.get("action")
    if action not in (*_OPENED, "labeled"):
        return Ignored(f"{action} changes no code")
    if pull.get("state") != "open" or (pull.get("draft") and action != "labeled"):
        return Ignored("the pull request is closed or a draft")
    labels = {str(label.get("name")) for label in _mappings(pull.get("labels"))}
    if action == "labeled" and _name(payload.get("label")) not in policy.labels:
        return Ignored("the label is none of the farm's")
    if policy.labels and not labels & set(policy.labels):
        return Ignored(f"the pull request has none of the labels {', '.join(policy.labels)}")
    number = _number(pull.get("number"))
    try:
        config = config_block.read(pull.get("body") if isinstance(pull.get("body"), str) else "")
    except UsageError as error:
        return Refusal(f"The config block cannot be read: {error}.", number)
    head, base = _mapping(pull.get("head")), _mapping(pull.get("base"))
    from_fork = _name(head.get("repo"), "full_name") != repository
    return Request(repository, number, _sha(head.get("sha")), _sha(base.get("sha")), from_fork, config=config)


def _push(payload: Mapping[str, Any], repository: str) -> Decision:
    found = _MIRROR.fullmatch(str(payload.get("ref")))
    if not found:
        return Ignored("the push is not to pull-request/N")
    if payload.get("deleted"):
        return Ignored("the branch was deleted")
    # a copying bot mirrors what was approved, so a push here stands for an approval of this very commit
    return Request(repository, int(found[1]), _sha(payload.get("after")), approved_by="the mirrored branch")


def _merge_group(group: Mapping[str, Any], repository: str) -> Decision:
    found = _QUEUE.fullmatch(str(group.get("head_ref")))
    number = int(found[1]) if found else 0
    return Request(repository, number, _sha(group.get("head_sha")), _sha(group.get("base_sha")), from_fork=False)


def is_repository(name: str) -> bool:
    """Whether a text is OWNER/NAME."""
    return _NAME.fullmatch(name) is not None


def _repository(payload: Mapping[str, Any]) -> str:
    name = _name(payload.get("repository"), "full_name")
    if not is_repository(name):
        raise UsageError("the event names no repository (repository.full_name)", id="pr-event-repository")
    return name


def _sha(value: Any) -> str:
    if not isinstance(value, str) or not SHA.fullmatch(value):
        raise UsageError(f"the event has {str(value)[:60]!r} where a full commit SHA belongs", id="pr-event-sha")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10**10:
        raise UsageError("the event names no pull request", id="pr-event-number")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []


def _name(value: Any, key: str = "name") -> str:
    return str(_mapping(value).get(key) or "")
