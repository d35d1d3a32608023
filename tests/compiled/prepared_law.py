"""Kept launches against derived ones, for random layouts, with a compiler that only notes what it was asked for.

    python prepared_law.py      one JSON object: plant -> how many of the calls launched something else ("": no plant)

Every specialisation of Triton's is real (signature, alignment, ones), so a kept launch of other code is seen; nothing
is compiled.  A plant leaves one thing out of the key.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from triton import knobs
from triton.runtime import driver as drivers
from triton.runtime.jit import JITFunction

from farm.compile import targets
from farm.compile.offline import OfflineDriver
from kernels import launches
from kernels.ops.rms_norm import function, prepared

BASES, NEAR = 12, 9
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = ((1, 64), (7, 64), (5, 129), (5, 128), (40, 128), (16, 1000))
log: list[Any] = []
hooks: list[Any] = []  # who was to be told before each launch
DIRECTION = {6: "forward", 7: "backward"}  # how many tensors each has
#: Name, direction ("" for both) and place in the key of what a plant leaves out.
PLANTS = (
    ("mode", "", 1),
    ("rounds", "", 2),
    ("dtype", "", 5),
    ("shape", "", 6),
    ("stride", "", 7),
    ("keeps rstd", "forward", 8),
    ("residual", "forward", 9),
    ("weight", "forward", 10),
    ("stride of dy", "backward", 9),
    ("dsum", "backward", 11),
    ("weight of a backward", "backward", 12),
    ("wants dw", "backward", 13),
)


def compiled(
    self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attrs: Any, warm: Any
) -> Any:
    """In place of `JITFunction._do_compile`: a kernel that notes its launches."""
    what = (self.fn.__name__, str(key))

    def run(
        x: int, y: int, z: int, stream: Any, function: Any, packed: Any, meta: Any, a: Any, b: Any, *args: Any
    ) -> None:
        hooks.append(a)
        log.append((what, (x, y, z), [t.data_ptr() if isinstance(t, torch.Tensor) else t for t in args]))

    made = SimpleNamespace(
        run=run,
        function=1,
        packed_metadata=(),
        metadata=SimpleNamespace(target=drivers.active.target),
        launch_metadata=lambda *a: None,
    )
    self.device_caches[device][0][key] = made
    return made


def matrix(rows: int, hidden: int, dtype: torch.dtype, apart: int, at: int) -> torch.Tensor:
    """[rows, hidden], each row `apart` elements behind the last one's end, from element `at` of aligned memory."""
    base = torch.zeros(at + rows * (hidden + apart) + 64, dtype=dtype)
    return base.as_strided((rows, hidden), (hidden + apart, 1), at)


#: What a call is made of -> the values that it may have.
CHOICES: dict[str, tuple[Any, ...]] = {
    "direction": ("forward", "backward"),
    "shape": SHAPES,
    "dtype": DTYPES,
    "fused": (False, True),
    "rounds": (False, True),
    "mode": ("auto", "auto", "row_packed", "column_tiled"),
    "eps": (1e-6, 1, 0.5),
    "offset": (0.0, -0.0, 1, 0.25),
    "apart": (0, 0, 0, 1, 8),
    "at": (0, 0, 0, 1, 8),
    "other_apart": (0, 0, 16),
    "other_at": (0, 0, 1),
    "dy_apart": (0, 0, 16),
    "same": (False, False, True),  # the residual is x, or dy is
    "weight": ("same", torch.float32, None),
    "weight_at": (0, 0, 1),
    "rstd": (True, False),
    "in_place": (False, True),
    "wants_dw": (True, False),
}


