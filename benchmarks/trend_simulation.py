"""What the pages of nights find and what they invent: farm/compare/trend.py played against simulated nights.

    python -m benchmarks.trend_simulation                    20 worlds for each number, 60 s of CPU
    python -m benchmarks.trend_simulation --worlds 100 --seed 7

A world has 1,000 cells on eight devices, a quarter of them peers.  Noise, after what was measured on an H200
(docs/facts.md): a process varies by a standard deviation that is its cell's own, lognormal with median 0.45 %, between
0.2 and 1.6 %; 0.4 % of processes are slower by 3 to 20 %; all cells of a device share a shift of 0.4 % in a night, and
each night a cell may run on any device of which one is 2 % slower than the others.  Exit code 1 where a bound below is
broken.  Nothing here was measured on a device: the operating curve is simulated.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.compare_simulation import Noise
from farm.compare import drift, trend
from farm.compare.noise import Array

SEED = 20261123
CELLS, DEVICES, SHIFT, SICK = 1000, 8, 0.004, 0.02
#: Cells that a change may have in common, and cells of a planted group.
GROUP, PLANTED = 24, 8
WINDOW = 30
DEVIATIONS = (0.003, 0.005, 0.007, 0.010, 0.013, 0.016)
#: Bounds: false regressions per 30 nights of 1,000 series; a step of 5 % found after two nights, and after four.
MOST_FALSE = 1.0
LEAST_OF_TWO = {0.003: 0.985, 0.005: 0.98, 0.007: 0.97}
LEAST_OF_FOUR = {0.003: 0.999, 0.005: 0.999, 0.007: 0.998, 0.010: 0.98}
#: (standard deviation of a night, a night's drift) -> the least share that is found after 21 nights.
LEAST_OF_DRIFTS = {(0.004, 0.002): 0.97, (0.004, 0.004): 0.99, (0.007, 0.004): 0.97}


@dataclass
class World:
    """Nights of cells: x (cells, nights) is ln(time), device (cells, nights), control (cells,), group (cells,)."""

    x: Array
    device: trend.Codes
    control: trend.Mask
    group: trend.Codes

    def steps(self, nights: int) -> trend.Steps:
        """What is seen in the last of so many nights, of the WINDOW up to it."""
        some = slice(max(0, nights - WINDOW), nights)
        x = self.x[:, some]
        return trend.steps(x - trend.environment(x, self.device[:, some], self.control), self.group)

    def drifts(self, nights: int) -> drift.Drifts:
        """Cells that drift, as seen in the last of so many nights."""
        some = slice(max(0, nights - WINDOW), nights)
        x = self.x[:, some]
        clean = x - trend.environment(x, self.device[:, some], self.control)
        return drift.drifts(clean, trend.steps(clean, self.group))


def world(rng: np.random.Generator, nights: int, deviation: Array | None = None, outliers: float = 0.004) -> World:
    """Unchanged cells.  deviation: (cells,), drawn by default."""
    sd = Noise().deviations(rng, CELLS) if deviation is None else deviation
    x = Noise(outliers=outliers).processes(rng, sd, nights)
    device = rng.integers(0, DEVICES, x.shape)
    shift = rng.normal(0, SHIFT, (DEVICES, nights))
    shift[0] += SICK
    cells = np.arange(len(sd))
    return World(x + shift[device, np.arange(nights)], device, cells % 4 == 3, cells // GROUP)


def false_regressions(rng: np.random.Generator, begin: int, nights: int = 30) -> tuple[int, float]:
    """(cells that are called a regression or an improvement in one of the nights, suspected cells a night), of cells
    that have not changed and were looked at in each night after the first `begin`."""
    made = world(rng, begin + nights)
    called, suspected = set[int](), 0
    for night in range(begin + 1, begin + nights + 1):
        found = made.steps(night)
        called |= {int(i) for i in np.flatnonzero(found.sure)}
        suspected += int(found.suspected.sum())
    return len(called), suspected / nights


def false_drifts(rng: np.random.Generator, nights: int = 30) -> int:
    """Cells that are said to drift in one of the nights, of those that have not changed."""
    made = world(rng, WINDOW + nights)
    return len({int(i) for night in range(1, nights + 1) for i in np.flatnonzero(made.drifts(WINDOW + night).some)})


def drifts_found(rng: np.random.Generator, deviation: float, a_night: float, nights: int = 21) -> tuple[float, float]:
    """(the share of drifts of so much a night that are found after so many nights, that of steps of the same size in
    their middle that are called a drift); some of each, no controls."""
    cells = np.arange(CELLS)
    ours = cells % 4 != 3
    drifting, stepping = ours & (cells % 24 < 4), ours & (cells % 24 >= 12) & (cells % 24 < 16)
    made = world(rng, WINDOW, np.full(CELLS, deviation))
    made.x[drifting] += a_night * np.maximum(0, np.arange(WINDOW) - (WINDOW - nights - 1))
    made.x[stepping, WINDOW - nights // 2 :] += a_night * nights
    found = made.drifts(WINDOW)
    right = found.some & (found.size > 0)
    return float(right[drifting].mean()), float(found.some[stepping].mean())


def found_after(
    rng: np.random.Generator, deviation: float, nights: int, alone: bool = True, effect: float = 0.05, before: int = 26
) -> float:
    """The share of steps that are called a regression so many nights after they began (after one: suspected), their
    night right to within one.  alone: one cell in three, each in a group of its own; else groups of PLANTED cells."""
    sd = Noise().deviations(rng, CELLS)
    cells = np.arange(CELLS)
    planted = ((cells // PLANTED) % 3 == 0) & (cells % 4 != 3)
    sd[planted] = deviation
    made = world(rng, before + nights, sd)
    made.x[planted, before:] += math.log1p(effect)
    if alone:
        made.group = cells
    found = made.steps(before + nights)
    began = before - max(0, before + nights - WINDOW)
    right = (np.abs(found.at - began) <= 1) & (found.size > 0) & (found.sure | (nights == 1))
    return float(right[planted].mean())


def found_within(rng: np.random.Generator, deviation: float, effect: float = 0.05) -> tuple[list[float], list[float]]:
    """(shares of steps called a regression at one of the first 1, 2, 3, 4 looks, shares at least suspected); each cell
    alone, 30 of 1,000 planted, so that noisy cells stay few."""
    sd, cells = Noise().deviations(rng, CELLS), np.arange(CELLS)
    planted = ((cells // PLANTED) % 24 == 5) & (cells % 4 != 3)
    sd[planted] = deviation
    made = world(rng, WINDOW, sd)
    made.group = cells
    made.x[planted, WINDOW - 4 :] += math.log1p(effect)
    sure, seen = np.zeros(CELLS, dtype=bool), np.zeros(CELLS, dtype=bool)
    called, suspected = [], []
    for night in range(WINDOW - 3, WINDOW + 1):
        found = made.steps(night)
        right = (np.abs(found.at - (WINDOW - 4)) <= 1) & (found.size > 0)
        seen |= right
        sure |= right & found.sure
        called.append(float(sure[planted].mean()))
        suspected.append(float(seen[planted].mean()))
    return called, suspected


def best_possible(rng: np.random.Generator, deviation: float, effect: float = 0.05, cells: int = 100_000) -> float:
    """The share of steps that a cumulative sum finds within four nights that knows all but the night: the level, the
    deviation, the step, the outliers.  All series have this deviation; MOST_FALSE false alarms in 30 nights of
    1,000, half of them regressions."""
    step, odd = math.log1p(effect), math.log(0.004 / trend.OUTLIER_RANGE * deviation * math.sqrt(2 * math.pi))

    def run(nights: int, begin: int, count_from: int) -> Array:
        total, most = np.zeros(cells), np.zeros(cells)
        for night in range(nights):
            x = Noise().processes(rng, np.full(cells, deviation), 1)[:, 0] + (step if night >= begin else 0.0)
            stepped, same = (np.logaddexp(-(((x - level) / deviation) ** 2) / 2, odd) for level in (step, 0.0))
            total = np.maximum(0.0, total) + stepped - same
            most = np.maximum(most, total) if night >= count_from else most
        return most

    bound = np.quantile(run(60, 60, 30), 1 - MOST_FALSE / CELLS / 2)
    return float((run(34, 30, 30) > bound).mean())


def main() -> int:
    """Print the operating curve; 1 where a bound is broken."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--worlds", type=int, default=20)
    p.add_argument("--seed", type=int, default=SEED)
    args = p.parse_args()
    start, broken = time.process_time(), []
    for begin, what in ((30, "with 30 nights before them"), (4, "with 4 nights before them")):
        rng = np.random.default_rng(args.seed)
        runs = [false_regressions(rng, begin) for _ in range(args.worlds)]
        called, suspected = (sum(of) / len(runs) for of in zip(*runs))
        print(
            f"30 nights of {CELLS} unchanged series {what}: {called:.2f} regressions, {suspected:.1f} suspected a night"
        )
        broken += [f"{called:.2f} false regressions {what}"] if called >= MOST_FALSE else []
    for alone in (True, False):
        print(f"\na step of 5 % found, {'each cell alone' if alone else f'groups of {PLANTED * 3 // 4} cells'}")
        for deviation in DEVIATIONS:
            shares = []
            for nights in (1, 2, 3, 4):
                rng = np.random.default_rng(args.seed + nights)
                few = max(1, args.worlds // 5)
                shares.append(sum(found_after(rng, deviation, nights, alone) for _ in range(few)) / few)
            print(f"  {deviation:.1%}  " + "  ".join(f"{s:7.2%}" for s in shares))
            if alone and (shares[1] < LEAST_OF_TWO.get(deviation, 0) or shares[3] < LEAST_OF_FOUR.get(deviation, 0)):
                broken.append(f"at {deviation:.1%}: {shares[1]:.2%} after two nights, {shares[3]:.2%} after four")
    print("\na step of 5 % within 2, 3, 4 nights: a regression; at least suspected; the best possible within four")
    for deviation in DEVIATIONS[2:]:
        rng = np.random.default_rng(args.seed)
        of = np.mean([found_within(rng, deviation) for _ in range(args.worlds)], axis=0)[:, 1:]
        texts = ["  ".join(f"{share:7.2%}" for share in row) for row in of]
        print(f"  {deviation:.1%}  {texts[0]} | {texts[1]} | {best_possible(rng, deviation):7.2%}")
    rng = np.random.default_rng(args.seed)
    drifts = sum(false_drifts(rng) for _ in range(args.worlds)) / args.worlds
    print(f"\n30 nights of {CELLS} unchanged series: {drifts:.2f} drifts")
    broken += [f"{drifts:.2f} false drifts"] if drifts >= MOST_FALSE else []
    print("a drift over 21 nights found, and a step of the same size called one")
    for deviation, a_night in itertools.product((0.004, 0.007, 0.010), (0.002, 0.004)):
        of = [drifts_found(rng, deviation, a_night) for _ in range(max(1, args.worlds // 5))]
        share, wrong = (sum(some) / len(of) for some in zip(*of))
        print(f"  {deviation:.1%}, {a_night:.1%} a night  {share:7.2%}  {wrong:7.2%}")
        broken += [f"{wrong:.2%} of steps are drifts"] if wrong > 0.01 else []
        if share < LEAST_OF_DRIFTS.get((deviation, a_night), 0):
            broken.append(f"{share:.2%} of drifts of {a_night:.1%} a night at {deviation:.1%} are found")
    print(f"\n{time.process_time() - start:.0f} s of CPU, seed {args.seed}")
    for what in broken:
        print(f"out of bounds: {what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
