"""Joins a Ray cluster, or starts one, in bounded time; what goes wrong is one sentence, and none of Ray's own lines.

A probe (farm.cluster.connect_probe) joins first: Ray asks 20 s long with a wrong token, ends the process that cannot
reach the node on its host, and cannot be interrupted while it waits.  Only where the probe could join, this process
does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.cluster import address as addresses
from farm.cluster import connect_probe, ray_token, raylet_watchdog
from farm.cluster.ray_token import TokenFacts
from farm.deadline import Deadline
from farm.errors import FarmError, InfraError, UsageError
from farm.process import interrupts, procfs, supervisor
from farm.process.own_modules import module_words, own_variables
from farm.process.steps import ProbeResult, run_steps

ASK_SECONDS = 45.0  # the probe takes 1 s; a raylet that froze is told by Ray after 30
JOIN_SECONDS = 60.0  # after the probe could; takes 0.1 s
START_SECONDS = 240.0  # an own Ray takes 4 s, and waits 60 s itself for each of its processes
PART_DIED_SECONDS = 10.0  # after a part of an own Ray died; Ray itself waits up to 60 s for it, then ends the process
LOOK_SECONDS = 0.2
_GIVE = "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token (ray get-auth-token on the head)"
WITHOUT_RAY = "or run without Ray (--address inline)"
_CURE = f"check this host with farm doctor, {WITHOUT_RAY}"


def join(ray: Any, address: str, arguments: Mapping[str, Any], source: str = "") -> None:
    """`ray.init` of a cluster that somebody else started.  `source`: where this host's token was before the farm put it
    into a file.  UsageError where this host may not join it (a token, another
    version, no node here), InfraError where nothing answers.  Ray's variables are set before."""
    token = ray_token.look(os.environ, Path.home())
    token = replace(token, source=source) if source else token
    wanted = lacking(address, token)
    if wanted:
        raise wanted
    wrong = judged(address, ask(address), token)
    if wrong:
        raise wrong
    _init(ray, address, {"address": addresses.resolved(address), **arguments}, JOIN_SECONDS, ours=False)


def start(ray: Any, address: str, arguments: Mapping[str, Any]) -> None:
    """`ray.init` of an own Ray on this host, tried twice: on a busy host its processes may miss each other's deadlines.
    InfraError where it does not start."""
    try:
        _init(ray, address, {"address": "local", **arguments}, START_SECONDS, ours=True)
    except InfraError:
        with contextlib.suppress(Exception):
            ray.shutdown()
        _end_parts()
        _init(ray, address, {"address": "local", **arguments}, START_SECONDS, ours=True)


def _end_parts() -> None:
    """End what a Ray that did not start has left."""
    left = procfs.find(_part, of=os.getpid())
    while left is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
        time.sleep(0.05)
        left = procfs.find(_part, of=os.getpid())


def _part(words: Sequence[str]) -> bool:
    return Path(words[0]).name in raylet_watchdog.PARTS


def ask(address: str, seconds: float | None = None) -> ProbeResult:
    """What came of the probe's joining, within `seconds` (default: ASK_SECONDS).  Its process is gone on return."""
    limit = ASK_SECONDS if seconds is None else seconds
    words = module_words(connect_probe.__name__)
    variables = {**own_variables(), **connect_probe.PATIENCE}
    return run_steps([address], words, step_s=limit, total_s=limit, variables=variables)[address]


def lacking(address: str, token: TokenFacts) -> FarmError | None:
    """A token that is asked for and is not there: over that Ray ends its process."""
    if (token.mode or "").lower() == "token" and (not token.source or token.failure):
        why = f"{token.source} contains no token ({token.failure})" if token.source else "this host has no token"
        return UsageError(
            f"--address {address}: RAY_AUTH_MODE requires a token, but {why}; {_GIVE}, or set "
            "RAY_AUTH_MODE=disabled if the cluster uses no token",
            id="connect-token-missing",
        )
    return None


