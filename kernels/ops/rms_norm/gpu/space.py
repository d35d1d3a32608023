"""What a search for the fastest launch tries: where it starts, and the neighbours of a configuration.  Pure.

A configuration is what `choose.build` takes, without its mode and without `pdl`; `forced.text` gives it as a launch.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from typing import Any

from . import ring_plan, split_plan, tuned
from .choose import configuration, unaligned_block
from .description import describe
from .options import DEFAULTS, RINGS, SPLITS, UNALIGNED
from .rules import BACKWARD, FORWARD

Config = dict[str, Any]

OPS = ("rms_norm", "fused_add_rms_norm")
SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
#: What a block may have in shared memory where `describe` knows nothing: 64 KiB, as on AMD's (reasoned).
LEAST_SHARED = 65536
#: Rows of fewer bytes are not tried in the kernels of ring.py.
RING_BYTES = 16384
#: Rows of fewer bytes are not tried in those of split.py, nor parts of fewer columns.
SPLIT_BYTES, PART_COLUMNS = 32768, 2048


@dataclass(frozen=True)
class Task:
    """One thing to tune."""

    op: str
    operation: str
    dtype: str
    rows: int
    hidden: int
    target: str = "cuda:90"
    cores: int = 132

    @property
    def shared(self) -> int:
        """Bytes of shared memory that the programs of a core have together, less what the system takes."""
        return (describe(self.target).shared or LEAST_SHARED) - 1024

    @property
    def block(self) -> int:
        return 1 << max(self.hidden - 1, 0).bit_length()

    @property
    def unaligned(self) -> bool:
        """Whether rows are no whole vectors of 16 bytes."""
        return self.hidden * SIZE[self.dtype] % 16 != 0

    def tile(self, kernel: str) -> int:
        """The columns of `kernel`'s tile, where it holds a whole row."""
        return unaligned_block(self.hidden, SIZE[self.dtype]) if kernel in UNALIGNED else self.block

    @property
    def name(self) -> str:
        return f"{self.op}/{self.operation}/{self.dtype}/{self.rows}x{self.hidden}"

    @property
    def matrices(self) -> int:
        """How many rows x hidden tensors the operation reads and writes."""
        return (
            (2 if self.operation == "forward" else 3)
            + (2 if self.op.startswith("fused") else 0)
            - (1 if self.op.startswith("fused") and self.operation == "backward" else 0)
        )

    @property
    def bytes(self) -> int:
        return self.matrices * self.rows * self.hidden * SIZE[self.dtype]


#: Of rows, num_stages and per_core those that mean something to a kernel.
KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(DEFAULTS, ("rows", "num_stages", "per_core")),
    **dict.fromkeys(RINGS, ("per_core",)),
    "forward_split": (),
    "forward_parts": (),
    "backward_strips": ("rows",),
    "backward_split": ("num_stages", "per_core"),
}

