"""farm sweep: the draws have the stated distribution, the plan is an ordinary one, losses come first."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import FakeRun
from test_speed_table import failed, run_of, timed

from farm.cli import sweep
from farm.cli.main import main
from farm.dashboards import sweep_picture
from farm.matrix import builtin_providers, drawn, load_all, plan
from farm.report import sweep as found_by

PEERS = {"rms_norm": ["torch", "liger"], "fused_add_rms_norm": ["torch"]}


def near(found: float, share: float, count: int) -> bool:
    """Within four standard deviations of a binomial share."""
    return abs(found - share) <= 4 * math.sqrt(share * (1 - share) / count)


def faults(shapes: tuple[drawn.Draw, ...]) -> list[str]:
    """What of the stated distribution draws without a limit do not have."""
    n, out = len(shapes), []
    for dtype, share in (("bfloat16", 0.6), ("float16", 0.2), ("float32", 0.2)):
        if not near(sum(d.dtype == dtype for d in shapes) / n, share, n):
            out.append(dtype)
    # of the widths that are any, and of those that are multiples of 128, few are multiples of 1,024 and of 128
    whole = sum(d.hidden % 1024 == 0 for d in shapes) / n
    half = sum(d.hidden % 128 == 0 for d in shapes) / n
    if not (0.25 < whole < 0.38 and 0.74 < half < 0.79):
        out.append("widths")
    for low in range(0, 20, 5):  # log-uniform: as many rows in each five powers of two
        if not near(sum(2**low <= d.rows < 2 ** (low + 5) for d in shapes) / n, 0.25, n):
            out.append(f"rows from 2^{low}")
    return out


def test_draws_have_the_stated_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(drawn.draws("the law", 3000, 1 << 40)) == []
    planted = drawn._uniform
    monkeypatch.setattr(drawn, "_uniform", lambda seed, i, what: planted(seed, i, what) ** 1.5)
    assert {"bfloat16", "widths", "rows from 2^0"} <= set(faults(drawn.draws("the law", 3000, 1 << 40)))


@settings(max_examples=12, deadline=None)
@given(st.text(max_size=20), st.integers(1, 30), st.integers(1 << 20, 1 << 33))
def test_draws_fit_differ_and_depend_on_seed_and_number_alone(seed: str, count: int, most: int) -> None:
    shapes = drawn.draws(seed, count, most)
    assert shapes == drawn.draws(seed, count, most) == drawn.draws(seed, count + 7, most)[: len(shapes)]
    assert len(set(shapes)) == len(shapes) == count
    for d in shapes:
        assert 1 <= d.rows <= 2**20 and 64 <= d.hidden <= 65536 and d.nbytes <= most
    kinds = [(d.dtype, d.nbytes <= 1 << 20) for d in drawn.draws(seed, count, 1 << 20)]
    assert [k for k, _ in kinds] == [d.dtype for d in shapes] and all(fits for _, fits in kinds)


def test_the_phases_are_ordinary_matrices(tmp_path: Path) -> None:
    shapes = drawn.draws("plan", 12)
    (tmp_path / "first.yaml").write_text(drawn.first(dict.fromkeys(PEERS, drawn.OPERATIONS), shapes, ["farm"], PEERS))
    cells = plan(load_all(tmp_path / "first.yaml"), ["cuda"]).cells
    assert len(cells) == 12 * 3 * (3 + 2) and {c.mode for c in cells} == {"auto"}
    assert {(c.dims["rows"], c.dims["hidden"], c.dtype) for c in cells} == {(d.rows, d.hidden, d.dtype) for d in shapes}
    known = builtin_providers()
    modes = {"rms_norm": {n: known[n].modes for n in ("farm", "quack", "torch")}}
    again = drawn.second([("rms_norm", "backward", shapes[0])], ["farm"], modes)
    (tmp_path / "second.yaml").write_text(again)
    (matrix,) = load_all(tmp_path / "second.yaml")
    asked = [(c.provider, c.mode) for c in plan([matrix], ["cuda"]).cells]
    assert asked == [
        *(("farm", m) for m in known["farm"].modes),
        ("quack", "auto"),
        ("quack", "tuned"),
        ("torch", "auto"),
    ]
    assert matrix.deadlines["compile"] == drawn.TUNING_SECONDS
    assert drawn.second([], ["farm"], modes) == ""
    assert drawn.on(["torch", "quack", "aiter", "torch_npu"], ["cuda"]) == ["torch", "quack"]
    assert set(drawn.VENDORS) <= set(known)


def cell(index: int, provider: str, us: float, shape: str, **given: Any) -> dict[str, Any]:
    rows, hidden = shape.split("x")
    return timed(index, provider, us, rows=int(rows), hidden=int(hidden), **given)


def phases() -> tuple[FakeRun, FakeRun]:
    """At 8x128 a loss that only QuACK's tuned mode shows; at 4096x4096 a win; at 16x256 we have no time."""
    first = [
        ("farm", 10.0, "8x128"),
        ("quack", 10.1, "8x128"),
        ("farm", 10.0, "4096x4096"),
        ("quack", 13.0, "4096x4096"),
    ]
    rows = [cell(i, *its) for i, its in enumerate(first)]
    lost = failed(4, "farm", "crashed", reason="signal 11", rows=16, hidden=256)
    rows += [lost, cell(5, "quack", 5.0, "16x256")]
    second = [cell(0, "farm", 10.2, "8x128"), cell(1, "farm", 9.8, "8x128", mode="row_packed")]
    second += [cell(2, "quack", 10.1, "8x128"), cell(3, "quack", 8.0, "8x128", mode="tuned")]
    return run_of(*rows), run_of(*second)


