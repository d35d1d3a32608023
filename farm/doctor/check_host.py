"""The host itself: memory, space, limits, name and clock.  Pure."""

from __future__ import annotations

from datetime import datetime, timezone

from farm.cluster.ray_folder import LONGEST_BASE
from farm.doctor.facts import Facts, SpaceFacts
from farm.doctor.finding import Finding, Findings, Level, fail, note, ok, warn

GIB = 1 << 30
ROOMY_BYTES = GIB  # with less shared memory, tensors go through the disk
SCARCE_BYTES = 100 << 20
RAY_FULL = 0.95  # Ray does not store objects on a disk fuller than this
OPEN_FILES = 4096  # a Ray node with eight devices and their children has over a thousand open
PROCESSES = 4096  # threads count
LOCKED_BYTES = 64 << 20
MEMORY_BYTES = 8 * GIB
FREE_BYTES = 2 * GIB
SWAPPED_BYTES = 2 * GIB


def space(f: Facts) -> Findings:
    yield _memory(f.memory)
    if not f.asked.join:
        yield _writable("store", f.store, "store", "use --out or FARM_STORE to name another folder")
        if f.cache.failure or f.cache.free < GIB:
            why = f.cache.failure or f"only {size(f.cache.free)} is free"
            what = f"large inputs and references cannot be put in {f.cache.path} ({why}): they take shared memory"
            yield warn("cache-unusable", "cache", what, "name another folder with FARM_CACHE")
        else:
            yield ok("cache", f"{f.cache.path}, {size(f.cache.free)} free")
    scratch = _writable("scratch", f.scratch, "scratch", "set RAY_TMPDIR and TMPDIR to a folder with space")
    s = f.scratch
    if scratch.level is Level.OK and s.total and 1 - s.free / s.total > RAY_FULL:
        what = f"{s.path} is {1 - s.free / s.total:.0%} full; Ray stores nothing on a disk over {RAY_FULL:.0%}"
        scratch = warn("scratch-space", "scratch", what, "free space there, or set RAY_TMPDIR to another disk")
    yield scratch
    if len(s.path) > LONGEST_BASE:
        what = f"{s.path} has {len(s.path)} characters: over {LONGEST_BASE}, the paths of Ray's sockets are too long"
        yield fail("scratch-path", "scratch", what, "set RAY_TMPDIR to a short path, for example /tmp")


def _memory(m: SpaceFacts | None) -> Finding:
    slower = "tensors and Ray's objects go through the disk"
    if m is None:
        return warn(
            "shm-missing", "memory", f"/dev/shm does not exist: {slower}", "mount /dev/shm (docker run --shm-size=4g)"
        )
    if m.failure:
        return warn(
            "shm-unwritable",
            "memory",
            f"{m.path} cannot be written ({m.failure}): {slower}",
            "make the folder writable",
        )
    if m.free < ROOMY_BYTES:
        what = f"only {size(m.free)} is free in {m.path}, less than {size(ROOMY_BYTES)}: {slower}"
        return warn(
            "shm-small", "memory", what, "enlarge the shared memory (docker run --shm-size=4g), or delete files there"
        )
    return ok("memory", f"{size(m.free)} free in {m.path}")


def _writable(section: str, s: SpaceFacts, code: str, cure: str) -> Finding:
    if s.failure:
        return fail(f"{code}-unwritable", section, f"{s.path} cannot be written ({s.failure})", cure)
    if s.free < SCARCE_BYTES:
        return fail(f"{code}-space", section, f"only {size(s.free)} is free in {s.path}: a run would not finish", cure)
    if s.free < GIB:
        return warn(f"{code}-space", section, f"only {size(s.free)} are free in {s.path}", cure)
    return ok(section, f"{s.path} is writable; {size(s.free)} free")