def call(one: dict[str, Any]) -> dict[str, torch.Tensor | None]:
    """Make the tensors, call, and give them by role."""
    (rows, hidden), dtype, fused = one["shape"], one["dtype"], one["fused"]
    op, same = "fused_add_rms_norm" if fused else "rms_norm", one["same"]
    x = matrix(rows, hidden, dtype, one["apart"], one["at"])
    beside = x if same else matrix(rows, hidden, dtype, one["other_apart"], one["other_at"])
    other = beside if fused else None
    kind = dtype if one["weight"] == "same" else one["weight"]
    weight = None if kind is None else matrix(1, hidden, kind, 0, one["weight_at"])[0]
    common = (one["offset"], one["rounds"], one["mode"])
    if one["direction"] == "forward":
        rstd = torch.zeros(rows) if one["rstd"] else None
        y, total = function.forward(op, x, other, weight, one["eps"], *common, rstd)
        return {"x": x, "residual": other, "weight": weight, "rstd": rstd, "y": y, "total": total}
    dy = x if same and not fused else matrix(rows, hidden, dtype, one["dy_apart"], one["other_at"])
    rstd = torch.zeros(rows)
    wants = weight is not None and one["wants_dw"]
    dx, dw = function.backward(op, dy, other, x, weight, rstd, *common, one["in_place"] and not fused, wants)
    return {"dy": dy, "dsum": other, "x": x, "weight": weight, "rstd": rstd, "dx": dx, "dw": dw}


def told(one: dict[str, Any], keeps: bool) -> Any:
    """What a call launches and records, with pointers as their roles."""
    prepared.keeps = keeps
    log.clear()
    launches.drain()
    try:
        roles = call(one)
    except ValueError as error:  # a kernel that refuses these tensors
        return str(error)
    names: dict[int, list[str]] = {}
    for name, tensor in roles.items():
        if tensor is not None:
            names.setdefault(tensor.data_ptr(), []).append(name)
    where = [
        (what, grid, [names.get(a, "scratch") if isinstance(a, int) and a > 1 << 20 else repr(a) for a in args])
        for what, grid, args in log
    ]
    return [(w, g, [_alike(a) for a in args]) for w, g, args in where], launches.drain()


def _alike(value: Any) -> Any:
    return repr(float(value)) if value in ("1", "1.0", "0", "0.0", "-0.0", "0.25", "0.5") else value


def faults(seed: int, most: int = 1 << 30) -> int:
    """Of random calls, each followed by some that differ in one thing, how many launch something else than a fresh
    derivation; it ends at `most`."""
    rng = random.Random(seed)
    prepared.forget()
    found = 0
    for _ in range(BASES):
        base = {name: rng.choice(values) for name, values in CHOICES.items()}
        for name in (None, None, *rng.sample(sorted(CHOICES), NEAR)):
            one = base if name is None else {**base, name: rng.choice(CHOICES[name])}
            fresh = told(one, keeps=False)
            found += any(told(one, keeps=True) != fresh for _ in range(2))
            if found >= most:
                return found
    return found


def main() -> None:
    drivers.set_active(OfflineDriver(targets.TARGETS["sm_90"]))
    JITFunction._do_compile = compiled  # type: ignore[method-assign]
    launches.enable()
    stock = prepared.launch
    out = {"": sum(faults(seed) for seed in range(3))}
    direct = sum(e.run is not None for k in prepared._kept.values() for e in k.launches)
    one = {name: values[0] for name, values in CHOICES.items()}
    told(one, keeps=True)
    hooks.clear()
    told(one, keeps=True)
    alone = [*hooks]
    knobs.runtime.launch_enter_hook.add(listener := hooks.append)
    hooks.clear()
    told(one, keeps=True)
    listened = bool(hooks) and all(a is not None for a in hooks) and alone == [None] * len(alone)
    knobs.runtime.launch_enter_hook.remove(listener)
    prepared.ALIGNED = 0
    out["alignment"] = faults(0, 1)
    prepared.ALIGNED = 15
    for name, only, at in PLANTS:

        def planted(key: Any, *rest: Any, only: str = only, at: int = at) -> None:
            less = (*key[:at], *key[at + 1 :]) if only in ("", DIRECTION[len(rest[0])]) else key
            stock(less, *rest)

        function.prepared.launch = planted  # type: ignore[assignment]
        out[name] = next((n for seed in range(8) if (n := faults(seed, 1))), 0)
        function.prepared.launch = stock
    print(json.dumps({**out, "direct": direct, "listened": listened}))


if __name__ == "__main__":
    main()
