"""Folders by content: made once, whole or not at all, within a bound."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from farm.deadline import Deadline
from farm.judge import cache as filecache
from farm.judge.cache import FileCache, create, create_npy
from farm.process.line_process import LineProcess
from farm.process.steps import own_variables


def write(size: int) -> object:
    return lambda folder: (folder / "data").write_bytes(b"x" * size)


def test_a_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = []
    for _ in range(3):
        found = FileCache(tmp_path).folder("inputs", "k", lambda f: made.append(f) or (f / "data").write_text("1"))
        assert (found / "data").read_text() == "1"
    assert len(made) == 1


def test_two_that_come_at_once_make_it_once(tmp_path: Path) -> None:
    made: list[int] = []

    def slow(folder: Path) -> None:
        made.append(1)
        time.sleep(0.2)
        (folder / "data").write_text("1")

    threads = [threading.Thread(target=lambda: FileCache(tmp_path).folder("inputs", "k", slow)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(10)
    assert made == [1]


#: Makes a key, and is stopped while it does.
STOPPED = """
import os, signal, sys
from pathlib import Path
from farm.judge.cache import FileCache
def make(folder):
    (folder / "data").write_text("1")
    print("makes", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
FileCache(Path(sys.argv[1])).folder("inputs", "k", make)
print("made", flush=True)
"""


def test_one_that_was_stopped_while_it_made_a_key_stops_nobody(tmp_path: Path) -> None:
    stopped = LineProcess([sys.executable, "-c", STOPPED, str(tmp_path)], env=own_variables())
    try:
        assert stopped.read(Deadline(60)) == b"makes"
        found: list[Path] = []
        mine = FileCache(tmp_path, lock_s=0.2)
        other = threading.Thread(target=lambda: found.append(mine.folder("inputs", "k", write(3))), daemon=True)
        other.start()
        other.join(60)
        assert found and (found[0] / "data").read_text() == "xxx"
        os.kill(stopped.pid, signal.SIGCONT)  # it finds the key made, and takes what is there
        assert stopped.read(Deadline(60)) == b"made"
        assert (found[0] / "data").read_text() == "xxx"
    finally:
        stopped.close()
    assert list((tmp_path / "trash").iterdir()) == []


def test_two_keys_never_wait_for_each_other(tmp_path: Path) -> None:
    """300 keys in the hands of one that never lets go, and 300 others: of 256 locks each would be taken."""
    store, names = FileCache(tmp_path), [f"key {n}" for n in range(600)]
    with contextlib.ExitStack() as held:
        for name in names[:300]:
            assert held.enter_context(store._only_one(name))
        for name in names[300:]:
            with store._only_one(name) as alone:
                assert alone


def test_what_fails_in_the_making_leaves_nothing(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "data").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        FileCache(tmp_path).folder("inputs", "k", broken)
    assert list((tmp_path / "inputs").iterdir()) == []


@pytest.mark.parametrize("harm", ["zeros", "cut", "one word", "gone", "manifest"])
def test_a_later_run_finds_what_was_harmed_and_makes_it_again(tmp_path: Path, harm: str) -> None:
    content = np.arange(3000, dtype=np.uint64).tobytes()
    made: list[int] = []

    def make(folder: Path) -> None:
        made.append(1)
        (folder / "data").write_bytes(content)

    data = FileCache(tmp_path).folder("inputs", "k", make) / "data"
    if harm == "zeros":
        data.write_bytes(bytes(len(content)))
    elif harm == "cut":
        data.write_bytes(content[:-1])
    elif harm == "one word":
        data.write_bytes(content[:800] + b"12345678" + content[808:])
    elif harm == "gone":
        data.unlink()
    else:
        (data.parent / filecache.MANIFEST).write_text("{")
    assert (FileCache(tmp_path).folder("inputs", "k", make) / "data").read_bytes() == content
    assert len(made) == 2
    FileCache(tmp_path).folder("inputs", "k", make)
    assert len(made) == 2


@pytest.mark.parametrize("foreign", ["older", "copied", "empty", "list", "nothing listed", "a file", "a dangling link"])
def test_a_folder_that_was_not_made_for_its_key_is_made_again(tmp_path: Path, foreign: str) -> None:
    """By an older farm, by hand, or by whatever else writes there."""
    made: list[int] = []

    def make(folder: Path) -> None:
        made.append(1)
        (folder / "data").write_text("right")

    final = FileCache(tmp_path).folder("inputs", "k", make)
    manifest = final / filecache.MANIFEST
    if foreign == "older":  # as the first layout had it
        manifest.write_text('{"data": [5, 1]}')
    elif foreign == "copied":
        FileCache(tmp_path).folder("inputs", "other", lambda f: (f / "data").write_text("wrong"))
        shutil.rmtree(final)
        shutil.copytree(tmp_path / "inputs" / "other", final)
    elif foreign in ("empty", "list"):
        manifest.write_text("{}" if foreign == "empty" else "[1]")
    elif foreign == "nothing listed":
        manifest.write_text(manifest.read_text().replace("data", "date"))
    else:
        shutil.rmtree(final)
        final.write_text("x") if foreign == "a file" else final.symlink_to("nowhere")
    assert (FileCache(tmp_path).folder("inputs", "k", make) / "data").read_text() == "right"
    assert len(made) == 2


def test_a_cache_is_not_made_again_for_a_run_that_has_ended(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "run" / "cache", verified=tmp_path / "run" / "verified")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        cache.folder("inputs", "k", write(10))  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_cut_is_found_in_the_same_run(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    data = cache.folder("inputs", "k", write(1000)) / "data"  # type: ignore[arg-type]
    data.write_bytes(b"x")
    assert (cache.folder("inputs", "k", write(1000)) / "data").stat().st_size == 1000  # type: ignore[arg-type]


def test_the_longest_unused_goes_first_and_the_young_stay(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_gib=3700 / 2**30)
    for i in range(3):
        folder = cache.folder("inputs", f"k{i}", write(1000))  # type: ignore[arg-type]
        old = time.time() - filecache.YOUNG_SECONDS - 100 + i
        os.utime(folder, (old, old))
    cache.folder("references", "young", write(1000))  # type: ignore[arg-type]
    cache.folder("references", "new", write(1000))  # type: ignore[arg-type]
    assert sorted(p.name for p in (tmp_path / "inputs").iterdir()) == ["k1", "k2"]
    assert {p.name for p in (tmp_path / "references").iterdir()} == {"young", "new"}


def looks(cache: FileCache, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever the whole cache is looked through."""
    seen: list[int] = []
    real = cache._entries
    monkeypatch.setattr(cache, "_entries", lambda: seen.append(1) or real())
    return seen


def test_a_cache_is_not_looked_through_for_each_folder_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10^5 folders each look takes seconds: by far the most of what a run of as many cells cost."""
    cache = FileCache(tmp_path, limit_gib=1.0)
    seen = looks(cache, monkeypatch)
    for i in range(40):
        cache.folder("inputs", f"k{i}", write(1000))  # type: ignore[arg-type]
    assert len(seen) == 1


def test_a_cache_stays_within_its_bound_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filecache, "YOUNG_SECONDS", -1.0)
    cache = FileCache(tmp_path, limit_gib=40_000 / 2**30)
    seen = looks(cache, monkeypatch)
    most = 0
    for i in range(120):
        cache.folder("inputs", f"k{i}", write(1000))  # type: ignore[arg-type]
        most = max(most, sum(f.stat().st_size for f in (tmp_path / "inputs").rglob("*") if f.is_file()))
    assert 30_000 < most <= 42_000
    assert len(seen) < 120


def test_a_cache_that_is_full_of_what_is_young_is_not_looked_through_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FileCache(tmp_path, limit_gib=3000 / 2**30)
    seen = looks(cache, monkeypatch)
    for i in range(20):
        cache.folder("inputs", f"k{i}", write(1000))  # type: ignore[arg-type]
    assert len(list((tmp_path / "inputs").iterdir())) == 20
    assert len(seen) <= 6  # until it was full, and once then


def test_what_a_process_has_just_used_costs_it_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FileCache(tmp_path)
    cache.folder("inputs", "k", write(1000))  # type: ignore[arg-type]
    read: list[Path] = []
    real = filecache._manifest
    monkeypatch.setattr(filecache, "_manifest", lambda folder: read.append(folder) or real(folder))
    for _ in range(5):
        cache.folder("inputs", "k", write(1000))  # type: ignore[arg-type]
    assert read == []


def test_what_is_used_stays_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filecache, "TOUCH_SECONDS", 0.0)
    cache = FileCache(tmp_path)
    folder = cache.folder("inputs", "k", write(1000))  # type: ignore[arg-type]
    os.utime(folder, (1.0, 1.0))
    cache.folder("inputs", "k", write(1000))  # type: ignore[arg-type]
    assert folder.stat().st_mtime > time.time() - 60


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (7,)])
def test_files_hold_what_was_written(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for make, read in ((create, lambda p: np.fromfile(p, dtype=np.float32).reshape(shape)), (create_npy, np.load)):
        path = tmp_path / f"{make.__name__}.npy"
        array = make(path, np.float32, shape)
        array[...] = values
        if hasattr(array, "flush"):
            array.flush()
        np.testing.assert_array_equal(read(path), values)


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for make in (create, create_npy):
        with pytest.raises(OSError, match="No space"):
            make(tmp_path / make.__name__, np.float32, (4,))
