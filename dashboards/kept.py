"""Pages that a server has made, so that nobody waits for one that has not changed.

A page is kept packed (gzip) with its ETag, until what it was made of changes.  While one reader's request makes a page
anew, the others get the one before.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
#: All kept pages together have at most so many bytes, packed.
LIMIT = 64 << 20
#: What took s seconds to make is not made anew within PATIENCE * s, even if it has changed.
PATIENCE = 4.0


@dataclass(frozen=True)
class Page:
    """A page as it is sent."""

    etag: str
    packed: bytes
    mark: Hashable
    made: float
    cost: float


@dataclass
class Pages:
    """Pages by their address.  Safe among threads."""

    limit: int = LIMIT
    clock: Callable[[], float] = time.monotonic
    _pages: OrderedDict[str, Page] = field(default_factory=OrderedDict)
    _making: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: str, mark: Hashable, make: Callable[[], str]) -> Page:
        """The page of that name; made by `make` unless one of this `mark` is kept."""
        with self._lock:
            page, making = self._pages.get(name), self._making.setdefault(name, threading.Lock())
            if page is not None and (page.mark == mark or self.clock() - page.made < PATIENCE * page.cost):
                self._pages.move_to_end(name)
                return page
        if not making.acquire(blocking=page is None):
            assert page is not None
            return page  # another request is making it
        try:
            with self._lock:
                page = self._pages.get(name)
            if page is not None and page.mark == mark:
                return page
            begun = self.clock()
            text = make().encode("utf-8", "replace")
            etag = f'"{hashlib.sha256(text).hexdigest()[:24]}"'
            packed = gzip.compress(text, 6, mtime=0)
            now = self.clock()
            page = Page(etag, packed, mark, now, now - begun)
            self._keep(name, page)
            return page
        finally:
            with self._lock:
                if name not in self._pages:
                    self._making.pop(name, None)
            making.release()

    def _keep(self, name: str, page: Page) -> None:
        with self._lock:
            self._pages[name] = page
            self._pages.move_to_end(name)
            while len(self._pages) > 1 and sum(len(p.packed) for p in self._pages.values()) > self.limit:
                gone, _ = self._pages.popitem(last=False)
                self._making.pop(gone, None)


class Recent(Generic[T]):
    """A value that is made at most every `seconds`, and by one request at a time."""

    def __init__(self, make: Callable[[], T], seconds: float, clock: Callable[[], float] = time.monotonic):
        self._make, self._seconds, self._clock = make, seconds, clock
        self._lock, self._value, self._until = threading.Lock(), None, -1.0
        self._known = False

    def __call__(self) -> T:
        if self._known and self._clock() < self._until:
            return self._value  # type: ignore[return-value]
        if not self._lock.acquire(blocking=not self._known):
            return self._value  # type: ignore[return-value]
        try:
            if not self._known or self._clock() >= self._until:
                begun = self._clock()
                value: Any = self._make()
                now = self._clock()
                self._value, self._until, self._known = value, now + max(self._seconds, PATIENCE * (now - begun)), True
            return self._value  # type: ignore[return-value]
        finally:
            self._lock.release()
