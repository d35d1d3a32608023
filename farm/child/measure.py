"""A cell's timing in the child: buffer sets with values of their own, the policy, and what its launches gave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from farm.child import placing
from farm.child.provider_call import Problem
from farm.child.timing import POLICIES, Bench, KernelRecorder, TimingResult, TimingUnusable
from farm.child.timing.common import same_bits
from farm.errors import WrongAnswer

#: Two calls may agree by chance in so few elements (a norm of one column is a sign).
TELLING = 64
SEED = 0x7133
#: Elements of a tensor that is shifted at most.
MOST_SHIFTED = 1 << 31


def copied(problem: Problem) -> Problem:
    """Another set of buffers with the same values."""
    return _like(problem, lambda t: placing.copied(t.detach()))


def rolled(problem: Problem, n: int) -> Problem:
    """Another set of buffers, each floating matrix shifted by n rows and n columns: other values of the same kind.
    (Not what fills gigabytes: its copy is dear enough.)"""

    def shifted(t: torch.Tensor) -> torch.Tensor:
        plain = t.detach()
        shiftable = plain.dim() >= 2 and 1 < plain.numel() < MOST_SHIFTED
        if not shiftable or not plain.is_floating_point():
            return placing.copied(plain)
        return placing.filled(plain, plain.roll(n * (plain.shape[-1] + 1) % plain.numel() or 1))

    return _like(problem, shifted)


def drawn(problem: Problem, n: int) -> Problem:
    """Another set of buffers, each floating matrix of random values from the n-th seed."""

    def random(t: torch.Tensor) -> torch.Tensor:
        plain = t.detach()
        if plain.dim() < 2 or not plain.is_floating_point():
            return placing.copied(plain)
        generator = torch.Generator(device=plain.device).manual_seed(SEED + n)
        values = torch.randn(plain.shape, generator=generator, device=plain.device).to(plain.dtype)
        return placing.filled(plain, values)

    return _like(problem, random)


def _like(problem: Problem, make: Callable[[torch.Tensor], torch.Tensor]) -> Problem:
    index: dict[int, torch.Tensor] = {}
    inputs: list[Any] = []
    for t in problem.inputs:
        if t is None:
            inputs.append(None)
            continue
        index[id(t)] = make(t).requires_grad_(t.requires_grad)
        inputs.append(index[id(t)])
    return Problem(
        inputs,
        [make(u) for u in problem.upstream],
        [index[id(t)] for t in problem.wrt],
        problem.operation,
        mutated=[index[id(t)] for t in problem.mutated],
        returns=problem.returns,
    )


def measure(method: str, bench: Bench, problem: Problem) -> TimingResult:
    """The policy's result over `bench`, which `bench_of` made from `problem`.

    Where `method` stands in for the cell's own (a capture failed) and is Unusable here, `events` does.

    WrongAnswer where timed launches give the same outputs whatever their inputs.  That they do so once may be the data
    (a norm of rows that differ in scale alone), so it is asked again over random values.
    """
    try:
        result = POLICIES[method](bench)
    except TimingUnusable as reason:
        if method == bench.policy["method"]:
            raise
        method = "events"
        result = POLICIES[method](bench)
        result.flags.append(f"timed by events: {reason}")
        result.profiled = True  # the monitor may be on: no graph is timed beside it
    if deaf(result):
        short = {**bench.policy, "max_seconds": 1e-3, "min_samples": 1}
        if deaf(POLICIES[method](replace(bench, other=lambda n: drawn(problem, n), policy=short))):
            raise WrongAnswer(
                "timed launches gave the same outputs for other inputs, so they do not compute these outputs"
            )
    return result


def bench_of(
    function: Callable[..., Any],
    problem: Problem,
    *,
    device: torch.device,
    cache_bytes: int,
    bytes_moved: int,
    policy: dict[str, Any],
    nodes: Callable[[Any], dict[str, int] | None] | None = None,
    max_launches: int | None = None,
    recorder: Callable[[], KernelRecorder] | None = None,
    overwrites: bool = False,
) -> Bench:
    """What a policy works on, over buffer sets made from `problem`, which no call ever gets.  `nodes`, `max_launches`
    and `recorder` are what the session's device brings (`farm.child.timing.common.Bench`)."""
    return Bench(
        function,
        lambda: copied(problem),
        device,
        cache_bytes,
        bytes_moved,
        policy,
        other=lambda n: rolled(problem, n),
        nodes=nodes or (lambda graph: None),
        max_launches=max_launches,
        recorder=recorder,
        overwrites=overwrites,
    )


def deaf(result: TimingResult) -> bool:
    """Whether the outputs over other values have the very bits of those over the cell's own."""
    mine, others = result.timed_outputs or (), result.other_outputs or ()
    both = [(a, b) for a, b in zip(mine, others) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]
    pairs = [(a, b) for a, b in both if not _uniform(a)]
    return sum(a.numel() for a, _ in pairs) >= TELLING and all(same_bits(a, b) for a, b in pairs)


def _uniform(a: torch.Tensor) -> bool:
    """Whether all elements are one value: that says nothing of what they were made from (or nobody wrote them)."""
    flat = a.detach().reshape(-1)
    return bool(flat.numel() == 0 or torch.isnan(flat).all() or (flat == flat[0]).all())


def told(result: TimingResult) -> dict[str, Any]:
    """The result as a `Measured` message carries it, without outputs."""
    policy = POLICIES[result.method]
    return {
        "method": result.method,
        "version": policy.version,
        "samples_us": [round(s, 4) for s in result.samples_us],
        "host_us": [round(s, 3) for s in result.host_us],
        "sets": result.sets,
        "launches": result.launches,
        "cold": result.cold,
        "floor_us": result.floor_us,
        "kernels_per_call": result.kernels,
        "outside_us": result.outside_us,
        "profiled": result.profiled,
    }
