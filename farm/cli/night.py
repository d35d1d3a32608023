"""`farm night`: what is new in the newest night of a store, and one notification for each group of it."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from farm.cli import common
from farm.cli.text import counted, printable, sentence
from farm.errors import FarmError, InfraError, Message, UsageError
from farm.process import command
from farm.report.notices import Notice, notices

#: How long the command of --notify may take for one group.
NOTIFY_SECONDS = 30.0
MOST = 100
FOLDER = "notified"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "night",
        help="show what is new in the newest night of a store, and notify somebody",
        description="Compare the newest night with the nights before it: new failures, slowdowns with their cause, "
        "devices that became slower, backends and targets that fell silent, known failures. Exit codes: 0 nothing "
        "new, 1 new failures, regressions, or a silent backend or target, 3 infrastructure failures or a notification "
        "that failed.",
        epilog="example: farm night --notify './to-chat.py kernels'",
    )
    p.add_argument(
        "--notify",
        metavar="COMMAND",
        help="run this command for each group that is worth it and was not notified before, with the group as JSON on "
        f"its standard input; no shell reads it, and it may take {NOTIFY_SECONDS:g} s",
    )
    p.add_argument(
        "--repo",
        metavar="PATH|URL",
        help="accuse a commit range only where it changes something of the op in this repository",
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Read, judge, print, notify."""
    from farm.dashboards import views
    from farm.dashboards.night_pages import night_json
    from farm.report import findings
    from farm.report.format import FARM_FAULTS

    words = _words(args.notify)
    store = common.store(args)
    touched = _touched(args.repo) if args.repo else lambda before, after, rows: None
    found = views.newest(views.checked(store), touched)
    if found is None:
        print(f"{store.path} has no complete run, so there is no night", file=sys.stderr)
        return 0
    nights, newest = found.nights, store.run(found.run.id)
    faults = sum(r["status"] in FARM_FAULTS for r in found.rows)
    told = notices(nights, lambda rows: findings.repeat(newest, rows))
    if args.json:
        print(json.dumps(night_json(found), indent=1))
    else:
        from farm.report.nights import line

        before = counted(len(nights.nights) - 1, "night")
        print(f"night of {found.run.created[:10]}, run {found.run.id}, with {before} before it")
        for news in nights.news:
            print(printable(line(news) + f"; since {news.since.created[:10]}"))
        for shift in nights.moved:
            print(printable(shift.text))
        for one in nights.drifting:
            print(printable(one.text))
        for name, last in nights.silent.items():
            print(f"{name} did not report; its last results are of {last.created[:10]}")
        if not (nights.news or nights.moved or nights.drifting or nights.silent):
            print("nothing new")
    failed = _notify(store.path, words, told) if words else 0
    new = nights.silent or any(n.kind == "new" or (n.kind == "slower" and n.sure) for n in nights.news)
    return InfraError.exit_code if faults or failed else 1 if new else 0


def _words(text: str | None) -> list[str]:
    """The words of --notify.  UsageError where they are none."""
    if text is None:
        return []
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--notify {text!r}: {error}; quote its words as a shell would", id="notify-words") from None
    if not words:
        raise UsageError("--notify is empty; name a command, or omit the option", id="notify-words")
    return words


def _touched(repo: str) -> Any:
    """What of an op differs between the revisions of two nights; None where that cannot be found out."""
    from farm.compare.touched import touched
    from farm.subject import arms

    @cache
    def sources(a: str, b: str) -> Any:
        try:
            pair = arms.pair(f"revision={a}", f"revision={b}")
            return tuple(content.sources() for content in arms.contents(*pair, repo=repo))
        except FarmError as error:
            text = f"--repo {repo}: {a[:10]} and {b[:10]} cannot be compared ({error})"
            print(f"farm night: {sentence(Message(text, id='night-repo'))}", file=sys.stderr)
            return None

    def asked(before: Any, after: Any, rows: Sequence[Mapping[str, Any]]) -> Sequence[str] | None:
        both = sources(before.revision, after.revision) if before.revision and after.revision else None
        return touched(both[0], both[1], str(rows[0]["op"])) if both else None

    return asked


def _notify(store: Path, words: Sequence[str], told: Sequence[Notice]) -> int:
    """Run the command for every notice that was not sent before; how many failed.  What failed is sent again next
    time."""
    folder = store / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    due = [n for n in told if not (folder / n.key).exists()]
    failed = 0
    for notice in due[:MOST]:
        why = _send(words, notice)
        if why:
            failed += 1
            text = f"--notify: {words[0]} {why}, so this group is notified next time: {notice.data['text']}"
            print(f"farm night: {sentence(Message(printable(text)[:500], id='notify-failed'))}", file=sys.stderr)
        else:
            (folder / notice.key).write_text(str(notice.data["run"]))
    if len(due) > MOST:
        print(f"farm night: {len(due) - MOST} groups more than {MOST}; they are notified next time", file=sys.stderr)
    return failed


def _send(words: Sequence[str], notice: Notice) -> str:
    """Why the command did not take the notice; "" if it did."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(notice.data).encode())
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        try:
            done = command.run(words, NOTIFY_SECONDS, stdin=file.fileno())
        except OSError as error:
            return f"cannot be started ({error.strerror or error})"
    if done.code is None:
        return f"took more than {NOTIFY_SECONDS:g} s and was killed"
    last = (done.err.strip().splitlines() or [""])[-1]
    return "" if done.code == 0 else f"ended with {done.code}" + (f" ({last})" if last else "")
