"""What of the newest night is worth a message to somebody: one notice for each group, each only once.  Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.report.nights import News, Nights, Shift, line


@dataclass(frozen=True)
class Notice:
    """`key`: the same for what was already told; `data`: what the command reads."""

    key: str
    data: Mapping[str, Any]


def notices(found: Nights, repeat: Callable[[Sequence[Mapping[str, Any]]], str]) -> list[Notice]:
    """New failures, regressions (not suspicions), devices that became slower, backends and targets that fell silent.

    repeat: rows -> the command that repeats them.
    """
    run = found.nights[found.last]
    out = []
    for news in found.news:
        if news.kind == "new" or (news.kind == "slower" and news.sure):
            text = line(news)
            out.append(_notice(news.kind, _of(news), run.id, text, news.to_dict() | {"repeat": repeat(news.rows)}))
    for shift in found.moved:
        if shift.sure and shift.by > 1:
            out.append(_notice("devices", _where(shift), run.id, shift.text, shift.to_dict()))
    for name, last in found.silent.items():
        text = f"{name} did not report; its last results are of {last.created[:10]}"
        data = {"backend": name.partition(":")[0], "target": name if ":" in name else "", "last": last.id}
        out.append(_notice("silent", [name, last.id], run.id, text, data))
    return out


def _notice(kind: str, of: Sequence[str], run: str, text: str, data: Mapping[str, Any]) -> Notice:
    key = hashlib.sha256(json.dumps([kind, *of]).encode()).hexdigest()[:24]
    return Notice(key, {"notice": kind, "key": key, "run": run, "text": text, "group": data})


def _of(news: News) -> list[str]:
    return [news.backend, news.target, news.op, news.provider, news.mode, news.status, news.since.id, news.confirmed]


def _where(shift: Shift) -> list[str]:
    return [shift.target, *shift.devices, shift.since.id]
