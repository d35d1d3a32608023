"""A device's child: its command in the node's environment, its orders and answers, its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farm.actor import tools
from farm.child import protocol
from farm.child.preloaded import WAITS
from farm.deadline import Deadline
from farm.errors import FarmSignal
from farm.node.environment import START, Environment, filled
from farm.process import command, procfs
from farm.process.group import describe_exit
from farm.process.line_process import ChildDied, ChildLied, ChildTimedOut, LineProcess

if TYPE_CHECKING:  # both load much that a child can do without while it starts
    from farm.actor.child_messages import Door
    from farm.actor.sandboxed import Sandbox

__all__ = ["Child", "ChildDied", "ChildLied", "ChildTimedOut", "NoChild", "describe_exit", "greeting"]
#: Bytes of a line; a million samples, the most that a matrix may ask for, take some 12 MB.
LONGEST_LINE = 32 << 20
_KEEP_LOG = 16 << 10
_KEEP_OUTPUT = 48 << 10  # bytes of one cell's output
#: How long it may take to leave when it is asked to.
_LEAVE_SECONDS = 3.0
#: Variable by which a child, and whatever it starts, is known.
_MARK = "FARM_CHILD_MARK"
#: How long the command may take that ends what a killed client left behind, and what it says where nothing is left.
END_SECONDS = 20.0
_NOTHING_LEFT = re.compile(r"no such (container|process)|not running|not found|does not exist|no container", re.I)


class NoChild(FarmSignal):
    """No child could be started; `final` says that trying again is pointless, `subject_refused` that the run's subject
    is not what this child would import, which is so on every device like this one and ends the run."""

    def __init__(self, reason: str, final: bool = False, subject_refused: bool = False):
        super().__init__(reason)
        self.final, self.subject_refused = final, subject_refused


class Child(LineProcess):
    """A running child; every wait has a deadline.

    `env`: its whole environment.  `given`: what of that is handed on where a container's client hands on nothing by
    itself.  `spool`: the folder that its files are in.  `under`: the words of the tool that starts it; what that writes
    is at `tool_output`.  `waits`: it only imports what every child imports, and opens its device after `begin`.
    `box`: its sandbox, which ends with it.
    """

    def __init__(
        self,
        backend: str,
        device: str,
        options: Mapping[str, object],
        env: dict[str, str],
        environment: Environment,
        *,
        given: Mapping[str, str] | None = None,
        spool: str = "",
        under: Sequence[str] = (),
        waits: bool = False,
        box: Sandbox | None = None,
    ):
        self._door: Door | None = None  # of the last order
        self._box = box
        self._mark = secrets.token_hex(16)
        self._log_at = 0
        self._behind: tuple[int, ...] = ()
        if box:
            env = box.variables(env)
        self._wrapped, self._env = environment.wrapped or bool(environment.tool) or box is not None, env
        self._leave_s = tools.LEAVE_SECONDS if environment.tool else _LEAVE_SECONDS
        self._name = f"farm-{self._mark[:16]}"
        handed = {**(given or {}), _MARK: self._mark}
        places: dict[str, str | Sequence[str]] = {
            "python": sys.executable,
            "path": env.get("PYTHONPATH", ""),
            "spool": spool,
            "device": device,
            "name": self._name,
            "uid": str(os.getuid()),
            "gid": str(os.getgid()),
            "child": START,
            "env": [word for key, value in handed.items() for word in ("--env", f"{key}={value}")],
        }
        self.tool_output = Path(tools.OUTPUT.format(out=environment.tool_out or spool, name=self._name))
        words = [tools.placed(word, self.tool_output) for word in under] + filled(environment.words(), places)
        self._end = filled(environment.end, places)
        self._ended = not self._end
        last = [self._name] if self._wrapped else []
        words += [WAITS] if waits else [backend, device, json.dumps(dict(options)), *last]
        words = box.words(words) if box else words
        try:
            super().__init__(words, env={**env, _MARK: self._mark}, orders=True, longest=LONGEST_LINE)
        except BaseException:
            if box:
                box.close()
            raise

    def begin(self, order: Mapping[str, object]) -> None:
        """Let one that waits go on, by an order as `farm.child.preloaded` takes it."""
        self.write(json.dumps(order).encode() + b"\n")

    @property
    def device_pid(self) -> int:
        """This host's pid of the process that opens the device: behind a client it is found by its words."""
        if not self._wrapped:
            return self.pid
        found = procfs.find(lambda words: list(words[1:3]) == list(START) and self._name in words)
        self._behind = () if found is None else (found,)
        return self.pid if found is None else found

    @property
    def working_pids(self) -> tuple[int, ...]:
        """As `device_pid` last found them: a search goes through all processes of the host."""
        return (self.pid, *self._behind)

    @property
    def usable(self) -> bool:
        """Whether it lives, and where it writes is still there."""
        return self.alive and (self._box is None or self._box.there)

    def place(self, out_dir: str) -> str:
        """The folder in which it is to write what belongs into `out_dir`."""
        return self._box.place(out_dir) if self._box else out_dir

    def taken(self, reply: protocol.Measured, out_dir: str) -> protocol.Measured:
        """The reply, with its outputs in `out_dir`."""
        return self._box.taken(reply, out_dir) if self._box else reply

    def look(self) -> None:
        super().look()
        too_much = self._box.overfull(self.log_size) if self._box else ""
        if too_much:
            self.kill(grace=0.0)
            raise ChildLied(too_much)

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left: the process that was started has ended, and what stood behind it."""
        return not self.alive and self._ended

    def send(self, message: protocol.Message) -> None:
        """Write one message.  `LineProcess.write` says what it raises.

        Each order has a nonce of its own, which its answers must carry.
        """
        from farm.actor.child_messages import Door

        nonce = secrets.token_hex(16)
        self._door = Door(message, nonce)
        self._log_at, self.suspended = self.log_size, None
        self.write(protocol.encode(message, nonce).encode())

    def receive(self, deadline: Deadline) -> protocol.Message:
        """The next message.  ChildTimedOut, ChildDied or ChildLied say why there is none."""
        from farm.actor.child_messages import Door

        line = self.read(deadline)
        return (self._door or Door()).read(line)

    def _code(self, code: int) -> int:
        """How the child itself ended: a container's client, and a shell, say 128 + N for one that signal N ended."""
        return 128 - code if self._wrapped and 128 < code <= 128 + 64 else code

    def kill(self, grace: float = 3.0) -> bool:
        """End its group, whatever else it started, and what stands behind a client.  False if one of them goes on."""
        if not super().kill(grace):
            return False
        procfs.kill_marked(_MARK, self._mark)
        return self._end_behind()

    def _end_behind(self) -> bool:
        """Run the environment's `end`, once: a container goes on when its client is killed.  False if it went on."""
        if not self._ended:
            try:
                done = command.run(self._end, END_SECONDS, env=self._env)
            except OSError:
                return False
            self._ended = done.code == 0 or (done.code is not None and bool(_NOTHING_LEFT.search(done.out + done.err)))
        return self._ended

    def close(self, grace: float = 1.0) -> None:
        """Ask it to leave, then make it; a second call does nothing."""
        if self.closed:
            return
        with contextlib.suppress(ChildDied, ChildLied, ChildTimedOut):
            self.send(protocol.Exit())
            self.wait(self._leave_s)
        super().close(grace)
        if self._box:
            self._box.close()

    def show_stacks(self, wait_s: float = 0.3) -> None:
        """Have the child print where each of its threads is; it ends up in the log.  Works inside native code too; a
        client would take the signal for its own and end, so it gets none."""
        pid = self.device_pid
        if self._wrapped and pid == self.pid:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
            time.sleep(wait_s)

    def log_tail(self, *, since_order: bool = False) -> str:
        """The end of what the child and everything in it printed, or of what it printed since the last order: what an
        earlier cell printed says nothing of this one."""
        return self.log(_KEEP_LOG, self._log_at if since_order else 0)

    def printed_since_order(self) -> str:
        """All of what was printed since the last order, within bounds that it names."""
        return self.printed(_KEEP_OUTPUT, self._log_at)


def greeting(child: Child, spawn_s: float) -> protocol.Ready:
    """What a new child says once its device is open.  NoChild if it does not within `spawn_s` seconds, or cannot."""
    try:
        message = child.receive(Deadline(spawn_s))
    except ChildTimedOut:
        log = child.log_tail()
        child.kill()
        raise NoChild(f"the child was not ready within {spawn_s:g} s{_last_line(log)}") from None
    except ChildDied as error:
        log = child.log_tail()
        raise NoChild(f"the child ended before it was ready ({error}){_last_line(log)}") from None
    except ChildLied as error:
        child.kill()
        raise NoChild(f"the child {error}") from None
    if isinstance(message, protocol.Unusable):
        child.kill(grace=0.5)
        raise NoChild(message.reason, final=True)
    if not isinstance(message, protocol.Ready) or message.protocol != protocol.VERSION:
        child.kill()
        raise NoChild(f"the child does not use protocol version {protocol.VERSION}", final=True)
    return message


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return f"; last output: {lines[-1].strip()[:300]}" if lines else ""
