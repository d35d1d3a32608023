"""This host's token for Ray: facts about it without the token, and the one way in which the farm writes one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.errors import UsageError
from farm.process import variables


@dataclass(frozen=True)
class TokenFacts:
    """What is known about Ray's token, without the token.  `source`: the variable or file that gives it, or ""."""

    mode: str | None = None  # RAY_AUTH_MODE
    source: str = ""
    failure: str = ""  # why it cannot be read
    exposed: bool = False  # its file can be read by others than its owner
    spaces: bool = False  # begins or ends with white space
    illegal: bool = False  # contains what is not allowed in an HTTP header
    differs: bool = False  # RAY_AUTH_TOKEN and the file of RAY_AUTH_TOKEN_PATH are not the same


def refuse_empty(environ: Mapping[str, str]) -> None:
    """UsageError for a RAY_AUTH_TOKEN without a token: Ray would then write one of its own to ~/.ray/auth_token, which
    every user of the host can read."""
    if not environ.get("RAY_AUTH_TOKEN", "-").strip():
        what = "RAY_AUTH_TOKEN is set but empty; unset it, or name the token's file in RAY_AUTH_TOKEN_PATH"
        raise UsageError(what, id="ray-token-empty")


def keep(file: Path, token: str = "") -> Path:
    """Write `token`, or a new one, to a new file that only this user can read.  OSError if the file exists."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(token or secrets.token_hex(32))
    return file


def of_head(environ: Mapping[str, str]) -> Path:
    """Where `farm nodes head` keeps the token that it makes."""
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "farm" / "ray_token"


def copied(folder: Path, token: str, *, write: bool = True) -> Path:
    """The file in `folder` that has this token; the same for the same token, written if it is not there."""
    file = folder / f"token-{hashlib.sha256(token.encode()).hexdigest()[:12]}"
    if write:
        with contextlib.suppress(FileExistsError):
            keep(file, token)
    return file


def hand_over(file: Path, token: str) -> None:
    """Have this process, and what it starts, find `token` in `file` instead of in a variable, which every process of
    this user could read (/proc/PID/environ), the code under test among them."""
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(keep(file, token))
    os.environ["RAY_AUTH_MODE"] = "token"
    variables.forget("RAY_AUTH_TOKEN")


def look(environ: Mapping[str, str], home: Path) -> TokenFacts:
    """The token that Ray would use: RAY_AUTH_TOKEN, else the file that RAY_AUTH_TOKEN_PATH names, else
    ~/.ray/auth_token (docs.ray.io, "Ray token authentication"; measured with Ray 2.60)."""
    mode = environ.get("RAY_AUTH_MODE")
    named = environ.get("RAY_AUTH_TOKEN_PATH", "")
    file = Path(named) if named else home / ".ray" / "auth_token"
    text, failure = _read(file) if named or file.is_file() else (None, "")
    if "RAY_AUTH_TOKEN" in environ:
        given = environ["RAY_AUTH_TOKEN"]
        differs = bool(named) and text is not None and text.strip() != given.strip()
        return _token(mode, "RAY_AUTH_TOKEN", given, differs=differs)
    if text is None:
        return TokenFacts(mode, str(file) if named else "", failure)
    return _token(mode, str(file), text, exposed=bool(file.stat().st_mode & 0o077))


def _token(mode: str | None, source: str, text: str, *, exposed: bool = False, differs: bool = False) -> TokenFacts:
    bare = text.strip(" \t\r\n")
    if not bare:
        return TokenFacts(mode, source, "the file is empty", exposed=exposed)
    illegal = any(not 0x21 <= ord(c) <= 0x7E for c in bare)
    return TokenFacts(mode, source, "", exposed, bare != text, illegal, differs)


def _read(file: Path) -> tuple[str | None, str]:
    try:
        return file.read_bytes()[:4096].decode("utf-8", "replace"), ""
    except OSError as error:
        return None, error.strerror or str(error)
