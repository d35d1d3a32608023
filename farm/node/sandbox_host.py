"""What this host has for a sandbox: bubblewrap, folders, device files, and whether it may make namespaces."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from farm.errors import UsageError
from farm.node import sandbox
from farm.node.environment import Environment
from farm.process import command, host

OLDEST = (0, 8)
TRIAL_SECONDS = 20.0
#: Shows whether namespaces may be made here as a child's sandbox makes them.
_TRIAL = ("--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "--proc", "/proc", "--", "true")
_PATHS = re.compile(r"/[^\s'\"$;&|:=()<>]+")


def program() -> str:
    """The path of bubblewrap; "" if it is not installed."""
    return shutil.which("bwrap") or ""


def version(bwrap: str) -> str:
    """`0.8.0`; "" if it does not say."""
    try:
        found = re.search(r"\d+(\.\d+)+", command.run([bwrap, "--version"], TRIAL_SECONDS).out)
    except OSError:
        return ""
    return found[0] if found else ""


def refusal() -> str:
    """Why no child can be sandboxed on this host; "" where it can.  It continues `no sandbox can be made here: `."""
    bwrap = program()
    if not bwrap:
        return "bubblewrap (bwrap) is not installed; install the package bubblewrap"
    found = version(bwrap)
    if tuple(map(int, found.split(".")[:2] if found else (0, 0))) < OLDEST:
        return f"{bwrap} has version {found or 'unknown'}; install bubblewrap 0.8 or newer"
    try:
        done = command.run([bwrap, *_TRIAL], TRIAL_SECONDS)
    except OSError as error:
        return f"{bwrap} does not start ({error.strerror})"
    if done.code == 0:
        return ""
    said = (done.err.strip().splitlines() or ["no answer"])[-1][:200]
    return f"this host or container forbids user namespaces ({said}); allow them, or use another host"


def unfit(environment: Environment) -> str:
    """Why the children of an environment cannot be sandboxed here; "" where they can."""
    if environment.wrapped:
        return (
            f"environment {environment.name} is wrapped: its command starts a container's client, around which a "
            "sandbox would hide the container's service; name an environment with python"
        )
    return refusal()


def own_path(path: Iterable[str]) -> tuple[str, ...]:
    """Of the supervisor's import path, the interpreter's folders and those of installed packages: the farm comes from
    bundles, and a checkout may hold a store, keys and whatever else lies there."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    kinds = {"site-packages", "dist-packages"}
    return tuple(p for p in path if any(sandbox.within(p, q) for q in prefixes) or kinds & set(Path(p).parts))


def visible(
    environment: Environment, words: Iterable[str], backend: str, read: Iterable[str], write: Iterable[str]
) -> sandbox.Visible:
    """What a child of `environment` that is started by `words` sees: programs and libraries, its interpreter and
    import path, the vendor's stack and devices, `read`, and the folders `write`."""
    links = {p: os.readlink(p) for p in sandbox.SYSTEM if Path(p).is_symlink()}  # noqa: PTH115 - as it is written
    asked = [*sandbox.SYSTEM, *sandbox.ETC, *(p for pattern in sandbox.VENDORS for p in glob.glob(pattern))]  # noqa: PTH207 - absolute
    asked += [p for word in words for p in _prefixes(word)] + list(environment.path)
    told: Mapping[str, str] = {**os.environ, **environment.variables}
    asked += [p for name in sandbox.STACKS for p in told.get(name, "").split(os.pathsep) if p]
    devices = tuple(sorted(p for pattern in sandbox.DEVICES.get(backend, ()) for p in glob.glob(pattern)))  # noqa: PTH207
    asked += sandbox.OF_DRIVERS if devices else sandbox.TOPOLOGY
    found = sandbox.readable((p for p in asked if Path(p).exists()), _protected(), links)
    proc_read, proc_hidden = host.shared_in_proc()
    return sandbox.Visible(
        (*found, *read),
        tuple(write),
        devices,
        links,
        tuple(map(str, proc_read)),
        tuple(str(p) for p in proc_hidden if not p.is_dir()),
        tuple(str(p) for p in proc_hidden if p.is_dir()),
    )


def words(
    environment: Environment,
    told: Sequence[str],
    write: Sequence[str] = (),
    read: Sequence[str] = (),
    backend: str = "cpu",
    cwd: str = sandbox.TMP,
) -> list[str]:
    """The command line that runs a command once in a sandbox that shows the folders `write` and `read`.  UsageError.

    Its variables must go through `sandbox.variables`, and only the farm's own processes set the resource limits there.
    """
    why = unfit(environment)
    if why:
        raise UsageError(f"no sandbox can be made here: {why}", id="run-no-sandbox")
    seen = visible(environment, told, backend, read, write)
    return sandbox.words(program(), seen, limits(environment.sandbox or {}), told, cwd)


def _protected() -> list[str]:
    """Folders that no listed one may be, or contain."""
    from farm.judge.cache import default_root  # on demand: most commands make no sandbox

    fixed = ["/root", "/home", "/etc", "/tmp", "/var", "/run", "/dev", "/mnt", "/media", "/srv"]
    return [*fixed, str(Path.home()), str(default_root()), *(os.environ.get(n, "") for n in ("TMPDIR", "FARM_STORE"))]


def _prefixes(word: str) -> list[str]:
    """The folders of the interpreters that a word of a command names: where it and every link on the way lie, and the
    installation that a virtual environment was made from."""
    found = []
    for name in _PATHS.findall(word):
        path = Path(name)
        if "python" not in path.name or not os.access(path, os.X_OK) or path.is_dir():
            continue
        for _ in range(16):  # links
            prefix = path.parent.parent if path.parent.name == "bin" else path
            found.append(str(prefix))
            found += re.findall(r"^home\s*=\s*(/.+)/bin\s*$", _text(prefix / "pyvenv.cfg"), re.M)
            if not path.is_symlink():
                break
            path = Path(os.path.normpath(path.parent / path.readlink()))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def limits(given: Mapping[str, float]) -> sandbox.Limits:
    """An environment's limits on this host."""
    return sandbox.Limits.of(given, host.memory().get("MemTotal", 8 * sandbox.GIB))
