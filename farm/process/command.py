"""Runs a command to its end, or to its deadline: then it and all that it started are killed."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from farm.deadline import Deadline
from farm.process.group import ProcessGroup

#: Of each stream the first bytes are kept; the rest is read and dropped.
LONGEST = 64 << 20
#: How often a wait also looks whether the command lives: what it started may hold its pipes.
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Completed:
    """`code`: exit code, minus the signal's number, or None if the command was killed at its deadline."""

    code: int | None
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        return self.stderr.decode("utf-8", "replace")


def run(
    command: Sequence[str],
    seconds: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.PIPE,
    pass_fds: Iterable[int] = (),
    longest: int = LONGEST,
) -> Completed:
    """What came of a command.  Raises OSError if it cannot be started; no error for its exit code."""
    deadline = Deadline(seconds)
    streams: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": stderr}
    group = ProcessGroup(command, env=env, cwd=cwd, pass_fds=pass_fds, **streams)
    kept = (bytearray(), bytearray())
    try:
        with selectors.DefaultSelector() as selector:
            for pipe, text in zip((group.stdout, group.stderr), kept):
                if pipe:
                    selector.register(pipe, selectors.EVENT_READ, text)
            while selector.get_map() and not deadline.expired:
                alive = group.alive  # asked before the pipes are: what a dead one wrote is read to the end
                ready = selector.select(min(deadline.remaining, LOOK_SECONDS))
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    key.data.extend(chunk[: longest - len(key.data)])
                    if not chunk:
                        selector.unregister(key.fileobj)
                if not ready and not alive:
                    break
        code = group.wait(deadline.remaining)
    finally:
        group.close()
    return Completed(code, *map(bytes, kept))
