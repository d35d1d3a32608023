"""Takes names of people, hosts and folders out of a run that leaves its site.  Pure.

Logs are free text.  In the journal and in run.json the plan must stay as it is, so `cell` lines and the columns of the
plan are left alone, and every other text is treated as a log is; lines keep their checksums right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from farm.store.journal import decoded, encoded
from farm.store.results import PLANNED

#: Of a device, what tells it from all others of its kind.
_SERIAL = re.compile(r"uuid|serial|pci_?bus|bus_id", re.I)
_WORD = r"[A-Za-z0-9_.-]"


def scrubbed(content: Mapping[str, bytes], private: Mapping[str, str]) -> dict[str, bytes]:
    """The files of a run with each `private` text replaced.  ValueError for a journal that is damaged."""
    serials = sorted(
        {serial for name, data in content.items() if name.endswith("journal.jsonl") for serial in _serials(data)}
    )
    text = _replacer({**private, **{serial: f"serial-{number}" for number, serial in enumerate(serials, 1)}})
    out = {}
    for name, data in content.items():
        if name.endswith("journal.jsonl"):
            out[name] = b"".join(_line(raw, text) for raw in data.splitlines(keepends=True) if raw.strip())
        elif name.endswith("run.json"):
            told = {k: v if k in ("matrices", "plan") else _value(v, text) for k, v in json.loads(data).items()}
            out[name] = json.dumps(told, indent=1).encode()
        elif "logs/" in name:
            out[name] = text(data.decode("utf-8", "replace")).encode()
        else:
            out[name] = data
    return out


def _serials(journal: bytes) -> Iterator[str]:
    """What tells a device from all others of its kind: its name, and thus each of its rows, may contain it too."""
    for raw in journal.splitlines():
        line, _ = decoded(raw)
        left: list[tuple[str, Any]] = [("", line)]
        while left:
            key, value = left.pop()
            if isinstance(value, dict):
                left += [(str(k), v) for k, v in value.items()]
            elif isinstance(value, list):
                left += [(key, v) for v in value]
            elif isinstance(value, str) and _SERIAL.search(key) and len(value) > 3:
                yield value


def _replacer(private: Mapping[str, str]) -> Callable[[str], str]:
    """Replaces whole words alone: a host called `gpu` is not a part of `gpu_time`."""
    longest = sorted(private, key=len, reverse=True)
    if not longest:
        return lambda text: text
    either = "|".join(map(re.escape, longest))
    pattern = re.compile(rf"(?<!{_WORD})(?:{either})(?!{_WORD})")
    return lambda text: pattern.sub(lambda m: private[m[0]], text)


def _line(raw: bytes, text: Callable[[str], str]) -> bytes:
    line, _ = decoded(raw)
    if line is None:
        if not raw.endswith(b"\n"):  # a kill cut it short
            return b""
        raise ValueError("a line of the journal is damaged")
    if line["event"] == "cell":
        return raw
    kept = ("event", "schema", "run_id", "matrices", "plan", "plan_hash", "status")
    told = {k: v if k in kept else _row(v, text) if k == "row" else _value(v, text, k) for k, v in line.items()}
    return encoded(told).encode()


def _row(row: Mapping[str, Any], text: Callable[[str], str]) -> dict[str, Any]:
    return {k: v if k in PLANNED or k == "status" else _value(v, text, k) for k, v in row.items()}


def _value(value: Any, text: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, str):
        if _SERIAL.search(key) and 0 < len(value) <= 3:
            return "hidden"
        if value.startswith(("{", "[")):  # JSON in a column: its texts, not its form
            try:
                inner = json.loads(value)
            except ValueError:
                return text(value)
            changed = _value(inner, text)
            return value if changed == inner else json.dumps(changed)
        return text(value)
    if isinstance(value, dict):
        return {k: _value(v, text, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_value(v, text, key) for v in value]
    return value
