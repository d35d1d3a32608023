"""The cases of `benchmarks.ring_check`, and what the results of one may differ from a reference.  No device is needed:
the checks take tensors of any.

The reference of a result rounds where the contract says that the kernel does before its last step (ROUND: xhat, and
each row's share of dw), with the very float32 products that are rounded, which are the same bits everywhere; all else
is float64.  A reference without these roundings fails what is right: where the rstd of a row is 1.002, x * rstd is
rounded down, often to x itself, so that in bfloat16 all of the row is about 0.2 % too small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from benchmarks.tune_space import SIZE, Config

#: Relative error that the last rounding to the dtype, or float32 arithmetic, may leave.
TOLERANCE = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}
#: The same of sums and of differences, relative to what they are made of.
FLOAT32 = 2.0**-19
#: By how much all results together may be larger or smaller than the reference rounded as they are.
BIAS = 2.0**-12
#: A child has at least so many cases of a sample: its start costs as much as ten.
FEWEST = 8


@dataclass(frozen=True)
class Case:
    """One call: a shape, what is given, and the configuration of the kernel."""

    operation: str
    fused: bool
    dtype: str
    rows: int
    hidden: int
    config: Config = field(default_factory=dict)
    weight: str = "same"  # same, float32, bfloat16, none; shifted: the same, but not 16-byte aligned
    offset: float = 0.0
    rounds: bool = True
    gap: int = 0  # columns between rows of x (forward), or of x and dy
    in_place: bool = False  # dx in dy's storage

    @property
    def name(self) -> str:
        parts = [f"{self.operation}{' fused' if self.fused else ''} {self.dtype} {self.rows}x{self.hidden}"]
        parts += [f"{k}={v}" for k, v in self.config.items()]
        usual = Case("", False, "", 0, 0)
        for key in ("weight", "offset", "rounds", "gap", "in_place"):
            if getattr(self, key) != getattr(usual, key):
                parts.append(f"{key}={getattr(self, key)}")
        return " ".join(parts)


def _configs(operation: str, hidden: int, size: int) -> list[Config]:
    """Configurations that take each way through the kernels: rows kept in the ring, in registers, and loaded again."""
    vectors = 16 * 512 // size
    wide = hidden > 16384 * 4 // size
    block = vectors * (2 if operation == "forward" and hidden * size > 131072 else 1)
    found: list[Config] = [
        {"block": block, "num_warps": 16},
        {"block": block, "num_warps": 16, "regs": 1 if operation == "backward" else 2, "store": "evict_first"},
        {"block": block, "num_warps": 16, "slots": 3, "spare": 1, "hold": False},
        {"block": block, "num_warps": 16, "slots": 4, "spare": 2, "regs": 1, "early": False},
    ]
    if not wide:
        found.append({"block": vectors // 2, "num_warps": 8, "per_core": 2, "hold": False})
    elif operation == "forward":
        found.append({"block": 2 * vectors, "num_warps": 32, "regs": 3})
    if operation == "backward":
        found = [{k: v for k, v in c.items() if k != "early"} for c in found]
    return found


def groups(sample: int = 1) -> list[list[Case]]:
    """Cases by child: every `sample`-th one.  Each kind of kernel and dtype comes before any comes again, so that what
    is not reached in time is more of the same."""
    widths = {
        ("forward", 2): (8192, 12296, 20000, 32768, 65536, 100008, 131072),
        ("forward", 4): (4096, 10004, 16384, 32768, 65536),
        ("backward", 2): (8192, 12296, 20000, 32768),
        ("backward", 4): (4096, 10004, 16384),
    }
    kinds: list[list[list[Case]]] = []
    for operation in ("backward", "forward"):
        for dtype in ("bfloat16", "float32", "float16"):
            for fused in (False, True):
                kind = []
                for hidden in widths[operation, SIZE[dtype]]:
                    if dtype == "float16" and hidden not in (12296, 32768):
                        continue
                    configs = _configs(operation, hidden, SIZE[dtype])
                    if hidden > 65536:
                        configs = configs[:1] + configs[2:]
                    if dtype == "float16":
                        configs = configs[:2]
                    kind.append(list(_cases(operation, fused, dtype, hidden, configs)))
                kinds.append(kind)
    found: list[list[Case]] = []
    for number, together in enumerate(zip_longest(*kinds, fillvalue=[])):
        for place, cases in enumerate(together):  # not the same places of each kind, nor of each width
            kept = [case for at, case in enumerate(cases) if (at + number + place) % sample == 0]
            if sample > 1 and found and len(found[-1]) < FEWEST:
                found[-1].extend(kept)
            elif kept:
                found.append(kept)
    return found


def _cases(operation: str, fused: bool, dtype: str, hidden: int, configs: list[Config]) -> Iterator[Case]:
    """Few rows with every configuration, the number of rows and what is given alternating, then many rows."""
    rows = (1, 3, 131, 132, 133, 500, 700)
    other = "bfloat16" if dtype == "float32" else "float32"
    given: tuple[dict[str, Any], ...] = (
        {},
        {"rounds": False, "offset": 1.0},
        {"weight": "none"},
        {"weight": other, "gap": 64},
        {"weight": "shifted", "gap": 8},
        {"in_place": operation == "backward", "rounds": False},
        {"offset": 0.5},
    )
    at = hidden // 8
    for config in configs:
        for _ in range(2):
            yield Case(operation, fused, dtype, rows[at % 7], hidden, config, **given[(at // 2) % 7])
            at += 1
    yield Case(operation, fused, dtype, 8192 if hidden <= 65536 else 2048, hidden, configs[0])
    yield Case(operation, fused, dtype, 2000, hidden, configs[-1], rounds=False)


def differences(results: list[tuple[Any, ...]]) -> list[str]:
    """What two runs of a case must not show: other bits."""
    import torch

    first, second = ([r.nan_to_num(1e30) for r in found if r is not None] for found in results)
    return [] if all(torch.equal(a, b) for a, b in zip(first, second, strict=True)) else ["not the same bits twice"]


def _over(name: str, got: Any, want: Any, bound: Any) -> list[str]:
    """`got` may be `bound` away from `want`; NaN never is."""
    excess = ((got.double() - want).abs() / bound).nan_to_num(nan=float("inf"), posinf=float("inf"))
    worst = float(excess.max())
    found = [] if worst <= 1 else [f"{name} is {worst:.3g} times what it may be off"]
    rounded = want.to(got.dtype).double()
    scale = float((got.double() * rounded).sum() / rounded.pow(2).sum())
    return found if abs(scale - 1) <= BIAS else [*found, f"{name} is {scale:.5f} times too large"]


def _factor(case: Case, weight: Any) -> Any:
    return 1.0 if weight is None else weight.double() + case.offset


def _xhat(case: Case, x: Any, rstd: Any) -> Any:
    """x times its rstd [rows, 1], rounded to x's dtype where the case rounds; float64."""
    if case.rounds:
        return (x.float() * rstd).to(x.dtype).double()
    return x.double() * rstd.double()


