"""Launches that are derived once: what does not change from call to call is asked in the first of them.

A call's launches (kernels, grids, constants, compiled code) follow from the layout of its tensors, never from values.
`launch` keys them by that layout.  The first call of a key derives everything, while `note` and `scratch` watch what it
launches and what memory it makes for that; later calls fill pointers, eps and offset into the same arguments.

The key must hold everything that a derivation asks: shapes, strides, dtypes, the device and its driver, which pointers
are multiples of 16 (Triton compiles other code then, and `dispatch.can_serve` chooses other kernels), and whether two
matrices begin at one place.  tests/pure/test_prepared.py holds kept launches against derived ones, for random layouts.

Where the compiled kernel is known (NVIDIA, a Triton of DIRECT), it is run without Triton's own binding of arguments,
which is most of a launch's time on the host.  Where somebody listens to Triton's launches, or the version is another,
Triton launches as ever, with the kept arguments.  Nothing is kept in the interpreter: nobody times it, and tests change
its kernels.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from ... import launches

#: The Tritons in which `JITFunction.run` ends in one and the same call of `CompiledKernel.run` (sources read 2026-11).
DIRECT = ((3, 6), (3, 7), (3, 8))
MOST = 2048  # kept keys; beyond, all are forgotten
ALIGNED = 15  # a pointer with one of these bits is no multiple of 16
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
keeps = not INTERPRETED  # a test of this module sets it

Tensors = Sequence[torch.Tensor | None]
_watch = threading.local()  # `.by`: the derivation that is being kept; backward runs in autograd's own thread


@cache
def _triton() -> tuple[Any, Any]:
    """Triton's drivers and knobs: imported at the first launch, asked at each."""
    import triton
    from triton.runtime import driver as drivers

    return drivers, getattr(triton, "knobs", None)  # before 3.4 there are none, and no direct launch


def driver() -> Any:
    """Triton's active driver, which a key must hold; None in the interpreter and where there is no device: then what
    asks for one later says so, once the arguments have been checked."""
    if INTERPRETED:
        return None
    try:
        return _triton()[0].active
    except (ImportError, RuntimeError):
        return None


def launch(key: Hashable, tensors: Tensors, scalars: tuple[float, float], derive: Callable[..., None]) -> None:
    """Launch what `derive(*tensors)` launches.  `key`: everything that this depends on but alignment, which is added
    here, and `scalars` (eps and offset), which are arguments.  The current device is that of the tensors."""
    if not keeps:
        derive(*tensors)
        return
    pointers = tuple([0 if t is None else t.data_ptr() for t in tensors])
    bits = 0
    for pointer in pointers:
        bits |= pointer
    if not bits:  # tensors without memory: which of them share it, their identity alone says, and keeping changes that
        derive(*tensors)
        return
    if bits & ALIGNED:
        key = (key, *[p & ALIGNED for p in pointers])
    found = _kept.get(key)
    if found is None:
        _keep(key, tensors, scalars, derive)
        return
    made = [new(shape, dtype=dtype, device=device) for new, shape, dtype, device in found.scratch]
    bits = 0
    for t in made:
        pointer = t.data_ptr()
        bits |= pointer
        pointers += (pointer,)
    if not found.launches or bits & ALIGNED:
        derive(*tensors)
        return
    listening, direct = launches.listening(), _nobody_listens()
    for each in found.launches:
        if each.run is not None and direct and not each.kernel.pre_run_hooks:
            each.direct(pointers + scalars)
        else:
            each.kernel[each.grid](*each.pick((*tensors, *made, *scalars, *each.constants)), **each.words)
        if listening:
            launches.record(each.kernel.__name__, each.grid, each.meta)


def forget() -> None:
    """Derive every launch anew: for who changes a table or a kernel within a process."""
    _kept.clear()


def watching() -> bool:
    """Whether a derivation is being kept; it then describes its launches as for a recorder."""
    return getattr(_watch, "by", None) is not None


def note(
    kernel: Any, grid: tuple[int, ...], args: Sequence[Any], words: Mapping[str, Any], compiled: Any, meta: Any
) -> None:
    """One launch of a derivation that is being kept: `kernel[grid](*args, **words)` gave `compiled`, and `meta`
    describes it for a recorder."""
    if by := getattr(_watch, "by", None):
        by.launched.append((kernel, grid, tuple(args), dict(words), compiled, dict(meta)))


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, zero: bool = False) -> torch.Tensor:
    """Memory that a launch needs beside its tensors; `zero`: cleared."""
    new = torch.zeros if zero else torch.empty
    found = new(shape, dtype=dtype, device=device)
    if by := getattr(_watch, "by", None):
        by.scratch.append((found, (new, shape, dtype, device)))
    return found


