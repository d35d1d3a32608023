"""What a trusted job writes about results: which comment, which check.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from farm.pr import asides, merging
from farm.pr import comment as comments
from farm.pr import ledger as ledgers
from farm.pr import result as results
from farm.pr.ledger import Ledger
from farm.pr.repeating import Links

#: How much a repository lets the farm say.  It earns the next one by its record.
VOICES = ("silent", "report", "advise", "block")
CHECK = "kernel farm"
SUMMARY = 60_000  # characters of a check's summary
NOTHING_YET = "### ◻️ **There is no result of this pull request yet.**\n"


@dataclass(frozen=True)
class Comment:
    """A comment on the pull request, as the forge has it."""

    id: int
    login: str
    body: str


@dataclass(frozen=True)
class Pull:
    """A pull request as the forge has it at this moment; `bases`: what head may be compared with; `trees`: commit ->
    git tree, for base and head.  `queued`: it is in a merge queue, and head and base are those of its merge group."""

    repository: str
    number: int
    head: str
    open: bool
    bases: tuple[str, ...]
    trees: Mapping[str, str]
    queued: bool = False


@dataclass(frozen=True)
class Write:
    """A comment to write: `id` 0 for a new one."""

    id: int
    body: str


@dataclass(frozen=True)
class Check:
    """A check on `head`.  conclusion: success, neutral or failure, or "" for one that is in progress."""

    head: str
    conclusion: str
    title: str
    summary: str


@dataclass(frozen=True)
class Publication:
    """What to write, in order, and the exit code of the verdict; `refused`: why nothing is written."""

    title: str = ""  # the answer, as text
    writes: tuple[Write, ...] = ()
    check: Check | None = None
    exit_code: int = 0
    refused: str = ""
    stands: bool = False  # whether a check that is concluded stays as it is
    stale: str = ""  # a head whose check nobody concludes any more


def publish(
    found: Sequence[results.Json], pull: Pull, own: Sequence[Comment], voice: str = "report", links: Links | None = None
) -> Publication:
    """What to write of one or several sites' results.  `own`: comments of the farm's own login, oldest first."""
    result = merging.merged(found)
    wrong = results.mismatch(result, pull.repository, pull.number, pull.head, pull.bases, pull.trees)
    if wrong:
        return Publication(exit_code=2, refused=f"the result is not published: {wrong}")
    before = last(own, pull.number)
    if results.beside(result, bool(before and before.ran and before.head == pull.head)):
        return _beside(result, pull, own, voice)
    if before and pull.queued:  # what was accepted counts in the queue, too
        before = replace(before, head="", ran=False)
    outcome = results.outcome(result, before.accepted if before else {})
    now = ledgers.after(before, result)
    if before and before.head == now.head and before.ran and not now.ran and outcome.exit_code != 1:
        # another job of the same head, as anybody starts one who opens the pull request again
        title = "a result with devices stands; this one, of the same head, has none"
        code = 1 if set(before.ratios) - set(before.accepted) else before.rest
        ending = Check(pull.head, conclusion(code, voice), title, title) if voice in ("advise", "block") else None
        return Publication(title, (), ending, before.rest, stands=True)
    text = comments.comment(result, before, links=links, voice=voice)
    title = comments.headline(result, outcome, printable)
    if voice == "silent":
        return Publication(title, exit_code=outcome.exit_code)
    # where all is the same, a check says it; a comment would only cost attention, unless it corrects an earlier one
    quiet = outcome.name == "unchanged" and voice != "report"
    writes = () if quiet and not _ours(own, pull.number) else tuple(_writes(text, own, pull))
    check = None
    if voice in ("advise", "block"):
        check = Check(pull.head, conclusion(outcome.exit_code, voice), title[:250], _visible(text)[:SUMMARY])
    told = pull.open and not pull.queued
    stale = before.head if before and before.head != pull.head else ""
    return Publication(title, writes if told else (), check, outcome.exit_code, stale=stale)


def _beside(result: results.Json, pull: Pull, own: Sequence[Comment], voice: str) -> Publication:
    """The answer to a question, at the end of the comment.  It concludes no check, unless a run that somebody asked
    for finds something."""
    outcome = results.outcome(result)
    ours = _ours(own, pull.number)
    state = (ledgers.read(ours[-1].body) if ours else None) or Ledger(pull.number)
    now = state.answered(asides.key(result), pull.head, asides.answer(result))
    title = comments.headline(result, outcome, printable)
    if voice == "silent":
        return Publication(title, exit_code=outcome.exit_code)
    text = asides.with_answers(_visible(ours[-1].body) if ours else NOTHING_YET, now)
    found = outcome.exit_code == 1 and result["asked"]["kind"] not in ("what-if", "rerun")
    check = None
    if voice in ("advise", "block") and found:
        check = Check(pull.head, conclusion(1, voice), title[:250], asides.answer(result)[:SUMMARY])
    write = Write(ours[-1].id if ours else 0, f"{now.line()}\n{text}")
    return Publication(title, (write,) if pull.open else (), check, outcome.exit_code)


def waiting(
    number: int, head: str, words: str, own: Sequence[Comment], voice: str, *, concludes: bool = True
) -> Publication:
    """What to write while a run of `head` waits or goes: a line at the top of the comment, and a check in progress if
    what comes of the run `concludes` one."""
    if voice == "silent":
        return Publication()
    ours = _ours(own, number)
    body = ours[-1].body if ours else f"{Ledger(number).line()}\n{NOTHING_YET}"
    line, _, visible = body.partition("\n")
    text = f"{line}\n{asides.waiting(visible, comments.plain(words))}"
    check = Check(head, "", words[:250], comments.plain(words)) if voice in ("advise", "block") and concludes else None
    return Publication(words, (Write(ours[-1].id if ours else 0, text),), check)


def ended(number: int, words: str, own: Sequence[Comment]) -> tuple[Write, ...]:
    """The comment without its waiting message, where what it waited for left no result."""
    ours = _ours(own, number)
    if not ours or not asides.waits(_visible(ours[-1].body)):
        return ()
    line, _, visible = ours[-1].body.partition("\n")
    return (Write(ours[-1].id, f"{line}\n{asides.waiting(visible, comments.plain(words))}"),)


def printable(text: str) -> str:
    """A text on one line without control characters, for a title and a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def conclusion(exit_code: int, voice: str) -> str:
    """Of the check.  Only who blocks fails; the farm's own faults and what is not proven are never a failure."""
    if exit_code == 0:
        return "success"
    return "failure" if exit_code == 1 and voice == "block" else "neutral"


