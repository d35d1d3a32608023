"""A child that is started before it is needed: it imports what every child imports, waits for its order, and goes on.

Nothing of a user's is imported before the order, and the child proves that of the modules that the order names: none of
them is loaded, and the folder that they come from has the content that was sent.  So what it calls is what was saved.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from farm.errors import FarmSignal

WAITS = "--waits"
#: The first word of an order, in place of a backend: this process is to compile ahead (farm.child.compile_ahead).
COMPILES = "--compiles"


class Stale(FarmSignal):
    """This process would not call what was sent."""


def wait(source: IO[str]) -> list[str]:
    """Import, wait for the order, and take it; the arguments of the child.  SystemExit if no order comes, Stale if the
    order cannot be obeyed.

    The order: `argv`; `variables` (None: unset); `path`, the whole PYTHONPATH; `modules`, top-level names that are
    sent; `folder` and `digest` of what was sent, "" for nothing.
    """
    _import()
    line = _line(source)
    if not line:
        raise SystemExit(0)
    order: dict[str, Any] = json.loads(line)
    for name, value in order["variables"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    before = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    os.environ["PYTHONPATH"] = os.pathsep.join(order["path"])
    sys.path[:] = [*order["path"], *(p for p in sys.path if p not in before and p not in order["path"])]
    importlib.invalidate_caches()
    prove(order)
    return [str(word) for word in order["argv"]]


def _line(source: IO[str]) -> str:
    """The first line, and not a byte more: what follows may be read in another way."""
    found = bytearray()
    while not found.endswith(b"\n") and (byte := os.read(source.fileno(), 1)):
        found += byte
    return found.decode()


def _import() -> None:
    """What a session of any backend needs, none of which opens a device."""
    with contextlib.suppress(ImportError):  # the session says so
        import torch  # noqa: F401

        from farm.child import session  # noqa: F401

        if os.environ.get("TRITON_INTERPRET") == "1":
            from farm.child import interpreter

            interpreter.install()
        else:
            import triton  # noqa: F401

            from farm.child import measure, warming  # noqa: F401

            warming.name_tool_chain()


def prove(order: Mapping[str, Any]) -> None:
    """Stale if a module that was sent is loaded, or if its folder does not hold what was sent."""
    from farm.shipping.providers import digest

    loaded = sorted({name.partition(".")[0] for name in sys.modules} & set(order["modules"]))
    if loaded:
        raise Stale(f"{loaded[0]} was imported before it was sent")
    if not order["digest"]:
        return
    folder = Path(order["folder"])
    files = (f for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    found = digest({f.relative_to(folder).as_posix(): f.read_bytes() for f in files})
    if found != order["digest"]:
        raise Stale(f"{folder} has the digest {found}, not {order['digest']} as it was sent")