class _Watch:
    """What one derivation launches, and the memory that it makes."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.scratch: list[tuple[torch.Tensor, tuple[Any, ...]]] = []


class _Launch:
    """One kept launch.  `pick` takes its arguments from (tensors, scratch, eps, offset, constants), in which constants
    stand from `start` on."""

    __slots__ = (
        "_device",
        "_function",
        "_packed",
        "_stream",
        "constants",
        "grid",
        "kernel",
        "meta",
        "pick",
        "run",
        "words",
    )

    def __init__(self, noted: tuple[Any, ...], places: list[int], constants: tuple[Any, ...]):
        self.kernel, self.grid, _, self.words, compiled, self.meta = noted
        self.pick, self.constants = itemgetter(*places), constants
        self.run = None
        if _can_run(self.kernel, compiled, len(places)):
            self.run, self._function, self._packed = compiled.run, compiled.function, compiled.packed_metadata
            here = driver()  # the key has driver and device
            self._stream, self._device = here.get_current_stream, here.get_current_device()

    def direct(self, values: tuple[Any, ...]) -> None:
        """As `JITFunction.run` ends; `values`: pointers of tensors and scratch, eps, offset."""
        grid = self.grid
        self.run(  # type: ignore[misc]
            grid[0],
            grid[1] if len(grid) > 1 else 1,
            1,
            self._stream(self._device),
            self._function,
            self._packed,
            None,
            None,
            None,
            *self.pick(values + self.constants),
        )


class _Kept(NamedTuple):
    """A call's launches (none where they cannot be kept), and the scratch memory that it makes: how, shape, dtype,
    device."""

    launches: tuple[_Launch, ...]
    scratch: tuple[tuple[Any, ...], ...]


_kept: dict[Hashable, _Kept] = {}


def _keep(key: Hashable, tensors: Tensors, scalars: tuple[float, float], derive: Callable[..., None]) -> None:
    """Derive, and keep what was launched if every argument can be told."""
    seen: set[int] = set()
    mine: list[torch.Tensor | None] = []
    for t in tensors:  # as different objects, so that an argument tells which of them it is
        mine.append(t.detach() if t is not None and id(t) in seen else t)
        seen.add(id(t))
    by = _Watch()
    before, _watch.by = getattr(_watch, "by", None), by
    try:
        derive(*mine)
    finally:
        _watch.by = before
    made = [t for t, _ in by.scratch]
    built = [_built(noted, [*mine, *made]) for noted in by.launched]
    complete = built and None not in built and not any(t.data_ptr() & ALIGNED for t in made)
    if len(_kept) >= MOST:
        forget()
    if complete:
        _kept[key] = _Kept(tuple(b for b in built if b), tuple(how for _, how in by.scratch))
    else:
        _kept[key] = _Kept((), ())


def _built(noted: tuple[Any, ...], tensors: Tensors) -> _Launch | None:
    """A launch that is filled in anew for each call; None where one of its tensors is none of these."""
    kernel, _, args, _, _, _ = noted
    where = {id(t): i for i, t in enumerate(tensors) if t is not None}
    scalars = {"eps": len(tensors), "offset": len(tensors) + 1}
    names = list(getattr(kernel, "arg_names", ()))
    places: list[int] = []
    constants: list[Any] = []
    for name, arg in zip(names, args):
        if isinstance(arg, torch.Tensor):
            if id(arg) not in where:
                return None
            places.append(where[id(arg)])
        elif name in scalars:
            places.append(scalars[name])
        else:
            places.append(len(tensors) + len(scalars) + len(constants))
            constants.append(arg)
    return _Launch(noted, places, tuple(constants)) if len(places) == len(args) > 1 else None


def _can_run(kernel: Any, compiled: Any, count: int) -> bool:
    """Whether `compiled` can be run as `JITFunction.run` would: of a version and vendor where that was read, with all
    of its arguments given."""
    import triton

    if tuple(int(n) for n in triton.__version__.split(".")[:2]) not in DIRECT:
        return False
    parts = ("run", "function", "packed_metadata", "metadata")
    if not all(hasattr(compiled, part) for part in parts) or compiled.metadata.target.backend != "cuda":
        return False
    return count == len(kernel.params)


def _nobody_listens() -> bool:
    """Whether no profiler and no instrumentation of Triton's wants to know of launches."""
    knobs = _triton()[1]
    if knobs is None:
        return False
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return (
        not (enter is not None and getattr(enter, "calls", True))
        and not (leave is not None and getattr(leave, "calls", True))
        and not knobs.compilation.instrumentation_mode
    )
