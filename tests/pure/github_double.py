"""A local double of GitHub's REST API: a repository's comments, checks and permissions behind a loopback socket, which
answers as awkwardly as it is told to."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pr_results import BASE, HEAD, TREES

TOKEN = "ghs_canary-of-the-test"
Trouble = Callable[[str, str], "tuple[int, dict[str, str]] | None"]


class Forge:
    """The state of one repository.  `trouble(method, path)` may answer instead: (status, headers)."""

    def __init__(self) -> None:
        self.login = "kernel-farm"
        self.permissions = {"maintainer": "write", "owner": "admin", "stranger": "read"}
        self.pull: dict[str, Any] = {
            "number": 7, "state": "open", "body": "", "head": {"sha": HEAD, "repo": {"full_name": "stranger/kernels"}},
            "base": {"sha": BASE, "repo": {"full_name": "someone/kernels"}},
        }  # fmt: skip
        self.comments: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.trees = dict(TREES)
        self.merge_base = BASE
        self.trouble: Trouble = lambda method, path: None
        self.calls: list[tuple[str, str]] = []
        self.branches: dict[str, str] = {}
        self.started: list[dict[str, Any]] = []  # what workflows were started with
        self.runs: list[dict[str, Any]] = []  # of the workflow that has the devices
        self.reviews: dict[int, dict[str, Any]] = {}  # review comments
        self.open: list[dict[str, Any]] = []  # other pull requests
        self.lost_answers = 0  # comments that are made while the answer is a 502

    def say(self, login: str, body: str) -> int:
        number = 1000 + len(self.comments)
        self.comments.append({"id": number, "body": body, "user": {"login": login}})
        return number

    def answer(self, method: str, path: str, body: Any, token: str) -> tuple[int, Any, dict[str, str]]:
        self.calls.append((method, path))
        if (odd := self.trouble(method, path)) is not None:
            return odd[0], {"message": "no"}, odd[1]
        if token != f"Bearer {TOKEN}":
            return 401, {"message": "Bad credentials"}, {}
        at = path.partition("?")[0].removeprefix("/repos/someone/kernels")
        page = int((re.search(r"[?&]page=(\d+)", path) or [0, 1])[1])
        return (*self._answer(method, at, body or {}, page), {})

    def _answer(self, method: str, at: str, body: dict[str, Any], page: int) -> tuple[int, Any]:
        if at == "/user":
            return (200, {"login": self.login}) if self.login else (403, {})
        if at == "/pulls/7":
            return 200, self.pull
        if found := re.fullmatch(r"/collaborators/(.+)/permission", at):
            role = self.permissions.get(found[1])
            return (200, {"permission": role, "role_name": role}) if role else (404, {})
        if at == "/issues/7/comments" and method == "GET":
            return 200, self.comments[100 * (page - 1) : 100 * page]
        if at == "/issues/7/comments":
            self.say(self.login or "github-actions[bot]", body["body"])
            if self.lost_answers:
                self.lost_answers -= 1
                return 502, {}
            return 201, self.comments[-1]
        if (found := re.fullmatch(r"/issues/comments/(\d+)", at)) and method == "PATCH":
            for comment in self.comments:
                if comment["id"] == int(found[1]):
                    comment["body"] = body["body"]
                    return 200, comment
            return 404, {}
        if found := re.fullmatch(r"/git/commits/([0-9a-f]{40})", at):
            return (200, {"tree": {"sha": self.trees[found[1]]}}) if found[1] in self.trees else (404, {})
        if at.startswith("/commits/") and at.endswith("/check-runs"):
            runs = [c for c in self.checks if c["head_sha"] == at.split("/")[2]]
            return 200, {"total_count": len(runs), "check_runs": runs}
        if at.startswith("/compare/"):
            return 200, {"merge_base_commit": {"sha": self.merge_base}}
        if found := re.fullmatch(r"/git/ref/heads/(.+)", at):
            sha = self.branches.get(found[1])
            return (200, {"object": {"sha": sha}}) if sha else (404, {})
        if (found := re.fullmatch(r"/git/refs/heads/(.+)", at)) and method == "PATCH":
            if found[1] not in self.branches:
                return 422, {"message": "Reference does not exist"}
            self.branches[found[1]] = body["sha"]
            return 200, {}
        if at == "/git/refs" and method == "POST":
            self.branches[body["ref"].removeprefix("refs/heads/")] = body["sha"]
            return 201, {}
        if (found := re.fullmatch(r"/actions/workflows/([\w.-]+)/dispatches", at)) and method == "POST":
            if body["ref"] not in self.branches or found[1] != "farm-device.yml":
                return 422, {"message": f"No ref found for: {body['ref']}"}
            self.started.append({"workflow": found[1], **body})
            return 204, {}
        if re.fullmatch(r"/actions/workflows/[\w.-]+/runs", at):
            return 200, {"workflow_runs": self.runs}
        if found := re.fullmatch(r"/pulls/comments/(\d+)", at):
            review = self.reviews.get(int(found[1]))
            return (200, review) if review else (404, {})
        if at == "/pulls":
            return 200, [self.pull, *self.open][100 * (page - 1) : 100 * page]
        if at == "/check-runs" and method == "POST":
            self.checks.append({"id": 1 + len(self.checks), **body})
            return 201, self.checks[-1]
        if (found := re.fullmatch(r"/check-runs/(\d+)", at)) and method == "PATCH":
            self.checks[int(found[1]) - 1].update(body)
            return 200, self.checks[int(found[1]) - 1]
        return 404, {"message": "Not Found"}


@contextmanager
def serving(forge: Forge) -> Iterator[str]:
    """The address of the double, on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer's body waits 40 ms for the client to have its head

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer, headers = forge.answer(
                self.command, self.path, body, self.headers.get("Authorization") or ""
            )
            raw = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PATCH = _do  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