def wrong_forward(case: Case, x: Any, residual: Any, weight: Any, y: Any, total: Any, rstd: Any) -> list[str]:
    """What is wrong with y, total (None without a residual) and rstd [rows] of x [rows, hidden]."""
    tolerance = TOLERANCE[case.dtype] * 1.1
    found = []
    for start in range(0, case.rows, 1024):
        part = slice(start, start + 1024)
        s = x[part]
        if residual is not None:
            s = (s.float() + residual[part].float()).to(x.dtype)
            if not bool((s == total[part]).all()):
                found.append("sum differs")
        r = (s.double().pow(2).mean(-1) + 1e-6).rsqrt()
        found += _over("rstd", rstd[part], r, FLOAT32 * r)
        want = _xhat(case, s, rstd[part, None]) * _factor(case, weight)
        found += _over("y", y[part], want, tolerance * want.abs() + 1e-7)
    return list(dict.fromkeys(found))


def wrong_backward(case: Case, dy: Any, dsum: Any, x: Any, weight: Any, rstd: Any, dx: Any, dw: Any) -> list[str]:
    """What is wrong with dx [rows, hidden] and dw [hidden] (None without a weight)."""
    import torch

    tolerance = TOLERANCE[case.dtype] * 1.1
    found = []
    sums = torch.zeros(2, case.hidden, dtype=torch.float64, device=dx.device)
    for start in range(0, case.rows, 1024):
        part = slice(start, start + 1024)
        r = rstd[part].double()[:, None]
        xhat, g = x[part].double() * r, dy[part].double()
        m = g * _factor(case, weight)
        want = r * (m - xhat * (m * xhat).mean(-1, keepdim=True))
        parts = r * (m.abs() + xhat.abs() * m.pow(2).mean(-1, keepdim=True).sqrt())
        if dsum is not None:
            want = want + dsum[part].double()
            parts = parts + dsum[part].double().abs()
        found += _over("dx", dx[part], want, tolerance * want.abs() + FLOAT32 * parts + 1e-7)
        terms = g * _xhat(case, x[part], rstd[part, None])
        if case.rounds:
            terms = terms.float().to(x.dtype).double()
        sums[0] += terms.sum(0)
        sums[1] += terms.pow(2).sum(0)
    if dw is not None:
        kind = TOLERANCE[str(dw.dtype).split(".")[1]]
        found += _over("dw", dw, sums[0], kind * 1.1 * sums[0].abs() + 2 * FLOAT32 * sums[1].sqrt() + 1e-7)
    return list(dict.fromkeys(found))
