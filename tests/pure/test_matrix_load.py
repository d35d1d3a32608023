"""What a matrix means: axes, providers, differences of backends, rules, timing, tolerances, overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matrix_fakes import BASE, CONTRACTS, REGISTRY, WORLD, load_text, with_axis

from farm.cell import Cell, Timing
from farm.matrix import DEFAULT_DEADLINES, cells, default_backends, load, load_all, load_files, plan, select
from farm.matrix import tolerances_for as tolerances
from farm.matrix.registry import ProviderInfo, builtin_providers


def expanded(folder: Path, text: str, *backends: str, **how: Any) -> list[Cell]:
    return [c for m in load_text(folder, text, **how) for c in cells(m, backends or ["cuda"])]


def test_what_is_left_out_takes_the_contracts_default(tmp_path: Path) -> None:
    (cell,) = expanded(tmp_path, BASE)
    assert cell.dtypes == {"x": "float32", "weight": "float32"}
    assert cell.params == {"eps": 1e-6, "offset": 0.0, "casting": "llama", "weight": True, "groups": 1, "note": ""}
    assert (cell.operation, cell.family, cell.seed, cell.mode) == ("forward", "mixed", 0, "auto")
    assert (cell.contract_version, cell.role, cell.matrix, cell.tag) == (3, "peer", "m", "")
    assert list(cell.dims.items()) == [("rows", 8), ("hidden", 64)]


def test_lists_in_a_shape_multiply_in_the_contracts_order(tmp_path: Path) -> None:
    text = BASE.replace("{rows: 8, hidden: 64}", "{hidden: [32, 64], tag: t, rows: [1, 2]}")
    found = expanded(tmp_path, text)
    assert [c.shape for c in found] == ["1x32", "1x64", "2x32", "2x64"]
    assert {c.tag for c in found} == {"t"}


def test_dtypes_by_alias_and_by_tensor(tmp_path: Path) -> None:
    found = expanded(tmp_path, with_axis("dtype: [bf16, {x: float16}, {x: fp16, weight: fp32}]"))
    assert [tuple(c.dtypes.values()) for c in found] == [
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("float16", "float32"),
    ]


def test_variants_go_together_and_parameters_multiply(tmp_path: Path) -> None:
    text = with_axis("variant: [{casting: llama}, {offset: 1, casting: gemma}]\n  weight: [true, false]")
    found = [(c.params["casting"], c.params["offset"], c.params["weight"]) for c in expanded(tmp_path, text)]
    assert found == [("llama", 0.0, True), ("llama", 0.0, False), ("gemma", 1.0, True), ("gemma", 1.0, False)]
    assert all(type(offset) is float for _, offset, _ in found)


def test_numbers_are_read_as_yaml_1_2_reads_them(tmp_path: Path) -> None:
    """YAML 1.1, PyYAML's own, takes 1e-5 for text and 010 for eight."""
    (cell,) = expanded(tmp_path, with_axis("eps: 1e-5\n  seed: 010"))
    assert (cell.params["eps"], cell.seed) == (1e-5, 10)


def test_a_byte_order_mark_and_windows_lines_are_no_matter(tmp_path: Path) -> None:
    assert len(expanded(tmp_path, "\ufeff" + BASE.replace("\n", "\r\n"))) == 1


def test_aliases_may_be_used(tmp_path: Path) -> None:
    text = BASE + "backends: {cuda: {dtype: &d [fp16, bf16]}, rocm: {dtype: *d}}\n"
    assert [c.dtype for c in expanded(tmp_path, text, "cuda", "rocm")] == ["float16", "bfloat16"] * 2


def test_providers_in_a_mapping_have_farm_first_in_a_list_the_lists_order(tmp_path: Path) -> None:
    mapping = BASE.replace("[torch]", "{torch: {}, liger: , farm: {mode: [multi_wave_cached, auto]}}")
    assert [(c.provider, c.mode, c.role) for c in expanded(tmp_path, mapping)] == [
        ("farm", "multi_wave_cached", "subject"),
        ("farm", "auto", "subject"),
        ("liger", "auto", "peer"),
        ("torch", "auto", "peer"),
    ]
    assert [c.provider for c in expanded(tmp_path, BASE.replace("[torch]", "[torch, farm]"))] == ["torch", "farm"]


