"""What /proc shows of processes, for the supervising side.  A process that is gone, or hidden, has no answer.

psutil reads it; where that is not installed, `proc_entries` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import psutil
else:
    try:
        import psutil
    except ImportError:  # the Python of a site that runs a kit
        from farm.process import proc_entries as psutil

_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
#: Letters of a process's state, for one that waits until another lets it go on.
_STOPPED = {"T": "it is stopped by a signal", "t": "it is stopped by a debugger"}


class Suspended(NamedTuple):
    """Why a process does not run.  `frozen`: its control group is, which is the doing of who manages the host."""

    why: str
    frozen: bool = False


def parent(pid: int) -> int | None:
    """The pid of a process's parent."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).ppid()
    return None


def children(pid: int) -> list[int]:
    """The pids of a process's children."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def name(pid: int) -> str:
    """The name of a process's file, at most 15 bytes of it; also while its parent has not read that it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    return ""


def alive(pid: int) -> bool:
    """Whether a process is there, and more than an entry that its parent has not read yet."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() not in _ENDED
    return False


def started(pid: int) -> str:
    """When a process started, in clock ticks since the host's boot; "" if there is none.

    With the pid it identifies a process, also for another process that reads it later.  psutil's `create_time` does
    not: it counts from the epoch, so it moves when the host's clock is set.
    """
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    return ""


def suspended(pid: int, *, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Suspended | None:
    """Whether a process is kept from running, and by what; None if it is not, or cannot be seen."""
    with contextlib.suppress(OSError, IndexError):
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        state = stat.rpartition(")")[2].split()[0]
        if state in _STOPPED:
            return Suspended(_STOPPED[state])
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            place = path.lstrip("/")
            if number == "0":
                files = [folder / place / "cgroup.events" for folder in (groups, groups / "unified")]
            elif "freezer" in controllers.split(","):
                files = [groups / "freezer" / place / "freezer.state"]
            else:
                continue
            if any(_frozen(file) for file in files):
                return Suspended(f"its control group {path} is frozen", frozen=True)
    return None


def _frozen(file: Path) -> bool:
    with contextlib.suppress(OSError):
        said = file.read_text(encoding="ascii", errors="replace").split()
        return "FROZEN" in said or "frozen 1" in " ".join(said)
    return False


def find(match: Callable[[Sequence[str]], bool], *, of: int | None = None) -> int | None:
    """The pid of a process whose command line, which is not empty, `match` accepts; with `of`, of a child of this
    process."""
    for process in _all():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline() if of is None or process.ppid() == of else []
            if words and match(words):
                return process.pid
    return None


def command_lines() -> list[str]:
    """The command line of every process that can be seen, its words joined by spaces."""
    out = []
    for process in _all():
        with contextlib.suppress(psutil.Error):
            out.append(" ".join(process.cmdline()))
    return out


def kill_marked(variable: str, value: str) -> None:
    """SIGKILL to every process of this user whose environment at its start held the variable: what a process started
    carries it too, whatever session and group it went to and whoever is its parent now."""
    for process in _all():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(variable) == value:
                process.kill()


def _all() -> Iterator[psutil.Process]:
    for pid in psutil.pids():  # process_iter shares a table between threads
        with contextlib.suppress(psutil.Error):
            yield psutil.Process(pid)
