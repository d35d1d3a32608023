"""What /proc shows of the host, by the standard library alone, since backends ask it in a child too.

`root`: what "/" means, so that a test can plant files.  A file that cannot be read is empty.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
from pathlib import Path

ROOT = Path("/")
#: The name that results give this host, where its own is nobody's business.
NAME_VARIABLE = "FARM_HOST_NAME"


def name() -> str:
    """What results call this host."""
    return os.environ.get(NAME_VARIABLE) or socket.gethostname()


def _read(name: str, root: Path = ROOT) -> str:
    with contextlib.suppress(OSError):
        return (root / "proc" / name).read_text(encoding="utf-8", errors="replace")[: 1 << 16].strip()
    return ""


def memory(root: Path = ROOT) -> dict[str, int]:
    """/proc/meminfo in bytes: MemAvailable, SwapTotal, ..."""
    return {k: int(v) << 10 for k, v in re.findall(r"^(\w+):\s+(\d+) kB", _read("meminfo", root), re.M)}


def cgroup(root: Path = ROOT) -> str:
    """This process's control group (v2), as `/user.slice/...`; "" if unknown."""
    found = re.search(r"^0::(/.*)$", _read("self/cgroup", root), re.M)
    return found[1] if found else ""


def kernel_setting(name: str, root: Path = ROOT) -> str:
    """A setting of the Linux kernel, for example `core_pattern`."""
    return _read(f"sys/kernel/{name}", root)


def process_name(pid: int) -> str:
    """A process's name as the kernel keeps it, 15 characters at most; "" if there is none."""
    return _read(f"{pid}/comm")


def boot() -> str:
    """The id of this boot of this host."""
    return kernel_setting("random/boot_id")


#: Of a /proc, what is the whole host's in every namespace: what a process may read, and what it need not see.  The
#: user root may write them without any capability.
_SHARED = ("sys", "bus", "fs", "irq", "driver", "scsi", "tty", "sysrq-trigger", "mtrr")
_HIDDEN = ("acpi", "asound", "kcore", "keys", "key-users", "kmsg", "latency_stats", "sched_debug", "timer_list")


def shared_in_proc(root: Path = ROOT) -> tuple[list[Path], list[Path]]:
    """(what is to be read-only, what is to be hidden) of a sandbox's own /proc, as far as this kernel has it."""
    shared, hidden = ([p for name in names if (p := root / "proc" / name).exists()] for names in (_SHARED, _HIDDEN))
    return shared, hidden


def pid_namespace() -> str:
    """The namespace in which this process's pids count, as `pid:[4026531836]`."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def processor() -> str:
    """The processor's name, as far as this platform gives one."""
    text = _read("cpuinfo")
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    return found[1].strip() if found else "cpu" if text else platform.processor() or platform.machine()
