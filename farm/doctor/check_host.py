"""The host itself: memory, space, limits, name and clock.  Pure."""

from __future__ import annotations

from datetime import datetime, timezone

from farm.doctor.facts import Facts, Space
from farm.doctor.finding import Finding, Findings, Level, fail, note, ok, warn

GIB = 1 << 30
ROOMY_BYTES = GIB  # shared memory below this is left alone, and tensors travel through the disk
SCARCE_BYTES = 100 << 20
RAY_FULL = 0.95  # Ray refuses to store objects on a disk fuller than this
#: A Unix socket's path has at most 107 characters; /ray/session_<date>_<time>_<us>_<pid>/sockets/plasma_store has 66.
SCRATCH_NAME = 107 - 66
OPEN_FILES = 4096  # a Ray node with eight devices and their children has over a thousand open
PROCESSES = 4096  # threads count
LOCKED_BYTES = 64 << 20
MEMORY_BYTES = 8 * GIB
FREE_BYTES = 2 * GIB
SWAPPED_BYTES = 2 * GIB


def space(f: Facts) -> Findings:
    yield _memory(f.memory)
    if not f.asked.join:
        yield _writable("store", f.store, "store", "name a folder with --out or FARM_STORE")
        if f.cache.failure or f.cache.free < GIB:
            why = f.cache.failure or f"only {size(f.cache.free)} are free"
            what = f"inputs and references cannot be kept in {f.cache.path} ({why}): each run makes them anew"
            yield warn("cache-unusable", "cache", what, "name another folder with FARM_CACHE")
        else:
            yield ok("cache", f"{f.cache.path}, {size(f.cache.free)} free")
    scratch = _writable("scratch", f.scratch, "scratch", "set RAY_TMPDIR and TMPDIR to a folder with space")
    s = f.scratch
    if scratch.level is Level.OK and s.total and 1 - s.free / s.total > RAY_FULL:
        what = f"{s.path} is {1 - s.free / s.total:.0%} full; Ray stores nothing on a disk over {RAY_FULL:.0%}"
        scratch = warn("scratch-space", "scratch", what, "free space there, or set RAY_TMPDIR to another disk")
    yield scratch
    if len(s.path) > SCRATCH_NAME:
        what = f"{s.path} has {len(s.path)} characters: with more than {SCRATCH_NAME} Ray's sockets get too long a path"
        yield fail("scratch-path", "scratch", what, "set RAY_TMPDIR to a short path, like /tmp")


def _memory(m: Space | None) -> Finding:
    slower = "tensors go through the disk, and so does Ray"
    if m is None:
        return warn("shm-missing", "memory", f"there is no /dev/shm: {slower}", "mount one (docker run --shm-size=4g)")
    if m.failure:
        return warn(
            "shm-unwritable", "memory", f"{m.path} cannot be written ({m.failure}): {slower}", "make it writable"
        )
    if m.free < ROOMY_BYTES:
        what = f"{size(m.free)} are free in {m.path}, less than {size(ROOMY_BYTES)}: {slower}"
        return warn("shm-small", "memory", what, "give it more (docker run --shm-size=4g), or remove what fills it")
    return ok("memory", f"{size(m.free)} free in {m.path}")


def _writable(section: str, s: Space, code: str, cure: str) -> Finding:
    if s.failure:
        return fail(f"{code}-unwritable", section, f"{s.path} cannot be written ({s.failure})", cure)
    if s.free < SCARCE_BYTES:
        return fail(f"{code}-space", section, f"{size(s.free)} are free in {s.path}: a run would end half-way", cure)
    if s.free < GIB:
        return warn(f"{code}-space", section, f"only {size(s.free)} are free in {s.path}", cure)
    return ok(section, f"{s.path} can be written, {size(s.free)} free")


