"""What `farm ab` finds and what it invents: its own rule (farm/compare/decide.py) played against simulated noise.

    python -m benchmarks.compare_simulation                    20,000 runs without a change, 2,000 with each change
    python -m benchmarks.compare_simulation --runs 2000 --seed 7

A run has 300 cells.  Noise, after what was measured on an H200 (docs/facts.md): a process varies by a standard
deviation that is its cell's own, lognormal with median 0.45 %, between 0.2 and 1.6 %; 0.4 % of processes are slower by
3 to 20 %; all cells of a round share a shift of 0.3 %; two rounds of each stage are lost.  Exit code 1 where a bound
below is broken.  Nothing here was measured on a device: the operating curve is simulated.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from farm.compare.decide import DEFAULT, Batch, Comparison, Rule, Stage, Verdict
from farm.compare.noise import Array, Known

CELLS = 300
SEED = 20261123


@dataclass(frozen=True)
class Noise:
    """How simulated times vary; relative standard deviations and shares."""

    median: float = 0.0045
    spread: float = 0.5  # of the logarithm
    least: float = 0.002
    most: float = 0.016
    outliers: float = 0.004
    outlier: tuple[float, float] = (0.03, 0.20)
    shift: float = 0.003
    environment: float = 0.0  # what one whole run is off by, in both of a round's orders
    lost: int = 2  # rounds a stage

    def deviations(self, rng: np.random.Generator, cells: int) -> Array:
        """Each cell's standard deviation of one process."""
        return np.clip(self.median * np.exp(rng.normal(0, self.spread, cells)), self.least, self.most)

    def processes(self, rng: np.random.Generator, deviation: Array, rounds: int) -> Array:
        """Logarithms of times less their cell's, (cells, rounds)."""
        shape = (len(deviation), rounds)
        slow = np.where(rng.random(shape) < self.outliers, np.log1p(rng.uniform(*self.outlier, shape)), 0.0)
        return rng.normal(0, deviation[:, None], shape) + slow


@dataclass
class World:
    """One simulated pair of arms: each cell's noise, and what b truly is slower by."""

    rng: np.random.Generator
    noise: Noise
    deviation: Array
    effect: Array
    rule: Rule = DEFAULT
    asked: dict[Stage, int] = field(default_factory=dict)
    gone: dict[Stage, Array] = field(default_factory=dict)  # which rounds of a stage are lost

    def run(self, batch: Batch) -> Array:
        """The log ratios of a batch."""
        cells = np.array(batch.cells)
        a, b = (self.noise.processes(self.rng, self.deviation[cells], batch.rounds) for _ in "ab")
        shared = self.noise.environment + self.rng.normal(0, self.noise.shift, batch.rounds)
        x = b - a + self.effect[cells][:, None] + shared[None, :]
        rounds, begun = self.rule.rounds(batch.stage), self.asked.get(batch.stage, 0)
        if batch.stage not in self.gone:
            self.gone[batch.stage] = self.rng.permutation(rounds)[: self.noise.lost if rounds > 2 else 0]
        self.asked[batch.stage] = begun + batch.rounds
        x[:, np.isin(np.arange(begun, begun + batch.rounds), self.gone[batch.stage])] = np.nan
        return x


def compared(
    rng: np.random.Generator,
    effect: Array,
    noise: Noise = Noise(),
    controls: int = 0,
    records: int = 0,
    rule: Rule = DEFAULT,
    then: float = 1.0,
) -> tuple[Array, float]:
    """Each cell's verdict (1 regressed, -1 improved, 0 same, 2 inconclusive, 3 unfit), and rounds a cell.

    effect: (cells,) log ratios; the first `controls` cells are known to be the same code; records: earlier A/A pairs,
    whose deviations were `then` times those of today.
    """
    world = World(rng, noise, noise.deviations(rng, len(effect)), effect, rule)
    known = None
    if records:
        drawn = then * world.deviation * np.sqrt(2 * rng.chisquare(records - 1, len(effect)) / (records - 1))
        known = Known(drawn, np.full(len(effect), records - 1.0))
    course = Comparison(len(effect), range(controls), known, rule)
    rounds = 0
    while batch := course.next():
        rounds += batch.rounds * len(batch.cells)
        course.told(world.run(batch))
    code = {Verdict.REGRESSED: 1, Verdict.IMPROVED: -1, Verdict.SAME: 0, Verdict.INCONCLUSIVE: 2, Verdict.UNFIT: 3}
    return np.array([code[v] for v in course.verdicts], np.float64), rounds / len(effect)


