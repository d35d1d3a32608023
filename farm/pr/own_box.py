"""What surrounds a process of the repository's own tests: nothing, or a sandbox with limits that end it alone."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from farm.node import sandbox, sandbox_host
from farm.node.environment import Environment
from farm.process import cgroup

#: Sets the limits for itself, then becomes the command: bubblewrap, which starts it, has none.
_LIMITED = (
    "import json,os,resource as r,sys\n"
    "for k,v in json.loads(sys.argv[1]).items():\n"
    " n=getattr(r,'RLIMIT_'+k);h=r.getrlimit(n)[1];v=v if h==r.RLIM_INFINITY else min(v,h);r.setrlimit(n,(v,v))\n"
    "os.execvp(sys.argv[2],sys.argv[2:])"
)
#: Bytes of a file that it writes, also of its report, which is the only one on the host's disk.
FILE = 1 << 30
#: What a test says that ran into a limit of its own process.
_MEMORY, _PROCESSES = ("MemoryError", "Cannot allocate memory"), ("Resource temporarily", "can't start new thread")


class Box(Protocol):
    """Around one process and all that it starts."""

    def words(self, told: Sequence[str], read: Sequence[Path], cwd: Path) -> list[str]:
        """The command line to run in place of `told`, which reads `read` and runs in `cwd`."""

    def limit(self, reason: str, *, ended: bool = False) -> str:
        """The limit that a failure with this reason ran into, as a clause; "" if none.  `ended`: the failure is that
        the process ended, for which the kernel has its own count."""

    def close(self) -> None:
        """Once its processes are gone."""


class Open:
    """No sandbox: a host that trusts the code, or is thrown away afterwards."""

    def words(self, told: Sequence[str], read: Sequence[Path], cwd: Path) -> list[str]:
        return list(told)

    def limit(self, reason: str, *, ended: bool = False) -> str:
        return ""

    def close(self) -> None:
        pass


class Sandboxed:
    """A sandbox.  `given`: an environment's limits (`farm.node.sandbox.KEYS`); what it leaves out has defaults."""

    def __init__(self, given: Mapping[str, float], backend: str = "cpu"):
        self.limits, self._backend = sandbox_host.limits(given), backend
        self._group = cgroup.make(secrets.token_hex(8), self.limits.memory, self.limits.processes)
        self._resources = self.limits.resources(
            grouped="processes" in self._group.counts,
            # addresses say nothing of memory where a device's driver reserves them
            addresses="memory" not in self._group.counts and backend not in sandbox.DEVICES,
        )
        self._resources["FSIZE"] = min(self._resources["FSIZE"], FILE)

    def words(self, told: Sequence[str], read: Sequence[Path], cwd: Path) -> list[str]:
        shown = replace(Environment.default(), path=sandbox_host.own_path(Environment.default().path))
        limited = [told[0], "-I", "-S", "-c", _LIMITED, json.dumps(self._resources), *told]
        seen = sandbox_host.visible(shown, limited, self._backend, list(map(str, read)), [])
        return self._group.words(sandbox.words(sandbox_host.program(), seen, self.limits, limited, str(cwd)))

    def limit(self, reason: str, *, ended: bool = False) -> str:
        memory = f"the sandbox has {self.limits.memory / sandbox.GIB:.3g} GiB of memory"
        processes = f"the sandbox allows {self.limits.processes:,} processes and threads"
        if any(word in reason for word in _MEMORY):
            return memory
        if any(word in reason for word in _PROCESSES):
            return processes
        reached = self._group.reached() if ended else ()
        return memory if "memory" in reached else processes if "processes" in reached else ""

    def close(self) -> None:
        self._group.remove()
