"""What the timing policies share: the bench, what they give, the buffer sets, the host's share.

torch is imported here; only the child loads this.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from farm.cell import VERSIONS
from farm.child import placing
from farm.child.permuted_inputs import alike
from farm.child.provider_call import Problem
from farm.errors import FarmSignal
from farm.timing.kernels import Record
from farm.timing.statistics import quantile

#: All buffer sets together exceed the last-level cache this many times, so that no launch finds its inputs there.
CACHE_FACTOR = 4
#: And on AMD this: what a driver tells there is the L2, behind which 256 MiB of Infinity Cache may stand.
AMD_BYTES = 512 << 20
#: More sets than this cost more memory traffic to prepare than they tell; tiny cells are then flagged as warm.
MAX_SETS = 256
#: Share of the device's free memory that timing may take.
MEMORY_SHARE = 0.5
#: Device time spent before the first sample, in ms.  After some idle milliseconds an H200 runs its first ones slower:
#: 8192x4096 read 38 us after 0.7 ms of work, 34.4 after 20 (2026-11-21, docs/facts.md).
SETTLE_MS = 25.0
#: Work that is still under way so long (microseconds) after the timed stream has finished is work outside it, if it is
#: also this share of what the call took.  A wait for an idle device takes a few microseconds, but after long calls an
#: H200 was seen to take 26 and 32 us for honest ones of 3,600 and 785 us (2026-11-21).
OUTSIDE_US = 25.0
OUTSIDE_SHARE = 0.1
#: Which buffer set keeps the checked values is nothing that the code under test may foresee: no seed.
DICE = random.SystemRandom()


class TimingUnusable(FarmSignal, NotImplementedError):
    """This environment has not got what the policy reads kernel times from; the message says why."""


class KernelRecorder(Protocol):
    """The vendor's record of the kernels that ran in this process, as a backend gives it."""

    def drain(self, enough: Callable[[list[Record]], bool]) -> list[Record]:
        """The kernels since the last call, in the order in which they were told, once they are `enough`; those that
        came, where that does not happen in time."""


@dataclass
class TimingResult:
    """What a policy measured.

    `samples_us`: device time of one call of the operation, microseconds (`host`: wall time).  `host_us`: what one call
    costs the host.  `timed_outputs`: of a timed launch over the checked call's values; `other_outputs`: of one over
    other values, where there was one.  `sets` buffer sets, `launches` calls a sample.  `floor_us`: what the policy
    reads for the smallest kernel.  `kernels`: activities (kernels, copies, fills) that one call launches, None where
    that is not known.  `outside_us`: how long the device worked on after the timed stream had finished; None where that
    is no more than `OUTSIDE_US`.  `profiled`: the process may time by no other method from now on.
    """

    method: str
    samples_us: list[float]
    host_us: list[float] = field(default_factory=list)
    timed_outputs: tuple[Any, ...] | None = None
    sets: int = 1
    launches: int = 1
    cold: bool = True
    floor_us: float | None = None
    flags: list[str] = field(default_factory=list)
    kernels: float | None = None
    outside_us: float | None = None
    other_outputs: tuple[Any, ...] | None = None
    profiled: bool = False


@dataclass(frozen=True)
class Policy:
    """A timing policy: its name, its version (which is in the key of each cell), and what it does."""

    name: str
    measure: Callable[[Bench], TimingResult]

    @property
    def version(self) -> int:
        return VERSIONS[self.name]

    def __call__(self, bench: Bench) -> TimingResult:
        return self.measure(bench)


