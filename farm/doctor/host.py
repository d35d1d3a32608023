"""Facts about the host: files under a root, limits, the kernel's clock.  Nothing here waits long."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import socket
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path

from farm.doctor.facts import DeviceFile, SystemFacts
from farm.process import host

DNS_SECONDS = 5.0
_STA_UNSYNC = 0x40  # <sys/timex.h>
_UNLIMITED = 1 << 60  # cgroup v1 writes unlimited as a number near 2**63


@dataclass(frozen=True)
class HostReader:
    """How to read the host.  `root`: what "/" means, so that a test can plant files; `user`, `groups`: whose access."""

    root: Path = Path("/")
    user: int = field(default_factory=os.geteuid)
    groups: frozenset[int] = field(default_factory=lambda: frozenset({os.getegid(), *os.getgroups()}))

    def path(self, name: str) -> Path:
        """`name` (absolute) under the root."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """A small file's text without white space around it, or ""."""
        with contextlib.suppress(OSError):
            return self.path(name).read_text(encoding="utf-8", errors="replace")[: 1 << 16].strip()
        return ""

    def exists(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return self.path(name).exists()
        return False

    def all(self, folder: str, pattern: str) -> list[str]:
        """Names (absolute) in `folder` that fully match a regular expression, sorted."""
        with contextlib.suppress(OSError):
            found = [p.name for p in self.path(folder).iterdir() if re.fullmatch(pattern, p.name)]
            return [f"{folder}/{name}" for name in sorted(found)]
        return []

    def device_file(self, name: str) -> DeviceFile:
        """Whether this user may read and write a file, by its owner and mode (opening it could wake a device)."""
        try:
            found = self.path(name).stat()
        except OSError:
            return DeviceFile(name, denied=True)
        return DeviceFile(name, not self._may_use(found), _group(found.st_gid))

    def _may_use(self, found: os.stat_result) -> bool:
        if self.user == 0:
            return True
        if found.st_uid == self.user:
            need = stat.S_IRUSR | stat.S_IWUSR
        elif found.st_gid in self.groups:
            need = stat.S_IRGRP | stat.S_IWGRP
        else:
            need = stat.S_IROTH | stat.S_IWOTH
        return found.st_mode & need == need

    def pci(self, vendor: str) -> int:
        """Devices of a vendor (its PCI number, as 0x10de) that compute or draw."""
        kinds = ("0x03", "0x12")  # display controllers, processing accelerators
        folders = self.all("/sys/bus/pci/devices", r".+")
        return sum(self.read(f"{f}/vendor") == vendor and self.read(f"{f}/class")[:4] in kinds for f in folders)

    def system(self) -> SystemFacts:
        """Limits, memory, name and clock."""
        memory = host.memory(self.root)
        name, addresses, trouble = _own_addresses()
        return SystemFacts(
            open_files=_limit(resource.RLIMIT_NOFILE),
            processes=_limit(resource.RLIMIT_NPROC),
            locked_memory=_limit(resource.RLIMIT_MEMLOCK),
            core_files=_limit(resource.RLIMIT_CORE) != 0 and not self._cores_are_piped(),
            memory_limit=self._memory_limit(),
            memory_available=memory.get("MemAvailable"),
            swap_used=max(0, memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)),
            hostname=name,
            addresses=addresses,
            hostname_failure=trouble,
            clock_synchronised=clock_synchronised(),
            governor=self.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            numa_balancing=host.kernel_setting("numa_balancing", self.root),
        )

    def _cores_are_piped(self) -> bool:
        return host.kernel_setting("core_pattern", self.root).startswith("|")

    def _memory_limit(self) -> int | None:
        """The lowest limit of this process's cgroups, v2 or v1, as a container sees them at their usual places."""
        own = host.cgroup(self.root)
        places = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        if own not in ("", "/"):
            places.append(f"/sys/fs/cgroup{own}/memory.max")
        found = [int(text) for p in places if (text := self.read(p)).isdecimal()]
        return min((n for n in found if n < _UNLIMITED), default=None)


def clock_synchronised() -> bool | None:
    """Whether the kernel reports its clock as synchronized (by chrony, ntpd, timesyncd or a hypervisor's clock); None
    if it cannot be read."""
    with contextlib.suppress(OSError, AttributeError):
        timex = (ctypes.c_long * 64)()  # struct timex: modes (int), then longs; larger than it is anywhere
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
        if state < 0:
            return None
        at = 5 * ctypes.sizeof(ctypes.c_long)  # modes, offset, freq, maxerror, esterror; then status (int)
        return not ctypes.c_int.from_buffer(timex, at).value & _STA_UNSYNC
    return None


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _group(number: int) -> str:
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return f"gid {number}"


def _own_addresses() -> tuple[str, tuple[str, ...], str]:
    """This host's name, the addresses it resolves to, and why it does not; a silent name server costs seconds."""
    name = socket.gethostname()
    found: list[str] = []
    failures: list[str] = []

    def ask() -> None:
        try:
            found.extend(dict.fromkeys(str(a[4][0]) for a in socket.getaddrinfo(name, None)))
        except OSError as error:
            failures.append(error.strerror or str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(DNS_SECONDS)
    if thread.is_alive():
        return name, (), f"no answer within {DNS_SECONDS:g} s"
    return name, tuple(found), failures[0] if failures else ""