#: What a key may be; a neighbour takes the value before or after, or any where the order means nothing.
DOMAIN: dict[str, tuple[Any, ...]] = {
    "rows": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8, 16, 32),
    "per_core": (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "num_stages": (1, 2, 3, 4, 5),
    "span": ("row", "warp"),
    "spread": (False, True),
    "weight": ("first", "last"),
    "load": ("", "evict_first", "evict_last"),
    "store": ("", "evict_first"),
    "tail": (False, True),
    "block": (512, 1024, 2048, 4096, 8192, 16384, 32768),
    "keep": (0, 8192, 16384, 32768, 65536),
    "chunk": (2048, 4096, 8192, 16384),
    "unroll": (False, True),
    "hold": (False, True),
    "fold": (False, True),
    "ahead": (0, 1, 2, 4),
    "slots": (0, 2, 3, 4, 6, 8, 12, 16),
    "regs": (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    "spare": (1, 2, 3, 4, 6),
    "early": (False, True),
    "parts": (2, 3, 4, 6, 8, 11, 12, 16, 22, 24, 32, 33, 44, 64),
    "later": (False, True),
    "polls": (0,),
    "registers": (32, 40, 0, 48, 56, 64, 80),  # beside as many as the compiler wants
}


def seeds(task: Task) -> list[Config]:
    """Where the search starts: each kernel with a few tiles, and further options as defaults."""
    found: list[Config] = []
    own = task.tile(UNALIGNED[0]) if task.unaligned else task.block  # half of it, at 129 columns
    tiles = tuple(r for r in DOMAIN["rows"] if r * own >= 512)[:5]
    spans = ("row", "warp") if task.block <= 4096 else ("row",)
    narrow = task.block <= 1024

    def add(kernel: str, **keys: tuple[Any, ...]) -> None:
        for values in itertools.product(*keys.values()):
            config = {**options(kernel), "kernel": kernel, **dict(zip(keys, values, strict=True))}
            if config.get("span") == "warp":
                config["spread"] = True
            if config.get("per_core", 0) < 0:  # threads of a core
                config["per_core"] = max(1, -config["per_core"] // config["num_warps"])
            if sensible(task, config):
                found.append(config)

    if task.operation == "forward":
        if task.block <= 65536:
            add("forward_rows", rows=tiles, num_warps=(1, 2, 4, 8, 16, 32), span=spans)
            add(
                "forward_persistent",
                rows=tiles[:3],
                num_warps=(4, 8, 16),
                num_stages=(1, 3),
                per_core=(-32,),
                span=spans,
            )
        if task.block >= 8192:
            add(
                "forward_chunks",
                rows=(1,),
                block=(2048, 4096, 8192, 16384),
                num_warps=(8, 16, 32),
                num_stages=(1,),
                per_core=(0, -32, -64),
                keep=(0,),
                load=("", "evict_last"),
            )
        if task.block >= 32768:
            add(
                "forward_chunks",
                rows=(1,),
                block=(2048, 4096, 8192, 16384),
                num_warps=(4, 8, 16, 32),
                num_stages=(1,),
                per_core=(0, 1, 2, 3, 4),
                keep=(0,),
                unroll=(False, True),
                load=("", "evict_last"),
            )
        if task.block >= 65536:
            add(
                "forward_chunks",
                rows=(1,),
                block=(8192, 16384, 32768),
                num_warps=(16, 32),
                num_stages=(1,),
                per_core=(0, 1, 2),
                keep=(16384, 32768),
                unroll=(False, True),
            )
        if task.unaligned:
            add(
                "forward_unaligned",
                rows=tiles,
                num_warps=(1, 2, 4, 8, 16, 32),
                weight=("first", "last"),
                per_core=(0,),
                span=spans,
            )
            add(
                "forward_unaligned",
                rows=tiles[:3],
                num_warps=(4, 8, 16),
                num_stages=(1, 3),
                per_core=(-32,),
                span=spans,
            )
        if task.hidden * SIZE[task.dtype] >= RING_BYTES:
            add(
                "forward_ring",
                block=(2048, 4096, 8192),
                num_warps=(8, 16, 32),
                per_core=(1, 2),
                regs=(0, 2, 4, 6),
                hold=(True, False),
            )
        if task.hidden * SIZE[task.dtype] >= SPLIT_BYTES:
            add(
                "forward_split",
                parts=(2, 4, 8, 16, 32),
                num_warps=(4, 8, 16, 32),
                weight=("first", "last"),
                registers=(0, 40, 56),
            )
    else:
        if task.hidden * SIZE[task.dtype] >= SPLIT_BYTES:
            add(
                "backward_split",
                parts=(4, 8, 11, 16, 32, 33),
                num_warps=(8, 16),
                num_stages=(2, 3),
                per_core=(1, 2),
                later=(False, True),
            )
        if task.block <= 32768:
            add(
                "backward_rows",
                rows=tiles[:4],
                num_warps=(4, 8, 16, 32),
                num_stages=(1, 3),
                per_core=(-16, -32),
                span=spans,
                fold=(True, False) if narrow else (True,),
            )
            if task.block >= 8192:
                add(
                    "backward_twice",
                    rows=(1,),
                    num_warps=(8, 16, 32),
                    num_stages=(1, 3),
                    per_core=(-16, -32),
                    chunk=(4096, 8192, 16384),
                    unroll=(False, True),
                )
        if task.unaligned:
            add(
                "backward_unaligned",
                rows=tiles[:4],
                num_warps=(4, 8, 16, 32),
                num_stages=(1, 3),
                per_core=(-16, -32),
                span=spans,
                hold=(True, False),
                fold=(True, False) if narrow else (True,),
            )
        if task.hidden * SIZE[task.dtype] >= RING_BYTES:
            add(
                "backward_ring",
                block=(1024, 2048, 4096, 8192),
                num_warps=(8, 16, 32),
                per_core=(1, 2),
                regs=(0, 1, 2),
                hold=(True, False),
                store=("", "evict_first"),
            )
        if task.block >= 16384 or task.hidden % 8:
            add("backward_columns", rows=(1, 4), block=(1024, 2048), num_warps=(4, 8), num_stages=(1, 3), per_core=(8,))
    return list({key_of(c): c for c in found}.values())


def held(task: Task) -> list[Config]:
    """What the table has for the task's own shape, or else what `auto` takes there; each key told."""
    measured = tuned.TABLE.get((task.op, task.operation, task.dtype), ())
    found = [config for rows, hidden, config in measured if (rows, hidden) == (task.rows, task.hidden)]
    if not found:
        found = [chosen(task)]
    return [whole(config) for config in found]


def chosen(task: Task) -> Config:
    """What `auto` takes for the task, tensors and Triton permitting."""
    special = describe(task.target).ptx
    shape = (task.target, task.rows, task.hidden, task.dtype, task.operation)
    return configuration(*shape, cores=task.cores, op=task.op, ring=special, split=special)


def whole(config: Config) -> Config:
    """A configuration with each key that means something to its kernel told, but for its mode."""
    usual = {"rows": 1, "num_stages": 1, "per_core": 0}
    return {
        k: v
        for k, v in {**usual, **options(config["kernel"]), **config}.items()
        if k not in ("mode", "pdl") and (k not in usual or k in KEYS[config["kernel"]])
    }


def near(task: Task, most: int) -> list[Config]:
    """What the table's nearest shapes have, of any of the norms in this direction, those of this op and dtype first;
    the sensible ones alone."""
    found: dict[str, tuple[tuple[float, ...], Config]] = {}
    for (op, operation, dtype), entries in tuned.TABLE.items():
        if operation != task.operation or SIZE[dtype] != SIZE[task.dtype]:
            continue
        for rows, hidden, config in entries:
            full = whole(config)
            if not sensible(task, full):
                continue
            far = 4 * abs(math.log2(hidden / task.hidden)) + abs(math.log2(rows / task.rows)) + (op != task.op)
            key = key_of(full)
            if key not in found or (far,) < found[key][0]:
                found[key] = ((far,), full)
    return [config for _, config in sorted(found.values(), key=lambda fc: (fc[0], key_of(fc[1])))][:most]


def by_rules(task: Task) -> list[Config]:
    """What each mode's rule takes for the task; the sensible ones alone."""
    rules = FORWARD if task.operation == "forward" else BACKWARD
    found = [whole(rule(task.rows, task.hidden, SIZE[task.dtype], task.cores)) for rule in rules.values()]
    return [config for config in found if sensible(task, config)]


def options(kernel: str) -> Config:
    """The kernel's options as they are by default."""
    return {k: v for k, v in DEFAULTS[kernel].items() if k != "pdl"}


def sensible(task: Task, config: Config) -> bool:
    """Whether a configuration can be launched at all, and is not far from what can be good."""
    if config["kernel"] in SPLITS:
        return _split_sensible(task, config)
    most = task.tile(config["kernel"])
    block = min(config.get("block", most), most)
    tile, warps = config.get("rows", 1) * block, config["num_warps"]
    per_thread = tile / (32 * warps)
    kernel, stages = config["kernel"], config.get("num_stages", 1)
    if kernel in RINGS:
        return _ring_sensible(task, config)
    if config.get("rows", 1) > task.rows or warps > 32 or not 2 <= per_thread <= 128:
        return False
    if kernel in UNALIGNED and not task.unaligned:
        return False
    if kernel in ("forward_rows", "forward_persistent", "forward_unaligned") and per_thread > 64:
        return False
    if kernel == "forward_chunks" and per_thread > 64:
        return False
    if kernel == "backward_twice" and config["rows"] > 1:
        return False
    span = 512 // SIZE[task.dtype]
    if config.get("span") == "warp" and (config["rows"] < warps or block < span):
        return False
    if config.get("spread") and config["rows"] == 1:
        return False
    loads = (2 if task.operation == "backward" else 1) + (1 if task.op.startswith("fused") else 0)
    shared = config.get("chunk", tile) * SIZE[task.dtype] * loads * (stages - 1)
    if stages > 1 and shared * max(1, config.get("per_core", 1)) > task.shared:
        return False
    if kernel in ("backward_rows", "backward_unaligned"):
        if not config["fold"] and config["rows"] * block > 8192:
            return False
        # x and dy in float32, the weight and dw: more registers than a thread has
        live = per_thread * 2 + block / (32 * warps) * (2 if config["hold"] else 1)
        if live > 160 or per_thread < 4:
            return False
    if "keep" in config and (config["keep"] > task.hidden or config["keep"] / (32 * warps) > 64):
        return False
    per_core = config.get("per_core", 0)
    return not per_core or per_core * warps <= 64


def _ring_sensible(task: Task, config: Config) -> bool:
    """The same for the kernels of ring.py: the ring fits, no two configurations mean the same, and registers are about
    enough for what a thread holds beside 40 for addresses and what it is working on (reasoned)."""
    size, warps, block, per_core = SIZE[task.dtype], config["num_warps"], config["block"], config["per_core"]
    per_thread = block // (32 * warps)
    if task.hidden * size % 16 or per_thread * size < 16 or not 1 <= per_core * warps <= 64:
        return False
    fused, backward = task.op.startswith("fused"), task.operation == "backward"
    streams = 2 if fused or backward else 1
    found = ring_plan.plan(
        task.hidden,
        block,
        streams * size,
        size if config["hold"] else 0,
        per_core,
        config["regs"],
        config["spare"],
        config["slots"],
    )
    if found is None or found.hold != config["hold"] or found.regs != config["regs"]:
        return False
    usual = DEFAULTS[config["kernel"]]
    if (not found.again and config["spare"] != usual["spare"]) or config["slots"] not in (0, found.slots):
        return False
    if not backward and not fused and config["early"] != usual["early"]:
        return False
    live = 40 + 2 * per_thread + config["regs"] * per_thread * size // 4 * (2 if backward else 1)
    live += found.chunks * per_thread if backward else 0
    return live <= 65536 // (32 * warps * per_core)


def _split_sensible(task: Task, config: Config) -> bool:
    """The same for the kernels of split.py: all parts have columns, and registers are about enough for what a thread
    holds beside 32 for addresses and sums (reasoned); backward also the rows that are fetched ahead, in shared memory.
    """
    size, warps, kernel = SIZE[task.dtype], config["num_warps"], config["kernel"]
    found = split_plan.plan(task.hidden, config["parts"])
    per_thread = found.block / (32 * warps)
    if found.parts != config["parts"] or found.width < PART_COLUMNS or not 16 // size <= per_thread <= 64:
        return False
    words = size / 4  # registers of an element as it is stored
    if kernel == "forward_split":
        live = 16 + per_thread * words * (2 if config["weight"] == "first" else 1)
        return live <= min(config["registers"] or 255, 65536 / (32 * warps))
    per_core, streams = config["per_core"], 3 if task.op.startswith("fused") else 2
    ahead = (config["num_stages"] - 1) * streams * found.block * size
    if not 1 <= per_core * warps <= 64 or per_core * (ahead + 2048) > task.shared:
        return False
    live = 32 + per_thread * (1 + words + 2 * words * (2 if config["later"] else 1))
    return live <= min(255, 65536 / (32 * warps * per_core))


def neighbours(task: Task, config: Config) -> list[Config]:
    """Every sensible configuration that differs in one key."""
    found = []
    for key, value in config.items():
        if key in ("kernel", "mode"):
            continue
        values = DOMAIN[key]
        if isinstance(value, str):
            near = values
        else:  # a rule's value may lie between those that are tried
            at = values.index(value) if value in values else sum(v < value for v in values)
            near = values[max(0, at - 1) : at + 2]
        for other in near:
            if other != value:
                changed = {**config, key: other}
                if key == "num_warps" and config.get("per_core"):  # keep the threads of a core
                    changed["per_core"] = max(1, config["per_core"] * value // other)
                    if changed["per_core"] not in DOMAIN["per_core"]:
                        continue
                if sensible(task, changed):
                    found.append(changed)
    return found


def key_of(config: Config) -> str:
    return json.dumps(config, sort_keys=True)
