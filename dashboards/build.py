"""Writes pages as files: the newest night, one self-contained file per run, backend, cell; JSON beside each."""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from farm.dashboards import arms_page, night_pages, trends, views
from farm.dashboards.compare_page import Said, Side, as_json
from farm.dashboards.pages import Against, Links, compare_page, evidence_page, run_json, run_page, runs_page
from farm.errors import StoreError
from farm.report import cell_facts, evidence, findings, provenance, status_changes
from farm.report.pairs import FASTER, SLOWER, counts
from farm.report.provenance import log_path
from farm.report.queries import RunLike
from farm.report.run_lines import RunLine
from farm.report.status_changes import Comparison
from farm.report.time_changes import PROVES, TimeComparison, times
from farm.store.index import Index

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
    no_index: Callable[[StoreError], None] = lambda error: None,
) -> Path:
    """Writes the front page and the page of `run_id` (None: of every readable run; `unreadable` is called with each
    other run and the reason).  `no_index` is called if the store cannot have one: its pages show no nights.

    Returns the path of the run's page, or of the front page.  A file appears complete or not at all.
    """
    need_store(store)
    store = ReadLast(store)
    out = Path(out_dir) if out_dir else Path(store.path) / "pages"
    try:
        out.mkdir(parents=True, exist_ok=True)
        found = _index(store, no_index)
        if run_id:
            page = _build_run(store, store.run(run_id), out, found)  # the store resolves `last`, the beginning of an id
        else:
            page = out / "index.html"
            for name in [known.id for known in store.runs()]:
                try:
                    run = store.run(name)
                    _ = run.head, run.rows
                except Exception as error:
                    unreadable(name, error)
                    continue
                try:
                    _build_run(store, run, out, found)
                except OSError:
                    raise
                except Exception as error:  # the list reports it too
                    unreadable(name, error)
        known = kept(out / KEPT)
        lines = run_lines(store, known)
        night, links = _build_night(store, found, out) if found else (None, _index_links(out))
        write(out / "index.html", runs_page(lines, links, night))
        write(out / EVIDENCE, evidence_page(proofs(store, known), _index_links(out)))
        write(out / KEPT, json.dumps({"version": evidence.VERSION, "runs": known}))
    except OSError as e:
        why = f"{out}: pages cannot be written ({e.strerror or e}); choose a writable folder"
        raise StoreError(why, id="dashboard-unwritable") from e
    return page


def _index(store: StoreLike, no_index: Callable[[StoreError], None]) -> Index | None:
    try:
        return views.checked(store)
    except StoreError as error:
        no_index(error)
        return None


def _build_night(store: StoreLike, found: Index, out: Path) -> tuple[dict[str, Any] | None, Links]:
    """The newest night: its part of the front page with its links, the pages of its backends, of the cells that they
    name, and of the runs between which something changed."""
    newest = views.newest(found)
    if newest is None:
        return None, _index_links(out)
    for a, b in night_pages.compared(newest):
        if not (out / compare_name(a, b)).is_file():
            _build_comparison(store.run(a), store.run(b), out)
    run = store.run(newest.run.id)
    cells = night_pages.notable(newest)
    written = {(r["cell_key"], r["named"]): cell_name(str(r["cell_key"]), str(r["named"])) for r in cells}
    links = replace(
        _index_links(out),
        backend=lambda target: quote(backend_name(target)) if target in newest.targets else None,
        cell=lambda key, named: written.get((key, named)),
    )
    repeat = functools.partial(findings.repeat, run)
    for row in cells:
        facts, points = cell_facts_of(found, run, row)
        name = written[row["cell_key"], row["named"]]
        write(out / name, night_pages.cell_page(facts, points, links))
        write((out / name).with_suffix(".json"), json.dumps(facts, default=str))
    for target in newest.targets:
        path = out / backend_name(target)
        write(path, night_pages.backend_page(newest, target, links, repeat))
        write(path.with_suffix(".json"), json.dumps(night_pages.backend_json(newest, target), default=str))
    write(out / "index.json", json.dumps(night_pages.night_json(newest), default=str))
    return night_pages.night(newest, links, repeat), links


def cell_facts_of(found: Index, run: Any, row: Mapping[str, Any]) -> tuple[dict[str, Any], list[trends.Point]]:
    """What a cell's page shows: facts of its newest run, and its nights.  `row`: of the index."""
    full = next(r for r in run.rows_of(row["cell_key"]) if r.get("cell_id") == row["cell_id"])
    log = run.log_text(full["log"]) if full.get("log") and log_path(run, full["log"]) else ""
    facts = cell_facts.facts(run, full, run.samples_of(row["cell_key"]), (), log)
    points = views.cell_history(found, str(row["cell_key"]), str(row["named"]), str(row["target"]))
    return facts | {"history": [vars(p) for p in points]}, points


def _build_comparison(a: RunLike, b: RunLike, out: Path) -> None:
    """The page of two runs, in the folder of pages."""
    changes = status_changes.compare(a, b)
    links = {r.id: quote(page_name(r.id)) if (out / page_name(r.id)).is_file() else None for r in (a, b)}
    write_comparison(a, b, changes, times(changes), out / compare_name(a.id, b.id), links)


