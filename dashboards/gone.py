"""Pages of runs that are no longer in the store: which there are, and which pages lead to them.

Only what `build` has noted as its own is ever deleted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

#: How a page of the newest night is noted: it shows that run.
SHOWS = "shows "
_RUN, _BOTH = re.compile(r"run-(.+)\.html"), re.compile(r"compare-(.+)\.html")


def stale(noted: Mapping[str, str], runs: Collection[str]) -> list[str]:
    """Those of the noted pages that are of a run which is not among `runs`."""
    return [name for name, note in noted.items() if not _has(name, note, runs)]


def _has(name: str, note: str, runs: Collection[str]) -> bool:
    if note.startswith(SHOWS):
        return note.removeprefix(SHOWS) in runs
    if found := _RUN.fullmatch(name):
        return found[1] in runs
    if found := _BOTH.fullmatch(name):
        both = found[1]  # an id may contain dashes, too
        return any(both[:i] in runs and both[i + 2 :] in runs for i in range(len(both)) if both.startswith("--", i))
    return True


def remove(out: Path, noted: dict[str, str], runs: Collection[str]) -> list[str]:
    """Delete the stale pages with what is beside them, and their notes; returns their names.  What cannot be deleted
    stays noted, for another time."""
    gone = []
    for name in stale(noted, runs):
        with suppress(OSError):
            for path in [*_beside(out, name, noted, runs), out / name]:
                path.unlink(missing_ok=True)
            del noted[name]
            gone.append(name)
    return gone


def _beside(out: Path, name: str, noted: Mapping[str, str], runs: Collection[str]) -> list[Path]:
    """A page's JSON; of a run also the pages of its parts and of all its results."""
    paths = [out / name.replace(".html", ".json")]
    if found := _RUN.fullmatch(name):
        run = found[1]
        paths.append(out / f"results-{run}.html")
        others = tuple(f"run-{other}{end}" for other in runs for end in (".", "--") if other.startswith(f"{run}--"))
        for path in out.iterdir():
            part = path.name.startswith(f"run-{run}--") and path.suffix in (".html", ".json")
            if part and not path.name.startswith(others or ("/",)) and path.with_suffix(".html").name not in noted:
                paths.append(path)
    return paths


def leading(out: Path, noted: Iterable[str], gone: Collection[str]) -> list[str]:
    """The ids of runs whose noted pages name one of the pages that are gone."""
    words = [name.removesuffix(".html") for name in gone]
    found = []
    for name in noted:
        of = _RUN.fullmatch(name)
        with suppress(OSError, UnicodeDecodeError):
            text = (out / name).read_text(encoding="utf-8") if of and words else ""
            if of and any(word in text for word in words):
                found.append(of[1])
    return found
