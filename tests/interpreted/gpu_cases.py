"""What the tests of the GPU family run: cells for its public functions, and choices for its launch functions that its
dispatch does not make in the interpreter."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import triton.language as tl
from judged import LAYOUTS, Call, Launch, norm_cell
from pairwise import cover

from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.choice import MODES, Choice, next_power_of_2
from kernels.ops.rms_norm.gpu import backward, choose, description, forward, launch, tiles, tuned

Case = dict[str, Any]
OPS = ("rms_norm", "fused_add_rms_norm")
CASTINGS = ("llama", "gemma", "none")
#: Where float16 was not measured itself, what was found for bfloat16 stands in.
RUN_IN = {"bfloat16": ("bfloat16", "float16"), "float16": ("float16",), "float32": ("float32",)}

# -- cells -------------------------------------------------------------------------------------------------------------

FACTORS: dict[str, tuple[Any, ...]] = {
    "mode": MODES,
    "subject": ("rms_norm", "in_place", "fused_add_rms_norm"),
    "operation": ("forward", "no-grad-forward", "backward", "full"),
    "casting": CASTINGS,
    "dtype": ("float32", "float16", "bfloat16"),
    "hidden": (1, 7, 127, 128, 129, 1000, 4095, 4096, 4097, 16385),
    "rows": (1, 3, 17),
    "weight": ("same", "float32", "bfloat16", "none"),
    "offset": (0.0, 1.0),
    "layout": LAYOUTS,
}
#: Each three of the factors meet, and each two (`cover` sees to that); `nightly` has more.
GROUPS = tuple(itertools.combinations(FACTORS, 3))


def op_of(case: Case) -> str:
    return "rms_norm" if case["subject"] == "in_place" else str(case["subject"])


def refusal(case: Case) -> str | None:
    """Why dispatch refuses what the case launches: a forward always, a backward where its gradients are asked for."""
    launched = ["forward"] if "forward" in case["operation"] else ["forward", "backward"]
    shape = max(case["rows"], 1), case["hidden"]
    asked = (dispatch.refusal("interpreter", case["mode"], *shape, case["dtype"], o, op_of(case)) for o in launched)
    return next(filter(None, asked), None)


@functools.cache
def selected() -> tuple[list[Case], list[Any]]:
    """(cases that are served and have rows, what meets in none of them)."""
    return cover(FACTORS, GROUPS, allowed=lambda case: not refusal(case), seed=3)


@functools.cache
def without_rows() -> list[Case]:
    return cover({**FACTORS, "rows": (0,)}, allowed=lambda case: not refusal(case), seed=3)[0]


def nightly(share: str) -> list[Case]:
    """The served cells of the full product of ops, modes, operations, castings, dtypes and shapes, or of its share
    "k/n"; the other factors are drawn."""
    match = re.fullmatch(r"([1-9]\d*)(?:/([1-9]\d*))?", share)
    number, shares = (int(n or 1) for n in match.groups()) if match else (1, 0)
    if number > shares:
        raise ValueError(f"FARM_NIGHTLY (make: SHARE) is {share!r}; give 1 for all cells, k/n for the k-th share of n")
    full = {**FACTORS, "subject": OPS, "rows": (0, 1, 3, 17)}
    names = ("subject", "mode", "operation", "casting", "dtype", "hidden", "rows")
    draw = random.Random(3)
    cases = []
    for values in itertools.product(*(full[n] for n in names)):
        case = {name: draw.choice(full[name]) for name in full} | dict(zip(names, values))
        if case["subject"] == "rms_norm" and draw.random() < 0.5:
            case["subject"] = "in_place"
        cases.append(case)
    return [case for case in cases[number - 1 :: shares] if not refusal(case)]


def call(case: Case) -> Call:
    cell = norm_cell(
        op_of(case),
        case["mode"],
        case["operation"],
        case["dtype"],
        case["weight"],
        case["rows"],
        case["hidden"],
        casting=case["casting"],
        offset=case["offset"],
        in_place=case["subject"] == "in_place",
    )
    return Call(cell, case["layout"])


# -- launches ----------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A configuration on a shape for one core, so that a persistent program walks more than one tile."""

    op: str
    operation: str
    dtype: str
    weight: str
    rows: int
    hidden: int
    casting: str
    offset: float
    wants: bool
    config: str  # JSON

    @property
    def id(self) -> str:
        return "-".join([self.op[:5], json.loads(self.config)["kernel"], self.dtype, f"{self.rows}x{self.hidden}"])

    @property
    def choice(self) -> Choice:
        size = 4 if self.dtype == "float32" else 2
        return choose.build(self.operation, json.loads(self.config), self.rows, self.hidden, size, 1, "interpreter")

    @property
    def launch(self) -> Launch:
        cell = norm_cell(
            self.op,
            self.choice.mode,
            self.operation,
            self.dtype,
            self.weight,
            self.rows,
            self.hidden,
            casting=self.casting,
            offset=self.offset,
        )
        return Launch(cell, self.choice, launch, wants=self.wants, layout=layout_of(self.choice))