def judged(address: str, trial: ProbeResult, token: TokenFacts) -> FarmError | None:
    """Why this host cannot join, as the probe saw it; None where it could."""
    said = " ".join(trial.text.split())
    told = f"--address {address}: "
    if trial.ok:
        return None
    if "uthenticat" in said or "InvalidAuthToken" in said:
        uses = (token.mode or "").lower() == "token" and token.source
        had = f"this host's token (from {token.source})" if uses else "this host, which sends no token"
        return UsageError(
            f"{told}the cluster rejects {had}; {_GIVE}, and RAY_AUTH_MODE=token", id="connect-token-rejected"
        )
    if "No node info found" in said:
        return UsageError(
            f"{told}this host is not a node of that cluster; add this host with farm nodes join, or run farm on "
            "the head",
            id="connect-not-a-node",
        )
    if "ersion mismatch" in said:
        return UsageError(
            f"{told}{_short(said)}; use the cluster's versions on this host (farm doctor --head {address} shows "
            "these versions)",
            id="connect-version-differs",
        )
    if trial.ended == "hung":
        return InfraError(
            f"{told}Ray accepts the connection but does not answer within {trial.text}; the head, or the node on "
            f"this host, hangs: read the log of both, or restart the one that hangs; {_CURE}",
            id="connect-hung",
        )
    if trial.ended == "died":
        return InfraError(
            f"{told}Ray gave up joining ({trial.text}): the head answers, but the node on this host does not; stop "
            f"this node, then join again (farm nodes join); {_CURE}",
            id="connect-node-silent",
        )
    return InfraError(f"{told}Ray did not answer ({_short(said) or trial.ended}); {_CURE}", id="connect-failed")


def _short(text: str) -> str:
    text, trace, _ = text.partition("Traceback (most recent call last)")  # which Ray puts into some of its errors
    if trace:
        text = text.partition(" (from ")[0].rstrip(" :.;(")
    return text if len(text) <= 200 else text[:199].rstrip() + "…"


def _init(ray: Any, address: str, arguments: dict[str, Any], seconds: float, *, ours: bool) -> None:
    did = "start" if ours else "answer"
    late = f"--address {address}: Ray did not {did} within {seconds:g} s{_busy(ours)}; {_CURE}"
    try:
        with (
            hushed() as told,
            ended_after(seconds, lambda: told(f"farm: {late}\n")),
            parts_watched(address, told) if ours else contextlib.nullcontext(),
        ):
            ray.init(**arguments)
            interrupts.claim()  # Ray has set a handler of its own
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InfraError(
            f"--address {address}: Ray did not {did} ({_short(first)}){_busy(ours)}; {_CURE}", id="connect-ray-failed"
        ) from error


def _busy(ours: bool) -> str:
    """How busy this host is, which is the usual reason."""
    if not ours:
        return ""
    return f"; this host has a load of {os.getloadavg()[0]:.0f} on {os.cpu_count() or 1} processors"


@contextlib.contextmanager
def hushed() -> Iterator[Callable[[str], None]]:
    """What anything in this process writes to the error stream's descriptor meanwhile goes nowhere; gives a way to say
    something nevertheless."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield lambda text: None
        return
    try:
        with tempfile.TemporaryFile() as sink:
            os.dup2(sink.fileno(), 2)
        yield lambda text: _write(kept, text)
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _write(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, text.encode("utf-8", "replace"))


@contextlib.contextmanager
def parts_watched(address: str, told: Callable[[str], None]) -> Iterator[None]:
    """Where the raylet or GCS that the block starts dies, and the block does not end soon after: say so, and let the
    supervisor start the command once more; the second time, or without a supervisor, end with exit code 3."""
    over = threading.Event()

    def watch() -> None:
        seen: dict[int, str] = {}
        limit: Deadline | None = None
        while not over.wait(LOOK_SECONDS):
            for pid in procfs.children(os.getpid()):
                name = procfs.name(pid)
                if name in raylet_watchdog.PARTS:
                    seen[pid] = raylet_watchdog.PARTS[name]
            dead = [part for pid, part in seen.items() if not procfs.alive(pid)]
            if dead and limit is None:
                limit = Deadline(PART_DIED_SECONDS)
            if limit and limit.expired and not over.is_set():
                again = supervisor.may_restart()
                why = f"--address {address}: {raylet_watchdog.died(dead[0])} while Ray started"
                cure = "trying once more" if again else f"repeat the command{_busy(True)}; {_CURE}"
                told(f"farm: {why}; {cure} [{raylet_watchdog.died(dead[0]).id}-early]\n")
                supervisor.restart()

    watching = threading.Thread(target=watch, name="start of Ray", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


@contextlib.contextmanager
def ended_after(seconds: float, say: Callable[[], None]) -> Iterator[None]:
    """End this process, with exit code 3, where the block takes longer: what waits inside a library hears no signal.
    Processes that Ray started for this one end with it."""
    over = threading.Event()
    limit = Deadline(seconds)

    def watch() -> None:
        if not over.wait(limit.remaining):
            say()
            supervisor.leave(InfraError.exit_code)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
