"""Providers of rms_norm that try to leave the sandbox.  Each gives the right answer where it could not, and says what
it reached where it could.  The children import this file as a module of a user's; no test may import it.

The same run without a sandbox shows that they are real, so each must be harmless where it succeeds: it creates files in
the test's own folders and in the run's own spool alone; everything else it only opens, and writes nothing to it.
"""
# ruff: noqa: PTH108, PTH112, PTH113, PTH114, PTH116, PTH207, PTH211

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import socket
import subprocess

import torch

FACTS = {}  # what the test knows of the host; it writes its own in here
LIBC = ctypes.CDLL(None, use_errno=True)


def right(x, weight, eps):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


honest = right
_ESCAPES = {}


def escape(act):
    """A provider that tries `act`, which returns what it reached."""

    def provider(x, weight, eps):
        reached = None
        with contextlib.suppress(OSError, MemoryError):
            reached = act(x, weight, eps)
        if reached:
            raise RuntimeError(f"escaped: {reached!r}"[:300])
        return right(x, weight, eps)

    _ESCAPES[act.__name__] = provider
    return provider


def read(path):
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(1 << 20)
    return b""


def wrote(path):
    with contextlib.suppress(OSError):
        with open(path, "w") as file:
            file.write("x")
        return str(path)
    return None


def files(*folders):
    return [f"{at}/{name}" for top in folders for at, _, names in os.walk(top) for name in names]


def is_file(path):
    return os.path.isfile(path) and (path.startswith("/proc") or not os.path.islink(path))


def may_open_to_write(*paths):
    """Which of these files it could change."""
    reached = []
    for path in paths:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            reached.append(path)
    return reached


def spools():
    """Of this run alone; the test has laid out one, as another device's would be."""
    return [p for base in ("/dev/shm", "/tmp") for p in glob.glob(f"{base}/farm-*{FACTS['run']}*")]


def in_spools():
    """Their files, but those of the code."""
    return [p for p in files(*spools()) if "/bundles/" not in p and "/providers/" not in p]


def processes():
    """Of this run, and the test's own."""
    marks = (FACTS["run"].encode(), FACTS["seconds"].encode())
    return [p for p in glob.glob("/proc/[0-9]*") if any(mark in read(f"{p}/cmdline") for mark in marks)]


# to read


@escape
def reads_the_reference(x, weight, eps):
    """In a file with a name, or one that another process has open or mapped."""
    wanted = right(x, weight, eps).contiguous().numpy().tobytes()
    more = [p for of in processes() for p in glob.glob(f"{of}/fd/*") + glob.glob(f"{of}/map_files/*")]
    return [p for p in [*in_spools(), *files(FACTS["cache"]), *more] if is_file(p) and read(p) == wanted]


@escape
def reads_the_judges_memory(x, weight, eps):
    return [p for p in processes() if open(f"{p}/mem", "rb", buffering=0)]


@escape
def reads_another_cells_outputs(x, weight, eps):
    return [p for p in in_spools() if ("/child-" in p or "/out-" in p) and p.endswith(".bin")]


@escape
def reads_the_token(x, weight, eps):
    return read(FACTS["token"])


@escape
def reads_variables_of_the_host(x, weight, eps):
    return [p for p in processes() if FACTS["canary"].encode() in read(f"{p}/environ")]


@escape
def reads_the_home_folder(x, weight, eps):
    return [p for home in (FACTS["home"], "/root", "/home") for p in glob.glob(f"{home}/*") if os.path.isfile(p)]


@escape
def reads_etc_shadow(x, weight, eps):
    return [p for p in ("/etc/shadow", "/etc/passwd", "/etc/hosts") if read(p)]


@escape
def reads_the_store(x, weight, eps):
    return files(FACTS["store"])


# to write


@escape
def writes_to_the_store(x, weight, eps):
    return wrote(f"{FACTS['store']}/escaped")


@escape
def writes_to_the_home_folder(x, weight, eps):
    return wrote(f"{FACTS['home']}/escaped")


@escape
def writes_to_the_code(x, weight, eps):
    import farm

    return may_open_to_write(farm.__file__, torch.__file__, os.__file__, "/usr/bin/env")


@escape
def writes_to_another_attempts_folder(x, weight, eps):
    """In a sandbox the folders above its own are there, but on a file system of its own."""
    changed = may_open_to_write(*(p for p in in_spools() if "/inputs/" in p))
    return [p for p in spools() if wrote(f"{p}/out-escaped") and os.stat(p).st_dev in FACTS["devices"]] + changed


