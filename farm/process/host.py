"""What /proc shows of the host, by the standard library alone, since backends ask it in a child too.

`root`: what "/" means, so that a test can plant files.  A file that cannot be read is empty.
"""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path

ROOT = Path("/")


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