def test_the_mode_axis_applies_to_the_providers_that_have_it(tmp_path: Path) -> None:
    text = with_axis("mode: [static_persistent, multi_wave_cached]")
    text = text.replace("[torch]", "{farm: {}, torch: {}}")
    assert [(c.provider, c.mode) for c in expanded(tmp_path, text)] == [
        ("farm", "static_persistent"),
        ("farm", "multi_wave_cached"),
        ("torch", "auto"),
    ]
    own = text.replace("farm: {}", "farm: {mode: auto}")
    assert [(c.provider, c.mode) for c in expanded(tmp_path, own)] == [("farm", "auto"), ("torch", "auto")]


def test_an_axis_of_a_backend_replaces_the_axis(tmp_path: Path) -> None:
    text = with_axis("dtype: [fp32, fp16]") + (
        "backends:\n  ascend: {dtype: bf16, providers: [farm, torch], weight: [true, false], timing: {cache: warm}}\n"
    )
    assert [(c.provider, c.dtype) for c in expanded(tmp_path, text)] == [("torch", "float32"), ("torch", "float16")]
    found = expanded(tmp_path, text, "ascend")
    assert [(c.provider, c.dtype, c.params["weight"]) for c in found] == [
        ("farm", "bfloat16", True),
        ("torch", "bfloat16", True),
        ("farm", "bfloat16", False),
        ("torch", "bfloat16", False),
    ]
    assert {c.timing for c in found} == {Timing("rotating_graph", cache="warm")}


# Timing


@pytest.mark.parametrize(
    ("backend", "method"),
    [
        ("cuda", "rotating_graph"),
        ("rocm", "rotating_graph"),
        ("ascend", "rotating_graph"),
        ("cpu", "none"),
        ("sim", "host"),
    ],
)
def test_every_backend_has_its_own_policy(tmp_path: Path, backend: str, method: str) -> None:
    (cell,) = expanded(tmp_path, BASE, backend)
    assert cell.timing == Timing(method)


def test_policies_side_by_side_everywhere_but_on_cpu(tmp_path: Path) -> None:
    text = BASE + "timing: [{method: events, min_samples: 5}, {method: host, max_seconds: 2}]\n"
    for backend in ("cuda", "sim"):
        found = [c.timing for c in expanded(tmp_path, text, backend)]
        assert found == [Timing("events", min_samples=5), Timing("host", max_seconds=2.0)]
    assert [c.timing for c in expanded(tmp_path, text, "cpu")] == [Timing("none")]


def test_not_timed_has_one_key_whatever_else_is_said(tmp_path: Path) -> None:
    (a,) = expanded(tmp_path, BASE + "timing: {method: none, min_samples: 3}\n")
    (b,) = expanded(tmp_path, BASE + "timing: {method: none}\n")
    assert a.cell_key == b.cell_key


# Rules

WIDE = BASE.replace("hidden: 64", "hidden: [64, 4096, 16384], tag: a+b").replace("[torch]", "[farm, torch]")


def skipped(folder: Path, rule: str, text: str = WIDE, backend: str = "cuda") -> list[str]:
    found = expanded(folder, f"{text}exclude:\n  - {{{rule}, reason: why}}\n", backend)
    assert len(found) == 6, "a rule marks cells, it does not take them away"
    return [f"{c.provider} {c.dims['hidden']}" for c in found if c.skip_reason]


RULES = [
    ('hidden: ">64"', ["farm 4096", "torch 4096", "farm 16384", "torch 16384"]),
    ('hidden: ">=16384"', ["farm 16384", "torch 16384"]),
    ('hidden: "<4096"', ["farm 64", "torch 64"]),
    ('hidden: "<=4096", provider: torch', ["torch 64", "torch 4096"]),
    ('hidden: "!=4096", provider: farm', ["farm 64", "farm 16384"]),
    ("hidden: [64, 16384], provider: torch", ["torch 64", "torch 16384"]),
    ('provider: "!=torch", hidden: 64', ["farm 64"]),
    (
        "provider: farm, mode: auto, dtype: fp32, hidden: 64, tag: b, op: norm, operation: forward, family: mixed, "
        'seed: 0, casting: llama, weight: true, eps: "<1e-3", x_dtype: float32, backend: cuda, timing: rotating_graph',
        ["farm 64"],
    ),
]


@pytest.mark.parametrize(("rule", "expected"), RULES)
def test_a_rule(tmp_path: Path, rule: str, expected: list[str]) -> None:
    assert skipped(tmp_path, rule) == expected


