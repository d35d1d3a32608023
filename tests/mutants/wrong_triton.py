"""Mutants of our Triton kernels themselves: one line of a file in `kernels/ops/rms_norm/gpu` rewritten.

The folder is copied under a name of its own with that line changed, and the public functions are loaded anew on top of
it, so that what is mutated is called as ours is: choices, launches and autograd are the real ones.  On a CPU it is
interpreted, on a GPU compiled.
"""

from __future__ import annotations

import atexit
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from mutant_registry import BOTH, FLOAT32, FUSED, RMS, Mutant

OPS = Path(__file__).resolve().parents[2] / "kernels" / "ops"
PACKAGE = "kernels.ops.rms_norm.gpu"
FORWARD, BACKWARD = "forward", "backward"
CACHED, PERSISTENT, PACKED = "multi_wave_cached", "static_persistent", "row_packed"
RELOAD, TILED, AUTO = "multi_wave_reload", "column_tiled", "auto"


class Rewrite(NamedTuple):
    """`old`, which is in `file` exactly once, becomes `new`."""

    name: str
    wrong: str
    file: str
    old: str
    new: str
    modes: tuple[str, ...]
    operations: tuple[str, ...] = (FORWARD,)
    ops: tuple[str, ...] = BOTH
    right_in: tuple[str, ...] = ()
    note: str = ""


