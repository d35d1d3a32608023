"""The list of a store's runs: what `farm ls` prints.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farm.report.format import cells, duration, label, when
from farm.report.run_lines import RunLine, comparison_of
from farm.report.wording import tag

#: Kind of a run -> what marks it in a list, where a reader could take it for another.
MARKS = {"ab": "two arms, not complete", "arm": "one arm of a comparison"}


def entry(line: RunLine, head: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A run as JSON.  `devices`: those that it used, with `backend` and `name`."""
    compared = comparison_of(head)
    counts: Counter[str] = Counter()
    for of in line.backends.values():
        counts.update(of)
    return {
        "id": line.id,
        "created": line.created,
        "matrices": line.matrices,
        "kind": line.extra.get("kind", "run"),
        "planned": line.planned,
        "counts": dict(counts),
        "verdict": line.verdict,
        "complete": line.complete,
        "exit_code": compared[1] if compared else head.get("exit_code"),
        **({"comparison": compared[0]} if compared else {}),
        "seconds": line.seconds,
        "devices": [{name: d.get(name, "") for name in ("backend", "name", "device", "node")} for d in devices],
        "revision": line.commit,
        "command": line.command,
    }


def lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each run: `ID  when  matrices  verdict  counts  devices`, in columns."""
    table = [
        (
            str(e["id"]),
            when(str(e["created"])),
            _what(e),
            tag(str(e["verdict"])),
            _counts(e),
            duration(e["seconds"]),
            _devices(e["devices"]),
        )
        for e in entries
    ]
    widths = [min(60, max((len(row[i]) for row in table), default=0)) for i in range(6)]
    for row in table:
        yield "  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[-1]]).rstrip()


def _what(e: Mapping[str, Any]) -> str:
    """`rms_norm`; of a comparison `rms_norm, b against a: worse`."""
    more = f"b against a: {e['comparison']}" if e.get("comparison") else MARKS.get(str(e["kind"]), "")
    return ", ".join(text for text in (str(e["matrices"]), more) if text)


def _counts(e: Mapping[str, Any]) -> str:
    if e["verdict"] == "unreadable":
        return str(e["command"])[:200]
    return ", ".join(f"{n} {label(status)}" for status, n in e["counts"].items() if n) or cells(e["planned"])


def _devices(devices: Sequence[Mapping[str, Any]]) -> str:
    """`2 cpu`, `4 cuda NVIDIA H200`."""
    seen = Counter((str(d["backend"]), str(d["name"]).partition(" #")[0]) for d in devices)
    return ", ".join(f"{n} {backend} ({name})" if name else f"{n} {backend}" for (backend, name), n in seen.items())