def size(count: int) -> str:
    """Bytes for people: `64 MiB`, `12.5 GiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def limits(f: Facts) -> Findings:
    s, section = f.system, "limits"
    if s.open_files is not None and s.open_files < OPEN_FILES:
        what = f"{s.open_files} open files are allowed (ulimit -n); Ray and eight children use more than a thousand"
        yield warn("limit-open-files", section, what, "ulimit -n 65536, or LimitNOFILE=65536 in the service")
    if s.processes is not None and s.processes < PROCESSES:
        what = f"{s.processes} processes and threads are allowed (ulimit -u); Ray starts hundreds"
        yield warn("limit-processes", section, what, "ulimit -u 32768, or TasksMax= in the service")
    pinning = any(b.name in ("rocm", "ascend") and b.devices for b in f.backends)
    if pinning and s.locked_memory is not None and s.locked_memory < LOCKED_BYTES:
        what = f"{size(s.locked_memory)} may be locked (ulimit -l): drivers that pin host memory may fail"
        yield note("limit-locked-memory", section, what, "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service")
    if s.core_files:
        what = "a process that crashes leaves a core file (ulimit -c): kernels that crash would fill the disk"
        yield note("limit-core-files", section, what, "ulimit -c 0, or LimitCORE=0 in the service")
    if s.memory_limit is not None and s.memory_limit < MEMORY_BYTES:
        what = f"this container or service may use {size(s.memory_limit)}: references and Ray's objects count in it"
        yield warn("memory-limit", section, what, "give it more (docker run --memory, MemoryMax=, --mem of Slurm)")
    elif s.memory_available is not None and s.memory_available < FREE_BYTES:
        what = f"{size(s.memory_available)} of memory are free: Ray ends workers when it runs out"
        yield warn("memory-low", section, what, "end what uses it, or run fewer devices (--devices)")
    if s.swap_used > SWAPPED_BYTES:
        what = f"{size(s.swap_used)} have been swapped out: host times will jump"
        yield note("swap-used", section, what, "end what uses memory, or swapoff -a")
    if s.governor and s.governor != "performance":
        what = f"the cores' governor is {s.governor}: host times vary, device times do not"
        yield note("cpu-governor", section, what, "cpupower frequency-set -g performance")


def name(f: Facts) -> Findings:
    s, section = f.system, "name"
    elsewhere = f.head is not None and not f.head.loopback
    level = Level.WARN if elsewhere else Level.NOTE
    if s.hostname_failure:
        what = f"the host's own name {s.hostname} does not resolve ({s.hostname_failure})"
        yield Finding("hostname-unknown", section, level, what, f"put {s.hostname} with its address into /etc/hosts")
    elif s.addresses and all(a.startswith("127.") or a == "::1" for a in s.addresses):
        what = f"the host's own name {s.hostname} means {', '.join(s.addresses)}: nodes elsewhere cannot go there"
        cure = f"give {s.hostname} its address in the network (/etc/hosts), or say it: farm nodes head --ip ADDRESS, "
        cure += "farm nodes join --ray=--node-ip-address=ADDRESS"
        yield Finding("hostname-loopback", section, level, what, cure)


def clock(f: Facts) -> Findings:
    day = 86400.0
    now = datetime.fromtimestamp(f.now, timezone.utc)
    if f.now + day < f.newest_source:
        newest = datetime.fromtimestamp(f.newest_source, timezone.utc).date().isoformat()
        what = f"the clock says {now.date().isoformat()}, before the farm's own files ({newest}): "
        what += "runs would be listed in a wrong order"
        yield warn("clock-behind", "clock", what, "set the clock (timedatectl set-ntp true)")
    else:
        yield ok("clock", now.isoformat(timespec="seconds"))
    if f.system.clock_synchronised is False:
        what = "nothing keeps this clock right (the kernel says it is not synchronised)"
        level = Level.WARN if f.asked.head else Level.NOTE
        yield Finding("clock-not-synchronised", "clock", level, what, "timedatectl set-ntp true, or start chronyd")
