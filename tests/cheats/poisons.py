"""Code under test that tries to decide what is right: each provider attacks what a verdict could depend on, in files,
links and processes of its user, and then fails with what it did."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

_LARGER: set[int] = set()
FACTOR = 1.01  # how wrong `wrong` is, and what the attacks make right


def right(x: torch.Tensor, weight: torch.Tensor, eps: float, **_: Any) -> torch.Tensor:
    wide = x.double()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype)


def wrong(x: torch.Tensor, weight: torch.Tensor, eps: float, **_: Any) -> torch.Tensor:
    return right(x, weight, eps) * FACTOR


def cache() -> Path:
    return Path(os.environ["FARM_CACHE"])


def found(*suffixes: str) -> list[Path]:
    """Inputs and references in the cache and in the spools of the attacked runs: of these alone, since whoever runs the
    tests may have others."""
    names = [f"farm-{os.getuid()}-{run}*" for run in os.environ["FARM_ATTACKED"].split()]
    spools = [p for base in ("/dev/shm", "/tmp") for name in names for p in Path(base).glob(name)]
    return [
        p for place in (cache(), *spools) for p in place.rglob("*") if p.suffix in suffixes and "out-" not in str(p)
    ]


def attack(act: Callable[[], Any]) -> Callable[..., Any]:
    """A provider that attacks, and fails with what it has done."""

    def provider(x: torch.Tensor, weight: torch.Tensor, eps: float, **_: Any) -> torch.Tensor:
        raise RuntimeError(f"did {json.dumps(act())} of it")

    return provider


def references() -> list[Path]:
    end = time.monotonic() + 2
    while time.monotonic() < end and len(found(".npy")) < 2:
        time.sleep(0.05)
    return found(".npy")


def larger(files: Iterable[Path]) -> int:
    """References by which `wrong` is right; each once, as an attack runs in several cells."""
    count = 0
    for file in files:
        if (inode := file.stat().st_ino) not in _LARGER and "." not in file.stem:  # not y.scale2.npy
            np.save(file, np.load(file) * FACTOR)
            _LARGER.add(inode)
        count += 1
    return count


def zero(files: Iterable[Path]) -> int:
    """Inputs for which every formula is right."""
    count = 0
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))
        count += 1
    return count


def agreed(of: Iterable[Path]) -> int:
    """Manifests, or whatever else lies beside it, that agree with what was written."""
    from farm.judge import cache as keeper

    count = 0
    for folder in {file.parent for file in of}:
        if (folder / "manifest.json").exists():
            (folder / "manifest.json").unlink()
            keeper._write_manifest(folder, f"{folder.parent.name}/{folder.name}")  # type: ignore[attr-defined]
            count += 1
    return count


@attack
def reference() -> Any:
    return larger(references()), found(".bin") != []


@attack
def manifest() -> Any:
    files = references()
    return larger(files), agreed(files), found(".bin") != []


@attack
def inputs() -> Any:
    references()
    files = found(".bin")
    done = zero(files)
    gone = [shutil.rmtree(f.parent, ignore_errors=True) for f in found(".npy")]  # made anew, from these inputs
    return done, agreed(files), len(gone)


@attack
def folder() -> Any:
    """Copies in place of the folders, so that what was checked is not what is read."""
    references()
    done = 0
    for kind in {p.parents[1] for p in found(".npy", ".bin") if "-before" not in str(p)}:
        copy = kind.with_name(f"{kind.name}-copy{time.time_ns()}")
        shutil.copytree(kind, copy)
        larger(copy.rglob("*.npy"))
        kind.rename(kind.with_name(f"{kind.name}-before{time.time_ns()}"))
        copy.rename(kind)
        agreed(kind.rglob("*.npy"))
        done += 1
    return done


@attack
def link() -> Any:
    """A link in place of the cache, to a folder that stays in the attacker's hands."""
    files = references()
    elsewhere = cache().with_name("elsewhere")
    done = larger(files), agreed(files)
    if not cache().is_symlink():
        cache().rename(elsewhere) if cache().exists() else elsewhere.mkdir()
        cache().symlink_to(elsewhere)
    return [*done, cache().is_symlink()]


@attack
def meanwhile() -> Any:
    """A process that cuts itself loose and goes on: it writes whatever appears, so also between a check and the read
    behind it, in this run and the next."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                for file in found(".npy"):
                    with contextlib.suppress(OSError, ValueError):
                        larger([file])
                        agreed([file])
                time.sleep(0.002)
        os._exit(0)
    return found(".bin") != []


@attack
def judges() -> Any:
    """Through the judge itself: its open files, its maps and its memory."""
    reached = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"farm.judge.worker" not in (place / "cmdline").read_bytes():
                continue
            reached.add("found")
            for file in (place / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(file.readlink())
                    if target.startswith((str(cache()), "/memfd:farm")):
                        reached.add(f"fd: {target}")
        with contextlib.suppress(OSError), (place / "mem").open("r+b", buffering=0):
            reached.add("mem")
        with contextlib.suppress(OSError):
            os.kill(int(place.name), 0)
            reached.add("signal")
    return sorted(reached)
