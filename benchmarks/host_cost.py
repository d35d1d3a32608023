"""What an eager call costs the host, ours and peers' in one loop.

    python benchmarks/host_cost.py --limit-s 40            on a GPU: ours, torch, and Liger and QuACK if installed
    python benchmarks/host_cost.py --stub                  on any host: ours alone, where a launch does nothing

In each round every subject runs a batch of calls, in a random order, and the device is waited for after the batch, so
that only the host is timed (batches are short enough not to fill the device's queue).  `ours, derived` is ours with
every launch derived anew in each call (kernels.ops.rms_norm.prepared.keeps).  Before that our kept calls are compared
with torch's, on tensors that the first call did not see.  A line is a subject: median us of a call, its 20th and 80th
percentile over rounds, and the median of the round's ratio to torch (with --stub, to `ours, derived`).

Exit codes: 0 measured, 1 a result was wrong, 2 no GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CALLS = 100  # of a batch: with five launches each, half of what a device queues
OPS = ("rms_norm", "fused_add_rms_norm")
KINDS = ("no grad", "forward", "forward + backward")
SHAPES = ((1, 4096), (16, 4096))
PEERS = ("torch", "liger", "quack")
OURS, DERIVED = "ours", "ours, derived"
Call = Callable[[], Any]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=40.0, metavar="S", help="end after S seconds (default: 40)")
    parser.add_argument("--stub", action="store_true", help="no device: launches do nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's times to this file")
    args = parser.parse_args()
    ends = time.monotonic() + args.limit_s
    import torch

    if args.stub:
        _stub()
    elif not torch.cuda.is_available():
        print("no GPU here; --stub measures our own Python alone", file=sys.stderr)
        return 2
    device = "meta" if args.stub else "cuda"
    wrong = [] if args.stub else [op for op in OPS if not _right(op)]
    if wrong:
        print(f"wrong results: {', '.join(wrong)}")
        return 1
    cases = {(op, kind, shape): _subjects(op, kind, shape, device) for op in OPS for kind in KINDS for shape in SHAPES}
    times = _measured(cases, ends, wait=(lambda: None) if args.stub else torch.cuda.synchronize)
    if not args.stub:
        import triton

        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    _print(times, DERIVED if args.stub else "torch")
    if args.json:
        told = [{"case": [*map(str, case)], "us": found} for case, found in times.items()]
        args.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


def _subjects(op: str, kind: str, shape: tuple[int, int], device: str) -> dict[str, Call]:
    """Name -> one call.  What is not installed, or refuses the call, is left out and told."""
    import kernels
    from kernels.ops.rms_norm import prepared

    functions: dict[str, Any] = {OURS: getattr(kernels, op), DERIVED: getattr(kernels, op)}
    for name in PEERS if device != "meta" else ():
        try:
            functions[name] = import_module(f"farm.providers.{name}").load(op)
        except ImportError:
            continue
    found: dict[str, Call] = {}
    for name, function in functions.items():
        call = _call(function, op, kind, shape, device)
        prepared.keeps = name != DERIVED
        try:
            for _ in range(5):
                call()
        except Exception as error:
            print(f"{name} cannot do {op} {kind}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
            continue
        found[name] = call
    return found


def _call(function: Any, op: str, kind: str, shape: tuple[int, int], device: str) -> Call:
    import torch

    learns = kind != "no grad"
    made = {"dtype": torch.bfloat16, "device": device}
    inputs = [torch.ones(shape, **made).requires_grad_(learns) for _ in range(2 if op.startswith("fused") else 1)]
    inputs.append(torch.ones(shape[1], **made).requires_grad_(learns))
    upstream = [torch.ones(shape, **made) for _ in inputs[1:]]
    if kind == "forward + backward":
        if len(upstream) == 1:
            return lambda: torch.autograd.grad(function(*inputs), inputs, upstream)
        return lambda: torch.autograd.grad(function(*inputs), inputs, upstream)
    if learns:
        return lambda: function(*inputs)

    def without() -> None:
        with torch.no_grad():
            function(*inputs)

    return without


def _measured(
    cases: dict[tuple[Any, ...], dict[str, Call]], ends: float, wait: Call
) -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """us a call of each round."""
    from kernels.ops.rms_norm import prepared

    rng = random.Random(0)
    times: dict[tuple[Any, ...], dict[str, list[float]]] = {case: {n: [] for n in its} for case, its in cases.items()}
    rounds = 0
    while rounds < 3 or (time.monotonic() < ends and rounds < 200):
        for case, subjects in cases.items():
            for name in rng.sample(list(subjects), len(subjects)):
                prepared.keeps, call = name != DERIVED, subjects[name]
                call()
                wait()
                begun = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[case][name].append((time.perf_counter() - begun) / CALLS * 1e6)
                wait()
        rounds += 1
    prepared.keeps = True
    return times


def _print(times: dict[tuple[Any, ...], dict[str, list[float]]], base: str) -> None:
    for (op, kind, (rows, hidden)), found in times.items():
        rounds = len(next(iter(found.values())))
        print(f"\n{op} {rows}x{hidden} bf16, {kind}: us of a call, {rounds} rounds of {CALLS} calls")
        for name, us in found.items():
            low, *_, high = quantiles(us, n=5, method="inclusive")
            ratio = median(a / b for a, b in zip(us, found[base])) if base in found else 0.0
            print(f"  {name:<14} {median(us):8.1f}  ({low:.1f} to {high:.1f})  {ratio:6.2f} of {base}")


def _right(op: str) -> bool:
    """Whether kept calls give torch's results on tensors of their own, at changing places and alignments."""
    import torch

    import kernels
    from farm.providers import torch as reference

    theirs, ours = reference.load(op), getattr(kernels, op)
    buffer = torch.empty(1 << 20, dtype=torch.bfloat16, device="cuda")
    for number in range(12):
        rows, hidden = ((16, 4096), (7, 1001), (16, 4096), (40, 1024))[number % 4]
        at = 8 * number + (number % 3 == 2)
        x = buffer[at : at + rows * hidden].view(rows, hidden).detach().normal_().requires_grad_()
        more = [torch.randn_like(x).requires_grad_()] if op.startswith("fused") else []
        inputs = [x, *more, torch.randn(hidden, dtype=x.dtype, device="cuda", requires_grad=True)]
        results = []
        for function in (ours, theirs):
            out = function(*inputs)
            out = out if isinstance(out, tuple) else (out,)
            results.append([*out, *torch.autograd.grad(out, inputs, [o.detach() for o in out])])
        for mine, other in zip(*results):
            error = (mine.float() - other.float()).norm() / other.float().norm()
            if not error < 0.02:
                print(f"{op} {rows}x{hidden}, call {number}: relative error {error:.3g}")
                return False
    return True


def _stub() -> None:
    """Make Triton believe in an H200, whose kernels are compiled and never run."""
    from triton.runtime import driver as drivers

    from farm.compile import targets
    from farm.compile.offline import OfflineDriver

    made = OfflineDriver(targets.TARGETS["sm_90"])
    made._launched = lambda *launch: None  # type: ignore[method-assign]
    drivers.set_active(made)


if __name__ == "__main__":
    sys.exit(main())