def layout_of(choice: Choice) -> str:
    """Rows that lie apart, where the kernel takes them."""
    return "dense" if dict(choice.options)["kernel"] in choose.UNALIGNED else "apart"


#: Kernels that hold a whole row: they run at the edges of the tile that was measured; the others at the measured width.
WHOLE_ROW = ("forward_rows", "forward_persistent", "backward_rows")


@functools.cache
def tuned_entries() -> tuple[Entry, ...]:
    """Each different configuration of the table with what it was measured for and its tile, on few rows; but for the
    kernels of ring.py, which are Gluon's and cannot be interpreted, and of split.py (test_gpu_split)."""
    found: dict[tuple[Any, ...], None] = {}
    for (op, operation, dtype), measured in tuned.TABLE.items():
        for n, (_, hidden, config) in enumerate(measured):
            if config["kernel"] in (*choose.RINGS, *choose.SPLITS):
                continue
            block, rows = next_power_of_2(hidden), config.get("rows", 1)
            if config["kernel"] == "backward_columns":  # whose programs do not know how wide a row is
                hidden = min(hidden, 16384)
            if config["kernel"] in choose.UNALIGNED:  # a vector's elements more or fewer, over more than one turn
                block = choose.unaligned_block(hidden, 4 if dtype == "float32" else 2)
                shapes = [(2 * rows + 1, block + 1), (8 * rows + 1, block - 1)]
            elif config["kernel"] in WHOLE_ROW:
                shapes = [(2 * rows, block), (2 * rows + 1, block - 1), (rows + 1, 3 * block // 4 - n % 2)]
            else:
                shapes = [(rows, hidden), (rows + 1, hidden - 1)]
                shapes = shapes if hidden <= 16384 else [shapes[n % 2]]
            for height, width in shapes:
                found[op, operation, dtype, height, width, json.dumps(config, sort_keys=True)] = None
    return tuple(_entry(n, *values) for n, values in enumerate(found))


def _entry(n: int, op: str, operation: str, measured: str, rows: int, hidden: int, config: str) -> Entry:
    """What the table does not say goes round."""
    dtypes, weights = RUN_IN[measured], ("same", "float32", "same", "none")
    casting, offset = CASTINGS[n // 2 % 2], float(n // 3 % 2)
    dtype, weight = dtypes[n % len(dtypes)], weights[n % 4]
    return Entry(op, operation, dtype, weight, rows, hidden, casting, offset, n % 5 < 4, config)


_TILES: dict[str, tuple[Any, ...]] = {"rows": (1, 2, 8), "span": ("row", "warp"), "spread": (False, True)}
_HINTS: dict[str, tuple[Any, ...]] = {"load": ("", "evict_last"), "store": ("", "evict_first")}
_STAGES: dict[str, tuple[Any, ...]] = {"num_stages": (1, 3)}
#: What each kernel's options may be, tiles scaled down; and rows' widths around them.
SPACES: dict[str, tuple[str, dict[str, tuple[Any, ...]], tuple[int, ...]]] = {
    "forward_rows": (
        "forward",
        {**_TILES, **_HINTS, "weight": ("first", "last"), "tail": (False, True)},
        (1, 7, 96, 128, 300, 640, 1000),  # 300 and 640 are more than a power of two, by less than a quarter
    ),
    "forward_persistent": ("forward", {**_TILES, **_HINTS, **_STAGES}, (1, 7, 127, 128, 1000)),
    "forward_chunks": (
        "forward",
        {
            **_HINTS,
            **_STAGES,
            "rows": (1, 4),
            "block": (64, 128),
            "keep": (0, 64, 256),
            "unroll": (False, True),
            "per_core": (0, 1),
        },
        (1, 63, 64, 256, 300, 1024, 4097),
    ),
    "backward_rows": (
        "backward",
        {**_TILES, **_HINTS, **_STAGES, "hold": (False, True), "fold": (False, True)},
        (1, 7, 127, 128, 1000),
    ),
    "backward_twice": (
        "backward",
        {**_STAGES, "store": ("", "evict_first"), "chunk": (32, 64, 512), "unroll": (False, True)},
        (3, 7, 127, 128, 1000),
    ),
    "backward_columns": (
        "backward",
        {**_STAGES, "store": ("", "evict_first"), "rows": (1, 4), "block": (64, 128)},
        (1, 63, 64, 256, 300, 1000),
    ),
    "forward_unaligned": (
        "forward",
        {**_TILES, **_HINTS, **_STAGES, "weight": ("first", "last"), "per_core": (0, 1)},
        (1, 3, 7, 8, 9, 100, 127, 129, 1001),  # also whole vectors, and rows inside one
    ),
    "backward_unaligned": (
        "backward",
        {**_TILES, **_HINTS, **_STAGES, "hold": (False, True), "fold": (False, True)},
        (1, 3, 7, 8, 9, 100, 127, 129, 1001),
    ),
}


@functools.cache
def option_entries() -> tuple[Entry, ...]:
    """Each two values of a kernel's options, and of what it is launched for: what a search may find, the table having
    it or not."""
    found = []
    for kernel, (operation, options, widths) in SPACES.items():
        asked = {
            "op": OPS,
            "dtype": ("float32", "float16", "bfloat16"),
            "affine": ("same", "float32", "none"),
            "height": (1, 3, 8, 17),
            "hidden": widths,
            "casting": CASTINGS,
            "offset": (0.0, 1.0),
            "wants": (True, False),
            "num_warps": (1, 4),
        }
        for case in cover({**asked, **options}, seed=3)[0]:
            walks = operation == "backward" or kernel == "forward_persistent"
            config = {"mode": "static_persistent", "kernel": kernel, "per_core": int(walks)}
            config |= {name: case[name] for name in ("num_warps", *options)}
            found.append(
                Entry(
                    case["op"],
                    operation,
                    case["dtype"],
                    case["affine"],
                    case["height"],
                    case["hidden"],
                    case["casting"],
                    case["offset"],
                    case["wants"],
                    json.dumps(config, sort_keys=True),
                )
            )
    return tuple(found)


def launched(
    op: str, operation: str, rows: int, hidden: int, dtype: str, mode: str, cores: int, weight: str = "same"
) -> Launch:
    """What `mode` launches on so many cores."""
    chosen = choose.choose("interpreter", rows, hidden, dtype, operation, cores=cores, op=op, mode=mode)
    cell = norm_cell(op, chosen.mode, operation, dtype, weight, rows, hidden)
    return Launch(cell, chosen, launch, layout=layout_of(chosen))


def many_partials() -> Launch:
    """More programs than one turn of `sum_partials` takes rows."""
    return launched("rms_norm", "backward", 300, 40, "float32", "multi_wave_cached", cores=132)


def on_small_grids(patch: Any) -> list[Launch]:
    """As on a device whose grid ends at two programs; refused modes are not there."""
    for module in (choose, description):
        patch.setattr(module, "MAX_PROGRAMS", 2)
    return [
        launched(op, operation, 9, 300, "float32", mode, cores=4)
        for op, operation, mode in itertools.product(OPS, ("forward", "backward"), MODES)
        if not choose.refusal("interpreter", mode, 9, 300, "float32", operation, op)
    ]


def swap_axes(patch: Any, modules: Sequence[Any] = (tiles, forward, backward)) -> None:
    """Tiles in the order of dimensions that other versions of Triton want, in every module that has a name for one."""
    for module in modules:
        for name in ("ROW_AXIS", "REP_AXIS"):
            if hasattr(module, name):
                patch.setattr(module, name, tl.constexpr(1 - getattr(module, name).value))
