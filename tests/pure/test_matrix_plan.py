"""Ids, keys and plans: readable, unique, and the same on every Python, hash seed and YAML key order."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix_fakes import BASE, CONTRACTS, check, load_text, sentence, with_axis

from farm.accuracy.evaluate import input_key
from farm.cell import Cell, Timing, cell_key
from farm.cli.plan import _line
from farm.contracts.discovery import contract
from farm.errors import InfraError, MatrixError, UsageError
from farm.matrix import Plan, cell_id, cells, default_timing, estimate_seconds, plan
from farm.matrix.plan import Count, _number, counts

ROOT = Path(__file__).resolve().parents[2]

RICH = """\
name: rich
op: norm
axes:
  shape:
    - {rows: [1, 33], hidden: [64, 4096], tag: a}
    - {rows: 2, hidden: 127, tag: b}
  dtype: [float32, bf16, {x: bfloat16, weight: float32}]
  operation: [forward, backward]
  variant:
    - {casting: llama, offset: 0.0}
    - {casting: gemma, offset: 1.0, note: a/b=c}
  weight: [true, false]
  family: [mixed, outlier]
  seed: [0, 7]
providers:
  farm: {mode: [auto, multi_wave_cached]}
  torch: {}
backends:
  cuda: {timing: [{method: rotating_graph}, {method: events, cache: warm, min_samples: 5}]}
  sim: {dtype: [fp16], providers: {farm: {mode: [auto]}, torch: {}}}
exclude:
  - {provider: farm, mode: multi_wave_cached, hidden: ">2048", dtype: float32, reason: wide}