REWRITES = (
    Rewrite(
        "triton-column-mask-short",
        "The mask of the columns is off by one: the last is neither summed nor written",
        "tiles.py",
        "exist = cols < hidden\n",
        "exist = cols < hidden - 1\n",
        (CACHED, PERSISTENT, RELOAD),
        (FORWARD, BACKWARD),
    ),
    Rewrite(
        "triton-column-mask-wide",
        "The mask of the columns is one too wide: the next row's first element is summed",
        "tiles.py",
        "exist = cols < hidden\n",
        "exist = cols <= hidden\n",
        (CACHED,),
    ),
    Rewrite(
        "triton-row-mask-short",
        "The mask of the rows is off by one: the last row is not written",
        "tiles.py",
        "exist = first + tile < rows\n",
        "exist = first + tile < rows - 1\n",
        (PACKED,),
        (FORWARD, BACKWARD),
    ),
    Rewrite(
        "triton-last-groups-lost",
        "The number of row groups is rounded down",
        "tiles.py",
        "return (rows - 1) // ROWS + 1",
        "return rows // ROWS",
        (TILED,),
        (FORWARD, BACKWARD),
    ),
    Rewrite(
        "triton-eps-dropped",
        "No eps",
        "forward.py",
        "rstd = tl.rsqrt(squares / hidden + eps)",
        "rstd = tl.rsqrt(squares / hidden)",
        (CACHED, PERSISTENT, PACKED),
    ),
    Rewrite(
        "triton-eps-outside-the-root",
        "eps is added to the root, not under it",
        "forward.py",
        "rstd = tl.rsqrt(_sum_of_rows(squares) / hidden + eps)",
        "rstd = 1.0 / (tl.sqrt(_sum_of_rows(squares) / hidden) + eps)",
        (RELOAD, TILED),
    ),
    Rewrite(
        "triton-mean-over-the-block",
        "The mean divides by the tile's width instead of hidden",
        "forward.py",
        "rstd = tl.rsqrt(squares / hidden + eps)",
        "rstd = tl.rsqrt(squares / BLOCK + eps)",
        (CACHED, PERSISTENT),
    ),
    Rewrite(
        "triton-tail-not-summed",
        "The second, smaller tile of a row is not summed",
        "forward.py",
        "squares += _sum_of_rows(tail * tail)",
        "squares += _sum_of_rows(tail * 0.0)",
        (CACHED,),
    ),
    Rewrite(
        "triton-padding-loads-one",
        "Masked lanes load 1 instead of 0",
        "forward.py",
        "x = tl.load(X + first * x_stride + tile * x_stride + cols, mask=inside, other=0.0, eviction_policy=HINT)",
        "x = tl.load(X + first * x_stride + tile * x_stride + cols, mask=inside, other=1.0, eviction_policy=HINT)",
        (CACHED, PERSISTENT, RELOAD),
        ops=(RMS,),
    ),
    Rewrite(
        "triton-casting-exchanged",
        "x/rms is rounded before the weight just where the casting says that it is not",
        "tiles.py",
        "    if ROUND:\n        xhat = xhat.to(T)",
        "    if not ROUND:\n        xhat = xhat.to(T)",
        (CACHED, RELOAD),
        right_in=(FLOAT32,),
        note="in float32 nothing is rounded",
    ),
    Rewrite(
        "triton-offset-lost",
        "The weight's offset is not added",
        "tiles.py",
        "eviction_policy=HINT).to(tl.float32) + offset",
        "eviction_policy=HINT).to(tl.float32)",
        (CACHED, PERSISTENT),
        (FORWARD, BACKWARD),
    ),
    Rewrite(
        "triton-sum-not-stored",
        "The sum is not written",
        "forward.py",
        "tl.store(S + first * hidden + tile * hidden + cols, x, mask=inside)",
        "pass",
        (CACHED, PACKED),
        ops=(FUSED,),
    ),
    Rewrite(
        "triton-norm-of-the-unrounded-sum",
        "y is the norm of the sum before it is rounded",
        "forward.py",
        "x = (x.to(tl.float32) + r.to(tl.float32)).to(S.dtype.element_ty)",
        "x = x.to(tl.float32) + r.to(tl.float32)",
        (CACHED, PERSISTENT),
        ops=(FUSED,),
        right_in=(FLOAT32,),
        note="in float32 the stored sum is the sum",
    ),
    Rewrite(
        "triton-reload-of-x",
        "The second sweep reads x again instead of the sum",
        "forward.py",
        "pointers = S + first * hidden + tile * hidden + cols",
        "pointers = X + first * x_stride + tile * x_stride + cols",
        (RELOAD, TILED),
        ops=(FUSED,),
    ),
    Rewrite(
        "triton-projection-added",
        "The projection is added instead of taken away",
        "backward.py",
        "dx = rstd * (m - xhat * mean)",
        "dx = rstd * (m + xhat * mean)",
        (PERSISTENT, RELOAD),
        (BACKWARD,),
    ),
    Rewrite(
        "triton-projection-over-the-block",
        "The projection divides by the tile's width instead of hidden",
        "backward.py",
        "mean = _over_rows(_sum_of_rows(m * xhat)) / hidden",
        "mean = _over_rows(_sum_of_rows(m * xhat)) / BLOCK",
        (PERSISTENT, PACKED),
        (BACKWARD,),
    ),
    Rewrite(
        "triton-dsum-taken-away",
        "The upstream gradient of the sum is taken away",
        "backward.py",
        "dx += tl.load(DS",
        "dx -= tl.load(DS",
        (PERSISTENT, RELOAD),
        (BACKWARD,),
        (FUSED,),
    ),
    Rewrite(
        "triton-rstd-of-the-first-row",
        "All rows of a tile read the first one's 1/rms",
        "tiles.py",
        "tl.load(P + first + tile, mask=first + tile < rows, other=0.0)",
        "tl.load(P + first + tile * 0, mask=first + tile < rows, other=0.0)",
        (PACKED,),
        (BACKWARD,),
    ),
    Rewrite(
        "triton-dw-overwritten",
        "A program's later tiles overwrite its share of dw instead of adding to it",
        "backward.py",
        "dw += _sum_over_rows(term)",
        "dw = _sum_over_rows(term)",
        (PERSISTENT,),
        (BACKWARD,),
    ),
    Rewrite(
        "triton-last-partial-lost",
        "The last program's share of dw is not added",
        "backward.py",
        "mask=(first + tile < count) & (cols < hidden)",
        "mask=(first + tile < count - 1) & (cols < hidden)",
        (PERSISTENT, RELOAD),
        (BACKWARD,),
    ),
    Rewrite(
        "triton-edges-not-summed",
        "Of a row that is no whole vectors, the elements before and after are not summed",
        "unaligned.py",
        "squares = _row_sums(x * x, ROWS) + _row_sums(edge_x * edge_x, ROWS)",
        "squares = _row_sums(x * x, ROWS)",
        (AUTO,),
    ),
    Rewrite(
        "triton-edge-mask-wide",
        "Of such a row, one element of its body is taken as an edge again",
        "unaligned.py",
        "(before & (at < head))",
        "(before & (at <= head))",
        (AUTO,),
        (FORWARD, BACKWARD),
    ),
)


