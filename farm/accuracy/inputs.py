"""Where input values come from: named families of data, made by integer arithmetic on a counter.

Every element is a function of (seed, tensor name, element index) alone: a 64-bit mix of the index (splitmix64, Steele,
Lea and Flood 2014) gives four 16-bit integers, whose centred sum is nearly normal (Irwin-Hall, 3.46 standard deviations
at most); one correctly rounded float32 product scales it.  There is no transcendental function and no sum of floats, so
the values are the same bits on every host, NumPy and instruction set, and any block of rows can be made alone.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from farm.accuracy.dtypes import round_to
from farm.contracts.dtypes import FLOATS

Array = Any  # numpy.ndarray

#: The values of a family never change, since the keys of cells name it: what is to be otherwise is a new family.
FAMILIES: tuple[str, ...] = ("mixed", "normal", "outlier", "alternating", "tiny", "large", "nan", "inf")
#: Families with weights of both signs, of which every 16th is exactly zero.
SIGNED = ("signed", "large_weight", "upstream", "upstream_nan", "upstream_inf")
FAMILIES += SIGNED
#: Plain rows, each around a mean that is far from 0 beside their spread: what subtracts a mean and then counts elements
#: that are not there (the padding of a block that is wider than the row) is off by as much as the variance itself.
SHIFTED = "shifted"
FAMILIES += (SHIFTED,)
#: Families whose even rows hold one element that is not a number, or an infinity.  Two, since a NaN makes all of a
#: reduction over rows NaN, and so hides whatever else is wrong with it; an infinity only its own column.
NONFINITE = {"nan": math.nan, "inf": math.inf}
#: The same in upstream gradients.
NONFINITE_UPSTREAM = {"upstream_nan": math.nan, "upstream_inf": math.inf}
#: What row i of the family `mixed` is: kind i mod 5.
KINDS = ("unit", "tiny", "large", "zero", "constant")

#: What row i of an upstream gradient is in the family `upstream`: kind i mod 4.
UPSTREAM_KINDS = ("unit", "large", "zero", "tiny")

_MIXED = ("mixed", "signed")  # families whose rows are of every kind
_TINY = 1e-3
_LARGE = {"float16": 1e3}  # 1e6 elsewhere; squares of either fit float32
_LARGEST_HEAVY = {"float16": 3e4}  # a heavy element must itself fit
_PERIOD = 16  # of a signed weight's zeros
#: Of every second weight in `signed`.  Fewer and larger ones would hold so much of a row's energy that the rounding of
#: a correct kernel does not average out: with every 16th 8 times as large, gain_max was 3.01e-3 in 256 bfloat16 rows.
_LARGE_COLUMN = 4.0
#: The mean of a row of `shifted`, of either sign: 10 to 20 spreads.  24 lanes of 1024 that count make the variance 4
#: times as large and more; a float32 variance as the difference of two means still has an error of 1e-4 at most.
_SHIFTS = np.array([16.0, -16.0, 12.0, -20.0, 24.0], np.float32)
_LARGE_WEIGHT = {"float16": 2.0**12}  # 2^20 elsewhere: y and dx of plain rows fit
#: In float16 a single row, whose products with x and with a weight all fit, and whose dw does; 2^16 elsewhere.
_LARGE_UPSTREAM = {"float16": 2.0**12}
_TINY_UPSTREAM = {"float16": 2.0**-8}  # 2^-24 elsewhere; its products with a weight are no subnormal numbers

_GAMMA = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1
_CHUNK = 1 << 15  # elements mixed at a time: three scratch arrays stay in the second-level cache
_STEPS = np.arange(_CHUNK, dtype=np.uint64) * np.uint64(_GAMMA)
_HALVES = np.uint64(0x0000FFFF0000FFFF)
_CENTRE = np.float32(4 * 65535 / 2)
#: Standard deviation of the sum of four uniform 16-bit integers.
_DEVIATION = math.sqrt(4 * (65536.0**2 - 1) / 12)
#: A row of scale s has the standard deviation 1.155 s, not s: where a row's RMS is a power of two, x/rms gives x's own
#: digits back, and a whole row of a correct 16-bit kernel has one and the same rounding error (gain 2e-3 in bfloat16).
_ROW_UNIT = 2.0**-15


class Family:
    """A named family of input data with a seed; implements `farm.contracts.base.FamilyLike`."""

    def __init__(self, name: str = "mixed", seed: int = 0, asked: str = "") -> None:
        if name not in FAMILIES:
            raise ValueError(f"unknown input family {name!r}; known families: {', '.join(FAMILIES)}")
        self.name = name
        self.seed = seed
        self.asked = asked or name

    def rows(self, name: str, block: tuple[int, int], width: int, dtype: str, *, total: int) -> Array:
        """Rows [start, stop) of a `total` x `width` tensor in the family's kinds, float32, exact in `dtype`."""
        start, stop = block
        out = self._centred(name, start * width, (stop - start) * width).reshape(stop - start, width)
        index = np.arange(start, stop, dtype=np.int64)
        kind = self.kinds(index, total)
        scale = _row_scales(kind, dtype)
        out *= (scale * _ROW_UNIT).astype(np.float32)[:, None]
        self._shape_rows(out, name, index, kind, scale, dtype, total)
        return _rounded(out, dtype)

    def normal(self, name: str, block: tuple[int, int], width: int, dtype: str, *, scale: float = 1.0) -> Array:
        """Rows [start, stop) of plain data of standard deviation `scale`, float32, exact in `dtype`."""
        start, stop = block
        out = self._centred(name, start * width, (stop - start) * width).reshape(stop - start, width)
        out *= np.float32(scale / _DEVIATION)
        return _rounded(out, dtype)

    def vector(self, name: str, size: int, dtype: str, *, mean: float = 1.0, spread: float = 0.25) -> Array:
        """`size` varied values around `mean` (standard deviation `spread`), float32, exact in `dtype`; in the families
        `SIGNED` around `mean` and -`mean`, with exact zeros and large values."""
        out = self._centred(name, 0, size)
        out *= np.float32(spread / _DEVIATION)
        out += np.float32(mean)
        if self.name in SIGNED:
            self._sign(out, name, dtype)
        return _rounded(out, dtype)

    def upstream(
        self, name: str, block: tuple[int, int], width: int, dtype: str, *, total: int, scale: float = 1.0
    ) -> Array:
        """Rows [start, stop) of a `total` x `width` upstream gradient: as `normal`, but in the families that are for
        upstream gradients."""
        out = self.normal(name, block, width, "float32", scale=scale)
        index = np.arange(*block, dtype=np.int64)
        if self.name == "upstream":
            kind = np.where(index == total - 1, UPSTREAM_KINDS.index("unit"), index % len(UPSTREAM_KINDS))
            factors = np.array([1.0, _LARGE_UPSTREAM.get(dtype, 2.0**16), 0.0, _TINY_UPSTREAM.get(dtype, 2.0**-24)])
            factor = factors[kind]
            if dtype in _LARGE_UPSTREAM:
                factor[(kind == UPSTREAM_KINDS.index("large")) & (index != 1)] = 1.0
            out *= factor.astype(np.float32)[:, None]  # powers of two
            out[kind == UPSTREAM_KINDS.index("zero")] = 0.0  # no negative zeros
        elif self.name in NONFINITE_UPSTREAM and out.size:
            self._spoil(out, name, index, NONFINITE_UPSTREAM[self.name])
        return _rounded(out, dtype)

    def integers(self, name: str, block: tuple[int, int], width: int, low: int, high: int) -> Array:
        """Rows [start, stop) of integers in [low, high), int64 [stop - start, width]."""
        start, stop = block
        if low >= high:
            raise ValueError(f"the integers of {name} are in [{low}, {high}), which is empty")
        index = np.arange(start * width, stop * width, dtype=np.int64)
        drawn = (hashes(f"{name}.integers", self.seed, index) >> np.uint64(11)) % np.uint64(high - low)
        return (drawn.astype(np.int64) + low).reshape(stop - start, width)

    def _sign(self, out: Array, name: str, dtype: str) -> None:
        """Both signs, zeros, and what is large, in place."""
        place = np.arange(len(out), dtype=np.int64)
        z = hashes(f"{name}.sign", self.seed, place)
        out[(z & np.uint64(1)).astype(bool)] *= np.float32(-1)
        if self.name == "large_weight":
            out *= np.float32(_LARGE_WEIGHT.get(dtype, 2.0**20))
        elif self.name == "signed":
            out[1::2] *= np.float32(_LARGE_COLUMN)
        out[place % _PERIOD == _PERIOD // 2] = 0.0

    def kinds(self, index: Array, total: int) -> Array:
        """The kind of each row, as its place in KINDS; the last row is never zero."""
        if self.name in ("tiny", "large"):
            return np.full(index.shape, KINDS.index(self.name))
        if self.name not in _MIXED:
            return np.zeros(index.shape, dtype=np.int64)
        kind = index % len(KINDS)
        kind[(index == total - 1) & (kind == KINDS.index("zero"))] = KINDS.index("unit")
        return kind

    def _shape_rows(
        self, out: Array, name: str, index: Array, kind: Array, scale: Array, dtype: str, total: int
    ) -> None:
        """Give special rows their shape, in place."""
        if not out.size:
            return
        if self.name in _MIXED:
            out[kind == KINDS.index("zero")] = 0.0  # a product with 0 would leave negative zeros
            constant = np.flatnonzero(kind == KINDS.index("constant"))
            out[constant] = _constants(name, self.seed, index[constant])[:, None]
            # A mean that misses the last column must be seen in every dtype and at every width: in large rows and in
            # the last row, the last element carries about a 17th of the row's energy.
            heavy = ((kind == KINDS.index("large")) | (index == total - 1)) & (kind < KINDS.index("zero"))
            self._weigh(out, np.flatnonzero(heavy), scale, math.isqrt(out.shape[1]) / 4, dtype)
        elif self.name == "outlier":
            self._weigh(out, np.arange(len(index)), scale, 1024.0, dtype)
        elif self.name == "alternating":
            np.abs(out, out=out)
            out[:, 1::2] *= np.float32(-1)
        elif self.name == SHIFTED:
            out += _SHIFTS[index % len(_SHIFTS)][:, None]
        elif self.name in NONFINITE:
            self._spoil(out, name, index, NONFINITE[self.name])

    def _spoil(self, out: Array, name: str, index: Array, value: float) -> None:
        """One element of each even row becomes `value`, infinities of either sign; the rows between stay clean."""
        rows = np.flatnonzero(index % 2 == 0)
        z = hashes(f"{name}.nonfinite", self.seed, index[rows])
        columns = ((z >> np.uint64(8)) % np.uint64(out.shape[1])).astype(np.int64)
        out[rows, columns] = np.where(z & np.uint64(1), -value, value)

    @staticmethod
    def _weigh(out: Array, rows: Array, scale: Array, factor: float, dtype: str) -> None:
        size = np.minimum(scale[rows] * max(1.0, factor), _LARGEST_HEAVY.get(dtype, math.inf)).astype(np.float32)
        out[rows, -1] = np.where(out[rows, -1] < 0, -size, size)

    def _centred(self, name: str, start: int, count: int) -> Array:
        """Elements [start, start + count) of tensor `name`: centred integers of deviation _DEVIATION, float32."""
        out = np.empty(count, dtype=np.float32)
        mixed, scratch = np.empty(_CHUNK, dtype=np.uint64), np.empty(_CHUNK, dtype=np.uint64)
        key = _key(name, self.seed)
        for at in range(0, count, _CHUNK):
            part = out[at : at + _CHUNK]
            n = part.shape[0]
            z, t = mixed[:n], scratch[:n]
            np.add(_STEPS[:n], np.uint64((key + (start + at) * _GAMMA) & _MASK64), out=z)
            _mix(z, t)
            np.right_shift(z, np.uint64(16), out=t)
            t &= _HALVES
            z &= _HALVES
            z += t  # two sums of two 16-bit integers, in the two halves
            halves = z.view(np.uint32)
            total = t.view(np.uint32)[:n]
            np.add(halves[0::2], halves[1::2], out=total)
            part[...] = total  # below 2^18: exact
            part -= _CENTRE
        return out


def _mix(z: Array, t: Array) -> None:
    """The finaliser of splitmix64 on `z`, in place, with scratch `t`."""
    np.right_shift(z, np.uint64(30), out=t)
    z ^= t
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=t)
    z ^= t
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=t)
    z ^= t


