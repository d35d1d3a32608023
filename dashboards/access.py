"""Who may read the pages of a server that listens beyond this host: whoever has its token.

The token comes in the address once (`?token=...`), then as a cookie; programs send `Authorization: Bearer ...`.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from farm.errors import UsageError

COOKIE = "farm_token"
VARIABLE = "FARM_DASHBOARD_TOKEN"
MONTH = 30 * 24 * 3600
WELL_FORMED = re.compile(r"[A-Za-z0-9._~-]{16,200}")
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def local(host: str) -> bool:
    """Whether only this host can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def chosen(host: str, file: str | None) -> str:
    """The token of a server that listens on `host`: from a file, else from FARM_DASHBOARD_TOKEN, else made up; on
    loopback, if none is given, "" (none).  UsageError if the file cannot be read, or the token is not well-formed."""
    if file:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            text = f"--token-file {file}: the token cannot be read ({why}); name a file with one line"
            raise UsageError(text, id="serve-token-unreadable") from None
        source = f"--token-file {file}"
    else:
        token, source = os.environ.get(VARIABLE, "").strip(), VARIABLE
        if not token:
            return "" if local(host) else secrets.token_urlsafe(24)
    if not WELL_FORMED.fullmatch(token):
        text = f"{source}: a token is 16 to 200 letters, digits and any of . _ ~ - on one line, for example from"
        raise UsageError(f"{text} `openssl rand -hex 24`", id="serve-token-form")
    return token


class NeedsToken:
    """An ASGI application that only answers those who have the token."""

    def __init__(self, app: App, token: str, headers: dict[str, str]):
        self._app, self._token, self._headers = app, token.encode(), headers

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = next((v for k, v in query if k == "token"), None)
        if given is not None and self._is(given):
            rest = urlencode([(k, v) for k, v in query if k != "token"])
            raw = scope.get("raw_path") or scope["path"].encode()
            path = "/" + raw.partition(b"?")[0].decode("latin-1").lstrip("/\\")  # `//host` would be another host's
            cookie = f"{COOKIE}={given}; Path=/; Max-Age={MONTH}; HttpOnly; SameSite=Lax"
            more = {"location": path + (f"?{rest}" if rest else ""), "set-cookie": cookie}
            await self._answer(send, 303, b"", more)
            return
        if any(self._is(text) for text in self._given(scope)):
            await self._app(scope, receive, send)
            return
        text = b"These pages need a token: open the address that farm dashboard serve printed, with ?token=... in it.\n"
        await self._answer(send, 401, text, {"www-authenticate": "Bearer"})

    def _is(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token)

    @staticmethod
    def _given(scope: Scope) -> list[str]:
        """What a request brings in its headers."""
        out = []
        for name, value in scope.get("headers", ()):
            text = value.decode("latin-1")
            if name == b"authorization" and text[:7].lower() == "bearer ":
                out.append(text[7:].strip())
            if name == b"cookie":
                try:
                    found = SimpleCookie(text).get(COOKIE)
                except CookieError:
                    continue
                out += [found.value] if found else []
        return out

    async def _answer(self, send: Any, status: int, body: bytes, more: dict[str, str]) -> None:
        headers = {
            **self._headers,
            "content-type": "text/plain; charset=utf-8",
            "content-length": str(len(body)),
            **more,
        }
        encoded = [(k.lower().encode(), v.encode("latin-1", "replace")) for k, v in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})
