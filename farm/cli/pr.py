"""`farm pr`: what a pull request does to kernels, and the words about it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cli import pr_measure
from farm.cli.pr_measure import TOKEN
from farm.errors import UsageError
from farm.pr import comment as comments
from farm.pr import decision, event_file, events, publishing
from farm.pr import result as results
from farm.pr.decision import KINDS
from farm.pr.events import Ignored, Policy, Refusal, Request
from farm.pr.publishing import VOICES

if TYPE_CHECKING:
    from farm.pr.github import GitHub


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
    what.add_argument(
        "--waiting", action="store_true", help="write which run has the device, and when it is estimated to end"
    )
    what.add_argument(
        "--sweep", type=float, metavar="HOURS", help="conclude, as neutral, checks in progress for over HOURS"
    )
    what.add_argument(
        "--remeasure",
        type=float,
        metavar="SHARE",
        help="measure a share of the store's past verdicts again (0.05: one in twenty), and say how many were "
        "overturned: exit code 1 if any was",
    )
    p.add_argument("--event", type=Path, metavar="FILE", help="the event file of the forge ($GITHUB_EVENT_PATH)")
    p.add_argument(
        "--repository", metavar="OWNER/NAME", help="the repository (default: $GITHUB_REPOSITORY, or the event's)"
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
    p.add_argument(
        "--start", metavar="WORKFLOW", help="with --decide: start this workflow with the decision on pull-request/N"
    )
    p.add_argument(
        "--workflow",
        metavar="WORKFLOW",
        default="farm-device.yml",
        help="with --waiting: the workflow that has the devices (default: farm-device.yml)",
    )
    p.add_argument("--seed", type=int, metavar="N", help="with --remeasure: which verdicts are drawn (default: any)")
    pr_measure.options(p)
    p.add_argument(
        "--allow", action="append", default=[], metavar="LOGIN", help="who else may give commands; repeatable"
    )
    p.add_argument(
        "--label", action="append", default=[], metavar="NAME", help="run only with such a label; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, decide or publish."""
    if args.start and not args.decide:
        raise UsageError("--start starts what was decided; add --decide", id="pr-start")
    if args.seed is not None and args.remeasure is None:
        raise UsageError("--seed draws what is measured again; add --remeasure SHARE", id="pr-seed")
    if args.decide:
        return _decide(args)
    if args.remeasure is not None:
        from farm.cli import pr_remeasure

        return pr_remeasure.run(args)
    if not (args.publish or args.waiting or args.sweep is not None):
        return pr_measure.run(args)
    from farm.cli import pr_publish

    return pr_publish.run(args) if args.publish else (pr_publish.waiting if args.waiting else pr_publish.sweep)(args)


def _decide(args: argparse.Namespace) -> int:
    if args.event is None:
        raise UsageError("--decide needs --event FILE", id="pr-no-event")
    payload = event_file.payload(args.event)
    policy = Policy(tuple(args.allow), tuple(args.label))
    number = events.pull_of(payload)
    forge, asked = None, None
    if number and os.environ.get(TOKEN):
        from farm.cli.pr_publish import client

        forge = client(args, payload)
        policy = Policy(policy.allowed, policy.labels, forge.login())
        login = str((payload["comment"].get("user") or {}).get("login") or "")
        asked = forge.asked(number, login)
    found = events.decide(payload, policy, asked)
    if isinstance(found, Request) and forge is not None:
        if found.command.kind == "ack":
            found = _acknowledge(forge, found, args.voice)
        elif found.command.review:
            of = forge.review_comment(found.command.review)
            found = events.suggested(of, found, _written(payload))
    try:
        text = decision.written(found)
    except UsageError as error:
        found = Refusal(f"{error}.", number)
        text = decision.written(found)
    if isinstance(found, Request) and forge is not None and args.start and found.command.kind in KINDS:
        try:
            _start(args, forge, found, text)
        except UsageError as error:
            if error.id != "pr-start-workflow":
                raise
            found = Refusal(f"{error}.", number)
            text = decision.written(found)
    print(text)
    if isinstance(found, Refusal) and forge is not None and found.number:
        forge.write(found.number, publishing.Write(0, f"{comments.plain(found.why)}\n"))
    return 0


def _written(payload: Mapping[str, Any]) -> str:
    """When a comment was written, as the forge says; "" where it does not."""
    return str(payload["comment"].get("created_at") or "")


def _start(args: argparse.Namespace, forge: GitHub, found: Request, text: str) -> None:
    """Start the workflow that has the devices with a decision, and say what it waits for."""
    from farm.cli.pr_publish import tell_waiting

    forge.mirror(found.number, found.head)
    forge.start(args.start, found.number, text)
    before = publishing.last(forge.comments(found.number, forge.login()), found.number)
    ran = bool(before and before.ran and before.head == found.head)
    command = found.command
    narrower = results.narrower(command.kind, command.matrix, command.backends, ran)
    tell_waiting(args, forge, found.number, found.head, concludes=not narrower)


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