def _key(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")


def hashes(name: str, seed: int, index: Array) -> Array:
    """One 64-bit hash per index (uint64): choices that belong to a row."""
    z = np.asarray(index).astype(np.uint64) * np.uint64(_GAMMA)
    z += np.uint64(_key(name, seed))
    _mix(z, np.empty_like(z))
    return z


def _constants(name: str, seed: int, index: Array) -> Array:
    """The value of each constant row: +-[0.5, 2) in steps of 1/8.

    Its square has 8 bits, so that float32 adds 2^16 of them exactly in any order: in a sequential sum of equal terms
    rounding would go the same way each time, and a correct kernel would be 30 times as far off as on other rows.
    """
    z = hashes(f"{name}.constant", seed, index)
    size = (np.uint64(4) + (z >> np.uint64(8)) % np.uint64(12)).astype(np.float32) / np.float32(8)
    return np.where(z & np.uint64(1), -size, size)


def _row_scales(kind: Array, dtype: str) -> Array:
    return np.array([1.0, _TINY, _LARGE.get(dtype, 1e6), 1.0, 1.0])[kind]


def _rounded(values: Array, dtype: str) -> Array:
    """float32 `values` rounded to `dtype`, in place, a cache-full at a time."""
    if dtype in FLOATS and dtype not in ("float64", "float32"):
        flat = values.reshape(-1)
        for at in range(0, flat.shape[0], _CHUNK):
            flat[at : at + _CHUNK] = round_to(flat[at : at + _CHUNK], dtype)
    return values


class WholeOnce:
    """A generator for all blocks of one cell: what does not belong to a block (a weight, the right operand of a matmul)
    is made once, for the first one."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._made: dict[Any, Array] = {}

    def of_block(self, block: tuple[int, int]) -> Family:
        """The generator as one block sees it.  That of the first block must be done before others are asked for."""
        return _OfBlock(self._family, self._made, block)


class _OfBlock(Family):
    def __init__(self, family: Family, made: dict[Any, Array], block: tuple[int, int]) -> None:
        vars(self).update(vars(family))
        self.__dict__["_block"], self.__dict__["_made"] = block, made

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in ("rows", "vector", "normal", "upstream", "integers"):
            return method
        block, made = (vars(self)[n] for n in ("_block", "_made"))

        def call(*args: Any, **how: Any) -> Array:
            if name != "vector" and (how.get("block", args[1] if len(args) > 1 else None)) == block:
                return method(*args, **how)
            key = (name, args, tuple(sorted(how.items())))
            if key not in made:
                made[key] = method(*args, **how)
            return made[key].copy()  # a contract may write to it

        return call
