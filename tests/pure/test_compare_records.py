"""Records of identical code: what is kept, what later comparisons take from it, and how often it was called changed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import compare_simulation as simulation
from farm.cli.main import main
from farm.compare import noise, records
from farm.compare.decide import Verdict
from farm.compare.intervals import upper_bound
from farm.compare.records import BadRecord, CellNoise, Kind, Record
from farm.store import Store, noise_files

KIND = Kind("executed", "cuda:NVIDIA H200", "torch 2.9.0, triton 3.5.0", "rotating_graph/2", "k1")
OTHER = replace(KIND, cell_key="k2")


def cell(kind: Kind = KIND, sd: float | None = 0.01, freedom: float = 9, called: str = "same") -> CellNoise:
    return CellNoise(kind, "cuda/norm/k", int(freedom) + 1, sd, freedom, called)


def record(*cells: CellNoise, run: str = "r1", made: str = "2026-11-01T00:00:00+00:00", same: bool = False) -> Record:
    return Record(run, made, same, cells)


kinds = st.builds(
    Kind, *[st.sampled_from(("executed", "simulated"))] * 1, *[st.sampled_from(("a", "b"))] * 3, st.sampled_from("xy")
)
cells = st.builds(
    CellNoise,
    kinds,
    st.just("c"),
    st.integers(0, 12),
    st.none() | st.integers(1, 100).map(lambda n: n / 1000),
    st.integers(0, 12).map(float),
    st.sampled_from([v.value for v in Verdict]),
)
worlds = st.lists(
    st.builds(Record, st.uuids().map(str), st.integers(10, 28).map(str), st.booleans(), st.lists(cells).map(tuple)),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(worlds)
def test_whatever_is_recorded_is_read_again_pooled_within_bounds_and_counted_once(world: list[Record]) -> None:
    assert [records.parse(json.loads(json.dumps(one.to_dict()))) for one in world] == world
    every = [c for one in world for c in one.cells]
    of = [(kind, kind) for kind in {c.kind for c in every}]
    found = records.known(world, of)
    for i, (kind, _) in enumerate(of if found else []):
        mine = [c for c in every if c.kind == kind and c.sd is not None and c.freedom > 0]
        assert found is not None and (found.freedom[i] > 0) == bool(mine)
        assert found.freedom[i] == pytest.approx(min(records.MOST_FREEDOM, sum(c.freedom for c in mine)))
        if mine:
            sds = [c.sd for c in mine if c.sd is not None]
            assert min(sds) - 1e-9 <= found.sigma[i] <= max(sds) + 1e-9
    told = records.tally(world)
    assert sum(t.pairs + t.open for t in told) == len(every) and all(t.changed <= t.pairs for t in told)
    assert len({t.evidence for t in told}) == len(told)


def test_only_what_is_alike_in_everything_counts_and_only_what_was_there_before() -> None:
    have = [record(cell()), record(cell(sd=0.02), run="r2", made="2026-11-02T00:00:00+00:00")]
    for name in ("evidence", "target", "tools", "timing", "cell_key"):
        other = replace(KIND, **{name: "other"})
        assert records.known(have, [(other, other)]) is None
    found = records.known(have, [(OTHER, OTHER), (KIND, KIND)])
    assert found is not None and list(found.freedom) == [0, 16]  # the newest first: 9 of the second, 7 of the first
    assert found.sigma[1] == pytest.approx(math.sqrt((9 * 0.02**2 + 7 * 0.01**2) / 16))
    before = records.known(have, [(KIND, KIND)], before="2026-11-02T00:00:00+00:00")
    assert before is not None and (before.sigma[0], before.freedom[0]) == (pytest.approx(0.01), 9)
    assert records.known(have, [(KIND, KIND)], before="2026-11-01T00:00:00+00:00") is None


def test_of_two_modes_the_noise_of_a_pair_is_that_of_both() -> None:
    have = [record(cell(sd=0.01), cell(OTHER, sd=0.03, freedom=4))]
    found = records.known(have, [(KIND, OTHER), (KIND, replace(KIND, cell_key="never"))])
    assert found is not None and list(found.freedom) == [4, 0]
    assert found.sigma[0] == pytest.approx(math.sqrt((0.01**2 + 0.03**2) / 2))


def test_records_of_a_quieter_day_are_made_as_loud_as_this_one_and_never_quieter() -> None:
    rng = np.random.default_rng(1)
    square, freedom = noise.squares(rng.normal(0, 0.02, (40, 3)))
    for then, factor in ((0.01, 2.0), (0.02, 1.0), (0.05, 1.0)):
        made = noise.as_loud(noise.Known(np.full(40, then), np.full(40, 9.0)), square, freedom)
        assert made.sigma[0] / then == pytest.approx(factor, rel=0.25) and made.sigma[0] >= then
    few = noise.Known(np.full(40, 0.001), np.array([9.0] * 4 + [0.0] * 36))
    assert noise.as_loud(few, square, freedom) is few


def test_records_change_nothing_of_what_the_simulation_bounds() -> None:
    found = [simulation.curve(e, n, 5, controls=20, records=17, then=0.7) for e, n in ((0.0, 12), (0.05, 3))]
    assert simulation.broken(found) == []


@pytest.mark.parametrize(
    ("count", "of", "bound"),
    [(0, 300, 1 - 0.05 ** (1 / 300)), (0, 1, 0.95), (1, 20, 0.2161), (3, 3, 1.0), (0, 0, None)],
)
def test_the_bound_is_that_of_clopper_and_pearson(count: int, of: int, bound: float | None) -> None:
    found = upper_bound(count, of, records.LEVEL)
    assert found == (None if bound is None else pytest.approx(bound, rel=1e-3))


def test_the_tally_is_printed_and_what_is_no_record_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    assert main(["ab", "--tally", "--out", str(tmp_path)]) == 0
    assert "no pair of identical code was measured" in capsys.readouterr().err
    first = record(*[cell()] * 419, same=True)
    later = record(cell(called="regressed"), cell(called="unfit"), run="r2", made="2026-11-02")
    for one in (first, later, record(cell(replace(KIND, evidence="simulated")), run="r3"), record(run="r4")):
        noise_files.keep(store, one)
    assert not (tmp_path / "noise/r4.json").exists()
    for name, text in (("bad", "{"), ("new", '{"schema": 9}'), ("list", "[]"), ("cells", '{"schema": 1, "run": "x"}')):
        (tmp_path / f"noise/{name}.json").write_text(text)
    assert main(["ab", "--tally", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "identical code (executed): 1 of 420 pairs called changed in 2 comparisons, so at most 1.1 % at 95 %; "
        "1 not decided; the last: r2: cuda/norm/k",
        "identical code (simulated): 0 of 1 pair called changed in 1 comparison, so at most 95 % at 95 %",
    ]
    assert err.count("this record of noise is ignored") == 4 and "reads schema 1" in err
    assert main(["ab", "--tally", "--json", "--out", str(tmp_path)]) == 0
    assert [t["of_same"] for t in json.loads(capsys.readouterr().out)] == [419, 0]


@pytest.mark.parametrize("wrong", [{"sd": -1}, {"called": "better"}, {"rounds": 1.5}, {"target": 3}, {"more": 1}])
def test_a_record_that_was_edited_is_refused(wrong: dict[str, object]) -> None:
    data = record(cell()).to_dict()
    data["cells"][0].update(wrong)
    with pytest.raises(BadRecord, match="cells"):
        records.parse(data)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--a", "mode=auto"], "--b is missing"),
        ([], "--a and --b are missing"),
        (["--same", "--a", "mode=auto", "--b", "mode=x"], "so --b says nothing"),
        (["--same", "--stage-0"], "so --stage-0 says nothing"),
        (["--a", "mode=auto", "--b", "mode=auto"], "--a with --same"),
    ],
)
def test_one_arm_needs_the_option_that_says_so(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["ab", "m.yaml", *words, "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
