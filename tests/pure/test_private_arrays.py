"""What a verdict depends on has no path: arrays by key, made once by a judge, within a bound, gone with it."""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.judge import cache
from farm.judge.cache import SMALL_BYTES, Allocate, GivenFiles, Made, PrivateArrays

LARGE = SMALL_BYTES // 8 + 1  # float64 values


def maker(made: list[int], value: float, count: int = 4) -> Any:
    def make(allocate: Allocate) -> Made:
        made.append(1)
        array = allocate("x", (count,), np.float64)
        array[...] = value
        return Made({"x": array})

    return make


@pytest.mark.parametrize("count", [0, 4, LARGE])
def test_a_key_is_made_once_and_nobody_can_write_it(tmp_path: Path, count: int) -> None:
    store, made = PrivateArrays([tmp_path]), list[int]()
    for _ in range(3):
        found = store.get("k", maker(made, 1.0, count)).arrays["x"]
        assert found.shape == (count,) and (found == 1.0).all()
        with pytest.raises(ValueError, match="read-only"):
            found[...] = 2.0
    assert made == [1]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_no_path_leads_to_a_large_array(tmp_path: Path) -> None:
    """Neither a name, nor a link in /proc/PID/fd, by which a process of the same user could write it."""
    found = PrivateArrays([tmp_path]).get("k", maker([], 1.0, LARGE)).arrays["x"]
    assert found.sum() == LARGE and list(tmp_path.iterdir()) == []
    opened = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [name for name in opened if str(tmp_path) in name or "memfd:farm" in name]
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert f"{tmp_path}/#" in maps  # it is there, and known to be deleted
    del found
    gc.collect()
    assert f"{tmp_path}/#" not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_threads_that_come_at_once_make_it_once(tmp_path: Path) -> None:
    store, made = PrivateArrays([tmp_path]), list[int]()

    def slow(allocate: Allocate) -> Made:
        time.sleep(0.1)
        return maker(made, 1.0)(allocate)  # type: ignore[no-any-return]

    threads = [threading.Thread(target=store.get, args=("k", slow)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(10)
    assert made == [1]


def test_one_that_is_stuck_while_it_makes_a_key_stops_nobody(tmp_path: Path) -> None:
    store, made, go = PrivateArrays([tmp_path], lock_s=0.05), list[int](), threading.Event()
    stuck = threading.Thread(target=store.get, args=("k", lambda allocate: go.wait(60) and maker([], 1.0)(allocate)))
    stuck.start()
    try:
        assert (store.get("k", maker(made, 2.0)).arrays["x"] == 2.0).all() and made == [1]
    finally:
        go.set()
        stuck.join(10)


def test_what_fails_in_the_making_is_made_by_the_next(tmp_path: Path) -> None:
    store, made = PrivateArrays([tmp_path]), list[int]()

    def broken(allocate: Allocate) -> Made:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.get("k", broken)
    store.get("k", maker(made, 1.0))
    assert made == [1]


def test_the_longest_unused_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MEMORY_BYTES", 3 * 32)
    store, made = PrivateArrays([tmp_path]), list[int]()
    for key in ("a", "b", "c", "a", "d", "a", "b"):  # b was the longest unused when d came
        store.get(key, maker(made, 1.0))
    assert len(made) == 5


def test_what_is_larger_than_the_limit_is_kept_until_the_next(tmp_path: Path) -> None:
    store, made = PrivateArrays([tmp_path], limit_gib=1e-9), list[int]()
    for key in ("a", "a", "b", "b", "a"):
        store.get(key, maker(made, 1.0, LARGE))
    assert len(made) == 3


def test_the_sums_are_those_of_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept along the way: made anew at each cell, they went through all that is held."""
    monkeypatch.setattr(cache, "MEMORY_BYTES", 20 * 32)
    store, given_, draw = PrivateArrays([tmp_path], 3 * LARGE * 8 / 2**30), given(tmp_path)[0], random.Random(5)
    monkeypatch.setattr(cache, "GIVEN_SHARE", 1e-9)
    for _ in range(300):
        key, count = draw.randrange(40), draw.choice((0, 4, 9, LARGE))
        store.get(f"{key} {count}", maker([], 1.0, count))
        made = [f.result() for f in store._kept.values()]
        assert (store._memory, store._files) == (sum(m.in_memory for m in made), sum(m.in_files for m in made))
        assert store._sizes.keys() == store._kept.keys()
        monkeypatch.setattr(cache, "YOUNG_SECONDS", draw.choice((0.0, 600.0)))
        found = given_.files(f"{key}", {"x": np.zeros(key)})["x"]
        if draw.random() < 0.2:
            os.truncate(found, 1)
        assert given_._total == sum(sum(c.sizes.values()) for c in given_._there.values())


def test_judges_of_a_host_share_its_limit(tmp_path: Path) -> None:
    gib = 4.5 * LARGE * 8 / 2**30
    for sharers, again in ((1, 4), (4, 7)):
        store, made = PrivateArrays([tmp_path], gib, sharers), list[int]()
        for key in (*"abcd", *"cba"):
            store.get(key, maker(made, 1.0, LARGE))
        assert len(made) == again


def test_a_place_that_cannot_be_used_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("where the folder should be")
    for bad in (file, Path("/proc/nowhere")):
        assert PrivateArrays([bad, tmp_path]).get("k", maker([], 1.0, LARGE)).arrays["x"].sum() == LARGE
    with pytest.raises(OSError):
        PrivateArrays([file]).get("k", maker([], 1.0, LARGE))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)  # before anything is written: not a bus error later
    with pytest.raises(OSError, match="No space"):
        PrivateArrays([tmp_path]).get("k", maker([], 1.0, LARGE))


def test_a_file_system_without_unnamed_files_is_not_given_a_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def nfs(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", nfs)
    for places in ([tmp_path], [tmp_path, Path("/proc/nowhere")], [Path("/proc/nowhere"), tmp_path]):
        assert PrivateArrays(places).get("k", maker([], 1.0, LARGE)).arrays["x"].sum() == LARGE
    assert list(tmp_path.iterdir()) == []


def given(tmp_path: Path) -> tuple[GivenFiles, dict[str, Any]]:
    (tmp_path / "spool").mkdir()
    arrays = {"x": np.arange(6.0).reshape(2, 3), "none": np.empty((0, 4)), "scalar": np.array(2.0)}
    return GivenFiles(tmp_path / "spool", tmp_path / "reserve"), arrays


@pytest.mark.parametrize("harm", ["nothing", "gone", "cut", "folder", "link"])
def test_a_child_gets_copies_which_are_made_again_where_they_are_gone(tmp_path: Path, harm: str) -> None:
    store, arrays = given(tmp_path)
    first = store.files("k", arrays)["x"]
    if harm in ("gone", "link"):
        first.unlink()
    if harm == "link":
        first.symlink_to("nowhere")
    elif harm == "cut":
        os.truncate(first, 3)
    elif harm == "folder":
        first.parent.rename(tmp_path / "elsewhere")
    found = store.files("k", arrays)
    assert (found["x"] == first) == (harm == "nothing")
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.fromfile(found[name]).reshape(array.shape), array)


def test_copies_are_bounded_and_the_young_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, arrays = given(tmp_path)
    monkeypatch.setattr(cache, "GIVEN_SHARE", 0.0)
    for i in range(4):
        store.files(f"k{i}", arrays)
    assert len(list((tmp_path / "spool").glob("inputs/*/*"))) == 4
    monkeypatch.setattr(cache, "YOUNG_SECONDS", 0.0)
    last = store.files("k4", arrays)["x"]
    assert list((tmp_path / "spool").glob("inputs/*/*")) == [last.parent]


def test_what_the_spool_cannot_hold_goes_to_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, arrays = given(tmp_path)
    real = cache._write

    def write(path: Path, array: Any) -> None:
        if tmp_path / "spool" in path.parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, array)

    monkeypatch.setattr(cache, "_write", write)
    found = store.files("k", arrays)
    assert tmp_path / "reserve" in found["x"].parents and (tmp_path / "reserve" / "owners").is_dir()
    assert list((tmp_path / "spool").glob("inputs/*/*")) == []


def test_no_folder_is_made_for_a_run_that_has_ended(tmp_path: Path) -> None:
    store, arrays = given(tmp_path)
    (tmp_path / "spool").rmdir()
    with pytest.raises(FileNotFoundError):
        store.files("k", arrays)
    assert list(tmp_path.iterdir()) == []
