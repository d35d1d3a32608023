"""From a choice to launches on NVIDIA and AMD GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from .... import launches
from .. import dispatch, prepared
from ..choice import Choice, divide_up
from . import backward as backward_kernels
from . import choose, launch_few, ring_plan, split, unaligned
from . import forward as forward_kernels
from .versions import served

_FORWARD = {
    "forward_rows": forward_kernels.forward_rows,
    "forward_persistent": forward_kernels.forward_persistent,
    "forward_chunks": forward_kernels.forward_chunks,
    "forward_unaligned": unaligned.forward_unaligned,
}


def forward(
    choice: Choice,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    y: torch.Tensor,
    total: torch.Tensor | None,
    rstd: torch.Tensor | None,
) -> None:
    """Fill y, and where they are given `total` (x + residual) and rstd; shapes as in kernels.ops.rms_norm.function."""
    choice = served(choice)
    if choice.kernel == "forward_ring":
        _forward_ring(choice, x, residual, weight, eps, offset, rounds, y, total, rstd)
        return
    if choice.kernel == "forward_split":
        _forward_split(choice, x, residual, weight, eps, offset, rounds, y, total, rstd)
        return
    if choice.kernel == "forward_parts":
        launch_few.forward(choice, x, residual, weight, eps, offset, rounds, y, total, rstd)
        return
    rows, hidden = x.shape
    options = dict(choice.options)
    name = options["kernel"]
    align, (units, *strides) = _units(hidden, x.stride(0), 0 if residual is None else residual.stride(0))
    common = (x, residual, weight, y, total, rstd, rows, units, *strides, eps, offset, rounds, align)
    common = (*common, choice.rows, choice.block)
    even = rows % choice.rows == 0
    overlap = bool(options.get("pdl", False))
    args: tuple[Any, ...]
    if name == "forward_unaligned":
        period, even = _dense_rows(choice, x, residual, y, total)
        args = (
            x,
            residual,
            weight,
            y,
            total,
            rstd,
            rows,
            hidden,
            eps,
            offset,
            rounds,
            period,
            choice.rows,
            choice.block,
            options["span"],
            even,
            options["spread"],
            options["weight"],
            choice.num_stages,
            options["load"],
            options["store"],
            overlap,
        )
    elif name == "forward_rows":
        whole = hidden == choice.block + options["tail"]
        args = (
            *common,
            options["span"],
            whole,
            even,
            options["spread"],
            options["weight"],
            options["load"],
            options["store"],
            options["tail"],
            overlap,
        )
    elif name == "forward_persistent":
        args = (
            *common,
            options["span"],
            hidden == choice.block,
            even,
            options["spread"],
            choice.num_stages,
            options["load"],
            options["store"],
            overlap,
        )
    else:
        whole = (hidden - options["keep"]) % choice.block == 0
        args = (
            *common,
            options["span"],
            whole,
            even,
            options["keep"],
            options["trips"],
            choice.num_stages,
            options["load"],
            options["store"],
            overlap,
        )
    _launch(_FORWARD[name], (choice.programs,), choice, "forward", *args, launch_pdl=overlap)


def backward(
    choice: Choice,
    dy: torch.Tensor,
    dsum: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    rounds: bool,
    dx: torch.Tensor,
    dw: torch.Tensor | None,
) -> None:
    """Fill dx and, where it is given, dw; dx may be dy's storage, but for `backward_split`, which raises ValueError."""
    rows, hidden = x.shape
    choice = served(choice)
    options = dict(choice.options)
    align, (units, *strides) = _units(hidden, dy.stride(0), 0 if dsum is None else dsum.stride(0), x.stride(0))
    even = rows % choice.rows == 0
    overlap = bool(options["pdl"])
    if options["kernel"] == "backward_strips":
        launch_few.backward(choice, dy, dsum, x, weight, rstd, offset, rounds, dx, dw)
        return
    if options["kernel"] == "backward_unaligned":
        partial = _partial(choice.programs, dw, x)
        period, even = _dense_rows(choice, x, dy, dsum, dx)
        _launch(
            unaligned.backward_unaligned,
            (choice.programs,),
            choice,
            "backward",
            dy,
            dsum,
            x,
            weight,
            rstd,
            dx,
            partial,
            rows,
            hidden,
            offset,
            rounds,
            period,
            choice.rows,
            choice.block,
            options["span"],
            even,
            options["spread"],
            choice.num_stages,
            options["hold"],
            options["fold"],
            overlap,
            options["load"],
            options["store"],
            launch_pdl=overlap,
        )
    elif options["kernel"] == "backward_rows":
        partial = _partial(choice.programs, dw, x)
        _launch(
            backward_kernels.backward_rows,
            (choice.programs,),
            choice,
            "backward",
            dy,
            dsum,
            x,
            weight,
            rstd,
            dx,
            partial,
            rows,
            units,
            *strides,
            offset,
            rounds,
            align,
            choice.rows,
            choice.block,
            options["span"],
            hidden == choice.block,
            even,
            options["spread"],
            choice.num_stages,
            options["hold"],
            options["fold"],
            options["ahead"],
            overlap,
            options["load"],
            options["store"],
            launch_pdl=overlap,
        )
    elif options["kernel"] == "backward_twice":
        partial = _partial(choice.programs, dw, x)
        _launch(
            backward_kernels.backward_twice,
            (choice.programs,),
            choice,
            "backward",
            dy,
            dsum,
            x,
            weight,
            rstd,
            dx,
            partial,
            rows,
            units,
            *strides,
            offset,
            rounds,
            align,
            choice.block,
            options["span"],
            hidden == choice.block,
            options["chunk"],
            options["trips"],
            choice.num_stages,
            options["ahead"],
            overlap,
            options["store"],
            launch_pdl=overlap,
        )
    elif options["kernel"] == "backward_ring":
        partial = _partial(choice.programs, dw, x)
        _backward_ring(choice, dy, dsum, x, weight, rstd, offset, rounds, dx, partial)
    elif options["kernel"] == "backward_split":
        partial = _partial(choice.programs // int(options["parts"]), dw, x)
        _backward_split(choice, dy, dsum, x, weight, rstd, offset, rounds, dx, partial)
    else:
        blocks = divide_up(hidden, choice.block)
        splits = choice.programs // blocks
        partial = _partial(splits, dw, x)
        means = prepared.scratch((rows,), torch.float32, x.device)
        sweep = replace(choose.sweep(rows, hidden, x.element_size(), str(options["target"])), mode=choice.mode)
        _launch(
            backward_kernels.row_means,
            (sweep.programs,),
            sweep,
            "backward",
            dy,
            x,
            weight,
            rstd,
            means,
            rows,
            units,
            strides[0],
            strides[2],
            offset,
            align,
            sweep.block,
            dict(sweep.options)["span"],
            hidden % sweep.block == 0,
            sweep.num_stages,
        )
        _launch(
            backward_kernels.backward_columns,
            (blocks, splits),
            choice,
            "backward",
            dy,
            dsum,
            x,
            weight,
            rstd,
            means,
            dx,
            partial,
            rows,
            units,
            *strides,
            offset,
            rounds,
            align,
            choice.rows,
            choice.block,
            hidden % choice.block == 0,
            even,
            choice.num_stages,
            overlap,
            options["store"],
        )
    if dw is not None and partial is not None and partial is not dw:
        _sum_partials(partial, dw, overlap, choice.mode)


def _dense_rows(choice: Choice, x: torch.Tensor, *others: torch.Tensor | None) -> tuple[int, bool]:
    """(PERIOD, EVEN) of the kernels of unaligned.py.  ValueError for tensors that they would read wrongly."""
    if not dispatch.are_dense(x, *others):
        raise ValueError(
            f"{dict(choice.options)['kernel']} needs contiguous tensors that begin at a multiple of 16 bytes; choose "
            "with dense=False"
        )
    period = choose.period(x.shape[1], x.element_size())
    return period, choice.rows == 1 or x.shape[0] % (period * choice.rows) == 0


def _forward_ring(
    choice: Choice,
    x: Any,
    residual: Any,
    weight: Any,
    eps: float,
    offset: float,
    rounds: bool,
    y: Any,
    total: Any,
    rstd: Any,
) -> None:
    """`forward` by way of shared memory; imported here, for a Triton may lack Gluon."""
    from . import ring

    rows, hidden = x.shape
    options = dict(choice.options)
    align, (units, *strides) = _units(hidden, x.stride(0), 0 if residual is None else residual.stride(0))
    constants = _ring(choice, x, (x, residual), weight)
    overlap = bool(options["pdl"])
    _launch(
        ring.forward_ring,
        (choice.programs,),
        _as_planned(choice, constants),
        "forward",
        x,
        residual,
        weight,
        y,
        total,
        rstd,
        rows,
        units,
        *strides,
        eps,
        offset,
        rounds,
        align,
        *constants,
        options["early"],
        options["store"],
        overlap,
        launch_pdl=overlap,
    )


def _backward_ring(
    choice: Choice,
    dy: Any,
    dsum: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    offset: float,
    rounds: bool,
    dx: Any,
    partial: Any,
) -> None:
    from . import ring

    rows, hidden = x.shape
    options = dict(choice.options)
    align, (units, *strides) = _units(hidden, dy.stride(0), 0 if dsum is None else dsum.stride(0), x.stride(0))
    constants = _ring(choice, x, (x, dy), weight)
    overlap = bool(options["pdl"])
    _launch(
        ring.backward_ring,
        (choice.programs,),
        _as_planned(choice, constants),
        "backward",
        dy,
        dsum,
        x,
        weight,
        rstd,
        dx,
        partial,
        rows,
        units,
        *strides,
        offset,
        rounds,
        align,
        *constants,
        options["store"],
        overlap,
        launch_pdl=overlap,
    )


def _ring(choice: Choice, x: torch.Tensor, streamed: tuple[Any, ...], weight: torch.Tensor | None) -> tuple[Any, ...]:
    """CHUNK, CHUNKS, REGS, AGAIN, SLOTS, WHOLE and HOLD of a ring kernel.  A weight that is wider than x is not held,
    nor one that begins anywhere (a view into a buffer of all parameters): there is no asynchronous copy of 2 bytes."""
    hidden, options = x.shape[1], dict(choice.options)
    column_bytes = sum(t.element_size() for t in streamed if t is not None)
    holds = (
        weight is not None
        and bool(options["hold"])
        and weight.element_size() <= x.element_size()
        and weight.data_ptr() % 16 == 0
    )
    found = ring_plan.plan(
        hidden,
        choice.block,
        column_bytes,
        x.element_size() if holds else 0,
        int(options["per_core"]),
        int(options["regs"]),
        int(options["spare"]),
        int(options["slots"]),
    )
    if found is None:
        raise ValueError(f"rows of {hidden} {x.dtype} do not fit a ring of chunks of {choice.block} columns")
    whole = hidden == found.chunks * choice.block
    return choice.block, found.chunks, found.regs, found.again, found.slots, whole, found.hold


def _as_planned(choice: Choice, constants: tuple[Any, ...]) -> Choice:
    """The choice as `_ring` made it for these tensors, for a record."""
    if not (launches.listening() or prepared.watching()):
        return choice
    _, _, regs, again, slots, _, hold = constants
    options: dict[str, Any] = {**dict(choice.options), "regs": regs, "again": again, "slots": slots, "hold": hold}
    return replace(choice, options=tuple(sorted(options.items())))


def _forward_split(
    choice: Choice,
    x: Any,
    residual: Any,
    weight: Any,
    eps: float,
    offset: float,
    rounds: bool,
    y: Any,
    total: Any,
    rstd: Any,
) -> None:
    rows, hidden = x.shape
    options = dict(choice.options)
    if choice.programs != rows * options["parts"]:
        raise ValueError(f"forward_split: the choice is of {choice.programs // options['parts']} rows, x has {rows}")
    align, (units, *strides) = _units(hidden, x.stride(0), 0 if residual is None else residual.stride(0))
    overlap = bool(options["pdl"])
    _launch(
        split.forward_split,
        (choice.programs,),
        choice,
        "forward",
        x,
        residual,
        weight,
        y,
        total,
        rstd,
        _slots(rows, options, x),
        rows,
        units,
        *strides,
        eps,
        offset,
        rounds,
        align,
        *_divided(choice, hidden),
        options["weight"],
        options["load"],
        options["store"],
        overlap,
        launch_pdl=overlap,
        maxnreg=options["registers"],
    )


def _backward_split(
    choice: Choice,
    dy: Any,
    dsum: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    offset: float,
    rounds: bool,
    dx: Any,
    partial: Any,
) -> None:
    rows, hidden = x.shape
    options = dict(choice.options)
    if not dispatch.are_apart(dx, dy):
        raise ValueError("backward_split needs a dx that is not dy; choose with split=False")
    align, (units, *strides) = _units(hidden, dy.stride(0), 0 if dsum is None else dsum.stride(0), x.stride(0))
    overlap = bool(options["pdl"])
    _launch(
        split.backward_split,
        (choice.programs,),
        choice,
        "backward",
        dy,
        dsum,
        x,
        weight,
        rstd,
        dx,
        partial,
        _slots(rows, options, x),
        rows,
        choice.programs // options["parts"],
        units,
        *strides,
        offset,
        rounds,
        align,
        *_divided(choice, hidden),
        choice.num_stages,
        options["later"],
        options["load"],
        options["store"],
        overlap,
        launch_pdl=overlap,
        maxnreg=options["registers"],
    )


def _slots(rows: int, options: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """A word of 0 for each part of each row.  Cleared on x's stream before every launch: one more launch, of 8 bytes a
    part, which itself moves some 10,000."""
    return prepared.scratch((rows, int(options["parts"])), torch.int64, x.device, zero=True)


def _divided(choice: Choice, hidden: int) -> tuple[Any, ...]:
    """PARTS, WIDTH, BLOCK, WHOLE, LANES, POLLS and SPIN of the kernels of split.py."""
    options = dict(choice.options)
    parts, width = int(options["parts"]), int(options["width"])
    whole = width == choice.block and parts * width == hidden
    return parts, width, choice.block, whole, options["lanes"], options["polls"], options["spin"]


def _units(*sizes: int) -> tuple[int, list[int]]:
    """(ALIGN, the sizes in units of it): the largest power of two up to 16 that divides all."""
    align = math.gcd(16, *sizes)
    return align, [size // align for size in sizes]


def _partial(count: int, dw: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """Float32 rows for `count` programs' shares of dw; dw itself where one program, or group, has all of it: its kernel
    rounds what it stores, and nothing is left to be summed."""
    return dw if dw is None or count == 1 else prepared.scratch((count, x.shape[1]), torch.float32, x.device)


def _sum_partials(partial: torch.Tensor, dw: torch.Tensor, overlap: bool, mode: str) -> None:
    """`mode` is that of the backward whose partial sums these are: a record names what served the call."""
    count, hidden = partial.shape
    choice = replace(choose.reduction(count, hidden), mode=mode)
    _launch(
        backward_kernels.sum_partials,
        (choice.programs,),
        choice,
        "backward",
        partial,
        dw,
        count,
        hidden,
        choice.rows,
        choice.block,
        overlap,
        launch_pdl=overlap,
    )


def _launch(kernel: Any, grid: tuple[int, ...], choice: Choice, direction: str, *args: Any, **extra: Any) -> None:
    chosen = {k: v for k, v in extra.items() if v}  # AMD's compiler does not know the words launch_pdl and maxnreg
    words = {"num_warps": choice.num_warps, "num_stages": choice.num_stages, **chosen}
    compiled = kernel[grid](*args, **words)
    if launches.listening() or prepared.watching():
        meta = {**choice.to_dict(), "direction": direction}
        launches.record(kernel.__name__, grid, meta)
        prepared.note(kernel, grid, args, words, compiled, meta)