def size(count: int) -> str:
    """Bytes for people: `64 KiB`, `64 MiB`, `12.5 GiB`."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):.0f} KiB"


def limits(f: Facts) -> Findings:
    s, section = f.system, "limits"
    if s.open_files is not None and s.open_files < OPEN_FILES:
        what = (
            f"only {s.open_files} open files are allowed (ulimit -n); Ray and eight children use more than a thousand"
        )
        yield warn("limit-open-files", section, what, "ulimit -n 65536, or LimitNOFILE=65536 in the service")
    if s.processes is not None and s.processes < PROCESSES:
        what = f"only {s.processes} processes and threads are allowed (ulimit -u); Ray starts hundreds"
        yield warn("limit-processes", section, what, "ulimit -u 32768, or TasksMax= in the service")
    pinning = any(b.name in ("rocm", "ascend") and b.devices for b in f.backends)
    if pinning and s.locked_memory is not None and s.locked_memory < LOCKED_BYTES:
        what = (
            f"at most {size(s.locked_memory)} of memory may be locked (ulimit -l): drivers that pin host memory may "
            "fail"
        )
        yield note("limit-locked-memory", section, what, "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service")
    if s.core_files:
        what = "a process that crashes leaves a core file (ulimit -c): kernels that crash would fill the disk"
        yield note("limit-core-files", section, what, "ulimit -c 0, or LimitCORE=0 in the service")
    if s.memory_limit is not None and s.memory_limit < MEMORY_BYTES:
        what = f"this container or service may use only {size(s.memory_limit)}, including references and Ray's objects"
        yield warn(
            "memory-limit", section, what, "raise the memory limit (docker run --memory, MemoryMax=, Slurm's --mem)"
        )
    elif s.memory_available is not None and s.memory_available < FREE_BYTES:
        what = f"only {size(s.memory_available)} of memory is free: Ray ends workers when memory runs out"
        yield warn("memory-low", section, what, "end processes that use much memory, or use fewer devices (--devices)")
    if s.swap_used > SWAPPED_BYTES:
        what = f"{size(s.swap_used)} of memory has been swapped out: host times will vary widely"
        yield note("swap-used", section, what, "end processes that use much memory, or run swapoff -a")
    if s.governor and s.governor != "performance":
        what = f"the CPU governor is {s.governor}: host times vary, device times do not"
        yield note("cpu-governor", section, what, "cpupower frequency-set -g performance")


def name(f: Facts) -> Findings:
    s, section = f.system, "name"
    elsewhere = f.head is not None and not f.head.loopback
    level = Level.WARN if elsewhere else Level.NOTE
    if s.hostname_failure:
        what = f"this host's name, {s.hostname}, does not resolve ({s.hostname_failure})"
        yield Finding(
            "hostname-unknown", section, level, what, f"add {s.hostname} and this host's address to /etc/hosts"
        )
    elif s.addresses and all(a.startswith("127.") or a == "::1" for a in s.addresses):
        what = f"this host's name, {s.hostname}, resolves to {', '.join(s.addresses)}, which other nodes cannot reach"
        cure = (
            f"map {s.hostname} to this host's network address in /etc/hosts, or pass the address: farm nodes head "
            "--ip ADDRESS, "
        )
        cure += "farm nodes join --ray=--node-ip-address=ADDRESS"
        yield Finding("hostname-loopback", section, level, what, cure)


def clock(f: Facts) -> Findings:
    day = 86400.0
    now = datetime.fromtimestamp(f.now, timezone.utc)
    if f.now + day < f.newest_source:
        newest = datetime.fromtimestamp(f.newest_source, timezone.utc).date().isoformat()
        what = f"the clock shows {now.date().isoformat()}, earlier than the farm's own files ({newest}): "
        what += "runs would be listed in the wrong order"
        yield warn("clock-behind", "clock", what, "set the clock (timedatectl set-ntp true)")
    else:
        yield ok("clock", now.isoformat(timespec="seconds"))
    if f.system.clock_synchronised is False:
        what = "this host's clock is not synchronized, according to the kernel"
        level = Level.WARN if f.asked.head else Level.NOTE
        yield Finding("clock-not-synchronised", "clock", level, what, "timedatectl set-ntp true, or start chronyd")