@dataclass
class Bench:
    """What a policy needs: the function, problems of the cell, the device and its cache size.

    `make` gives a new set of buffers with the cell's values, `other` the n-th with other values of the same kind (None:
    there are none).  `nodes` counts what a captured graph holds (activities by kind), None where that cannot be read.
    `max_launches`: more calls than this no graph of the device holds; None: no such bound is known.  `recorder` gives
    the vendor's record of kernels, started at its first call; NotImplementedError says why there is none.
    `overwrites`: a call may change its inputs, which are then as they were again before each next call.  `consumes`: a
    backward leaves what its forward saved for it changed, so each call has a forward of its own before it.
    """

    function: Callable[..., Any]
    make: Callable[[], Problem]
    device: torch.device
    cache_bytes: int
    bytes_moved: int
    policy: dict[str, Any]
    other: Callable[[int], Problem] | None = None
    nodes: Callable[[Any], dict[str, int] | None] = lambda graph: None
    max_launches: int | None = None
    recorder: Callable[[], KernelRecorder] | None = None
    overwrites: bool = False
    consumes: bool = False

    @property
    def api(self) -> Any:
        return torch.get_device_module(self.device.type)

    @property
    def warm(self) -> bool:
        """Whether the policy asks for inputs in the cache."""
        return self.policy.get("cache") == "warm"

    @property
    def cold_bytes(self) -> int:
        """Bytes that all buffer sets together must exceed, so that each launch finds its inputs in memory."""
        known = CACHE_FACTOR * self.cache_bytes
        return max(known, AMD_BYTES) if torch.version.hip else known

    def sets(self, per_set: int) -> tuple[int, bool]:
        """(number of buffer sets, whether they are enough to keep every launch cold)."""
        if self.warm:
            return 1, False
        wanted = max(2, -(-self.cold_bytes // max(1, per_set)))
        free = self.api.mem_get_info(self.device)[0]
        possible = max(1, int(free * MEMORY_SHARE / max(1, 2 * per_set)))
        count = min(wanted, MAX_SETS, possible, self.max_launches or MAX_SETS)
        return count, count * per_set >= self.cold_bytes

    def problems(self, first: Problem, count: int) -> tuple[list[Problem], int]:
        """(`count` buffer sets, the index of the one with the cell's own values, which is `first`).

        Each other one has values of its own, so that an answer that is not computed from its inputs shows.
        """
        own = DICE.randrange(count)
        more = self.other or (lambda n: self.make())
        return [first if i == own else more(i + 1) for i in range(count)], own

    def cold_flags(self, cold: bool) -> list[str]:
        return [] if cold or self.warm else ["the buffer sets fit in the cache, so inputs may be warm"]


def call_of(bench: Bench, problem: Problem) -> Callable[[], tuple[Any, ...]]:
    """One timed call of the operation; for `backward` the forward has run before and is not in it.  Where a backward
    `consumes` what its forward saved, this can be called once."""
    if problem.operation != "backward":
        return lambda: problem.run(bench.function)
    outputs = problem.forward(bench.function)
    return lambda: problem.gradients(outputs, retain=True)


def repeatable(bench: Bench, problem: Problem) -> tuple[Callable[[], tuple[Any, ...]], Callable[[], None]]:
    """(`call_of`, what must run before each call and is not timed)."""
    if not bench.consumes:
        call = call_of(bench, problem)
        return call, restorer(bench, problem)
    restore, ready = restorer(bench, problem), [call_of(bench, problem)]

    def prepare() -> None:
        restore()
        ready[0] = call_of(bench, problem)

    return lambda: ready[0](), prepare


def consumes(bench: Bench, problem: Problem) -> bool:
    """Whether a second backward of one forward gives other gradients than the first, or none.  Some kernels write
    gradients over what their forward saved; a training step never notices."""
    if problem.operation != "backward":
        return False
    call = call_of(bench, problem)
    restore = restorer(bench, problem)
    first = [t.detach().clone() for t in call() if isinstance(t, torch.Tensor)]
    restore()
    try:
        second = [t.detach() for t in call() if isinstance(t, torch.Tensor)]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # autograd's: what was saved has been changed, or is gone
        return True
    finally:
        restore()
    return len(first) != len(second) or not all(map(alike, first, second))


def restorer(bench: Bench, problem: Problem) -> Callable[[], None]:
    """Gives the buffers of `problem` the values again that they have now.  Nothing where no call changes them.

    For a backward, "now" is after the forward, which may itself have left in an input what the backward reads.  Through
    `data`, so that autograd does not take what it saved for changed.
    """
    if not bench.overwrites:
        return lambda: None
    kept = [(t.data, placing.copied(t.data)) for t in (*problem.inputs, *problem.upstream) if t is not None]

    def restore() -> None:
        for target, values in kept:
            target.copy_(values)

    return restore


@dataclass(frozen=True)
class HostTimes:
    """Microseconds that the host spends in single calls; how long the device worked on after the timed stream had
    finished, where that is more than `outside` allows (None: no more)."""

    us: list[float]
    outside_us: float | None

    @property
    def flags(self) -> list[str]:
        if self.outside_us is None:
            return []
        return [f"works outside the timed stream: the device was busy {self.outside_us:.0f} us after the stream ended"]


def host_times(bench: Bench, problem: Problem, count: int = 15) -> HostTimes:
    """The host's time of one call, the device idle before it and not waited for; and whether, once the stream of the
    call has finished, the whole device has too."""
    api, times, taken, left = bench.api, [], [], []
    call, restore = repeatable(bench, problem)
    for _ in range(count):
        restore()
        api.synchronize(bench.device)
        start = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - start) * 1e6)
        if bench.device.type != "cpu":
            done = api.Event()
            done.record()
            done.synchronize()
            since = time.perf_counter()
            api.synchronize(bench.device)
            idle_since = time.perf_counter()
            api.synchronize(bench.device)
            taken.append((since - start) * 1e6)
            left.append(max(0.0, 2 * idle_since - since - time.perf_counter()) * 1e6)  # beyond a wait for an idle one
        del result
    restore()
    api.synchronize(bench.device)
    return HostTimes(times, outside(left, taken))


def outside(left_us: Sequence[float], taken_us: Sequence[float]) -> float | None:
    """The median of what was left to wait for after calls that took so long, if that is work and no slow wait."""
    if not left_us:
        return None
    left, taken = quantile(sorted(left_us), 0.5), quantile(sorted(taken_us), 0.5)
    return left if left > max(OUTSIDE_US, OUTSIDE_SHARE * taken) else None


def other_outputs(bench: Bench, own: Problem) -> tuple[Any, ...] | None:
    """The outputs of one more call, over other values at the addresses of the timed calls, so that one that remembers
    what it was given there shows; None where there are no others, or they are the same.  `own` holds them then."""
    if bench.other is None:
        return None
    problem = bench.other(1)
    if not differ(own, problem):
        return None
    with torch.no_grad():
        for old, new in zip([*own.inputs, *own.upstream], [*problem.inputs, *problem.upstream]):
            if old is not None:
                old.copy_(new)
    found = call_of(bench, own)()
    bench.api.synchronize(bench.device)
    return found


def differ(a: Problem, b: Problem) -> bool:
    """Whether two problems have different values anywhere."""
    pairs = zip([*a.inputs, *a.upstream], [*b.inputs, *b.upstream])
    return any(x is not None and not same_bits(x, y) for x, y in pairs)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal to the bit: a NaN equals itself, and -0.0 is not 0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(_words(a), _words(b)))


def _words(t: torch.Tensor) -> torch.Tensor:
    """The bits as integers, as wide as fits: a comparison takes a byte of memory for each."""
    flat = t.detach().contiguous().reshape(-1)
    end, begin = flat.numel() * flat.element_size(), flat.storage_offset() * flat.element_size()
    return flat.view(torch.uint8 if end % 8 or begin % 8 else torch.int64)


def median(values: Sequence[float]) -> float:
    return quantile(sorted(values), 0.5) if values else 0.0