"""


def rich(folder: Path) -> Plan:
    return plan(load_text(folder, RICH), ["cuda", "cpu", "sim"])


def test_an_id_reads_as_the_design_says(tmp_path: Path) -> None:
    text = BASE.replace("{rows: 8, hidden: 64}", "{rows: 4096, hidden: 8192}")
    text = text.replace("[torch]", "{farm: {mode: multi_wave_cached}}").replace("axes:\n", "axes:\n  dtype: bf16\n")
    (cell,) = cells(load_text(tmp_path, text)[0], ["cuda"])
    assert cell.cell_id == "cuda/norm/farm/multi_wave_cached/forward/bf16/4096x8192/llama"


IDS = [
    ("offset: 1", "/llama/offset=1.0"),
    ("casting: gemma\n  offset: 1", "/gemma/offset=1.0"),
    ("eps: 1e-5", "/llama/eps=1e-05"),
    ("weight: false", "/llama/weight=false"),
    ("groups: 2", "/llama/groups=2"),
    ("note: a/b=c d", "/llama/note=a%2Fb%3Dc%20d"),
    ("family: outlier", "/llama/family=outlier"),
    ("seed: 7", "/llama/seed=7"),
    ("dtype: {x: fp32, weight: fp16}", "/llama/weight_dtype=float16"),
    ("eps: 1e-6\n  family: mixed\n  seed: 0", "/llama"),
]


@pytest.mark.parametrize(("axis", "end"), IDS)
def test_an_id_ends_in_what_is_not_the_default(tmp_path: Path, axis: str, end: str) -> None:
    (cell,) = cells(load_text(tmp_path, with_axis(axis))[0], ["cuda"])
    assert cell.cell_id == f"cuda/norm/torch/auto/forward/fp32/8x64{end}"


TIMINGS = [
    ("{method: events}", "cuda", "/timing=events"),
    ("{method: events, cache: warm}", "cuda", "/timing=events/cache=warm"),
    ("{cache: warm}", "cuda", "/cache=warm"),
    ("{method: rotating_graph, max_seconds: 2.5}", "cuda", "/max_seconds=2.5"),
    ("{method: rotating_graph, min_samples: 20}", "cuda", ""),
    ("{method: profiler}", "cuda", "/timing=profiler"),  # its version is another one, and goes with it
    ("{method: host}", "sim", ""),
    ("{method: events}", "cpu", ""),
    ("{method: none}", "cuda", "/timing=none"),
]


@pytest.mark.parametrize(("timing", "backend", "end"), TIMINGS)
def test_an_id_tells_a_timing_that_is_not_the_backends_own(tmp_path: Path, timing: str, backend: str, end: str) -> None:
    (cell,) = cells(load_text(tmp_path, f"{BASE}timing: {timing}\n")[0], [backend])
    assert cell.cell_id == f"{backend}/norm/torch/auto/forward/fp32/8x64/llama{end}"


GOLDEN = (
    '{"backend":"cuda","contract_version":3,"dims":{"hidden":64,"rows":8},'
    '"dtypes":{"weight":"float32","x":"float32"},"family":"mixed","mode":"auto","op":"norm","operation":"forward",'
    '"params":{"casting":"llama","eps":1e-06,"groups":1,"note":"","offset":0.0,"weight":true},"provider":"torch",'
    '"seed":0,"timing":{"cache":"cold","max_samples":200,"max_seconds":1.0,"method":"rotating_graph",'
    '"min_samples":20,"target_rel_width":0.01,"version":2}}'
)


def test_a_key_is_what_it_was() -> None:
    """A change of this hash makes every stored result incomparable: it must be meant.  2026-11-21: timing version 2."""
    assert hashlib.sha256(GOLDEN.encode()).hexdigest() == (
        "c5327ee536fbf71b28369c2fd03639ac35c82b644ae33f232d2931a65558ba66"
    )


def test_a_key_is_the_hash_of_the_canonical_text(tmp_path: Path) -> None:
    (cell,) = cells(load_text(tmp_path, BASE)[0], ["cuda"])
    assert cell.cell_key == hashlib.sha256(GOLDEN.encode()).hexdigest()


def test_ids_and_keys_put_together_from_parts_are_those_of_the_cell(tmp_path: Path) -> None:
    for cell in rich(tmp_path).cells:
        assert cell.cell_key == cell_key(cell)
        assert cell.cell_id == cell_id(cell, CONTRACTS[cell.op], default_timing(cell.backend))


def test_ids_and_keys_are_unique(tmp_path: Path) -> None:
    found = rich(tmp_path).cells
    assert len({c.cell_id for c in found}) == len({c.cell_key for c in found}) == len(found)


def test_two_keys_with_one_id_are_a_fault_of_the_farm(tmp_path: Path) -> None:
    (cell,) = cells(load_text(tmp_path, BASE)[0], ["cuda"])
    other = Cell.from_dict({**cell.to_dict(), "seed": 1, "cell_key": ""})
    with pytest.raises(InfraError) as caught:
        _number([cell, other])
    assert caught.value.id == "plan-same-id"


def test_a_key_is_not_the_tags_nor_the_tolerances(tmp_path: Path) -> None:
    (plain,) = cells(load_text(tmp_path, BASE)[0], ["cuda"])
    text = BASE.replace("hidden: 64", "hidden: 64, tag: t").replace("name: m", "name: n")
    text += "tolerances:\n  - {output: y, metric: rel_l2, limit: 1, reason: r, date: 2026-01-01}\n"
    (other,) = cells(load_text(tmp_path, text)[0], ["cuda"])
    assert other.cell_key == plain.cell_key and other.tag == "t"


def test_the_order_keeps_cells_with_the_same_inputs_together(tmp_path: Path) -> None:
    found = [c for c in rich(tmp_path).cells if c.backend == "cuda"]
    keys = [(input_key(c, CONTRACTS[c.op]), tuple(c.params.items())) for c in found]
    groups = len(list(itertools.groupby(keys)))
    assert groups == len(set(keys))
    assert (found[0].shape, found[-1].shape) == ("1x64", "2x127")


def test_expansion_is_lazy(tmp_path: Path) -> None:
    text = with_axis(f"seed: {[*range(1000)]}\n  eps: {[(i + 1) / 1000 for i in range(500)]}")
    stream = cells(load_text(tmp_path, text)[0], ["cuda"])
    assert next(stream).seed == 0


# Plans


def test_a_plan_counts_and_numbers(tmp_path: Path) -> None:
    found = rich(tmp_path)
    # 5 shapes x 3 dtypes x 2 operations x 4 parameter sets x 2 families x 2 seeds x 3 (provider, mode), 2 timings
    assert [found.backends[b].cells for b in ("cuda", "cpu", "sim")] == [2880, 1440, 5 * 1 * 2 * 4 * 4 * 2]
    assert sum(c.cells for c in found.backends.values()) == len(found.cells)
    assert [c.index for c in found.cells] == list(range(len(found.cells)))
    # hidden 4096 twice, float32, 2 operations, 4, 2, 2, one mode, 2 timings
    assert found.backends["cuda"].skipped == 2 * 2 * 4 * 2 * 2 * 2
    assert found.backends["cpu"].skipped == 2 * 2 * 4 * 2 * 2
    assert found.backends["sim"].skipped == 0
    assert sum(1 for c in found.cells if c.skip_reason) == sum(c.skipped for c in found.backends.values())


def test_a_cell_that_two_matrices_share_runs_once(tmp_path: Path) -> None:
    first = BASE.replace("rows: 8", "rows: [8, 9]")
    second = BASE.replace("name: m", "name: n").replace("rows: 8", "rows: [9, 10]")
    found = plan(load_text(tmp_path, first, "a.yaml") + load_text(tmp_path, second, "b.yaml"), ["cpu"])
    assert [(c.dims["rows"], c.matrix, c.index) for c in found.cells] == [(8, "m", 0), (9, "m", 1), (10, "n", 2)]
    assert [found.matrix(c).path[-6:] for c in found.cells] == ["a.yaml", "a.yaml", "b.yaml"]


def test_a_shared_cell_that_one_excludes_runs_for_the_other(tmp_path: Path) -> None:
    excluded = BASE + "exclude:\n  - {provider: torch, reason: not here}\n"
    second = BASE.replace("name: m", "name: n")
    for texts in ((excluded, second), (second, excluded)):
        matrices = [m for i, text in enumerate(texts) for m in load_text(tmp_path, text, f"{i}.yaml")]
        (cell,) = plan(matrices, ["cpu"]).cells
        assert (cell.matrix, cell.skip_reason) == ("n", "")


def test_a_file_named_twice_is_one(tmp_path: Path) -> None:
    assert len(plan(load_text(tmp_path, BASE) + load_text(tmp_path, BASE), ["cpu", "cpu"]).cells) == 1


def test_a_plan_survives_json(tmp_path: Path) -> None:
    text = (
        RICH
        + "sim: {default: {time_us: 3}}\nrequire: [cuda]\ntolerances:\n"
        + (
            '  - {match: {hidden: ">64", dtype: [fp16, bf16]}, output: y, metric: rel_l2, limit: 1, reason: r, '
            "date: 2026-01-01}\n"
        )
    )
    found = plan(load_text(tmp_path, text), ["cuda", "sim"])
    assert Plan.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("entry", "wrong", "facts"),
    [
        ("output: z, metric: rel_l2", "output", ['"z"', " y, dx"]),
        ("output: x, metric: rel_l2", "output", ['"x"']),  # an input is not judged
        ("output: y, metric: rel_l3", "metric", ['"rel_l3"', '"rel_l2"']),
        ("match: {operation: backward}, output: y, metric: rel_l2", "output", ['"y"', " dx"]),
        ("output: y, metric: clipped", "", []),  # the contract's own
        ("output: dx, metric: max_ulp", "", []),
        ("output: '*', metric: nonfinite", "", []),
        ("match: {operation: backward, backend: cuda}, output: y, metric: rel_l2", "", []),  # none of this plan
    ],
)
def test_a_tolerance_for_what_no_cell_has_is_refused(tmp_path: Path, entry: str, wrong: str, facts: list[str]) -> None:
    text = BASE.replace("axes:", "axes:\n  operation: [forward, backward]")
    text += f"tolerances:\n  - {{{entry}, limit: 1, reason: r, date: 2026-01-01}}\n"
    matrices = load_text(tmp_path, text)
    if not wrong:
        assert len(plan(matrices, ["cpu"]).cells) == 2
        return
    with pytest.raises(MatrixError) as caught:
        plan(matrices, ["cpu"], select="operation=forward")  # what is selected does not matter
    check(sentence(caught.value, tmp_path), f"matrix-tolerance-{wrong}", "m.yaml: m: tolerances[0] ", *facts)


def test_an_edited_plan_is_refused(tmp_path: Path) -> None:
    data = json.loads(plan(load_text(tmp_path, BASE), ["cpu"]).to_json())
    data["cells"][0]["cell_id"] = "cpu/other"
    with pytest.raises(UsageError) as caught:
        Plan.from_json(json.dumps(data))
    assert caught.value.id == "plan-hash"
    for broken in ("", "[]", "{}", '{"schema": 1}', "null"):
        with pytest.raises(UsageError) as caught:
            Plan.from_json(broken)
        assert caught.value.id == "plan-malformed"
    with pytest.raises(UsageError) as caught:
        Plan.from_json('{"schema": 9}')
    check(sentence(caught.value), "plan-schema", "", " 9", " 1")


# The same everywhere


def shuffled(value: Any, choose: random.Random) -> Any:
    """`value` with the keys of every mapping in another order; lists as they are."""
    if isinstance(value, dict):
        items = list(value.items())
        choose.shuffle(items)
        return {k: shuffled(v, choose) for k, v in items}
    return [shuffled(v, choose) for v in value] if isinstance(value, list) else value


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_the_order_of_yaml_keys_means_nothing(tmp_path: Path, seed: int) -> None:
    small = RICH.replace("[mixed, outlier]", "outlier").replace("[0, 7]", "7").replace("[1, 33]", "33")
    expected = plan(load_text(tmp_path, small), ["cuda", "sim"])
    text = yaml.safe_dump(shuffled(yaml.safe_load(small), random.Random(seed)), sort_keys=False)
    found = plan(load_text(tmp_path, text), ["cuda", "sim"])
    assert found.plan_hash == expected.plan_hash
    assert [c.to_dict() for c in found.cells] == [c.to_dict() for c in expected.cells]


PROGRAM = """
import sys
sys.path[:0] = [{root!r}, {here!r}]
from matrix_fakes import WORLD
from farm.matrix import load_all, plan
assert not {{"torch", "ray", "triton"}} & set(sys.modules), "a plan needs none of these"
print(plan(load_all({path!r}, **WORLD), ["cuda", "cpu", "sim"]).to_json())
"""


def planned_by(python: str, folder: Path, seed: str) -> str:
    program = PROGRAM.format(root=str(ROOT), here=str(ROOT / "tests/pure"), path=str(folder / "m.yaml"))
    return subprocess.run(
        [python, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout


def test_another_hash_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    expected = rich(tmp_path).to_json() + "\n"
    assert {planned_by(sys.executable, tmp_path, seed) for seed in ("0", "1", "4242")} == {expected}


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_another_python_gives_the_same_bytes(tmp_path: Path, version: str) -> None:
    python = shutil.which(f"python{version}")
    ready = python and subprocess.run([python, "-c", "import yaml, numpy"], capture_output=True).returncode == 0
    if not python or not ready:
        pytest.skip(f"no python{version} with PyYAML and NumPy on the path")
    expected = rich(tmp_path).to_json() + "\n"
    assert planned_by(python, tmp_path, "0") == expected


# The estimate


def cell_of(**change: Any) -> Cell:
    base: dict[str, Any] = {
        "backend": "cpu",
        "op": "norm",
        "provider": "farm",
        "mode": "auto",
        "operation": "forward",
        "dtypes": {"x": "float32"},
        "dims": {"rows": 16, "hidden": 4096},
        "params": {},
    }
    return Cell(**{**base, **change})


_LONG_KEYS = {"batch": 1, "shared": 2, "kv_heads": 1, "queries": 4096, "keys": 32768, "width": 128}


@pytest.mark.parametrize(
    ("op", "operation", "dims", "took"),
    [
        ("matmul", "forward", {"m": 16384, "n": 16384, "k": 16384}, 29),
        ("attention", "forward", _LONG_KEYS, 13),
        ("attention", "backward", _LONG_KEYS, 38),
        ("cross_entropy", "forward", {"rows": 512, "classes": 262144}, 2),
        ("cross_entropy", "backward", {"rows": 512, "classes": 262144}, 9),
    ],
)
def test_the_judging_of_large_cells_is_estimated_within_a_factor_of_two(
    op: str, operation: str, dims: dict[str, int], took: float
) -> None:
    """`took`: CPU seconds as measured (docs/contracts.md)."""
    c = contract(op)
    cell = Cell(
        *("cuda", op, "p", "auto", operation, dict.fromkeys(c.typed, c.dtypes[-1]), dims),
        {p.name: p.default for p in c.parameters},
        timing=Timing("none"),
    )
    assert 0.5 <= estimate_seconds(cell, c) / took <= 2


def seconds(cell: Cell) -> float:
    return estimate_seconds(cell, contract("rms_norm"))


def test_the_estimate_grows_with_the_work() -> None:
    small = seconds(cell_of())
    assert 0.05 < small < 0.5
    assert seconds(cell_of(operation="backward")) > small
    assert seconds(cell_of(provider="torch")) < small
    assert seconds(cell_of(dims={"rows": 1600, "hidden": 4096})) > 1
    timed = seconds(cell_of(backend="cuda", timing=Timing("rotating_graph")))
    assert timed > seconds(cell_of(backend="cuda", timing=Timing("none")))
    assert seconds(cell_of(backend="sim", dims={"rows": 2**40, "hidden": 2**30})) < 0.1


def test_a_plan_never_says_that_an_unknown_kernel_takes_no_time() -> None:
    """Of a small cell of one's own kernel the estimate was a hundredth of a second: `about 0 s` of half a minute."""

    def planned(**change: Any) -> float:
        cell = cell_of(op="rms_norm", dims={"rows": 2, "hidden": 8}, **change)
        return counts([cell], [cell.backend], {"rms_norm": contract("rms_norm")})[cell.backend].seconds

    assert planned(provider="mine") >= 0.5 > planned() > 0
    assert planned(provider="torch", role="peer") < 0.1 > planned(provider="mine", backend="sim")
    for count, text in ((Count(20, 0, 0.2), "about 3 s"), (Count(2, 2, 0.0), "about 0 s"), (Count(0, 0, 0.0), "0 s")):
        assert text in _line("cpu", count)
