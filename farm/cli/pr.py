"""`farm pr`: what a pull request does to kernels, and the words about it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cli import pr_measure, pr_results
from farm.cli.pr_measure import TOKEN
from farm.cli.text import printable
from farm.errors import UsageError
from farm.pr import comment as comments
from farm.pr import event_file, events, merging, publishing
from farm.pr import result as results
from farm.pr.events import Ignored, Policy, Refusal, Request
from farm.pr.publishing import VOICES

if TYPE_CHECKING:
    from farm.pr.github import GitHub

REPOSITORY, API = "GITHUB_REPOSITORY", "GITHUB_API_URL"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "pr",
        help="say what a pull request does to kernels, and publish it",
        description="Measure what a pull request does, base against head, into result.json; or decide what an event "
        "asks for (--decide), or publish the results of measuring jobs (--publish). A job that has a token must never "
        f"run code of the pull request: results are read as data. The token is ${TOKEN}.",
        epilog="example: farm pr matrices/rms_norm.yaml --base main --head HEAD --comment comment.md",
    )
    what = p.add_mutually_exclusive_group()
    what.add_argument(
        "--decide", action="store_true", help="print as JSON what an event asks for, or why nothing is done"
    )
    what.add_argument("--publish", nargs="+", type=Path, metavar="RESULT", help="write the comment and the check")
    p.add_argument("--event", type=Path, metavar="FILE", help="the event file of the forge ($GITHUB_EVENT_PATH)")
    p.add_argument(
        "--repository", metavar="OWNER/NAME", help=f"the repository (default: ${REPOSITORY}, or the event's)"
    )
    p.add_argument("--number", type=int, metavar="N", help="the pull request (default: the result's)")
    p.add_argument("--comment", type=Path, metavar="FILE", help="write the comment into a file; nothing is sent")
    p.add_argument(
        "--voice",
        choices=VOICES,
        default="report",
        help="what is written: silent: nothing; report: a comment; advise: also a check that never fails; block: a "
        "check that fails for findings (default: report)",
    )
    pr_measure.options(p)
    p.add_argument(
        "--allow", action="append", default=[], metavar="LOGIN", help="who else may give commands; repeatable"
    )
    p.add_argument(
        "--label", action="append", default=[], metavar="NAME", help="run only with such a label; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, decide or publish."""
    if args.decide:
        return _decide(args)
    return _publish(args) if args.publish else pr_measure.run(args)


def _decide(args: argparse.Namespace) -> int:
    if args.event is None:
        raise UsageError("--decide needs --event FILE", id="pr-no-event")
    payload = event_file.payload(args.event)
    policy = Policy(tuple(args.allow), tuple(args.label))
    number = events.pull_of(payload)
    forge, asked = None, None
    if number and os.environ.get(TOKEN):
        forge = _forge(args, payload)
        policy = Policy(policy.allowed, policy.labels, forge.login())
        login = str((payload["comment"].get("user") or {}).get("login") or "")
        asked = forge.asked(number, login)
    found = events.decide(payload, policy, asked)
    if isinstance(found, Request) and found.command.kind == "ack" and forge is not None:
        found = _acknowledge(forge, found, args.voice)
    print(json.dumps({"decision": type(found).__name__.lower(), **_plain(found)}))
    if isinstance(found, Refusal) and forge is not None and found.number:
        forge.write(found.number, publishing.Write(0, f"{comments.plain(found.why)}\n"))
    return 0


def _acknowledge(forge: GitHub, request: Request, voice: str) -> Refusal | Ignored:
    """Write an acknowledgement into the comment, and conclude the check anew."""
    own = forge.comments(request.number, forge.login())
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found = publishing.acknowledge(own, request.number, request.head, request.by, now, request.command.reason, voice)
    if found.refused:
        return Refusal(found.refused, request.number)
    for write in found.writes:
        forge.write(request.number, write)
    if found.check is not None:
        forge.conclude(found.check)
    return Ignored("the regressions are acknowledged")


def _plain(found: Request | Refusal | Ignored) -> dict[str, Any]:
    out = asdict(found)
    if isinstance(found, Request):
        out["config"]["digest"] = found.config.digest
    return out


def _publish(args: argparse.Namespace) -> int:
    if args.comment is not None:
        result = merging.merged(*pr_results.read(args.publish))
        args.comment.write_text(comments.comment(result), encoding="utf-8")
        outcome = results.outcome(result)
        print(f"farm pr: {comments.headline(result, outcome, printable)}")
        return outcome.exit_code
    payload = event_file.payload(args.event) if args.event else {}
    head = events.head_of(payload)
    forge = _forge(args, payload)
    try:
        result = merging.merged(*pr_results.read(args.publish))
    except UsageError as error:
        return _conclude_without(args, forge, head, str(error))
    if head and result["head"]["sha"] != head:
        raise UsageError(f"the result is of {result['head']['sha'][:12]}, its job of {head[:12]}", id="pr-mismatch")
    if events.unapproved(payload) and any(p["evidence"] == "executed" for p in result["pairs"]):
        raise UsageError("the result claims devices, but is of a job of a fork that nobody approved", id="pr-mismatch")
    number = args.number or result["number"]
    pull = forge.state(number, (result["base"]["sha"], result["head"]["sha"]))
    own = forge.comments(number, forge.login())
    found = publishing.publish([result], pull, own, args.voice)
    if found.refused:
        raise UsageError(found.refused, id="pr-mismatch")
    try:
        for write in found.writes:
            forge.write(number, write)
    finally:  # a comment that cannot be written must not leave the check pending
        if found.check is not None:
            forge.conclude(found.check)
    print(f"farm pr: {found.title}")
    return found.exit_code


def _conclude_without(args: argparse.Namespace, forge: GitHub, head: str, why: str) -> int:
    """Conclude the check although there is no result that can be read."""
    if not head and not args.number:
        raise UsageError(f"{why}; with --event or --number the check is concluded all the same", id="pr-no-result")
    found = publishing.gone(head or str(forge.pull(args.number)["head"]["sha"]), why, args.voice)
    if found.check is not None:
        forge.conclude(found.check, again=False)
    print(f"farm pr: {printable(why)}", file=sys.stderr)
    return found.exit_code


def _forge(args: argparse.Namespace, payload: Mapping[str, Any]) -> GitHub:
    from farm.pr.github import API as PUBLIC
    from farm.pr.github import GitHub

    repository = args.repository or os.environ.get(REPOSITORY) or ""
    if not repository and isinstance(payload.get("repository"), dict):
        repository = str(payload["repository"].get("full_name") or "")
    if not events.is_repository(repository):
        raise UsageError(f"{repository!r} is no repository; give --repository OWNER/NAME", id="pr-repository")
    token = os.environ.pop(TOKEN, "")  # no process that is started from here inherits it
    if not token:
        raise UsageError(f"publishing needs a token in ${TOKEN}; --comment FILE writes to a file", id="pr-no-token")
    return GitHub(repository, token, os.environ.get(API) or PUBLIC)