class ReadLast:
    """A store that keeps the two runs that it returned last, so that a page, its line in the list, the page of evidence
    and the comparison with the run before come from one reading.  Only two, since the rows of 10^5 cells are half a
    gigabyte."""

    def __init__(self, store: StoreLike):
        self.path, self.runs, self._store = Path(store.path), store.runs, store
        self._kept: list[Any] = []

    def run(self, run_id: str) -> Any:
        found = next((r for r in self._kept if r.id == run_id), None)
        if found is None:
            self._kept = self._kept[-1:]  # freed before the next is read
            found = self._store.run(run_id)
        self._kept = [*(r for r in self._kept if r is not found), found]
        return found


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


def _build_run(store: StoreLike, run: RunLike, out: Path, found: Index | None = None) -> Path:
    path = out / page_name(run.id)
    if arms_page.has_pairs(run.head):
        return _build_arms(run, out)
    before = views.baseline(found, run.id) if found else None
    against = Against.of(store.run(before.id), run, quote(compare_name(before.id, run.id))) if before else None
    if against and before:
        _build_comparison(against.before, run, out)
    write(path, run_page(run, run_links(run, out), against))
    write(path.with_suffix(".json"), json.dumps(run_json(run, against), default=str))
    return path


def _build_arms(run: Any, out: Path) -> Path:
    """The page of a run of two arms, which is their comparison, and beside it that of all its results."""
    path, results = out / page_name(run.id), out / results_name(run.id)
    links = run_links(run, out)
    a, b, pairs, said = arms_page.of_run(run, quote(results.name))
    write(results, run_page(run, links))
    write(path, compare_page(a, b, pairs, said, links))
    data = {**as_json(a, b, pairs, said), "run": run.id, "comparison": run.head["comparison"]}
    write(path.with_suffix(".json"), json.dumps(data, default=str))
    return path


def results_name(run_id: str) -> str:
    """The page of all results of a run of two arms."""
    return f"results-{run_id}.html"


def compare_name(a: str, b: str) -> str:
    return f"compare-{a}--{b}.html"


def backend_name(target: str) -> str:
    return f"backend-{_slug(target)}.html"


def cell_name(key: str, named: str) -> str:
    return f"cell-{_slug(key[:20])}{'-' + _slug(named) if named else ''}.html"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[:80]


def comparison(a: RunLike, b: RunLike, found: Comparison, timed: TimeComparison) -> tuple[Side, Side, Said]:
    """What a page says of two runs beyond their cells."""
    groups = {kind: [c.after for c in found.of(kind) if c.after is not None] for kind in ("broken", "new")}
    groups["slower"] = [p.row for p in timed.pairs if p.time == SLOWER]
    repeats = {f"the cells that are {kind}": findings.repeat(b, rows) for kind, rows in groups.items() if rows}
    repeats.pop("the cells that are new", None)
    kind = {0: "passed", 1: "findings", 3: "farm_fault"}.get(found.exit_code, "nothing")
    notes = [*found.notes, *timed.unlike, *timed.notes]
    parts = [f"{len(of):,} {kind}" for kind in ("broken", "new", "lost", "fixed") if (of := found.of(kind))]
    parts += [f"{n:,} suspected {name}" for name, n in counts(timed.pairs).items() if name in (SLOWER, FASTER)]
    verdict = f"{found.verdict[:1].upper()}{found.verdict[1:]}: {', '.join(parts) or 'nothing changed'}"
    said = Said(verdict, kind, str(PROVES), notes, repeats)
    return Side(a.id, None, provenance.facts(a)), Side(b.id, None, provenance.facts(b)), said


def write_comparison(
    a: RunLike,
    b: RunLike,
    found: Comparison,
    timed: TimeComparison,
    path: Path,
    addresses: Mapping[str, str | None] = {},
) -> None:
    """Write the page of two runs, and its JSON beside it.  `addresses`: of their pages.  StoreError if that is not
    possible."""
    left, right, said = comparison(a, b, found, timed)
    left, right = (replace(side, address=addresses.get(side.name)) for side in (left, right))
    links = Links(None, lambda run_id: None, lambda name: None)
    try:
        write(path, compare_page(left, right, timed.pairs, said, links))
        write(path.with_suffix(".json"), json.dumps(as_json(left, right, timed.pairs, said), indent=1))
    except OSError as e:
        why = f"{path}: the page cannot be written ({e.strerror or e}); choose a file in a writable folder"
        raise StoreError(why, id="compare-page-unwritable") from e


def page_name(run_id: str) -> str:
    return f"run-{run_id}.html"


def run_links(run: RunLike, out: Path) -> Links:
    """Relative addresses, so that a copied store still works; a run kept elsewhere is linked where it is."""

    def inside(name: str) -> str | None:
        path = run.dir / name
        return quote(os.path.relpath(path, out)) if path.is_file() else None

    def log(name: str) -> str | None:
        return inside(name) if log_path(run, name) else None

    return replace(_index_links(out), run=page_name, log=log, file=inside)


def _index_links(out: Path) -> Links:
    def page(run_id: str) -> str | None:
        return quote(page_name(run_id)) if (out / page_name(run_id)).is_file() else None

    def compare(a: str, b: str) -> str | None:
        return quote(compare_name(a, b)) if (out / compare_name(a, b)).is_file() else None

    return Links("index.html", page, lambda name: None, evidence=EVIDENCE, compare=compare)


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