@escape
def writes_to_another_subjects_triton_cache(x, weight, eps):
    return wrote(f"{FACTS['triton']}/escaped") or os.environ.get("TRITON_CACHE_DIR") == FACTS["triton"]


@escape
def writes_to_the_kernels_settings(x, weight, eps):
    return may_open_to_write(
        "/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu/cpu1/online"
    )


# the network


@escape
def connects_to_a_server(x, weight, eps):
    with socket.create_connection(("127.0.0.1", FACTS["tcp"]), timeout=2):
        return "connected"


@escape
def asks_a_name_server(x, weight, eps):
    """The test has one, which hears nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1", ("127.0.0.1", FACTS["udp"]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect(("192.0.2.1", 53))  # needs a route
        return udp.getsockname()


@escape
def connects_to_abstract_sockets(x, weight, eps):
    with socket.socket(socket.AF_UNIX) as unix:
        unix.connect("\0" + FACTS["abstract"])
        return "connected"


@escape
def connects_to_sockets_with_names(x, weight, eps):
    with socket.socket(socket.AF_UNIX) as unix:
        unix.connect(FACTS["unix"])
        return "connected"


# resources


@escape
def forks_without_end(x, weight, eps):
    """Nearly: up to 200 processes, which it ends."""
    started = []
    try:
        for _ in range(200):
            started.append(subprocess.Popen(["/bin/sleep", "60"]))
    except OSError:
        return None
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.wait()
    return len(started)


@escape
def takes_all_memory(x, weight, eps):
    """Without touching it."""
    import mmap

    with contextlib.closing(mmap.mmap(-1, 16 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)) as much:
        return len(much)


@escape
def fills_the_folder_for_temporary_files(x, weight, eps):
    return _filled("/tmp") or _filled("/dev/shm")


def _filled(folder):
    names = [f"{folder}/escaped-{FACTS['run']}-{i}" for i in range(8)]
    try:
        for name in names:
            with open(name, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 16 << 20)
        return folder
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EFBIG), error
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)


@escape
def writes_an_endless_file(x, weight, eps):
    folder = next((p for top in spools() for p in glob.glob(f"{top}/child-*/out-*")), FACTS["folder"])
    try:
        with open(f"{folder}/much", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 1200 << 20)
        return folder
    finally:
        os.unlink(f"{folder}/much")


# other processes


@escape
def yields_a_process_that_goes_on(x, weight, eps):
    """Nobody's child, in a session of its own, and without the variable by which the farm knows its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", FACTS["seconds"]], {})
        os._exit(0)
    os.wait()


@escape
def signals_another_process(x, weight, eps):
    os.kill(FACTS["victim"], 0)
    return FACTS["seconds"].encode() in read(f"/proc/{FACTS['victim']}/cmdline")


@escape
def traces_another_process(x, weight, eps):
    seen = FACTS["seconds"].encode() in read(f"/proc/{FACTS['victim']}/cmdline")
    return seen and LIBC.ptrace(0x4206, FACTS["victim"], None, None) == 0  # PTRACE_SEIZE


@escape
def mounts(x, weight, eps):
    """The root is made writable only where it is not the host's."""
    place = FACTS["home"] if os.path.isdir(FACTS["home"]) else "/tmp/home"
    mounted = LIBC.mount(b"tmpfs", place.encode(), b"tmpfs", 0, None) == 0
    if mounted:
        LIBC.umount2(place.encode(), 0)
    if os.stat("/").st_dev != FACTS["root"]:
        return mounted or LIBC.mount(None, b"/", None, 0x1020, None) == 0  # MS_REMOUNT, MS_BIND
    return mounted


@escape
def makes_a_namespace_of_its_own(x, weight, eps):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if LIBC.unshare(0x10020000) == 0 else 1)  # CLONE_NEWUSER, CLONE_NEWNS
    return os.waitpid(pid, 0)[1] == 0


@escape
def becomes_another_user(x, weight, eps):
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setuid(1)
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def links_its_outputs_elsewhere(x, weight, eps):
    """What the farm writes, and what the judge reads, are to be somebody's file.  It costs the cell."""
    for folder in [p for top in spools() for p in glob.glob(f"{top}/child-*/out-*") + glob.glob(f"{top}/out-*")]:
        for name in ("y", "output", "out"):
            with contextlib.suppress(OSError):
                os.symlink(FACTS["outside"], f"{folder}/out-{name}.bin")
    return right(x, weight, eps)


globals().update(_ESCAPES)
