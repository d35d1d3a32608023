"""Serves the pages over HTTP, from the same functions that write them.  Needs the extra `serve`."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from farm.dashboards import arms_page, live_page, metrics, night_pages, parity_page, views
from farm.dashboards.access import NeedsToken
from farm.dashboards.build import KEPT, StoreLike, cell_facts_in, cell_facts_of, comparison, kept, need_store, run_lines
from farm.dashboards.compare_page import as_json
from farm.dashboards.kept import Pages, Recent
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
from farm.errors import FarmError, StoreError, UsageError, describe
from farm.report import evidence, findings, live, queries, status_changes
from farm.report.provenance import log_path
from farm.report.queries import RunLike
from farm.report.time_changes import times
from farm.store import RUN_ID
from farm.store.index import Index

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


LINKS = Links(
    "/",
    lambda run_id: f"/run/{quote(run_id)}",
    lambda name: None,
    evidence="/evidence",
    backend=lambda target: f"/backend/{quote(target, safe='')}",
    cell=lambda key, named: f"/cell/{quote(key)}" + (f"?target={quote(named)}" if named else ""),
    compare=lambda a, b: f"/compare/{quote(a)}/{quote(b)}",
    parity=lambda op: f"/parity/{quote(op, safe='')}",
    live=lambda run_id: f"/live/{quote(run_id)}",
    anchored=False,
)
#: The index and the list of runs are looked at anew at most so often, and so long are runs added to the index while a
#: reader waits.
RECENT_SECONDS = 2.0
#: So many running runs are followed at a time.
FOLLOWED = 8


def _need() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as e:
        message = (
            "serving pages needs two more packages: pip install starlette uvicorn (the extra `serve`); or use `build`"
        )
        raise UsageError(message, id="serve-packages-missing") from e


def app(store: StoreLike, token: str = "") -> Any:
    """A Starlette application: `/`, `/evidence`, `/run/<id>`, `/run/<id>/results` (of two arms), `/run/<id>/<cell>`,
    `/run/<id>/part/<place>/<op>`, `/run/<id>/log/<name>`, `/live/<id>`, `/backend/<target>`, `/parity/<op>`,
    `/cell/<key>`, `/compare/<a>/<b>`, `/metrics`; JSON of a page at its address with `.json` (of the
    first: `/night.json`).  `token`: who has none gets nothing."""
    _need()
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Route

    pages = Pages()

    def missing(what: str) -> Response:
        return PlainTextResponse(f"{what}\n", 404, HEADERS)

    def answer(request: Request, mark: Hashable, page: Callable[[], str], data: Callable[[], Any]) -> Response:
        """The page, or its data, as it was made for this `mark`; 304 where the reader has it already."""
        as_data = request.url.path.endswith(".json")
        name = f"{request.url.path}?{request.query_params.get('target', '')}"  # what else a script notes is of the view
        made = pages.get(name, mark, lambda: json.dumps(data(), default=str) if as_data else page())
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": made.etag, "Vary": "Accept-Encoding"}
        if made.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        media = "application/json" if as_data else "text/html"
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(made.packed, media_type=media, headers={**headers, "Content-Encoding": "gzip"})
        return Response(
            gzip.decompress(made.packed), media_type=media, headers={**headers, "Content-Encoding": "identity"}
        )

    def safe(page: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """A run that is damaged, or that another version wrote, harms its own page alone."""

        def answered(request: Request) -> Response:
            try:
                return page(request)
            except Exception as error:
                if getattr(error, "id", "") == "store-run-unknown":  # deleted since the index was made
                    return missing("This page is of a run that is no longer in the store; the list of runs is at /")
                why = describe(error)[:300]
                sys.stderr.write(f"farm dashboard: {request.url.path!r}: {why!r}\n")
                return PlainTextResponse(f"This page cannot be made ({why}). The list of runs is at /\n", 500, HEADERS)

        return answered

    # What the runs prove and their lines: a run that has not changed is read once.
    proven: dict[str, Any] = kept(store.path / "pages" / KEPT)
    reading = threading.Lock()
    follows: OrderedDict[str, tuple[threading.Lock, Any, live.Live]] = OrderedDict()

    def indexed() -> Index | None:
        try:
            return views.checked(store, RECENT_SECONDS)
        except StoreError:  # a store that cannot be written has no index
            return None

    def all_lines() -> list[Any]:
        with reading:
            return run_lines(store, proven, RECENT_SECONDS)

    index = Recent(indexed, RECENT_SECONDS)
    lines = Recent(all_lines, RECENT_SECONDS)
    kept_night: list[tuple[Hashable, views.Newest | None]] = []

    def of_index() -> tuple[Hashable, views.Newest | None]:
        """(what the newest night is made of, the night)."""
        found = index()
        mark = found.mark if found else 0
        if not kept_night or kept_night[0][0] != mark:
            kept_night[:] = [(mark, views.newest(found) if found else None)]
        return kept_night[0]

    newest = Recent(of_index, RECENT_SECONDS)

    def runs(request: Request) -> Response:
        (mark, night), listed = newest(), lines()

        def page() -> str:
            repeat = functools.partial(findings.repeat, store.run(night.run.id)) if night else None
            shown = night_pages.night(night, LINKS, repeat) if night and repeat else None
            return runs_page(listed, LINKS, shown)

        data = lambda: night_pages.night_json(night) if night else {}  # noqa: E731
        return answer(request, (mark, _digest(listed)), page, data)

    def measured(request: Request) -> Response:
        """The newest night for Prometheus: made anew each time, since ages grow."""
        found, (_, night) = index(), newest()
        known = (len(found.runs), len(found.left_out)) if found else (0, 0)
        asked = "application/openmetrics-text" in request.headers.get("accept", "")
        text = metrics.text(metrics.gauges(night, time.time(), *known), asked)
        headers = {**HEADERS, "Cache-Control": "no-cache"}
        return Response(text, headers=headers, media_type=metrics.OPENMETRICS if asked else metrics.PLAIN)

    def evidences(request: Request) -> Response:
        listed = lines()
        found = evidence.thaw(dict(proven))
        return answer(
            request, _digest(listed), lambda: evidence_page(found, LINKS), lambda: evidence.evidence_json(found)
        )

    def against(run: RunLike) -> tuple[Hashable, Callable[[], Against | None]]:
        """(the mark of the run before it, what it is against that)."""
        found = index()
        known = views.baseline(found, run.id) if found else None
        before = find(store, known.id) if known else None  # deleted since the index was made
        if before is None:
            return "", lambda: None
        return (before.id, _mark(before)), lambda: Against.of(before, run, LINKS.compare(before.id, run.id))

    def one(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        if run is None:
            return missing("No such run; the list of runs is at /")
        if arms_page.has_pairs(run.head):
            both = functools.lru_cache(1)(lambda: arms_page.of_run(run, f"{LINKS.run(run.id)}/results"))
            return answer(request, _mark(run), lambda: compare_page(*both(), live_links(run)), lambda: as_json(*both()))
        before, made = against(run)
        mark, night = newest()
        nights = night_pages.nights_to(night, run.id)
        return answer(
            request,
            (_mark(run), before, mark),
            lambda: run_page(run, live_links(run), made(), night_pages.as_night(night, run.id), nights),
            lambda: run_json(run, made(), nights),
        )

    def results(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        if run is None:
            return missing("No such run; the list of runs is at /")
        return answer(request, _mark(run), lambda: run_page(run, live_links(run)), lambda: run_json(run))

    def part(request: Request) -> Response:
        run, where, op = (request.path_params[n] for n in ("run_id", "where", "op"))
        run = find(store, run)
        if run is None or (where, op) not in parts_of(run):
            return missing("No such part of a run; the list of runs is at /")
        before, made = against(run)
        return answer(
            request,
            (_mark(run), before),
            lambda: part_page(run, (where, op), live_links(run), made()),
            lambda: part_json(run, (where, op)),
        )

    def running(request: Request) -> Response:
        run: Any = find(store, request.path_params["run_id"])
        if run is None:
            return missing("No such run; the list of runs is at /")
        with reading:
            if run.id not in follows:
                follows[run.id] = (threading.Lock(), run.follow(), live.Live())
                while len(follows) > FOLLOWED:
                    follows.popitem(last=False)
            alone, follower, state = follows[run.id]
        with alone:
            for line in follower.new():
                state.add(line)
            now = time.time()
            if not state.over and not run.writer:
                now = state.now
            view = live_page.data(state, now, functools.partial(findings.repeat, run))
        if run.complete:
            view["over"] = view["over"] or "finished"
        elif not run.writer and not view["over"]:
            view["over"] = "interrupted"
        view["sentence"] = live.sentence(view)
        return answer(request, now, lambda: live_page.page(view, LINKS), lambda: view)

    def backend(request: Request) -> Response:
        (mark, whole), target = newest(), request.path_params["target"]
        night = whole.of_target(target) if whole else None
        if whole is None or night is None:
            return missing("The newest nights have no such target; their targets are at /")
        silent = whole.run.created if night is not whole else ""
        return answer(
            request,
            mark,
            lambda: night_pages.backend_page(
                night, target, LINKS, functools.partial(findings.repeat, store.run(night.run.id)), silent
            ),
            lambda: night_pages.backend_json(night, target, silent),
        )

    def parity(request: Request) -> Response:
        (mark, night), op = newest(), request.path_params["op"]
        others = parity_page.ops(night) if night else []
        if night is None or op not in others:
            return missing("The newest night has no such op on two targets; what it has is at /")
        return answer(
            request, mark, lambda: parity_page.page(night, op, LINKS, others), lambda: parity_page.data(night, op)
        )

    def cell(request: Request) -> Response:
        key, named = request.path_params["key"], request.query_params.get("target", "")
        found = index()
        rows = found.series(key, ("cell_key", "cell_id", "named", "target"), named) if found else []
        if not found or not rows:
            return missing("No complete run has such a cell; the list of runs is at /")

        @functools.lru_cache(1)
        def made() -> tuple[dict[str, Any], Any]:
            facts, points = cell_facts_of(found, store.run(rows[-1]["run"]), rows[-1])
            night = newest()[1]
            its = night is not None and night.run.id == rows[-1]["run"]
            return facts | {"step": night_pages.step_of(night, rows[-1]) if night and its else None}, points

        return answer(request, found.mark, lambda: night_pages.cell_page(*made(), LINKS), lambda: made()[0])

    def cell_of_run(request: Request) -> Response:
        """A cell as it was in one run, by its number."""
        run = find(store, request.path_params["run_id"])
        number = request.path_params["number"]
        if run is None or number >= len(run.rows):
            return missing("No such cell of a run; the list of runs is at /")
        found = index()
        made = functools.lru_cache(1)(lambda: cell_facts_in(found, run, run.rows[number]))
        return answer(
            request,
            (_mark(run), found.mark if found else 0),
            lambda: night_pages.cell_page(*made(), LINKS),
            lambda: made()[0],
        )

    def compared(request: Request) -> Response:
        a, b = (find(store, request.path_params[name]) for name in ("a", "b"))
        if a is None or b is None:
            return missing("No such run; the list of runs is at /")

        @functools.lru_cache(1)
        def made() -> tuple[Any, Any, Any, Any]:
            changes = status_changes.compare(a, b)
            timed = times(changes)
            left, right, said = comparison(a, b, changes, timed)
            left, right = (replace(side, address=LINKS.run(side.name)) for side in (left, right))
            return left, right, timed.pairs, said

        return answer(
            request, (_mark(a), _mark(b)), lambda: compare_page(*made(), links=LINKS), lambda: as_json(*made())
        )

    def log(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        path = log_path(run, request.path_params["name"]) if run else None
        if path is None:
            return missing("No such log; the list of runs is at /")
        return FileResponse(path, headers=HEADERS, media_type="text/plain; charset=utf-8")

    named = {
        "/evidence": evidences,
        "/run/{run_id}": one,
        "/live/{run_id}": running,
        "/backend/{target}": backend,
        "/parity/{op}": parity,
        "/cell/{key}": cell,
        "/compare/{a}/{b}": compared,
        "/run/{run_id}/{number:int}": cell_of_run,
        "/run/{run_id}/part/{where}/{op}": part,
    }
    routes = [
        Route("/", safe(runs)),
        Route("/night.json", safe(runs)),
        Route("/metrics", safe(measured)),
        *(Route(path + end, safe(page)) for path, page in named.items() for end in (".json", "")),
        Route("/run/{run_id}/log/{name:path}", safe(log)),
        Route("/run/{run_id}/results", safe(results)),
    ]
    guards = [Middleware(NeedsToken, token, HEADERS)] if token else []
    return Starlette(routes=routes, middleware=[*guards, Middleware(GZipMiddleware, minimum_size=1000)])


def _mark(run: RunLike) -> Hashable:
    """Changes when a run does."""
    for name in ("run.json", "journal.jsonl"):
        with suppress(OSError):
            stat = (run.dir / name).stat()
            return name, stat.st_mtime_ns, stat.st_size, queries.writer(run)
    return run.id, len(run.rows)


def _digest(listed: Sequence[Any]) -> str:
    return hashlib.sha256(repr(listed).encode("utf-8", "replace")).hexdigest()


def find(store: StoreLike, run_id: str) -> RunLike | None:
    """The run of that id, or None.  An id that no run can have is rejected before the store makes a path of it."""
    if not RUN_ID.fullmatch(run_id):
        return None
    try:
        found: RunLike = store.run(run_id)
    except FarmError:
        return None
    return found


def live_links(run: RunLike) -> Links:
    base = f"/run/{quote(run.id)}"

    def log(name: str) -> str | None:
        return f"{base}/log/{quote(name.removeprefix('logs/'))}" if log_path(run, name) else None

    return replace(
        LINKS,
        log=log,
        part=lambda where, op: f"{base}/part/{quote(where, safe='')}/{quote(op, safe='')}",
        cell_of_run=lambda row: f"{base}/{row['index']}",
    )


def serve(store: StoreLike, host: str = "127.0.0.1", port: int = 8000, token: str = "") -> None:
    """Serves until interrupted.  `token`: what readers need (`farm.dashboards.access.chosen`); "": nothing."""
    _need()
    need_store(store)
    import uvicorn

    with listen(host, port) as listening, suppress(KeyboardInterrupt):
        shown = f"[{host}]" if ":" in host else host
        key = f"?token={token}" if token else ""
        sys.stderr.write(f"serving {store.path} at http://{shown}:{port}/{key} (stop with Ctrl-C)\n")
        sys.stderr.flush()
        uvicorn.Server(uvicorn.Config(app(store, token), log_level="warning", lifespan="off")).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; made here, because uvicorn logs its own error and exits when it cannot bind."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just released is free
            sock.bind(address)
            sock.listen(128)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError) as e:
        why = getattr(e, "strerror", None) or e
        text = f"{host}:{port} cannot be served ({why}); choose another --port or --host"
        raise UsageError(text, id="serve-address-unusable") from e
    return sock


__all__ = ["app", "serve"]