def sources() -> dict[str, str]:
    """The files of our GPU kernels: name -> text."""
    return {p.name: p.read_text(encoding="utf-8") for p in sorted((OPS / "rms_norm" / "gpu").glob("*.py"))}


def rewritten(files: dict[str, str], rewrite: Rewrite) -> dict[str, str]:
    """`files` with the one line changed; ValueError where `old` is not in its file exactly once."""
    count = files[rewrite.file].count(rewrite.old)
    if count != 1:
        raise ValueError(
            f"mutant {rewrite.name}: {rewrite.file} holds {rewrite.old!r} {count} times, not once; write it anew"
        )
    return {**files, rewrite.file: files[rewrite.file].replace(rewrite.old, rewrite.new)}


def functions(name: str, files: dict[str, str]) -> Callable[[str], Callable[..., Any]]:
    """op -> its public function, launching the kernels of `files`; loaded at the first call."""
    loaded: dict[str, Callable[..., Any]] = {}

    def function(op: str) -> Callable[..., Any]:
        if not loaded:
            loaded.update(_load(name.replace("-", "_"), files))
        return loaded[op]

    return function


@cache
def _folder() -> Path:
    """Where copies lie: Triton reads the source of what it compiles from files."""
    folder = Path(mkdtemp(prefix="mutants-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.append(str(folder))
    return folder


def _load(name: str, files: dict[str, str]) -> dict[str, Callable[..., Any]]:
    package = Path(mkdtemp(prefix=f"{name}_", dir=_folder()))
    name = package.name
    for file, text in files.items():
        (package / file).write_text(_absolute(text, PACKAGE).replace(PACKAGE, name), encoding="utf-8")
    importlib.invalidate_caches()
    launch = import_module(f"{name}.launch")
    norm = _module(f"{name}.norm", OPS / "rms_norm" / "function.py")
    choose = norm._choose
    norm._choose = lambda *args: (choose(*args)[0], launch)
    fused = _module(f"{name}.fused", OPS / "fused_add_rms_norm" / "function.py")
    fused.norm = norm
    return {RMS: norm.rms_norm, FUSED: fused.fused_add_rms_norm}


def _absolute(text: str, package: str) -> str:
    """A module of `package` with its relative imports made absolute, so that it runs elsewhere."""

    def absolute(found: re.Match[str]) -> str:
        parents = package.split(".")
        above = parents[: len(parents) - len(found[1]) + 1]
        return f"from {'.'.join([*above, *([found[2]] if found[2] else [])])} import"

    return re.sub(r"from (\.+)([\w.]*) import", absolute, text)


def _module(name: str, path: Path) -> Any:
    copy = _folder() / f"{name.replace('.', '_')}.py"
    copy.write_text(_absolute(path.read_text(encoding="utf-8"), f"kernels.ops.{path.parent.name}"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, copy)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def mutants() -> list[Mutant]:
    """Every rewrite as a mutant; ValueError where the source has changed under one."""
    files = sources()
    return [
        Mutant(
            r.name,
            r.wrong,
            functions(r.name, rewritten(files, r)),
            r.ops,
            r.operations,
            r.right_in,
            (),
            r.modes,
            "triton",
            r.note,
        )
        for r in REWRITES
    ]


def controls() -> list[Mutant]:
    """The kernels as they are, loaded in the same way; one for each mode."""
    made = functions("triton-control", sources())
    return [
        Mutant(
            f"triton-control-{mode.replace('_', '-')}",
            "Nothing",
            made,
            operations=(FORWARD, BACKWARD),
            modes=(mode,),
            made="triton",
        )
        for mode in (AUTO, CACHED, PERSISTENT, PACKED, RELOAD, TILED)
    ]
