"""Standard output and error that outlive their readers: a run continues when the pipe that it writes to is closed."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


class Surviving:
    """A text stream that discards its text, instead of raising, once its reader has closed it."""

    def __init__(self, stream: TextIO):
        self._stream: TextIO | None = stream

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (BrokenPipeError, ValueError):
                self._leave()
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (BrokenPipeError, ValueError):
                self._leave()

    def _leave(self) -> None:
        """Write nothing more there, not even in the interpreter's last flush."""
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_stream") or sys.__stderr__, name)


def open_missing() -> None:
    """Give a process that was started without standard output or error streams that discard their text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends


@contextlib.contextmanager
def surviving() -> Any:
    """Within this context, a reader that closes the output does not end the work."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Surviving(sys.stdout), Surviving(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before