@dataclass(frozen=True)
class Curve:
    """Shares of cells (or, of unchanged runs, changes invented per 1,000 runs) at one effect."""

    effect: float
    runs: int
    found: float
    invented: float  # per 1,000 runs
    undecided: float
    rounds: float


def curve(
    effect: float,
    runs: int,
    seed: int,
    noise: Noise = Noise(),
    controls: int = 0,
    records: int = 0,
    then: float = 1.0,
    cells: int = CELLS,
) -> Curve:
    """`runs` runs in which every fifth cell (but controls) is changed by +-effect; 0: none is."""
    rng = np.random.default_rng([seed, int(1e6 * effect), controls, records])
    changed = np.zeros(cells)
    if effect:
        changed[controls::5] = np.log1p(effect) * np.where(np.arange(len(changed[controls::5])) % 2, 1, -1)
    found = invented = undecided = rounds = 0.0
    for _ in range(runs):
        verdict, taken = compared(rng, changed, noise, controls, records, then=then)
        at = changed != 0 if effect else np.ones(cells, bool)
        found += float((verdict[at] == np.sign(changed[at])).mean())
        invented += float((np.isin(verdict, (1, -1)) & (verdict != np.sign(changed))).sum())
        undecided += float(np.isin(verdict[at], (2, 3)).mean())
        rounds += taken
    return Curve(effect, runs, found / runs, 1000 * invented / runs, undecided / runs, rounds / runs)


#: What the rule is held to: (effect, the share of such cells that is found at least).
FOUND = {0.03: 0.80, 0.05: 0.95, 0.10: 0.999}
INVENTED = 1.0
UNDECIDED = 0.03


def broken(found: Sequence[Curve]) -> list[str]:
    """What does not hold, one sentence each."""
    out = []
    for c in found:
        if not c.effect and c.invented >= INVENTED:
            out.append(f"{c.invented:.2f} changes invented per 1,000 unchanged runs, under {INVENTED:g} wanted")
        if c.effect and c.found < FOUND.get(c.effect, 0.0):
            out.append(f"{c.effect:.0%}: {c.found:.2%} of the cells found, {FOUND[c.effect]:.1%} wanted")
        if c.undecided > UNDECIDED:
            out.append(f"{c.effect:.0%}: {c.undecided:.2%} of the cells undecided, {UNDECIDED:.0%} allowed")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks.compare_simulation",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=20_000, metavar="N", help="without a change (20,000)")
    parser.add_argument("--changed", type=int, default=2000, metavar="N", help="with each change (2,000)")
    parser.add_argument("--controls", type=int, default=0, metavar="N", help="cells that run the same code (0)")
    parser.add_argument(
        "--records", type=int, default=0, metavar="N", help="earlier rounds of the same code, a cell (0)"
    )
    parser.add_argument(
        "--then", type=float, default=1.0, metavar="X", help="noise of these records, relative to today's (1)"
    )
    parser.add_argument("--seed", type=int, default=SEED, metavar="N")
    options = parser.parse_args(argv)
    print("simulated: runs of 300 cells; two rounds of each stage are lost and asked for again", flush=True)
    print(f"{'change':>7} {'runs':>6} {'found':>8} {'invented/1,000 runs':>20} {'undecided':>10} {'rounds a cell':>14}")
    curves = []
    for effect in (0.0, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10):
        started = time.perf_counter()
        runs = options.changed if effect else options.runs
        more = {"controls": options.controls, "records": options.records, "then": options.then}
        c = curve(effect, runs, options.seed, **more)
        curves.append(c)
        print(
            f"{c.effect:7.0%} {c.runs:6} {c.found if effect else 0:8.2%} {c.invented:20.2f} {c.undecided:10.3%}"
            f" {c.rounds:14.2f}   {time.perf_counter() - started:.0f} s",
            flush=True,
        )
    said = broken(curves)
    print("\n".join(said) if said else "every bound holds")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