def test_the_reason_says_the_rule_in_a_fixed_order(tmp_path: Path) -> None:
    for text in ("hidden: 64, provider: farm, reason: why", "reason: why, provider: farm, hidden: 64"):
        found = expanded(tmp_path, f"{WIDE}exclude:\n  - {{{text}}}\n")
        assert found[0].skip_reason == "why (excluded: provider=farm, hidden=64)"
        assert found[1].skip_reason == ""


def test_the_first_rule_that_matches_is_told(tmp_path: Path) -> None:
    text = WIDE + 'exclude:\n  - {hidden: ">64", reason: one}\n  - {provider: farm, reason: two}\n'
    assert [c.skip_reason[:3] for c in expanded(tmp_path, text)] == ["two", "", "one", "one", "one", "one"]


def test_rules_are_checked_against_the_whole_matrix_not_what_is_run(tmp_path: Path) -> None:
    """A rule for a backend that is not asked for today is no mistake."""
    text = BASE + "exclude:\n  - {backend: ascend, reason: later}\n"
    assert [c.skip_reason for c in expanded(tmp_path, text, "cuda", "ascend")] == [
        "",
        "later (excluded: backend=ascend)",
    ]
    only = BASE + "backends: {ascend: {dtype: bf16}}\nexclude:\n  - {dtype: bf16, reason: later}\n"
    assert [c.skip_reason for c in expanded(tmp_path, only, "cuda")] == [""]


def test_rules_agree_with_a_cell_by_cell_evaluation(tmp_path: Path) -> None:
    """Expansion decides by axis; tolerances and select decide by cell: the same language, the same answer."""
    for rule, _ in RULES:
        matrix = load_text(tmp_path, f"{WIDE}exclude:\n  - {{{rule}, reason: why}}\n")[0]
        from farm.matrix.rules import lookup

        for cell in cells(matrix, ["cuda", "cpu"]):
            assert bool(cell.skip_reason) == matrix.exclude[0].holds(lookup(cell))


# Select


def test_select(tmp_path: Path) -> None:
    matrices = load_text(tmp_path, WIDE)
    for text, expected in [
        ("hidden=>64,provider=torch", ["torch 4096", "torch 16384"]),
        ("hidden=64|16384,provider=farm", ["farm 64", "farm 16384"]),
        ("provider=!=farm,hidden=64", ["torch 64"]),
        ("dtype=fp32,tag=b,hidden=<100", ["farm 64", "torch 64"]),
        ("hidden>64,provider=torch", ["torch 4096", "torch 16384"]),
        ("hidden>=4096,hidden<16384,provider==torch", ["torch 4096"]),
        ("hidden!=4096,hidden!=64,provider!=farm", ["torch 16384"]),
        ("hidden!=4096|64, provider = torch", ["torch 16384"]),
        ("shape=*x4096|*x64,provider=torch", ["torch 64", "torch 4096"]),
        ("shape!=*x4096,id=cuda/*/torch/*", ["torch 64", "torch 16384"]),
    ]:
        found = select(cells(matrices[0], ["cuda"]), text, matrices)
        assert [f"{c.provider} {c.dims['hidden']}" for c in found] == expected
        assert len(plan(matrices, ["cuda"], select=text).cells) == len(expected)


def test_select_over_two_ops_leaves_out_the_one_without_the_key(tmp_path: Path) -> None:
    text = BASE + "---\nname: p\nop: product\naxes: {shape: [{m: 1, k: 1}]}\nproviders: [torch]\n"
    matrices = load_text(tmp_path, text)
    assert [c.op for c in plan(matrices, ["cpu"], select="hidden=64").cells] == ["norm"]
    assert [c.op for c in plan(matrices, ["cpu"], select="op=product").cells] == ["product"]


# Overrides


def test_set_changes_adds_and_reaches_into_lists(tmp_path: Path) -> None:
    sets = [("axes.dtype", "[bf16, fp16]"), ("axes.shape[0].rows", "3"), ("timing.min_samples", "50")]
    found = expanded(tmp_path, BASE, overrides=sets)
    assert [(c.dtype, c.dims["rows"], c.timing.min_samples) for c in found] == [("bfloat16", 3, 50), ("float16", 3, 50)]


