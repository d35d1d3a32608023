"""`farm pr` as a trusted job: what results say, what a run waits for, and checks that nobody concluded.  It has a
token, so it runs no code of a pull request."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from farm.cli import common, pr_results
from farm.cli.pr_measure import PACKAGE, TOKEN
from farm.cli.text import printable
from farm.errors import FarmError, StoreError, UsageError
from farm.pr import comment as comments
from farm.pr import event_file, events, merging, publishing, queue, repeating
from farm.pr import result as results
from farm.pr.github import GitHub
from farm.pr.publishing import Check, Publication
from farm.pr.repeating import Links
from farm.shipping import revision

SERVER, DOCS = "GITHUB_SERVER_URL", "FARM_DOCS"
REPOSITORY, API, STORE = "GITHUB_REPOSITORY", "GITHUB_API_URL", "FARM_STORE"
WORKFLOW = "farm-device.yml"
MAX_HOURS = 30 * 24.0


def run(args: argparse.Namespace) -> int:
    """Write the comment and the check of results."""
    if args.comment is not None:
        result = merging.merged(*pr_results.read(args.publish))
        payload = event_file.payload(args.event) if args.event else {}
        text = comments.comment(result, links=_links(args, payload), voice=args.voice)
        args.comment.write_text(text, encoding="utf-8")
        outcome = results.outcome(result)
        print(f"farm pr: {comments.headline(result, outcome, printable)}")
        return outcome.exit_code
    payload = event_file.payload(args.event) if args.event else {}
    head = events.head_of(payload)
    forge = client(args, payload)
    try:
        result = merging.merged(*pr_results.read(args.publish))
    except UsageError as error:
        return _conclude_without(args, forge, payload, str(error))
    found, number = Publication(refused=_wrong(result, payload, head)), 0
    if not found.refused:
        try:
            number, found = _publication(args, forge, payload, result)
        except Exception:  # what the forge does not say must not leave the check pending
            why = "The forge did not answer, so the result could not be checked"
            if head and (check := publishing.gone(head, why, args.voice).check) is not None:
                forge.conclude(check, again=False)
            raise
    if found.refused:
        if head and (check := publishing.gone(head, found.refused, args.voice).check) is not None:
            forge.conclude(check, again=False)
        raise UsageError(found.refused, id="pr-mismatch")
    try:
        for write in found.writes:
            forge.write(number, write)
    finally:  # a comment that cannot be written must not leave the check pending
        if found.check is not None:
            forge.conclude(found.check, again=not found.stands)
        if found.check is not None and found.stale:
            forge.sweep(found.stale, "A newer head was pushed before this one was measured")
    print(f"farm pr: {found.title}")
    return found.exit_code


def _wrong(result: Mapping[str, Any], payload: Mapping[str, Any], head: str) -> str:
    """Why a result cannot be that of the job that an event is about; "" if it can."""
    if head and results.head_of(result) != head:
        return f"the result is of {results.head_of(result)[:12]}, its job of {head[:12]}"
    if events.unapproved(payload) and any(p["evidence"] == "executed" for p in result["pairs"]):
        return "the result claims devices, but is of a job of a fork that nobody approved"
    if result.get("asked") and not events.dispatched(payload):
        return "the result claims that a comment asked for it, but no command started its job"
    return ""


def _publication(
    args: argparse.Namespace, forge: GitHub, payload: Mapping[str, Any], result: results.Json
) -> tuple[int, Publication]:
    """(pull request, what to write)."""
    commits = (str(result["base"]["sha"]), str(result["head"]["sha"]))
    number, base = events.queued(payload)
    if number:
        pull = forge.group(number, events.head_of(payload), base, commits)
    else:
        number = args.number or events.mirrored(payload) or result["number"]
        pull = forge.state(number, commits)
    own = forge.comments(number, forge.login())
    return number, publishing.publish([result], pull, own, args.voice, _links(args, payload))


def _links(args: argparse.Namespace, payload: Mapping[str, Any]) -> Links:
    """Where the workflow run and the farm are, by this job's own environment and event."""
    digest = ""
    if len(args.publish) == 1 and args.publish[0].is_file():
        digest = hashlib.sha256(args.publish[0].read_bytes()).hexdigest()
    run_ = payload.get("workflow_run")
    number = str(run_.get("id") or "") if isinstance(run_, dict) else ""
    server = os.environ.get(SERVER) or Links().server
    return Links(
        server=server if repeating.address(server) else Links().server,
        run=number if number.isdecimal() else "",
        docs=os.environ.get(DOCS) or "",
        package=os.environ.get(PACKAGE) or revision.origin(),
        digest=digest,
    )


