"""Starts a child, talks to it, and ends it: the one place that knows about processes and pipes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from farm.actor.environment import START, Environment, check_template, child_variables, filled, given_variables
from farm.child import protocol
from farm.deadline import Deadline

__all__ = [
    "Child", "ChildDied", "ChildLied", "ChildTimedOut", "Environment", "NoChild", "check_template", "child_variables",
    "describe_exit", "end_marked", "given_variables", "greeting", "keep_exit_codes",
]  # fmt: skip
_KEEP_LOG = 16 << 10
_LONGEST_LINE = 64 << 20
#: How often a wait for the child's words also looks whether it is alive: a process that it forked may hold its pipe.
_LOOK_SECONDS = 0.25
#: Variable by which a child, and whatever it starts, is known.
_MARK = "FARM_CHILD_MARK"
#: How long the command may take that ends what a killed client left behind, and what it says where nothing is left.
END_SECONDS = 20.0
_NOTHING_LEFT = re.compile(r"no such (container|process)|not running|not found|does not exist|no container", re.I)


class ChildDied(Exception):
    """The child ended by itself.  `code`: exit code, or minus the signal's number."""

    def __init__(self, code: int):
        self.code = code
        super().__init__(describe_exit(code))


class ChildTimedOut(Exception):
    """The child said nothing within the phase's deadline."""


class ChildLied(Exception):
    """The child wrote something that is no protocol line, or closed the pipe."""


class NoChild(Exception):
    """No child could be started; `final` says that trying again is pointless."""

    def __init__(self, reason: str, final: bool = False):
        super().__init__(reason)
        self.final = final


def describe_exit(code: int) -> str:
    """An exit code in words: `exit code 3`, `signal 11 (SIGSEGV)`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def keep_exit_codes() -> None:
    """Let this process see how its children end.

    A Ray worker whose cluster reaps orphans ignores SIGCHLD, set behind Python's back: then the kernel throws every
    exit code away and `Popen` makes 0 of it.  `signal.signal` is for main threads only, hence the C library's.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    before = libc.signal(signal.SIGCHLD, 0)
    if before not in (None, 0, 1):  # neither the default nor ignored: somebody's handler
        libc.signal(signal.SIGCHLD, before)


