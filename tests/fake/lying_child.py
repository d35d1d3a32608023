"""A child that lies in messages of the right form: a program for an environment's `command`, over backend `sim`.

A cell's script names its lie as `reason`.  A lie gets the honest reply as plain data; what it returns is written
instead: a line's fields, or bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Reply = dict[str, Any]
pipe = -1  # the protocol's descriptor


def _failed(reply: Reply, **fields: Any) -> Reply:
    ids = {k: reply[k] for k in ("nonce", "revision", "round", "attempt")}
    return {"kind": "failed", **ids, "status": "crashed", "owner": "kernel", "reason": "it says", **fields}


def _output(reply: Reply, **fields: Any) -> Reply:
    return {**reply, "outputs": [{**reply["outputs"][0], **fields}]}


def _fifo(reply: Reply) -> Reply:
    path = Path(reply["outputs"][0]["path"])
    path.unlink()
    os.mkfifo(path)
    return reply


def _late(reply: Reply) -> Reply:
    """The supervisor is content, and sends the next order, before the honest reply comes."""
    os.write(pipe, json.dumps(_failed(reply)).encode() + b"\n")
    time.sleep(0.2)
    return reply


def _linked(reply: Reply) -> Reply:
    path = Path(reply["outputs"][0]["path"])
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))
    return reply


def _exchanged(reply: Reply) -> Reply:
    """The folder is a link now."""
    folder = Path(reply["outputs"][0]["path"]).parent
    folder.rename(f"{folder}.{os.getpid()}")
    folder.symlink_to(f"{folder}.{os.getpid()}")
    return reply


def _gone(reply: Reply) -> Reply:
    """As `_late`, and then it never answers; what is asked next finds nobody."""
    os.write(pipe, json.dumps(_failed(reply)).encode() + b"\n")
    os._exit(0)


def _endless(reply: Reply) -> bytes:
    ids = {k: reply[k] for k in ("nonce", "revision", "round", "attempt")}
    return b"".join(json.dumps({"kind": "phase", **ids, "phase": "check"}).encode() + b"\n" for _ in range(100))


def _flood(reply: Reply) -> bytes:
    """A line without an end."""
    with contextlib.suppress(OSError):
        while True:
            os.write(pipe, b"[" * 65536)
    return b""


#: Each costs its cell.
LIES: dict[str, Callable[[Reply], Reply | bytes]] = {
    "status_haha": lambda r: _failed(r, status="haha"),
    "status_lost": lambda r: _failed(r, status="lost", owner="infra"),
    "late": _late,
    "status_passed": lambda r: _failed(r, status="passed"),
    "owner_nobody": lambda r: _failed(r, owner="nobody"),
    "gone": _gone,
    "farms_fault": lambda r: _failed(r, status="infra_error"),
    "no_capture": lambda r: _failed(r, status="capture_failed", owner="harness"),
    "folder_link": _exchanged,
    "endless": _endless,
    "flood": _flood,
    "fifo": _fifo,
    "deep": lambda r: b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "not_utf8": lambda r: json.dumps(r).encode().replace(b"auto", b"\xff\xfe") + b"\n",
    "unknown_kind": lambda r: {**r, "kind": "judged"},
    "next_attempt": lambda r: {**r, "attempt": r["attempt"] + 1},
    "text_for_samples": lambda r: {**r, "timing": {**r["timing"], "samples_us": ["fast"]}},
    "link": _linked,
    "no_outputs": lambda r: {**r, "outputs": []},
    "elsewhere": lambda r: _output(r, path="/etc/passwd"),
    "endless_file": lambda r: _output(r, path="/dev/zero"),
}


def _install() -> None:
    from farm.child import __main__ as child
    from farm.child import protocol

    honest, private, read = protocol.encode, child._private_pipes, protocol.decode_stamped
    order: Any = None

    def pipes() -> tuple[Any, Any]:
        global pipe
        source, sink = private()
        pipe = sink.fileno()
        return source, sink

    def decode(line: str | bytes) -> tuple[Any, str]:
        nonlocal order
        order, nonce = read(line)
        return order, nonce

    def encode(message: Any, nonce: str = "") -> str:
        name = order.call["sim"].get("reason") if isinstance(order, protocol.Run) else None
        if name not in LIES or message.kind != "measured":
            return honest(message, nonce)
        told = LIES[name](json.loads(honest(message, nonce)))
        if isinstance(told, dict):
            return json.dumps(told) + "\n"
        os.write(pipe, told)
        return ""

    child._private_pipes, protocol.decode_stamped, protocol.encode = pipes, decode, encode


if __name__ == "__main__":
    _install()
    from farm.child.__main__ import main

    os._exit(main(sys.argv[3:]))  # behind the words that would start an honest one