def test_set_for_one_matrix_of_several(tmp_path: Path) -> None:
    load_text(tmp_path, BASE, "a.yaml")
    load_text(tmp_path, BASE.replace("name: m", "name: n"), "b.yaml")
    found = load_files([tmp_path / "a.yaml", tmp_path / "b.yaml"], overrides=[("n:axes.seed", "[1, 2]")], **WORLD)
    assert [len(list(cells(m, ["cpu"]))) for m in found] == [1, 2]


def test_the_last_set_wins(tmp_path: Path) -> None:
    found = expanded(tmp_path, BASE, overrides=[("axes.seed", "1"), ("axes.seed", "2")])
    assert [c.seed for c in found] == [2]


# Providers of the user


def test_a_provider_of_ones_own_is_added_unless_listed(tmp_path: Path) -> None:
    own = {"mine": "a:b", "norm:only": "c:d", "product:other": "e:f"}
    found = expanded(tmp_path, BASE, extra_providers=own)
    assert [(c.provider, c.role, c.mode) for c in found] == [
        ("torch", "peer", "auto"),
        ("mine", "subject", "auto"),
        ("only", "subject", "auto"),
    ]
    listed = expanded(tmp_path, BASE.replace("[torch]", "[mine]"), extra_providers={"mine": "a:b"})
    assert [c.provider for c in listed] == ["mine"]


def test_a_provider_of_ones_own_suffices(tmp_path: Path) -> None:
    found = expanded(tmp_path, BASE.replace("providers: [torch]\n", ""), extra_providers={"mine": "a:b"})
    assert [c.provider for c in found] == ["mine"]


def test_the_providers_of_the_farm_say_what_a_matrix_needs() -> None:
    found = builtin_providers()
    assert {"farm", "torch", "torch_compile", "huggingface", "liger"} <= set(found)
    assert found["farm"].role == "subject"
    assert {info.role for name, info in found.items() if name != "farm"} == {"peer"}
    assert all(info.modes and info.ops for info in found.values())
    assert ProviderInfo("x").does("anything") and not REGISTRY["farm"].does("product")


# What a matrix keeps


def test_what_a_matrix_keeps(tmp_path: Path) -> None:
    script = "{default: {time_us: 10}, rules: [{when: {hidden: 64}, hang: true, error: 2.5}]}"
    text = BASE + f"require: [cuda, sim]\ndeadlines: {{check: 90}}\nsim: {script}\n"
    (matrix,) = load_text(tmp_path, text)
    assert (matrix.name, matrix.op, matrix.path) == ("m", "norm", str(tmp_path / "m.yaml"))
    assert matrix.require == ("cuda", "sim")
    assert matrix.deadlines == {**DEFAULT_DEADLINES, "check": 90.0}
    rules = [{"when": {"hidden": 64}, "hang": True, "error": 2.5}]
    assert matrix.sim == {"default": {"time_us": 10}, "rules": rules}
    assert len(matrix.sha256) == 64
    assert default_backends([matrix]) == ["cuda", "sim"]
    assert default_backends(load_text(tmp_path, BASE)) == ["cpu"]
    assert set(DEFAULT_DEADLINES) == {"spawn", "import", "compile", "check", "timing", "teardown"}


def test_tolerances_for_a_cell(tmp_path: Path) -> None:
    text = with_axis("dtype: [fp32, bf16]") + (
        "tolerances:\n"
        "  - {output: '*', metric: max_ulp, limit: 4, reason: all, date: 2026-01-31}\n"
        "  - {match: {dtype: bf16}, output: y, metric: rel_l2, limit: 1e-3, reason: wide, date: 2026-11-20}\n"
    )
    (matrix,) = load_text(tmp_path, text)
    plain, wide = cells(matrix, ["cuda"])
    general = {"output": "*", "metric": "max_ulp", "limit": 4.0, "reason": "all", "date": "2026-01-31"}
    assert tolerances(matrix.tolerances, plain) == [general]
    narrow = {"output": "y", "metric": "rel_l2", "limit": 1e-3, "reason": "wide", "date": "2026-11-20"}
    assert tolerances(matrix.tolerances, wide) == [general, narrow]
    assert tolerances(plan([matrix], ["cuda"]).matrices[0].tolerances, wide) == [general, narrow]


def test_load_gives_the_one_matrix(tmp_path: Path) -> None:
    load_text(tmp_path, BASE)
    assert load(tmp_path / "m.yaml", **WORLD).contract is CONTRACTS["norm"]
    assert [m.name for m in load_all(str(tmp_path / "m.yaml"), **WORLD)] == ["m"]
