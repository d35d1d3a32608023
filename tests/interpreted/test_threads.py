"""Threads that a call leaves: the code under test's own are told, a library's that wait are not."""

from __future__ import annotations

import _thread
import logging.handlers
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from farm.child.integrity import IntegrityWatch  # noqa: E402


def test_a_thread_of_ones_own_is_told_and_the_standard_librarys_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.child.integrity.GRACE_SECONDS", 0.05)
    watch = IntegrityWatch(torch.device("cpu"))
    listener = logging.handlers.QueueListener(queue.Queue())
    listener.start()
    over = threading.Event()

    def mine() -> None:
        over.wait(30)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        assert watch.remains() == []
        own = threading.Thread(target=mine, name="mine")
        own.start()
        (told,) = watch.remains()
        over.set()
        own.join()
        listener.stop()
    assert told.startswith("left a thread running (mine in test_threads.")


def test_a_thread_that_python_did_not_start_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code's threads show as dummies, which cannot be joined."""
    monkeypatch.setattr("farm.child.integrity.GRACE_SECONDS", 0.05)
    watch, over, known = IntegrityWatch(torch.device("cpu")), threading.Event(), threading.Event()
    seen: list[Any] = []

    def native() -> None:
        seen.append(threading.current_thread())
        known.set()
        over.wait(30)

    _thread.start_new_thread(native, ())
    assert known.wait(10)
    (told,) = watch.remains()
    over.set()
    assert told.startswith("left a thread running (Dummy-")
