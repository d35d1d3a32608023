"""Verdicts as sentences: the only place that words them, for pages and for Markdown.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from farm.report.cards import Paired
from farm.report.format import cells, clip, count, label
from farm.report.run_verdict import RunVerdict

#: Kind of verdict -> the word in a tag, where it is not the kind itself.
LABELS = {"farm_fault": "infrastructure failure", "nothing": "inconclusive"}


def tag(kind: str) -> str:
    """A kind of verdict, as `run.json` or `RunVerdict.kind` has it, in the words of a tag."""
    return LABELS.get(kind, kind.replace("_", " "))


def sentence(found: RunVerdict) -> str:
    """The verdict in one sentence, or more."""
    known = f" Known failures: {cells(found.known)}, counted apart." if found.known else ""
    return " ".join([_sentence(found) + known, *(f"{text[:1].upper()}{text[1:]}." for text in found.stale)])


def _sentence(found: RunVerdict) -> str:
    also = f"; also: {_failed(found)}." if found.failed else "."
    match found.id:
        case "running":
            done, pending = count(found.planned - found.pending), count(found.pending)
            who = found.writer.replace("process ", "pid ", 1)
            return f"Running ({who}): {done} of {count(found.planned)} done, {pending} pending{also}"
        case "interrupted":
            return f"Interrupted: {count(found.pending)} of {cells(found.planned)} have no result{also}"
        case "infrastructure-failures":
            cause = f": {clip(found.cause, 160).rstrip('.')}" if found.cause else ""
            return f"Infrastructure failures in {cells(found.faults)}{cause}{also}"
        case "in-doubt":
            whose = f"every peer ({', '.join(found.peers)}) is inaccurate where our kernels passed"
            return f"In doubt: in {cells(found.doubted)} {whose}; the reference or the tolerances may be wrong{also}"
        case "findings":
            return f"Findings: {_failed(found) if found.failed else 'a known failure is fixed'}."
        case "nothing-ran":
            return f"Nothing is proven: none of {'our' if found.role == 'subject' else 'the peers’'} cells ran."
        case "nothing-supported":
            return f"Inconclusive: everything is unsupported for {', '.join(found.unsupported)}."
        case "passed-by-evidence":
            kinds = ", ".join(f"{count(n)} {kind}" for kind, n in found.passed.items())
            whose = "Our" if found.role == "subject" else "Peers’"
            return f"No findings. {whose} cells that passed: {kinds}{_but(found)}."
        case "all-compiled":
            return f"No findings: {_passed(found, 'compiled')}; nothing was executed{_but(found)}."
        case "all-simulated":
            return f"No findings: {_passed(found, 'passed (simulated devices only)')}{_but(found)}."
        case "all-imported":
            return (
                f"Nothing is proven: {cells(sum(found.passed.values()))} were imported, and none ran here{_but(found)}."
            )
        case _:
            return f"No findings: {_passed(found, 'passed')}{_but(found)}."


def title(found: RunVerdict) -> str:
    """The verdict in a word or two, for the tab of a browser: `FAILED 17`."""
    words = {"infrastructure-failures": f" {count(found.faults)}", "in-doubt": f" {count(found.doubted)}"}
    words |= dict.fromkeys(("running", "interrupted"), f" {found.planned - found.pending}/{found.planned}")
    name = "in doubt" if found.id == "in-doubt" else tag(found.kind)
    first = [] if found.id == "findings" else [name.upper() + words.get(found.id, "")]
    return ", ".join(first + ([f"FAILED {count(found.failed)}"] if found.failed else []))


def paired(found: Sequence[Paired]) -> list[tuple[str, str]]:
    """`0.80`, `our time ÷ theirs, 128 cells`, for each subject that a peer is compared with."""
    whose = {p.subject: f"{p.subject}’s" if len(found) > 1 else "our" for p in found}
    return [(f"{p.ratio:.2f}", f"{whose[p.subject]} time ÷ theirs, {cells(p.cells)}") for p in found]


def _failed(found: RunVerdict) -> str:
    """`4 of our cells failed (2 distinct failures)`."""
    whose = f"{cells(found.failed)}, peers' included," if found.strict else f"{count(found.failed)} of our cells"
    return f"{whose} failed ({count(found.groups)} distinct failure{'' if found.groups == 1 else 's'})"


def _passed(found: RunVerdict, verb: str) -> str:
    """`all 104 of our cells passed`, or `90 of our 104 cells passed, 14 skipped`."""
    passed, whose = sum(found.passed.values()), "our" if found.role == "subject" else "the peers’"
    if found.rest:
        rest = ", ".join(f"{count(n)} {label(status)}" for status, n in found.rest.items())
        return f"{count(passed)} of {whose} {cells(passed + sum(found.rest.values()))} {verb}, {rest}"
    return f"all {count(passed)} of {whose} cells {verb}" if passed > 1 else f"{whose} only cell {verb}"


def _but(found: RunVerdict) -> str:
    """What a reader of a good verdict must know too."""
    idle = f"; nothing ran on {', '.join(found.idle)}" if found.idle else ""
    lies = f"; {count(found.impossible)} timing{'s are' if found.impossible > 1 else ' is'} impossible"
    return idle + (lies if found.impossible else "")
