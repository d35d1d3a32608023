"""What an actor reports of an attempt: that it began, its phases, its end, and where and of whose code it ran."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from farm import limits, providers
from farm.actor import sanitizer
from farm.actor.child_manager import ChildManager
from farm.actor.device_setup import DeviceSetup
from farm.actor.event_buffer import EventBuffer
from farm.actor.spent import Spent
from farm.child import protocol
from farm.store import spool


class AttemptReports:
    """Of one device's attempts.  An attempt is as `DeviceActor.submit` takes it; here it gets "heard": what its cell
    has printed."""

    def __init__(self, said: EventBuffer, placed: DeviceSetup, children: ChildManager, spent: Spent, node: str):
        self._said, self._placed, self._children, self._spent, self._node = said, placed, children, spent, node
        spool.claim(placed.config["spool"])
        self._claimed = 0  # the inode of that folder

    def show(self, attempt: dict[str, Any], phase: str, seconds: float | None = None) -> None:
        """Report that the attempt enters a phase, which takes its limit or `seconds` at most: who shows nothing for
        longer is taken to be stuck."""
        if "id" in attempt:  # a probe, which has its own deadline
            return
        up_to_s = attempt["deadlines"][phase] if seconds is None else seconds
        self._said.progress(attempt["cell"]["index"], attempt["number"], phase, up_to_s)

    def show_start(self, attempt: dict[str, Any]) -> None:
        self.show(attempt, "spawn", limits.start(attempt["deadlines"]))

    def report(self, attempt: dict[str, Any], kind: str, **fields: Any) -> None:
        """An event of an attempt.  Of a probe only the end is reported, and as such."""
        if "id" not in attempt:
            if kind in ("measured", "ended"):  # by this thread; others report what was judged
                fields["spent"] = self._spent.told()
            self._said.add(kind, cell=attempt["cell"]["index"], attempt=attempt["number"], **fields)
        elif kind in ("judged", "ended"):
            names = ("status", "owner", "reason", "log", "judged_by")
            said = {name: fields[name] for name in names if name in fields}
            self._said.add("probe", probe=attempt["id"], cell_id=attempt["cell"]["cell_id"], **said)

    def hear(self, attempt: dict[str, Any]) -> None:
        """Keep what the cell has printed in the order that now ends: its child may go, or be asked again."""
        said = self._children.printed()
        if said:
            attempt.setdefault("heard", []).append(said)

    def heard(self, attempt: dict[str, Any]) -> str:
        """All that the cell has printed, in earlier orders and in the one that has not ended."""
        return "\n".join(part for part in (*attempt.get("heard", ()), self._children.printed()) if part)

    def end(self, attempt: dict[str, Any], status: str, owner: str, reason: str, *, log: str = "") -> None:
        """Report the attempt's end.  What ends for a fault of the kernel's is asked about first: whether the run's
        folder was there meanwhile, and what the tool saw that the child ran under."""
        if owner == "kernel" and attempt.get("spool") != self.spool_inode():
            text = f"the run's spool folder {self._placed.config['spool']} was deleted during the attempt ({reason})"
            status, owner, reason = "infra_error", "infra", text
        tool = self._placed.tool
        if owner == "kernel" and tool and not tool.profiles:
            self._children.let_go()
            found, _ = sanitizer.read(self._children.tool_output, tool.program)
            if found:
                status, reason = "crashed", self._placed.as_written(sanitizer.reason(found, tool.name))
                log = "\n".join((self._placed.as_written(sanitizer.listed(found)), log))
        self.report(attempt, "ended", status=status, owner=owner, reason=reason, log=log, origin=self.origin(attempt))

    def seen_by_tool(self, attempt: dict[str, Any]) -> bool:
        """End the child in order, and the attempt if the tool that it ran under found something in a cell that by
        itself was none."""
        tool = self._placed.tool
        self._children.let_go()
        if tool is None or tool.profiles:
            return False
        found, why = sanitizer.read(self._children.tool_output, tool.program)
        if why:
            self.end(attempt, "infra_error", "infra", why)
        elif found:
            self.end(attempt, "crashed", "kernel", "", log="\n".join(attempt.get("heard", ())))
        return bool(found or why)

    def origin(self, attempt: dict[str, Any]) -> dict[str, Any]:
        """Where the attempt runs, whose code it is, when it began and how long it has taken (seconds)."""
        ready, now = self._children.ready, time.monotonic()
        return {
            "target": ready.target if ready else None,
            "device": ready.device if ready else self._placed.config["device"],
            "node": self._node,
            "fingerprint": ready.fingerprint if ready else {},
            "evidence": ready.evidence if ready else "",
            "revision": self._placed.revision,
            **self._provenance(attempt, ready),
            "started": round(attempt.get("started", time.time()), 3),
            "seconds": round(now - attempt.get("begun", now), 4),  # whatever becomes of the clock meanwhile
        }

    def _provenance(self, attempt: dict[str, Any], ready: protocol.Ready | None) -> dict[str, str]:
        """Whose code the cell ran: the version of its provider, and the subject that it is of."""
        own = attempt["call"].get("provider", {}) if "call" in attempt else {}
        subject = self._placed.subject
        if own.get("subject") and subject:
            return {
                "provider_version": subject["revision"] or subject["digest"],
                "subject": subject["name"],
                "subject_revision": subject["revision"],
                "subject_digest": subject["digest"],
            }
        cell = attempt["cell"]
        if own.get("path") or not ready:
            return {"provider_version": ""}
        return {
            "provider_version": ready.versions.get(cell["provider"], ""),
            "provider_settings": providers.settings(cell["provider"], cell["mode"]),
        }

    def spool_inode(self) -> int:
        """The inode of the run's folder, which is made anew if somebody has deleted it."""
        folder = self._placed.config["spool"]
        with contextlib.suppress(OSError):
            if Path(folder).stat().st_ino == self._claimed:
                return self._claimed
        spool.claim(folder)
        self._claimed = Path(folder).stat().st_ino
        return self._claimed