def test_the_second_phase_counts_and_losses_come_first() -> None:
    first, second = phases()
    alone, both = found_by.sweep(first), found_by.sweep(first, second)
    assert [(c.rows, round(c.ratio or 0, 3)) for c in alone.cells] == [(16, 0), (8, 1.01), (4096, 1.3)]
    assert [c.rows for c in found_by.ask_again(alone)] == [8] and not alone.losses
    (loss,) = both.losses
    assert (loss.best, loss.mode, loss.again) == ("quack/tuned", "row_packed", True)
    assert loss.ratio == pytest.approx(8 / 10.2) and loss.mode_ratio == pytest.approx(10.2 / 9.8)
    told = found_by.lines(both)
    assert told[0].startswith("1 of 2 cells (50.0 %)") and "8x128" in told[1]
    assert any("16x256" in line and "signal 11" in line for line in told)
    whole = both.groups[0]
    assert (whole.cells, whole.compared, whole.losses) == (3, 2, 1)
    assert whole.mean == pytest.approx(math.sqrt(8 / 10.2 * 1.3))
    assert [g.cells for g in both.groups[1:]] == [2, 1]  # under 1 MiB, and 32 MiB
    assert any("2 of 3" in line for line in told)
    kept = json.loads(found_by.as_json(both, {"seed": "s"}))
    assert kept["losses"] == 1 and kept["compared"] == 2 and len(kept["cells"]) == 3
    many = run_of(*first.rows, *(failed(n, "farm", "lost", rows=n, hidden=64) for n in range(10, 60)))
    (alike,) = [line for line in found_by.lines(found_by.sweep(many)) if "and 47 more: lost" in line]
    assert alike.count("x64") == 3
    assert "no distribution" in found_by.lines(found_by.sweep(run_of(failed(0, "farm", "lost"))))[0]


def test_the_picture_is_svg_with_a_dot_per_cell() -> None:
    drawn_ = sweep_picture.picture(found_by.sweep(*phases()), "a <b> & c")
    tree = Tree.fromstring(drawn_)
    space = "{http://www.w3.org/2000/svg}"
    dots = [c for c in tree.iter(f"{space}circle") if c.find(f"{space}title") is not None]
    assert len(dots) == 2 and "under" in dots[-1].attrib["class"] and "quack/tuned" in "".join(dots[-1].itertext())
    assert "a <b> & c" in "".join(tree.itertext())
    empty = sweep_picture.picture(found_by.sweep(run_of(failed(0, "farm", "lost"))), "t")
    assert sweep_picture.NOTHING in "".join(Tree.fromstring(empty).itertext())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rms_norms"], "there is no op rms_norms"),
        (["matmul"], "matmul has the dimensions"),
        (["rms_norm", "rms_norm"], "named twice"),
        (["rms_norm", "--count", "0"], "--count 0: must be between"),
        (["rms_norm", "--largest", "0.5", "--backend", "sim"], "must be at least 1"),
        (["rms_norm", "--limit-minutes", "nan"], "--limit-minutes nan: must be more than 0"),
        (["rms_norm", "--peers", "torchh", "--backend", "sim"], '"torchh" is no peer'),
        (["layer_norm", "--backend", "sim"], "farm has no kernel for layer_norm"),
        (["rms_norm", "--of", "mine", "--backend", "sim"], "--of mine: not a subject"),
        (["rms_norm", "--picture", "no/such/p.svg"], "--picture no/such/p.svg"),
    ],
)
def test_what_cannot_be_swept_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_default_seed_is_of_the_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seed, source = sweep.default_seed()
    assert len(seed) >= 16 and "kernels" in source
    monkeypatch.setattr(sweep.revision, "kernels_tree", lambda: "")
    assert sweep.default_seed() == (sweep.revision.content(), "the hash of the kernels' content")