def end_marked(mark: str) -> None:
    """SIGKILL to every process of this user whose environment at its start held `mark`: what a child started carries it
    too, whatever session and group it went to and whoever is its parent now."""
    needle = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def _process_of(name: str) -> int | None:
    """The process that was started by the words of a child with `name` among them; None where it cannot be seen."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                if words[1:3] == list(START) and name in words:
                    return int(entry.name)
    return None


class Child:
    """A running child in its own session and process group; every wait has a deadline.

    `env`: its whole environment.  `given`: what of that is handed on where a container's client hands on nothing by
    itself.  `spool`: the folder that its files are in.
    """

    def __init__(
        self, backend: str, device: str, options: Mapping[str, object], env: dict[str, str], environment: Environment,
        *, given: Mapping[str, str] | None = None, spool: str = "",
    ):  # fmt: skip
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._buffer = b""
        self._nonce = ""
        self._mark = secrets.token_hex(16)
        self._log_at = 0
        self._wrapped, self._env = environment.wrapped, env
        self._name = f"farm-{self._mark[:16]}"
        handed = {**(given or {}), _MARK: self._mark}
        places: dict[str, str | Sequence[str]] = {
            "python": sys.executable, "path": env.get("PYTHONPATH", ""), "spool": spool, "device": device,
            "name": self._name, "uid": str(os.getuid()), "gid": str(os.getgid()), "child": START,
            "env": [word for key, value in handed.items() for word in ("--env", f"{key}={value}")],
        }  # fmt: skip
        command = filled(environment.words(), places)
        self._end = filled(environment.end, places)
        self._ended = not self._end
        keep_exit_codes()
        self.process = subprocess.Popen(
            [*command, backend, device, json.dumps(dict(options)), *([self._name] if self._wrapped else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**env, _MARK: self._mark},
            start_new_session=True,
            bufsize=0,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def device_pid(self) -> int:
        """This host's pid of the process that opens the device: behind a client it is found by its words."""
        found = _process_of(self._name) if self._wrapped else None
        return self.process.pid if found is None else found

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left: the process that was started has ended, and what stood behind it."""
        return not self.alive and self._ended

    def send(self, message: protocol.Message) -> None:
        """Write one message.  ChildDied or ChildLied if nobody is there to read it.

        Each order has a nonce of its own, which its answers must carry.
        """
        assert self.process.stdin is not None
        self._nonce = secrets.token_hex(16)
        self._log_at = os.fstat(self._log.fileno()).st_size
        try:
            self.process.stdin.write(protocol.encode(message, self._nonce).encode())
            self.process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise self._silent() from None

    def receive(self, deadline: Deadline) -> protocol.Message:
        """The next message.  ChildTimedOut, ChildDied or ChildLied say why there is none."""
        while b"\n" not in self._buffer:
            alive = self.alive  # asked before the pipe is: what a dead child said has been read when that is empty
            if not self._selector.select(min(deadline.remaining, _LOOK_SECONDS)):
                if not alive:
                    raise ChildDied(self._code(self.process.returncode))
                if deadline.expired:
                    raise ChildTimedOut
                continue
            assert self.process.stdout is not None
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise self._silent()
            self._buffer += chunk
            if len(self._buffer) > _LONGEST_LINE:
                raise ChildLied(f"wrote a line of more than {_LONGEST_LINE >> 20} MiB on the farm's private pipe")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message, nonce = protocol.decode_stamped(line)
        except ValueError as error:
            raise ChildLied(f"wrote on the farm's private pipe what is {error}") from None
        if nonce != self._nonce:
            raise ChildLied(f"wrote on the farm's private pipe a message that answers nothing: {line[:200]!r}")
        return message

    @property
    def has_spoken(self) -> bool:
        """Whether something waits to be read: between two orders the code under test may have written it, never the
        child."""
        return bool(self._buffer) or bool(self._selector.select(0))

    def _code(self, code: int) -> int:
        """How the child itself ended: a container's client, and a shell, say 128 + N for one that signal N ended."""
        return 128 - code if self._wrapped and 128 < code <= 128 + 64 else code

    def _silent(self) -> ChildDied | ChildLied:
        """Why the child's pipe is closed; a child that goes on without one is killed."""
        try:
            return ChildDied(self._code(self.process.wait(timeout=5)))
        except subprocess.TimeoutExpired:
            self.kill(grace=0)
            return ChildLied("closed the farm's private pipe and went on without it")

    def kill(self, grace: float = 3.0) -> bool:
        """SIGTERM, then SIGKILL to the whole group; False if even that did not end it (a device fault)."""
        for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            if wait <= 0:
                continue
            self._signal_group(number)
            deadline = Deadline(wait)
            while not deadline.expired:
                if self.process.poll() is not None:
                    self._signal_group(signal.SIGKILL)  # what it started may outlive it
                    end_marked(self._mark)
                    return self._end_behind()
                time.sleep(0.01)
        return self.process.poll() is not None and self._end_behind()

    def _end_behind(self) -> bool:
        """Run the environment's `end`, once: a container goes on when its client is killed.  False if it went on."""
        if self._ended:
            return True
        try:
            done = subprocess.run(
                self._end, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=END_SECONDS, check=False, start_new_session=True,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        self._ended = done.returncode == 0 or bool(_NOTHING_LEFT.search(done.stdout.decode("utf-8", "replace")))
        return self._ended

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def close(self) -> None:
        """Ask it to leave, then make it; a second call does nothing."""
        if self._log.closed:
            return
        try:
            self.send(protocol.Exit())
            self.process.wait(timeout=3)
        except (ChildDied, ChildLied, subprocess.TimeoutExpired):
            pass
        self.kill(grace=1.0)
        self._selector.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self._log.close()

    def show_stacks(self, wait_s: float = 0.3) -> None:
        """Have the child print where each of its threads is; it ends up in the log.  Works inside native code too; a
        client would take the signal for its own and end, so it gets none."""
        pid = self.device_pid
        if self._wrapped and pid == self.process.pid:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
            time.sleep(wait_s)

    def log_tail(self, *, since_order: bool = False) -> str:
        """The end of what the child and everything in it printed, or of what it printed since the last order: what an
        earlier cell printed says nothing of this one."""
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size  # never a seek: the child writes at the place that both share
        begin = max(self._log_at if since_order else 0, size - _KEEP_LOG)
        return os.pread(self._log.fileno(), size - begin, begin).decode("utf-8", "replace")


def greeting(child: Child, spawn_s: float) -> protocol.Ready:
    """What a new child says once its device is open.  NoChild if it does not within `spawn_s` seconds, or cannot."""
    try:
        message = child.receive(Deadline(spawn_s))
    except ChildTimedOut:
        log = child.log_tail()
        child.kill()
        raise NoChild(f"its child was not ready within {spawn_s:g} s{_last_line(log)}") from None
    except ChildDied as error:
        log = child.log_tail()
        raise NoChild(f"its child ended before it was ready ({error}){_last_line(log)}") from None
    except ChildLied as error:
        child.kill()
        raise NoChild(f"its child {error}") from None
    if isinstance(message, protocol.Unusable):
        child.kill(grace=0.5)
        raise NoChild(message.reason, final=True)
    if not isinstance(message, protocol.Ready) or message.protocol != protocol.VERSION:
        child.kill()
        raise NoChild(f"its child speaks another protocol than version {protocol.VERSION}", final=True)
    return message


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return f"; its last words: {lines[-1].strip()[:300]}" if lines else ""
