"""Writes pages as files: the newest night, one self-contained file per run, backend, cell; JSON beside each."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from farm import atomic_files
from farm.dashboards import arms_page, night_pages, parity_page, trends, views
from farm.dashboards import gone as gone_pages
from farm.dashboards.compare_page import Said, Side, as_json
from farm.dashboards.pages import (
    Against,
    Links,
    compare_page,
    evidence_page,
    part_json,
    part_page,
    parts_of,
    run_json,
    run_page,
    runs_page,
)
from farm.errors import StoreError
from farm.report import cell_facts, confirming, evidence, findings, provenance, status_changes
from farm.report.pairs import SLOWER, suspected_parts
from farm.report.provenance import log_path
from farm.report.queries import RunLike
from farm.report.run_lines import RunLine
from farm.report.status_changes import Comparison
from farm.report.time_changes import PROVES, TimeComparison, times
from farm.store.index import Index, Indexed

EVIDENCE = "evidence.html"
#: What the runs prove and their lines in the list, so that neither page need read every run again.  May be deleted.
KEPT = "evidence.json"
#: Where time is short (`index_seconds`), so much of it at most goes to what older runs prove.
EVIDENCE_SECONDS = 1.0
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
    index_seconds: float | None = None,
    lacking: Callable[[int], None] = lambda runs: None,
    refresh: bool = False,
) -> Path:
    """Writes the front page and the page of `run_id` (None: of every readable run; `unreadable` is called with each
    other run and the reason).  Pages of runs that are no longer in the store are deleted, and those that lead to them
    are made anew; `refresh`: no others.  `no_index` is called if the store cannot have one: its pages show no nights.
    `index_seconds`: how long runs may be added to the index; for at most EVIDENCE_SECONDS of it they are read
    for what they prove;
    `lacking` is called with the number of those that the index lacks.

    Returns the path of the run's page, or of the front page.  A file appears complete or not at all.
    """
    need_store(store)
    store = ReadLast(store)
    out = Path(out_dir) if out_dir else Path(store.path) / "pages"
    try:
        out.mkdir(parents=True, exist_ok=True)
        found = _index(store, no_index, index_seconds)
        if found and found.lacks:
            lacking(found.lacks)
        newest = views.newest(found) if found else None
        site = _Site(store, out, found, newest, kept_pages(out / KEPT))
        there = {known.id: known for known in store.runs()}
        gone = gone_pages.remove(out, site.pages, there)
        again = [name for name in gone_pages.leading(out, site.pages, gone) if name in there]
        for name in again:
            site.pages.pop(page_name(name))  # so it is not kept
        page = out / "index.html"
        if run_id:
            page = _build_run(site, run := store.run(run_id))  # the store resolves `last`, the beginning of an id
            again = [name for name in again if name != run.id]
        for name in again if run_id or refresh else there:
            known = there[name]
            try:
                if not site.kept(known):
                    run = store.run(name)
                    _ = run.head, run.rows
                    _build_run(site, run)
            except OSError as error:
                if error.filename and Path(error.filename).parent == out:
                    raise
                unreadable(name, error)
            except Exception as error:  # the list reports it too
                unreadable(name, ValueError(evidence.why_unreadable(known, error)))
        short = None if index_seconds is None else min(index_seconds, EVIDENCE_SECONDS)
        lines = run_lines(store, proven := kept(out / KEPT), short)
        night = _build_night(site, newest) if newest else None
        atomic_files.write(out / "index.html", runs_page(lines, site.links(), night))
        found_proofs = evidence.thaw(proven)
        atomic_files.write(out / EVIDENCE, evidence_page(found_proofs, site.links()))
        data = {"version": evidence.VERSION, **evidence.evidence_json(found_proofs)}
        atomic_files.write(out / KEPT, json.dumps({**data, "runs": proven, "pages": site.pages}))
    except OSError as e:
        why = f"{out}: pages cannot be written ({e.strerror or e}); choose a writable folder"
        raise StoreError(why, id="dashboard-unwritable") from e
    return page


def _index(store: StoreLike, no_index: Callable[[StoreError], None], seconds: float | None) -> Index | None:
    try:
        return views.checked(store, seconds)
    except StoreError as error:
        no_index(error)
        return None


@dataclass
class _Site:
    """The folder of pages while it is brought up to date.  pages: a run's page -> what it was made of, when it was."""

    store: StoreLike
    out: Path
    found: Index | None
    newest: views.Newest | None
    pages: dict[str, str]

    @functools.cached_property
    def cells(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """(key, named target) of the cells that have a page -> their rows in the index."""
        notable = night_pages.notable(self.newest) if self.newest else []
        return {(str(r["cell_key"]), str(r["named"])): r for r in notable}

    @functools.cached_property
    def ops(self) -> list[str]:
        return parity_page.ops(self.newest) if self.newest else []

    def links(self) -> Links:
        """Of pages across runs."""
        targets = [*self.newest.targets, *self.newest.silent_targets] if self.newest else []
        return replace(
            _index_links(self.out),
            backend=lambda target: quote(backend_name(target)) if target in targets else None,
            cell=lambda key, named: quote(cell_name(key, named)) if (key, named) in self.cells else None,
            parity=lambda op: quote(parity_name(op)) if op in self.ops else None,
        )

    def run_links(self, run: RunLike) -> Links:
        """Of a run's page.  Only the newest night's leads to pages of cells, which show that night."""
        links = run_links(run, self.out)
        if self.newest is None or run.id != self.newest.run.id:
            return links
        return replace(links, cell=self.links().cell, backend=self.links().backend)

    def before(self, run_id: str) -> Indexed | None:
        return views.baseline(self.found, run_id) if self.found else None

    def made_of(self, run: RunLike) -> str:
        """Changes when the page of a complete run would; "" for any other run."""
        before, newest = self.before(run.id), self.newest and run.id == self.newest.run.id
        mark, used = evidence.as_of(run.dir), [before] if before else []
        cells = sorted(map(str, self.cells)) if newest else []
        if self.newest and newest:
            used += self.newest.runs
        of: list[Any] = [mark, *((r.id, self.as_of(r.id)) for r in used), _code(), cells]
        of += [self.found.confirmations()] if self.found and newest else []
        return hashlib.sha256(json.dumps(of).encode()).hexdigest() if mark.startswith("run.json") else ""

    def as_of(self, run_id: str) -> str:
        """Changes when a run does."""
        return evidence.as_of(Path(self.store.path) / "runs" / run_id)

    def made_of_both(self, a: str, b: str) -> str:
        """Changes when the page of two runs would."""
        return hashlib.sha256(json.dumps([self.as_of(a), self.as_of(b), _code()]).encode()).hexdigest()

    def kept(self, run: RunLike) -> bool:
        """Whether the page of a run need not be made anew."""
        name = page_name(run.id)
        with suppress(OSError, AttributeError):
            mark = self.made_of(run)
            return bool(mark) and self.pages.get(name) == mark and (self.out / name).is_file()
        return False


@functools.lru_cache(1)
def _code() -> str:
    """Changes with the farm's code that makes pages."""
    import farm.report

    files = [p for m in (views, farm.report) for p in sorted(Path(str(m.__file__)).parent.rglob("*")) if p.is_file()]
    sha = hashlib.sha256()
    for path in files:
        if path.suffix in (".py", ".html", ".css", ".js"):
            sha.update(path.read_bytes())
    return sha.hexdigest()


def _build_night(site: _Site, newest: views.Newest) -> dict[str, Any]:
    """The newest night: its part of the front page, the pages of its backends, its ops, of the cells that they name,
    and of the runs between which something changed."""
    store, out = site.store, site.out
    for a, b in night_pages.compared(newest):
        name = compare_name(a, b)
        if site.pages.get(name) != site.made_of_both(a, b) or not (out / name).is_file():
            _build_comparison(store.run(a), store.run(b), out)
            site.pages[name] = site.made_of_both(a, b)
    run, links = store.run(newest.run.id), site.links()
    repeat = functools.partial(findings.repeat, run)
    for (key, named), row in site.cells.items():
        facts, points = cell_facts_of(newest.index, run, row)
        facts["step"] = night_pages.step_of(newest, row)
        _write_both(out / cell_name(key, named), night_pages.cell_page(facts, points, links), facts)
        site.pages[cell_name(key, named)] = gone_pages.SHOWS + run.id
    for target in (*newest.targets, *newest.silent_targets):
        then = newest.of_target(target) or newest
        silent = newest.run.created if then is not newest else ""
        again = functools.partial(findings.repeat, store.run(then.run.id)) if silent else repeat
        page = night_pages.backend_page(then, target, links, again, silent)
        _write_both(out / backend_name(target), page, night_pages.backend_json(then, target, silent))
        site.pages[backend_name(target)] = gone_pages.SHOWS + then.run.id
    for op in site.ops:
        page = parity_page.page(newest, op, links, site.ops)
        _write_both(out / parity_name(op), page, parity_page.data(newest, op))
        site.pages[parity_name(op)] = gone_pages.SHOWS + run.id
    atomic_files.write(out / "index.json", json.dumps(night_pages.night_json(newest), default=str))
    return night_pages.night(newest, links, repeat)


def _write_both(path: Path, page: str, data: Any) -> None:
    atomic_files.write(path, page)
    atomic_files.write(path.with_suffix(".json"), json.dumps(data, default=str))


def cell_facts_of(found: Index, run: Any, row: Mapping[str, Any]) -> tuple[dict[str, Any], list[trends.Point]]:
    """What a cell's page shows: facts of its newest run, and its nights.  `row`: of the index."""
    full = next(r for r in run.rows_of(row["cell_key"]) if r.get("cell_id") == row["cell_id"])
    return cell_facts_in(found, run, full)


def cell_facts_in(found: Index | None, run: Any, full: Mapping[str, Any]) -> tuple[dict[str, Any], list[trends.Point]]:
    """What the page of a cell in one run shows: facts of that run's row, and all its nights."""
    log = run.log_text(full["log"]) if full.get("log") and log_path(run, full["log"]) else ""
    key, named = str(full["cell_key"]), str(full["cell_id"]).partition("@")[2]
    facts = cell_facts.facts(run, full, run.samples_of(key), (), log)
    points = views.cell_history(found, key, named, str(full["target"])) if found else []
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


def run_lines(store: StoreLike, known: dict[str, Any], seconds: float | None = None) -> list[RunLine]:
    """A line per run; a run that cannot be read is `unreadable`.  `known` as for `proofs`.  `seconds`: after that time
    older runs have a line alone, and what they prove is read another time."""

    def answer(found: list[Any], fresh: dict[str, Any]) -> list[RunLine]:
        evidence.thaw(fresh)  # what a file holds of proofs is found unusable here too
        return evidence.lines(fresh, found)

    return _of_known(store, known, answer, seconds)


def _of_known(
    store: StoreLike,
    known: dict[str, Any],
    answer: Callable[[list[Any], dict[str, Any]], T],
    seconds: float | None = None,
) -> T:
    found = list(store.runs())
    until = None if seconds is None else time.monotonic() + seconds

    def late() -> bool:
        return until is not None and time.monotonic() > until

    try:
        fresh = evidence.collect(found, store.run, dict(known), LARGE_BYTES, late)
        made = answer(found, fresh)
    except (KeyError, TypeError, AttributeError, ValueError):  # an evidence.json that the farm did not write
        fresh = evidence.collect(found, store.run, {}, LARGE_BYTES, late)
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


def kept_pages(path: Path) -> dict[str, str]:
    """What a file of `KEPT` has of pages: what each was made of."""
    with suppress(OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return {str(k): str(v) for k, v in json.loads(path.read_text(encoding="utf-8"))["pages"].items()}
    return {}


def _build_run(site: _Site, run: RunLike) -> Path:
    out = site.out
    path, before = out / page_name(run.id), site.before(run.id)
    if arms_page.has_pairs(run.head):
        return _build_arms(site, run)
    against = Against.of(site.store.run(before.id), run, quote(compare_name(before.id, run.id))) if before else None
    if against and before:
        _build_comparison(against.before, run, out)
        site.pages[compare_name(before.id, run.id)] = site.made_of_both(before.id, run.id)
    links = site.run_links(run)
    for where, op in parts_of(run):
        _write_both(
            out / part_name(run.id, where, op), part_page(run, (where, op), links, against), part_json(run, (where, op))
        )
    night, nights = night_pages.as_night(site.newest, run.id), night_pages.nights_to(site.newest, run.id)
    _write_both(path, run_page(run, links, against, night, nights), run_json(run, against, nights))
    site.pages[path.name] = site.made_of(run)
    return path


def _build_arms(site: _Site, run: Any) -> Path:
    """The page of a run of two arms, which is their comparison, and beside it that of all its results."""
    path, results = site.out / page_name(run.id), site.out / results_name(run.id)
    links = site.run_links(run)
    a, b, pairs, said = arms_page.of_run(run, quote(results.name))
    atomic_files.write(results, run_page(run, links))
    data = {**as_json(a, b, pairs, said), "run": run.id, "comparison": run.head["comparison"]}
    _write_both(path, compare_page(a, b, pairs, said, links), data)
    site.pages[path.name] = site.made_of(run)
    return path


def results_name(run_id: str) -> str:
    """The page of all results of a run of two arms."""
    return f"results-{run_id}.html"


def part_name(run_id: str, where: str, op: str) -> str:
    return f"run-{run_id}--{_exact(f'{where}-{op}')}.html"


def parity_name(op: str) -> str:
    return f"parity-{_exact(op)}.html"


def compare_name(a: str, b: str) -> str:
    return f"compare-{a}--{b}.html"


def backend_name(target: str) -> str:
    return f"backend-{_slug(target)}.html"


def cell_name(key: str, named: str) -> str:
    return f"cell-{_slug(key[:20])}{'-' + _slug(named) if named else ''}.html"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[:80]


def _exact(text: str) -> str:
    """A name of a file, never the same for two texts."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:80]
    return name if name == text else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def comparison(a: RunLike, b: RunLike, found: Comparison, timed: TimeComparison) -> tuple[Side, Side, Said]:
    """What a page says of two runs beyond their cells."""
    groups = {kind: [c.after for c in found.of(kind) if c.after is not None] for kind in ("broken", "new")}
    groups["slower"] = [p.row for p in timed.pairs if p.time == SLOWER]
    repeats = {f"the cells that are {kind}": findings.repeat(b, rows) for kind, rows in groups.items() if rows}
    repeats.pop("the cells that are new", None)
    revisions = [confirming.revision_of(run.head) for run in (a, b)]
    if groups["slower"] and (command := confirming.in_turn(repeats["the cells that are slower"], *revisions)):
        repeats["both revisions in turn, which decides whether the slower cells are slower"] = command
    kind = {0: "passed", 1: "findings", 3: "farm_fault"}.get(found.exit_code, "nothing")
    notes = [*found.notes, *timed.unlike, *timed.notes]
    parts = [f"{len(of):,} {kind}" for kind in ("broken", "new", "lost", "fixed") if (of := found.of(kind))]
    parts += suspected_parts(timed.pairs)
    word = found.verdict
    if groups["slower"] and found.exit_code == 0:  # the verdict rests on statuses, and a page shows times as well
        kind, word = "inconclusive", "suspected slower"
    verdict = f"{word[:1].upper()}{word[1:]}: {', '.join(parts) or 'nothing changed'}"
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
        atomic_files.write(path, compare_page(left, right, timed.pairs, said, links))
        atomic_files.write(path.with_suffix(".json"), json.dumps(as_json(left, right, timed.pairs, said), indent=1))
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

    return replace(
        _index_links(out), run=page_name, log=log, file=inside, part=lambda where, op: part_name(run.id, where, op)
    )


def _index_links(out: Path) -> Links:
    def page(run_id: str) -> str | None:
        return quote(page_name(run_id)) if (out / page_name(run_id)).is_file() else None

    def compare(a: str, b: str) -> str | None:
        return quote(compare_name(a, b)) if (out / compare_name(a, b)).is_file() else None

    return Links("index.html", page, lambda name: None, evidence=EVIDENCE, compare=compare)
