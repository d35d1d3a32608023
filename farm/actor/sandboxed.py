"""The sandbox of one child: its command line, its folder, its control group, and their end.

The child writes into a folder of its own in the run's spool, which is all that it can write outside its own memory.
What a cell has written leaves that folder before the next one begins, and before it is judged: no later cell of the
same child finds the file any more.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.child import protocol
from farm.node import sandbox, sandbox_host
from farm.node.environment import Environment
from farm.process import cgroup, command
from farm.process.line_process import ChildLied
from farm.store import spool as spools

#: More files than any cell has outputs.
MOST_FILES = 4096
_REMOVE_SECONDS = 120.0


class Sandbox:
    """`spool`: the run's folder.  OSError if its folders cannot be made."""

    def __init__(self, environment: Environment, backend: str, spool: str):
        self._environment, self._backend = environment, backend
        reserve = spools.reserve(spool)
        spools.claim(str(reserve))
        self._inputs = [Path(place, "inputs") for place in (spool, reserve)]
        for place in self._inputs:  # what a judge leaves there later is seen, too
            place.mkdir(exist_ok=True, mode=0o700)
        self.folder = Path(tempfile.mkdtemp(prefix="child-", dir=spool))
        self.limits = sandbox_host.limits(environment.sandbox or {})
        self._group = cgroup.make(secrets.token_hex(8), self.limits.memory, self.limits.processes)
        self._grouped = "processes" in self._group.counts
        self._bwrap = sandbox_host.program()

    @property
    def there(self) -> bool:
        """Whether its folders still are: a spool may be deleted under a run."""
        return all(map(Path.is_dir, (self.folder, *self._inputs)))

    def words(self, told: Sequence[str]) -> list[str]:
        """The command line around a child's."""
        read = [str(p) for p in self._inputs]
        seen = sandbox_host.visible(self._environment, told, self._backend, read, [str(self.folder)])
        return self._group.words(sandbox.words(self._bwrap, seen, self.limits, told))

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """The child's, given what it would have without a sandbox."""
        return sandbox.variables(given, self.limits, grouped=self._grouped)

    def told(self) -> str:
        """For the fingerprint of what it runs."""
        unlimited = os.getuid() == 0 and not self._grouped
        return sandbox.told(
            sandbox_host.version(self._bwrap),
            memory_by="its control group" if "memory" in self._group.counts else "RLIMIT_DATA of each",
            processes_by="its control group" if self._grouped else "nothing (root)" if unlimited else "RLIMIT_NPROC",
        )

    def place(self, out_dir: str) -> str:
        """Where the child writes what belongs into `out_dir`: an empty folder, alone in the child's own."""
        for left in self.folder.iterdir():
            _remove(left)
        inner = self.folder / Path(out_dir).name
        inner.mkdir(mode=0o700)
        return str(inner)

    def taken(self, reply: protocol.Measured, out_dir: str) -> protocol.Measured:
        """The reply with its outputs in `out_dir`, out of the child's reach.  ChildLied if they are not where they were
        a moment ago."""
        inner = self.folder / Path(out_dir).name
        try:
            shutil.rmtree(out_dir, ignore_errors=True)
            inner.rename(out_dir)
            if Path(out_dir).is_symlink():  # asked where the child cannot exchange it any more
                Path(out_dir).unlink()
                raise NotADirectoryError
        except OSError:
            raise ChildLied("exchanged the folder of its outputs") from None
        facts, timing = dict(reply.facts), dict(reply.timing)
        if "others" in facts:
            facts["others"] = [{**o, "outputs": _moved(o["outputs"], out_dir)} for o in facts["others"]]
        if timing.get("timed_outputs") is not None:
            timing["timed_outputs"] = _moved(timing["timed_outputs"], out_dir)
        return replace(reply, outputs=_moved(reply.outputs, out_dir), facts=facts, timing=timing)

    def overfull(self, log_size: int) -> str:
        """What it has written too much of; "" if nothing."""
        left, number, folders = self.limits.files, 0, [str(self.folder)]
        if log_size > left:
            return f"printed more than {left / sandbox.GIB:g} GiB"
        while folders:
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as found:
                for entry in found:
                    number += 1
                    left -= entry.stat(follow_symlinks=False).st_blocks * 512
                    if left < 0:
                        return f"wrote more than {self.limits.files / sandbox.GIB:g} GiB into its folder"
                    if number > MOST_FILES:
                        return f"made more than {MOST_FILES} files in its folder"
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        return ""

    def close(self) -> None:
        """Once the child is gone."""
        _remove(self.folder)
        self._group.remove()


def _moved(outputs: Sequence[Mapping[str, Any]], folder: str) -> list[dict[str, Any]]:
    return [{**o, "path": f"{folder}/{o['path'].rpartition('/')[2]}"} for o in outputs]


def _remove(path: Path) -> None:
    """Whatever it is; a tree may be deeper than Python's own function goes."""
    if path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path, ignore_errors=True)
        except RecursionError:
            with contextlib.suppress(OSError):
                command.run(["rm", "-rf", "--", str(path)], _REMOVE_SECONDS)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
