"""The sandbox around a child that runs strangers' code: a command line for bubblewrap, from what the host has.

Own user, process, network, IPC, host name and mount namespaces; a root that is made of what is listed and of nothing
else; no capability, and no way to a namespace in which it would have one; limits.  Pure: `farm.node.sandbox_host` looks
at the host, `farm.actor.sandboxed` makes and removes what belongs to one child.  docs/trust.md says what it is not.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GIB = 1 << 30
#: Keys of an environment's `sandbox`: limits of one child and of all that it starts.
KEYS = ("memory_gib", "processes", "files_gib", "tmp_gib")
PROCESSES, FILES_GIB, OPEN_FILES = 4096, 16.0, 4096
MEMORY_SHARE, TMP_SHARE, TMP_GIB = 0.8, 1 / 8, 4.0
#: Addresses for programs, libraries and threads' stacks beside the memory that they take.
LIBRARIES = 16 << 30
#: The own folder for temporary files, and the home folder in it.
TMP, HOME = "/tmp", "/tmp/home"
#: Of the host's root: programs and libraries, and what the loader and the vendors read of /etc.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/OpenCL", "/etc/ascend_install.info"),
)
#: Where vendors install what is not under /usr; patterns.
VENDORS = ("/opt/rocm*", "/opt/amdgpu*", "/opt/nvidia*", "/opt/Ascend*")
#: Variables that name folders of a vendor's stack.
STACKS = (
    *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "ROCM_PATH", "ROCM_HOME", "HIP_PATH", "HSA_PATH", "TOOLCHAIN_HOME"),
    *("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH", "LD_LIBRARY_PATH"),
)
#: Backend -> patterns of its device files.  The driver behind them is the host's.
DEVICES = {
    "cuda": ("/dev/nvidia*",),
    "rocm": ("/dev/kfd", "/dev/dri"),
    "ascend": ("/dev/davinci*", "/dev/devmm_svm", "/dev/hisi_hdc"),
}
#: Of /sys: the processor's topology; for a driver's library the rest of it.
TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")
OF_DRIVERS = ("/sys/devices", "/sys/class", "/sys/bus", "/sys/dev", "/sys/module")
#: The host's variables that would name a folder that is not there, or that it shall not share.
NOT_PASSED = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"),
    *("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR", "TORCH_HOME", "CUDA_CACHE_PATH"),
    *("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
    *("ASCEND_CACHE_PATH", "ASCEND_WORK_PATH", "ASCEND_PROCESS_LOG_PATH"),
)
#: Resource limits that the child sets for itself before it loads anything: JSON (farm.child.confinement).
LIMITS = "FARM_LIMITS"


@dataclass(frozen=True)
class Limits:
    """Bytes, and numbers of processes (threads count) and open files."""

    memory: int
    processes: int
    files: int  # of the attempt's folder and the log, and of each file
    tmp: int  # of /tmp, and as many of /dev/shm
    open_files: int = OPEN_FILES

    @classmethod
    def of(cls, given: Mapping[str, float], host_memory: int) -> Limits:
        """An environment's, on a host with so many bytes of memory."""
        return cls(
            int(given.get("memory_gib", MEMORY_SHARE * host_memory / GIB) * GIB),
            int(given.get("processes", PROCESSES)),
            int(given.get("files_gib", FILES_GIB) * GIB),
            int(given.get("tmp_gib", min(TMP_GIB, TMP_SHARE * host_memory / GIB)) * GIB),
        )

    def resources(self, *, grouped: bool, addresses: bool = False) -> dict[str, int]:
        """Names of `resource.RLIMIT_*` -> values; `grouped`: a control group counts the processes.

        DATA and not AS: a GPU's driver reserves hundreds of GiB of addresses.  `addresses`: AS too, which also counts
        memory that processes share; for hosts without a device and without a control group for memory.  CORE 1 and not
        0: Linux runs a program that takes core files for every limit but 1.
        """
        own = {"DATA": self.memory, "FSIZE": self.files, "NOFILE": self.open_files, "CORE": 1}
        if addresses:
            own["AS"] = self.memory + LIBRARIES
        return own if grouped else {**own, "NPROC": self.processes}


@dataclass(frozen=True)
class Visible:
    """What a child sees of the host, beside an empty root: absolute paths, each at the same place."""

    read: tuple[str, ...]
    write: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    links: Mapping[str, str] | None = None  # place -> what the link says
    proc_read: tuple[str, ...] = ()
    proc_files_hidden: tuple[str, ...] = ()
    proc_folders_hidden: tuple[str, ...] = ()


def required(from_fork: bool, told_without: bool = False) -> bool:
    """Whether a pull request's code may run in a sandbox only."""
    return from_fork and not told_without


def words(bwrap: str, visible: Visible, limits: Limits, command: Sequence[str], cwd: str = TMP) -> list[str]:
    """The command line that runs `command` in a sandbox, in the folder `cwd`.  The process group that it is started in
    is in a session of its own already."""
    out = [bwrap, "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    out += ["--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--cap-drop", "ALL"]
    out += ["--proc", "/proc"]
    for place in visible.proc_read:
        out += ["--ro-bind", place, place]
    for place in visible.proc_files_hidden:
        out += ["--ro-bind", "/dev/null", place]
    for place in visible.proc_folders_hidden:
        out += ["--tmpfs", place, "--remount-ro", place]
    out += ["--dev", "/dev"]
    for place in ("/dev/shm", TMP):
        out += ["--perms", "1777", "--size", str(limits.tmp), "--tmpfs", place]
    out += ["--dir", HOME]
    for place, target in sorted((visible.links or {}).items()):
        out += ["--symlink", target, place]
    binds = {**dict.fromkeys(visible.read, "--ro-bind"), **dict.fromkeys(visible.write, "--bind")}
    binds.update(dict.fromkeys(visible.devices, "--dev-bind"))
    for place, how in sorted(binds.items()):  # what lies in another after it
        out += [how, place, place]
    return [*out, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd, "--", *command]


def readable(asked: Iterable[str], protected: Iterable[str], links: Iterable[str]) -> tuple[str, ...]:
    """Of the paths that are asked for, those that may be seen: none that is or contains a protected one, none that is
    in another of them or behind a link of the root."""
    guarded = [posixpath.normpath(p) for p in protected if p]
    found = sorted({posixpath.normpath(p) for p in asked if p.startswith("/")} - {"/", "//"})
    found = [p for p in found if not any(within(g, p) for g in guarded)]
    kept: list[str] = []
    for path in found:
        if not any(within(path, other) for other in (*kept, *links)):
            kept.append(path)
    return tuple(kept)


def within(path: str, folder: str) -> bool:
    """Whether a normalised path is `folder` or in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def variables(given: Mapping[str, str], limits: Limits, *, grouped: bool) -> dict[str, str]:
    """The child's variables: `given` without those that lead out, and the sandbox's own."""
    kept = {k: v for k, v in given.items() if k not in NOT_PASSED and not k.startswith("FARM_")}
    own = {"HOME": HOME, "TMPDIR": TMP, "USER": "sandbox", "LOGNAME": "sandbox", "FARM_WRAPPED": "1"}
    return {**kept, **own, LIMITS: json.dumps(limits.resources(grouped=grouped))}


def told(version: str, *, memory_by: str, processes_by: str) -> str:
    """What a row's fingerprint says of the sandbox."""
    return f"bubblewrap {version}; memory limited by {memory_by}, processes by {processes_by}"
