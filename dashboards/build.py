"""Writes pages as files: `<store>/pages/index.html` and one self-contained file per run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from farm.dashboards.pages import Links, evidence_page, run_page, runs_page
from farm.errors import StoreError
from farm.report import evidence
from farm.report.provenance import log_path
from farm.report.queries import RunLike
from farm.report.run_lines import RunLine

EVIDENCE = "evidence.html"
#: What the runs prove and their lines in the list, so that neither page need read every run again.  May be deleted.
KEPT = "evidence.json"
#: The line of a run whose journal is at least so large is not made anew while the run is being written.
LARGE_BYTES = 16 << 20
T = TypeVar("T")


class StoreLike(Protocol):
    """The part of the store that pages need."""

    path: Path

    def runs(self) -> Any: ...
    def run(self, run_id: str) -> Any: ...


def build(
    store: StoreLike,
    run_id: str | None = None,
    out_dir: Path | None = None,
    unreadable: Callable[[str, Exception], None] = lambda run_id, error: None,
) -> Path:
    """Writes the list of runs and the page of `run_id` (None: of every readable run; `unreadable` is called with each
    other run and the reason).

    Returns the path of the run's page, or of the list.  A file appears complete or not at all.
    """
    need_store(store)
    store = ReadOnce(store)
    out = Path(out_dir) if out_dir else Path(store.path) / "pages"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if run_id:
            page = _build_run(store.run(run_id), out)  # the store resolves `last` and the beginning of an id
        else:
            page = out / "index.html"
            for name in [found.id for found in store.runs()]:
                try:
                    run = store.run(name)
                    text = run_page(run, run_links(run, out))
                except Exception as error:  # the list reports it too
                    unreadable(name, error)
                else:
                    write(out / page_name(run.id), text)
        known = kept(out / KEPT)
        write(out / "index.html", runs_page(run_lines(store, known), _index_links(out)))
        write(out / EVIDENCE, evidence_page(proofs(store, known), _index_links(out)))
        write(out / KEPT, json.dumps({"version": evidence.VERSION, "runs": known}))
    except OSError as e:
        why = f"{out}: pages cannot be written ({e.strerror or e}); choose a writable folder"
        raise StoreError(why, id="dashboard-unwritable") from e
    return page


class ReadOnce:
    """A store that keeps the run that it returned last, so that its page, its line in the list and the page of evidence
    come from one reading.  Only one run, since the rows of 10^5 cells are half a gigabyte."""

    def __init__(self, store: StoreLike):
        self.path, self.runs, self._store = Path(store.path), store.runs, store
        self._last: Any = None

    def run(self, run_id: str) -> Any:
        if self._last is None or self._last.id != run_id:
            self._last = None  # freed before the next is read
            self._last = self._store.run(run_id)
        return self._last


def need_store(store: StoreLike) -> None:
    """StoreError where no run was ever written.  A store without runs is still a store."""
    if not (Path(store.path) / "runs").is_dir():
        raise StoreError(f"no store exists at {store.path}; name a store with --out", id="dashboard-no-store")


def proofs(store: StoreLike, known: dict[str, Any]) -> dict[str, list[evidence.Proof]]:
    """Run -> what it proves.  `known` has what is known of the runs that were read before, and is updated."""
    return _of_known(store, known, lambda found, fresh: evidence.thaw(fresh))


def run_lines(store: StoreLike, known: dict[str, Any]) -> list[RunLine]:
    """A line per run; a run that cannot be read is `unreadable`.  `known` as for `proofs`."""
    return _of_known(store, known, lambda found, fresh: evidence.lines(fresh, found))


def _of_known(store: StoreLike, known: dict[str, Any], answer: Callable[[list[Any], dict[str, Any]], T]) -> T:
    found = list(store.runs())
    try:
        fresh = evidence.collect(found, store.run, dict(known), LARGE_BYTES)
        made = answer(found, fresh)
    except (KeyError, TypeError, AttributeError, ValueError):  # an evidence.json that the farm did not write
        fresh = evidence.collect(found, store.run, {}, LARGE_BYTES)
        made = answer(found, fresh)
    known.clear()
    known.update(fresh)
    return made


def kept(path: Path) -> dict[str, Any]:
    """What a file of `KEPT` has of the runs; nothing if it cannot be read, or is of another version."""
    with suppress(OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] == evidence.VERSION:
            return {str(name): one for name, one in found["runs"].items() if isinstance(one, dict)}
    return {}


def _build_run(run: RunLike, out: Path) -> Path:
    path = out / page_name(run.id)
    write(path, run_page(run, run_links(run, out)))
    return path


def page_name(run_id: str) -> str:
    return f"run-{run_id}.html"


def run_links(run: RunLike, out: Path) -> Links:
    """Relative addresses, so that a copied store still works; a run kept elsewhere is linked where it is."""

    def inside(name: str) -> str | None:
        path = run.dir / name
        return quote(os.path.relpath(path, out)) if path.is_file() else None

    def log(name: str) -> str | None:
        return inside(name) if log_path(run, name) else None

    return Links("index.html", page_name, log, inside, evidence=EVIDENCE)


def _index_links(out: Path) -> Links:
    def page(run_id: str) -> str | None:
        return quote(page_name(run_id)) if (out / page_name(run_id)).is_file() else None

    return Links("index.html", page, lambda name: None, evidence=EVIDENCE)


def write(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never a part of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
