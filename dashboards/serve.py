"""Serves the pages over HTTP, from the same functions that write them.  Needs the extra `serve`."""

from __future__ import annotations

import functools
import hashlib
import json
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from farm.dashboards import arms_page, night_pages, views
from farm.dashboards.build import StoreLike, cell_facts_of, comparison, need_store, proofs, run_lines
from farm.dashboards.compare_page import as_json
from farm.dashboards.pages import Against, Links, compare_page, evidence_page, run_json, run_page, runs_page
from farm.errors import FarmError, StoreError, UsageError
from farm.report import findings, status_changes
from farm.report.provenance import log_path
from farm.report.queries import RunLike
from farm.report.time_changes import times
from farm.store import RUN_ID

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
)


def _need() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as e:
        message = (
            "serving pages needs two more packages: pip install starlette uvicorn (the extra `serve`); or use `build`"
        )
        raise UsageError(message, id="serve-packages-missing") from e


def app(store: StoreLike) -> Any:
    """A Starlette application: `/`, `/evidence`, `/run/<id>`, `/run/<id>/results` (of a run of two arms),
    `/run/<id>/log/<name>`, `/backend/<target>`, `/cell/<key>`, `/compare/<a>/<b>`; JSON of a page at its address with
    `.json` (of the first: `/night.json`)."""
    _need()
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def missing(what: str) -> Response:
        return PlainTextResponse(f"{what}\n", 404, HEADERS)

    def answer(request: Request, page: Callable[[], str], data: Callable[[], Any]) -> Response:
        """The page, or its data; 304 where the reader has it already."""
        as_data = request.url.path.endswith(".json")
        text = json.dumps(data(), default=str) if as_data else page()
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if as_data:
            return Response(text, media_type="application/json", headers=headers)
        return HTMLResponse(text, headers=headers)

    known: dict[str, Any] = {}  # what the runs prove and their lines: a run that has not changed is read once

    def newest() -> Any:
        with suppress(StoreError):  # a store that cannot be written has no index
            return views.newest(views.checked(store))
        return None

    def runs(request: Request) -> Response:
        night = newest()
        repeat = functools.partial(findings.repeat, store.run(night.run.id)) if night else None
        shown = night_pages.night(night, LINKS, repeat) if night and repeat else None
        return answer(
            request,
            lambda: runs_page(run_lines(store, known), LINKS, shown),
            lambda: night_pages.night_json(night) if night else {},
        )

    def proven(_: Request) -> Response:
        return HTMLResponse(evidence_page(proofs(store, known), LINKS), headers=HEADERS)

    def one(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        if run is None:
            return missing("No such run; the list of runs is at /")
        if arms_page.has_pairs(run.head):
            made = arms_page.of_run(run, f"{LINKS.run(run.id)}/results")
            return answer(request, lambda: compare_page(*made, live_links(run)), lambda: as_json(*made))
        before = None
        with suppress(StoreError):
            before = views.baseline(views.checked(store), run.id)
        against = Against.of(store.run(before.id), run, LINKS.compare(before.id, run.id)) if before else None
        return answer(request, lambda: run_page(run, live_links(run), against), lambda: run_json(run, against))

    def results(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        if run is None:
            return missing("No such run; the list of runs is at /")
        return answer(request, lambda: run_page(run, live_links(run)), lambda: run_json(run))

    def backend(request: Request) -> Response:
        night, target = newest(), request.path_params["target"]
        if night is None or target not in night.targets:
            return missing("The newest night has no such target; its targets are at /")
        repeat = functools.partial(findings.repeat, store.run(night.run.id))
        return answer(
            request,
            lambda: night_pages.backend_page(night, target, LINKS, repeat),
            lambda: night_pages.backend_json(night, target),
        )

    def cell(request: Request) -> Response:
        key, named = request.path_params["key"], request.query_params.get("target", "")
        found = views.checked(store)
        rows = views.series(found, key, ("cell_key", "cell_id", "named", "target"), named)
        if not rows:
            return missing("No complete run has such a cell; the list of runs is at /")
        facts, points = cell_facts_of(found, store.run(rows[-1]["run"]), rows[-1])
        return answer(request, lambda: night_pages.cell_page(facts, points, LINKS), lambda: facts)

    def compared(request: Request) -> Response:
        a, b = (find(store, request.path_params[name]) for name in ("a", "b"))
        if a is None or b is None:
            return missing("No such run; the list of runs is at /")
        changes = status_changes.compare(a, b)
        timed = times(changes)
        left, right, said = comparison(a, b, changes, timed)
        left, right = (replace(side, address=LINKS.run(side.name)) for side in (left, right))
        return answer(
            request,
            lambda: compare_page(left, right, timed.pairs, said, LINKS),
            lambda: as_json(left, right, timed.pairs, said),
        )

    def log(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        path = log_path(run, request.path_params["name"]) if run else None
        if path is None:
            return missing("No such log; the list of runs is at /")
        return FileResponse(path, headers=HEADERS, media_type="text/plain; charset=utf-8")

    pages = {"/run/{run_id}": one, "/backend/{target}": backend, "/cell/{key}": cell, "/compare/{a}/{b}": compared}
    routes = [
        Route("/", runs),
        Route("/night.json", runs),
        Route("/evidence", proven),
        *(Route(path + end, page) for path, page in pages.items() for end in (".json", "")),
        Route("/run/{run_id}/log/{name:path}", log),
        Route("/run/{run_id}/results", results),
    ]
    return Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=1000)])


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

    return replace(LINKS, log=log)


def serve(store: StoreLike, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serves until interrupted.  Pages contain logs and commands: with a public `host`, consider who can read them."""
    _need()
    need_store(store)
    import uvicorn

    with listen(host, port) as listening, suppress(KeyboardInterrupt):
        shown = f"[{host}]" if ":" in host else host
        sys.stderr.write(f"serving {store.path} at http://{shown}:{port}/ (stop with Ctrl-C)\n")
        sys.stderr.flush()
        uvicorn.Server(uvicorn.Config(app(store), log_level="warning", lifespan="off")).run(sockets=[listening])


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
