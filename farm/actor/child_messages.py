"""The one door for what a child says: each line is decoded and checked here, against the order that it answers.

A child runs code under test, so a line may hold anything.  What passes is a message of a kind that the order expects,
with its nonce (which stands for the cell: no two orders have one), revision, round and attempt; with fields of the
right types and within bounds; a status that a child may give; and outputs that are the plan's, in files of the
attempt's own folder.  All else is ChildLied, and no other exception leaves this module.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from farm.accuracy import dtypes
from farm.actor.capture.fallback import CAPTURING
from farm.cell import DTYPES, METHODS, Evidence, Owner
from farm.child import protocol
from farm.field_checks import (
    BadField,
    Check,
    integer,
    listed,
    mapped,
    number,
    one_of,
    optional,
    plain,
    record,
    refuse,
    switch,
    text,
    verify,
)
from farm.process.line_process import ChildLied

#: Values of a line, besides the samples that its cell may have: this bounds the memory that reading it takes.
MOST_VALUES = 200_000
#: Phases that one order may go through; each begins a deadline.
MOST_PHASES = 16
#: Samples beyond the policy's that are no lie.
SPARE_SAMPLES = 1000
MOST_STEPS = 10_000  # that a calibration may tell of

_SHORT, _LONG = text(1000), text(1 << 16)
_SECONDS = number()  # below 0 by a patched clock, which is a finding of its own
TARGET = record(
    {"backend": _SHORT, "model": _SHORT}, {"partition": _SHORT, "power_limit_w": optional(integer()), "clocks": _SHORT}
)
FINGERPRINT = mapped(plain())
EVIDENCE = one_of(*(e.value for e in Evidence))
#: What a child proved of its subject's files; {} where the run has none.
SUBJECT = record({}, {"digest": _SHORT, "modules": mapped(text()), "missing": _LONG, "wrong": _LONG})
_MADE = one_of(*(name for name in DTYPES if name not in dtypes.PACKED))
_OUTPUT = record({"name": _SHORT, "path": text(), "dtype": _MADE, "shape": listed(integer(), 32)})
_OUTPUTS = listed(_OUTPUT, 100)
_FACTS = {"flags": listed(text(1 << 14))}
_MORE_FACTS = {
    "mode_resolved": _SHORT,
    "launch": record(
        {"kernels": listed(plain(), 10_000)},
        {
            "seen": mapped(integer(), 10_000),
            "variants": listed(plain(4, 1000), 1000),
            "code": record({"digest": _SHORT, "launches": integer()}),
            "built": record({name: integer() for name in ("compiled", "loaded", "ahead")}),
        },
    ),
    "built": record({"compiled": integer(), "loaded": integer(), "hashes": listed(text(64), 2000)}),
    "phases_s": mapped(number()),
    **dict.fromkeys(("compile_s", "tuning_s", "check_s"), optional(_SECONDS)),
    **dict.fromkeys(("peak_memory_mib", "peak_memory_live_mib"), optional(number(0))),
    **dict.fromkeys(("bytes_counted", "bytes_requested"), integer()),
}
_TIMING = {"method": one_of(*METHODS), "samples_us": listed(number(), 2_000_000)}
_MORE_TIMING = {
    "host_us": listed(number(), 2_000_000),
    **dict.fromkeys(("version", "sets"), integer()),
    "launches": integer(1),
    **dict.fromkeys(("cold", "profiled"), switch),
    **dict.fromkeys(("floor_us", "outside_us", "kernels_per_call"), optional(number())),
    "timed_outputs": _OUTPUTS,
}
FACTS, TIMING = record(_FACTS, _MORE_FACTS), record(_TIMING, _MORE_TIMING)
_OTHERS = listed(record({"where": _SHORT, "outputs": _OUTPUTS}), 10)
FOUND = record(
    {
        "curve": listed(plain()),
        "skipped": listed(plain()),
        "floors": plain(),
        "gemm": listed(plain()),
        "drift": plain(),
        "notes": listed(_LONG),
        "seconds": number(),
    }
)

#: Kind of message -> its fields beside `kind` and `nonce`.
_IDS = {"revision": _SHORT, "round": integer(), "attempt": integer()}
FIELDS: Mapping[str, Check] = {
    "ready": record(
        {"protocol": integer(), "pid": integer(), "target": TARGET, "device": _SHORT, "fingerprint": FINGERPRINT},
        {"evidence": EVIDENCE, "subject": SUBJECT, "versions": mapped(_SHORT)},
    ),
    "unusable": record({"reason": _LONG, "owner": one_of(*(o.value for o in Owner))}),
    "phase": record({**_IDS, "phase": _SHORT}),
    "measured": record(
        {**_IDS, "outputs": _OUTPUTS, "facts": record(_FACTS, {**_MORE_FACTS, "others": _OTHERS}), "timing": TIMING},
        {"spent": switch},
    ),
    "tried": record({**_IDS, "differs": _LONG}, {"compile_s": optional(_SECONDS), "spent": switch}),
    "calibrated": record({**_IDS, "found": FOUND}),
    "failed": record(
        {**_IDS, "status": _SHORT, "owner": _SHORT, "reason": _LONG}, {"trace": text(1 << 20), "fatal": switch}
    ),
}
#: Kind of order (None: none yet) -> what a child may answer.
ANSWERS: Mapping[str | None, tuple[str, ...]] = {
    None: ("ready", "unusable"),
    "run": ("phase", "measured", "failed"),
    "trial": ("phase", "tried", "failed"),
    "calibrate": ("phase", "calibrated", "failed"),
}
#: Status -> the owners that a child may name with it.
MAY_SAY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("inaccurate", "compile_error", "crashed", "timed_out", "out_of_memory"), ("kernel",)),
    "unsupported": ("kernel", "harness"),
    "infra_error": ("harness", "device", "infra"),
}
_OF_DEVICES = {"crashed": ("device",), "unsupported": ("device",)}  # a calibration runs no code under test


class Door:
    """Takes the answers to one order; `order` None: the greeting of a new child."""

    def __init__(self, order: protocol.Message | None = None, nonce: str = ""):
        self._order, self._nonce = order, nonce
        self._phases: list[str] = []

    def read(self, line: bytes) -> protocol.Message:
        """The message of a line.  ChildLied says why it is not believed."""
        data = self._decoded(line)
        if data.pop("nonce", "") != self._nonce:
            raise ChildLied(f"sent an unexpected message on the farm's private pipe: {line[:200]!r}")
        kind = data.pop("kind", None)
        try:
            if kind not in ANSWERS[self._order.kind if self._order else None]:
                raise refuse("its kind", kind, "one that is expected now")
            verify(FIELDS[kind], data, "")
            message = protocol.KINDS[kind](**data)
            if self._order:
                self._check_order(message)
        except BadField as wrong:
            raise ChildLied(f"sent a message that is not believed: {wrong}") from None
        return message

    def _decoded(self, line: bytes) -> dict[str, Any]:
        try:
            if sum(map(line.count, (b",", b"[", b"{"))) > MOST_VALUES + 2 * self._most_samples():
                raise ValueError("too many values")
            data = json.loads(line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_twins)
            if b"\\u" in line or not line.isascii():  # else all its text can be printed
                data = protocol.printable(data)
            if not isinstance(data, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            what = f"not a protocol line: {line[:200]!r} ({str(error)[:200]})"
            raise ChildLied(f"sent invalid data on the farm's private pipe: {what}") from None
        return data

    def _most_samples(self) -> int:
        timing = self._order.cell.get("timing", {}) if isinstance(self._order, protocol.Run) else {}
        return max(timing.get("max_samples", 0), timing.get("min_samples", 0)) + SPARE_SAMPLES

    def _check_order(self, message: Any) -> None:
        order: Any = self._order
        for name in ("revision", "round", "attempt"):
            if getattr(message, name) != getattr(order, name):
                raise refuse(f"its {name}", getattr(message, name), str(getattr(order, name)))
        if isinstance(message, protocol.Phase):
            self._check_phase(message.phase)
        elif isinstance(message, protocol.Failed):
            self._check_failed(message)
        elif isinstance(message, protocol.Measured):
            self._check_measured(message, order)

    def _check_phase(self, phase: str) -> None:
        """Phases go on in order; a cell may begin once more, where it ran out of memory."""
        self._phases.append(phase)
        if isinstance(self._order, protocol.Calibrate):
            if len(self._phases) > MOST_STEPS:
                raise BadField("its steps do not end")
            return
        known = protocol.PHASES
        if phase not in known:
            raise refuse("phase", phase, f"one of {', '.join(known)}")
        before = self._phases[-2] if len(self._phases) > 1 else ""
        again = phase == known[0] and self._phases.count(phase) <= 2
        onwards = before and known.index(phase) >= known.index(before) and phase != known[0]
        if not (again or onwards) or len(self._phases) > MOST_PHASES:
            raise BadField(f"phase {phase} does not follow {before or 'the order'}")

    def _check_failed(self, message: protocol.Failed) -> None:
        allowed = MAY_SAY
        if isinstance(self._order, protocol.Calibrate):
            allowed = _OF_DEVICES
        elif self._may_fail_to_capture():
            allowed = {**MAY_SAY, "capture_failed": ("harness",)}
        if message.status not in allowed:
            raise refuse("status", message.status, "one that a child may give here")
        if message.owner not in allowed[message.status]:
            raise refuse("owner", message.owner, f"one of a status {message.status}")

    def _may_fail_to_capture(self) -> bool:
        order: Any = self._order
        graph = order.cell["timing"]["method"] == CAPTURING and "timing_override" not in order.call
        return "timing" in self._phases and (graph or isinstance(order, protocol.Trial))

    def _check_measured(self, message: protocol.Measured, order: protocol.Run) -> None:
        timing, override = message.timing, order.call.get("timing_override")
        overwrites = any(t.get("may_overwrite") or t["role"] == "mutated" for t in order.tensors)
        # what overwrites its inputs is timed by nothing else, nor a backward that overwrites what its forward saved
        instead = ["events"] if override or overwrites or order.cell["operation"] == "backward" else []
        methods = {"none", override or order.cell["timing"]["method"], *instead}
        if timing["method"] not in methods:
            raise refuse("timing.method", timing["method"], "what was asked for")
        if not self._phases or self._phases[-1] not in (("timing",) if timing["samples_us"] else ("check", "timing")):
            raise BadField("it is measured before its phase has begun")
        for name in ("samples_us", "host_us"):
            if len(timing.get(name, ())) > self._most_samples():
                raise BadField(f"timing.{name} has more samples than were asked for")
        expected = sorted(t["name"] for t in order.tensors if t["role"] in ("output", "gradient", "mutated"))
        told = {"outputs": message.outputs}
        if "timed_outputs" in timing:
            told["timing.timed_outputs"] = timing["timed_outputs"]
        told |= {f"facts.others[{i}].outputs": o["outputs"] for i, o in enumerate(message.facts.get("others", []))}
        for where, outputs in told.items():
            if sorted(o["name"] for o in outputs) != expected:
                raise refuse(where, [o["name"] for o in outputs], f"those of {', '.join(expected)}")
        check_files([o for outputs in told.values() for o in outputs], order.out_dir)


def check_files(outputs: Iterable[Mapping[str, Any]], folder: str) -> None:
    """BadField unless each output has a file of its own in `folder`, a regular one, with as many bytes as it takes."""
    seen: set[str] = set()
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadField(f"the folder of its outputs is not there any more ({error.strerror})") from None
    try:
        for output in outputs:
            name = output["path"].rpartition("/")[2]
            if output["path"] != f"{folder}/{name}" or name in ("", ".", "..", *seen):
                raise refuse(f"the path of {output['name']}", output["path"], "of its own in the attempt's folder")
            seen.add(name)
            try:
                found = os.stat(name, dir_fd=place, follow_symlinks=False)
            except (OSError, ValueError) as error:
                raise BadField(f"the file of {output['name']} cannot be read ({error})") from None
            wanted = math.prod(output["shape"]) * dtypes.storage_dtype(output["dtype"]).itemsize
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size != wanted:
                raise BadField(f"the file of {output['name']} is not a regular file of {wanted} bytes")
    finally:
        os.close(place)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a name stands twice among {reprlib.repr([key for key, _ in pairs])}")
    return found
