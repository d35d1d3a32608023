"""Ray's token as this host has it.  What is kept of it is whether it is sound, never itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farm.doctor.facts import Token


def look(environ: Mapping[str, str], home: Path) -> Token:
    """The token that Ray would take: RAY_AUTH_TOKEN, else the file that RAY_AUTH_TOKEN_PATH names, else
    ~/.ray/auth_token (docs.ray.io, "Ray token authentication"; measured with Ray 2.60)."""
    mode = environ.get("RAY_AUTH_MODE")
    named = environ.get("RAY_AUTH_TOKEN_PATH", "")
    file = Path(named) if named else home / ".ray" / "auth_token"
    text, failure = _read(file) if named or file.is_file() else (None, "")
    if "RAY_AUTH_TOKEN" in environ:
        said = environ["RAY_AUTH_TOKEN"]
        differs = bool(named) and text is not None and text.strip() != said.strip()
        return _token(mode, "RAY_AUTH_TOKEN", said, differs=differs)
    if text is None:
        return Token(mode, str(file) if named else "", failure)
    return _token(mode, str(file), text, exposed=bool(file.stat().st_mode & 0o077))


def _token(mode: str | None, source: str, text: str, *, exposed: bool = False, differs: bool = False) -> Token:
    bare = text.strip(" \t\r\n")
    if not bare:
        return Token(mode, source, "it is empty", exposed=exposed)
    illegal = any(not 0x21 <= ord(c) <= 0x7E for c in bare)
    return Token(mode, source, "", exposed, bare != text, illegal, differs)


def _read(file: Path) -> tuple[str | None, str]:
    try:
        return file.read_bytes()[:4096].decode("utf-8", "replace"), ""
    except OSError as error:
        return None, error.strerror or str(error)