def _conclude_without(args: argparse.Namespace, forge: GitHub, payload: Mapping[str, Any], why: str) -> int:
    """Conclude the check although there is no result that can be read, and end what the comment waits for."""
    head, number = events.head_of(payload), args.number or events.mirrored(payload)
    if not head and not number:
        raise UsageError(f"{why}; with --event or --number the check is concluded all the same", id="pr-no-result")
    found = publishing.gone(head or str(forge.pull(number)["head"]["sha"]), why, args.voice)
    if found.check is not None:
        forge.conclude(found.check, again=False)
    if number and args.voice != "silent":
        words = "The last run that was asked for left no result."
        for write in publishing.ended(number, words, forge.comments(number, forge.login())):
            forge.write(number, write)
    print(f"farm pr: {printable(why)}", file=sys.stderr)
    return found.exit_code


# while something waits


def waiting(args: argparse.Namespace) -> int:
    """Say in the comment and the check what a run waits for, and when it is estimated to end."""
    payload = event_file.payload(args.event) if args.event else {}
    number, head = args.number or events.mirrored(payload), events.head_of(payload)
    if not number and not head:
        raise UsageError("--waiting needs --event FILE of a workflow_run, or --number N", id="pr-waiting-for-what")
    forge = client(args, payload)
    if not number:  # stage 0, which needs no device
        words = "Stage 0 runs, without a device."
        if args.voice in ("advise", "block"):
            forge.conclude(Check(head, "", words, words), again=False)
    else:
        head = head or str(forge.pull(number)["head"]["sha"])
        # a command that concludes no check has started none
        concludes = events.workflow_of(payload) != "workflow_dispatch" or forge.pending(head)
        words = tell_waiting(args, forge, number, head, concludes=concludes)
    print(f"farm pr: {words}")
    return 0


def tell_waiting(args: argparse.Namespace, forge: GitHub, number: int, head: str, *, concludes: bool) -> str:
    """Write what a run of a pull request waits for; the words.  `concludes`: whether it will conclude a check."""
    now = datetime.now(timezone.utc)
    found = queue.jobs(forge.runs(args.start or args.workflow))
    words = queue.words(found, number, now, _progress(args, now))
    made = publishing.waiting(
        number, head, words, forge.comments(number, forge.login()), args.voice, concludes=concludes
    )
    for write in made.writes:
        forge.write(number, write)
    if made.check is not None:
        forge.conclude(made.check)
    return words


def _progress(args: argparse.Namespace, now: datetime) -> queue.Progress | None:
    """The run that has the devices: of the cluster that was named, else the one that a store on this host is written
    by, where one was named."""
    if args.address not in (None, "local", "inline"):
        return _of_cluster(args.address)
    if not (args.out or os.environ.get(STORE)):
        return None
    for run_ in reversed(common.store(args).runs()[-20:]):
        try:
            if run_.complete or not run_.writer:
                continue
            head, rows = run_.head, run_.rows
            created = datetime.fromisoformat(str(head.get("created") or ""))
        except (StoreError, ValueError):
            continue
        done = sum(row["status"] != "lost" for row in rows)
        return queue.of_store(run_.id, created, now, len(rows), done)
    return None


def _of_cluster(address: str) -> queue.Progress | None:
    """What the registry of a cluster says; None, and a sentence on standard error, where it cannot be asked."""
    try:
        from farm.cluster.registry_client import RegistryClient

        cluster = RegistryClient(address)
        try:
            return queue.of_registry(cluster.runs())
        finally:
            cluster.close()
    except (FarmError, ImportError) as error:
        print(f"farm pr: the cluster is not asked: {printable(str(error))[:300]}", file=sys.stderr)
        return None


def sweep(args: argparse.Namespace) -> int:
    """Conclude, as neutral, the checks of open pull requests that are in progress for too long."""
    if not 0 < args.sweep <= MAX_HOURS:
        raise UsageError(f"--sweep {args.sweep:g}: must be hours, up to {MAX_HOURS:g}", id="pr-sweep-range")
    forge = client(args, {})
    older = datetime.now(timezone.utc) - timedelta(hours=args.sweep)
    why = f"Nothing was heard of this run for {args.sweep:g} hours"
    done = sum(forge.sweep(head, why, older) for head in forge.open_heads() if events.SHA.fullmatch(head))
    print(f"farm pr: {done} checks were concluded that had been in progress for over {args.sweep:g} hours")
    return 0


def client(args: argparse.Namespace, payload: Mapping[str, Any]) -> GitHub:
    """The forge.  Takes the token out of the environment."""
    from farm.pr.github import API as PUBLIC

    repository = args.repository or os.environ.get(REPOSITORY) or ""
    if not repository and isinstance(payload.get("repository"), dict):
        repository = str(payload["repository"].get("full_name") or "")
    if not events.is_repository(repository):
        raise UsageError(f"{repository!r} is no repository; give --repository OWNER/NAME", id="pr-repository")
    token = os.environ.pop(TOKEN, "")  # no process that is started from here inherits it
    if not token:
        raise UsageError(f"publishing needs a token in ${TOKEN}; --comment FILE writes to a file", id="pr-no-token")
    return GitHub(repository, token, os.environ.get(API) or PUBLIC)