def gone(head: str, why: str, voice: str) -> Publication:
    """What to write where a job left no result that can be read: the check must conclude whatever died."""
    if voice not in ("advise", "block"):
        return Publication(exit_code=3)
    title = "The farm has no result"
    return Publication(title, (), Check(head, "neutral", title, comments.plain(why)[:SUMMARY]), 3)


def last(own: Sequence[Comment], number: int) -> Ledger | None:
    """What the farm's newest readable comment remembers."""
    for comment in reversed(_ours(own, number)):
        if (found := ledgers.read(comment.body)) is not None:
            return found
    return None


def acknowledge(
    own: Sequence[Comment], number: int, head: str, by: str, when: str, reason: str, voice: str = "report"
) -> Publication:
    """The comment with an acknowledgement, and the check by what is left without the regressions; `refused` if there
    is nothing to acknowledge at this head."""
    ours = _ours(own, number)
    before = ledgers.read(ours[-1].body) if ours else None
    if before is not None and before.head and before.head != head:
        return Publication(refused=f"The last result is of {before.head[:12]}; wait for that of {head[:12]}.")
    if before is None or not before.ratios:
        return Publication(refused="There is no regression to acknowledge.")
    line = before.acknowledged(by, when, reason).line()
    note = f"\nAcknowledged by {comments.plain(by)}, {comments.plain(when[:10])}: {comments.plain(reason)}\n"
    text, _, answers = _visible(ours[-1].body).partition(comments.ANSWERS)
    room = comments.LIMIT - len(line) - len(note) - len(answers) - len(comments.ANSWERS) - 2
    text = line + "\n" + text[:room] + note + (f"\n{comments.ANSWERS}{answers}" if answers else "")
    write = Write(ours[-1].id, text)
    check = None
    if voice in ("advise", "block"):
        left = "" if before.rest == 0 else "; something else is not right"
        title = f"Regressions acknowledged by {printable(by)}{left}"
        check = Check(head, conclusion(before.rest, voice), title[:250], comments.plain(reason))
    return Publication(writes=(write,), check=check, exit_code=before.rest)


def _ours(own: Sequence[Comment], number: int) -> list[Comment]:
    return [c for c in own if ledgers.number_of(c.body) == number]


def _writes(text: str, own: Sequence[Comment], pull: Pull) -> list[Write]:
    """Update the newest comment of ours, or make one; fold any other, which two jobs at once may have made."""
    ours = _ours(own, pull.number)
    if not ours:
        return [Write(0, text)]
    folded = [Write(c.id, new) for c in ours[:-1] if (new := comments.outdated(c.body, pull.head)) != c.body]
    return [*([] if ours[-1].body == text else [Write(ours[-1].id, text)]), *folded]


def _visible(text: str) -> str:
    """A comment without its hidden line."""
    return text.partition("\n")[2] if ledgers.number_of(text) else text
