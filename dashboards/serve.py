"""Serves the pages over HTTP, from the same functions that write them.  Needs the extra `serve`."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from farm.dashboards.build import StoreLike, need_store, proofs, run_lines
from farm.dashboards.pages import Links, evidence_page, run_page, runs_page
from farm.errors import FarmError, UsageError
from farm.report.provenance import log_path
from farm.report.queries import RunLike
from farm.store import RUN_ID

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


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
    """A Starlette application: `/`, `/evidence`, `/run/<id>`, `/run/<id>/log/<name>`."""
    _need()
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def missing(what: str) -> Response:
        return PlainTextResponse(f"{what}\n", 404, HEADERS)

    links = Links("/", lambda run_id: f"/run/{quote(run_id)}", lambda name: None, evidence="/evidence")
    known: dict[str, Any] = {}  # what the runs prove and their lines: a run that has not changed is read once

    def runs(_: Request) -> Response:
        return HTMLResponse(runs_page(run_lines(store, known), links), headers=HEADERS)

    def proven(_: Request) -> Response:
        return HTMLResponse(evidence_page(proofs(store, known), links), headers=HEADERS)

    def one(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        if run is None:
            return missing("No such run; the list of runs is at /")
        return HTMLResponse(run_page(run, live_links(run)), headers=HEADERS)

    def log(request: Request) -> Response:
        run = find(store, request.path_params["run_id"])
        path = log_path(run, request.path_params["name"]) if run else None
        if path is None:
            return missing("No such log; the list of runs is at /")
        return FileResponse(path, headers=HEADERS, media_type="text/plain; charset=utf-8")

    routes = [
        Route("/", runs),
        Route("/evidence", proven),
        Route("/run/{run_id}", one),
        Route("/run/{run_id}/log/{name:path}", log),
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

    return Links("/", lambda run_id: f"/run/{quote(run_id)}", log, evidence="/evidence")


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
