"""Bad input: one sentence with file, line, path, what is wrong, and the nearest valid name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from matrix_fakes import BASE, WORLD, check, load_text, refusal, sentence, with_axis

from farm.errors import MatrixError, UsageError
from farm.matrix import document as document_module
from farm.matrix import load, load_all, load_files, plan, select

#: What each test changes: the text, the identifier of its refusal, the place that it begins with, and further facts.
Table = dict[str, tuple[Any, ...]]
SHAPE = "{rows: 8, hidden: 64}"


def shape(entry: str) -> str:
    return BASE.replace(SHAPE, entry)


def rule(text: str) -> str:
    return BASE + f"exclude:\n  - {{{text}}}\n"


def bomb() -> str:
    """Ten levels of ten aliases: 10^10 values from 700 bytes."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefghi", "bcdefghij"):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join(lines)


FILES: Table = {
    "empty": ("", "matrix-empty-file", "m.yaml: "),
    "comment only": ("# nothing\n", "matrix-empty-file", "m.yaml: "),
    "list": ("- a\n", "matrix-not-a-mapping", "m.yaml:1:", "list"),
    "word": ("hello", "matrix-not-a-mapping", "m.yaml:1:", '"hello"'),
    "empty second": (BASE + "---\n", "matrix-not-a-mapping", "m.yaml:8:", "null"),
    "tab": ("name: m\n\top: norm\n", "matrix-not-yaml", "m.yaml:2:", "tab"),
    "unclosed": ("name: [1, 2\n", "matrix-not-yaml", "m.yaml:2:", "']'"),
    "alias of nothing": ("name: *b\n", "matrix-not-yaml", "m.yaml:1:", "'b'"),
    "control character": ("name: m\nop: \x00", "matrix-control-character", "m.yaml:2:"),
    "not UTF-8": (b"name: m\nop: \xff", "matrix-file-not-utf8", "m.yaml:2: ", "UTF-8"),
    "UTF-16": ("name: m".encode("utf-16"), "matrix-file-not-utf8", "m.yaml:1: ", "UTF-8"),
    "bomb": (bomb(), "matrix-too-many-values", "m.yaml:", "100,000"),
    "alias of itself": ("a: &a [*a]\n", "matrix-too-deep", "m.yaml:", "32"),
    "deep": ("a: " + "[" * 100_000, "matrix-too-deep", "m.yaml:", "32"),
    "code": (
        BASE + "sim: !!python/object/apply:os.system [ls]\n",
        "matrix-tag",
        "m.yaml:7: sim ",
        '"tag:yaml.org,2002:python/object/apply:os.system"',
    ),
    "own tag": (BASE.replace("op: norm", "op: !x norm"), "matrix-scalar-tag", "m.yaml:2: op ", '"!x"'),
    "merge key": (BASE + "sim: {<<: {a: 1}}\n", "matrix-merge-key", "m.yaml:7: sim.<< "),
    "duplicate key": (BASE + "op: norm\n", "matrix-key-twice", "m.yaml:7: op ", "line 2"),
    "duplicate inside": (
        with_axis("dtype: fp32\n  dtype: fp16"),
        "matrix-key-twice",
        "m.yaml:5: axes.dtype ",
        "line 4",
    ),
    "number as key": (BASE + "1: 2\n", "matrix-key-not-text", "m.yaml:7:", '"1"'),
    "list as key": (BASE + "? [a]\n: 2\n", "matrix-key-not-text", "m.yaml:7:", "a list"),
    "huge number": (
        shape("{rows: " + "9" * 5000 + ", hidden: 1}"),
        "matrix-number",
        "m.yaml:5: axes.shape[0].rows ",
        '"9999999999999999999999999999999999999999999999999999999..."',
    ),
    "infinite": (with_axis("eps: 1e999"), "matrix-number", "m.yaml:4: axes.eps ", '"1e999"'),
}

KEYS: Table = {
    "key": (BASE + "exclud: []\n", "matrix-unknown-key", "m.yaml:7: exclud ", '"exclude"'),
    "no name": (BASE.replace("name: m\n", ""), "matrix-no-name", "m.yaml:1:", "name: "),
    "no op": (BASE.replace("op: norm\n", ""), "matrix-no-op", "m.yaml:1:", "op: rms_norm"),
    "bad name": (BASE.replace("name: m", "name: a b"), "matrix-name", "m.yaml:1: name ", '"a b"', "80"),
    "op": (BASE.replace("op: norm", "op: nrom"), "matrix-unknown-op", "m.yaml:2: op ", '"nrom"', '"norm"'),
    "op unlike any": (
        BASE.replace("op: norm", "op: fft"),
        "matrix-unknown-op",
        "m.yaml:2: op ",
        '"fft"',
        "norm, product",
    ),
    "op a number": (BASE.replace("op: norm", "op: 5"), "matrix-not-text", "m.yaml:2: op ", "5"),
    "op empty": (BASE.replace("op: norm", "op:"), "matrix-not-text", "m.yaml:2: op ", "null"),
    "same name twice": (BASE + "---\n" + BASE, "matrix-name-twice", "m.yaml:8: name ", '"m"'),
    "backend": (
        BASE + "backends: {cdua: {dtype: fp16}}\n",
        "matrix-unknown-backend",
        "m.yaml:7: backends.cdua ",
        '"cuda"',
    ),
    "axis of a backend": (
        BASE + "backends: {cuda: {dytpe: fp16}}\n",
        "matrix-unknown-axis",
        "m.yaml:7: backends.cuda.dytpe ",
        '"dtype"',
    ),
    "timing of cpu": (
        BASE + "backends: {cpu: {timing: {cache: warm}}}\n",
        "matrix-timing-untimed",
        "m.yaml:7: backends.cpu.timing ",
        "cpu",
    ),
    "required backend": (
        BASE + "require: [cudda]\n",
        "matrix-require-backend",
        "m.yaml:7: require[0] ",
        '"cudda"',
        '"cuda"',
    ),
    "required twice": (
        BASE + "require: [cuda, cuda]\n",
        "matrix-value-twice",
        "m.yaml:7: require[1] ",
        '"cuda"',
        "line 7",
    ),
    "phase": (BASE + "deadlines: {spwan: 3}\n", "matrix-unknown-phase", "m.yaml:7: deadlines.spwan ", '"spawn"'),
    "deadline": (BASE + "deadlines: {spawn: -3}\n", "matrix-not-positive", "m.yaml:7: deadlines.spawn ", "-3"),
    "empty section": (BASE + "exclude:\n", "matrix-empty-value", "m.yaml:7: exclude "),
    "empty sim": (BASE + "sim: {}\n", "matrix-empty-value", "m.yaml:7: sim "),
}

AXES: Table = {
    "axis": (with_axis("ofset: 1"), "matrix-unknown-axis", "m.yaml:4: axes.ofset ", '"offset"'),
    "no shape": (
        BASE.replace("  shape:\n    - {rows: 8, hidden: 64}\n", "  dtype: fp32\n"),
        "matrix-no-shape",
        "m.yaml:1:",
        "rows, hidden",
        "norm",
    ),
    "empty axis": (with_axis("dtype: []"), "matrix-empty-value", "m.yaml:4: axes.dtype "),
    "null axis": (with_axis("dtype:"), "matrix-empty-value", "m.yaml:4: axes.dtype "),
    "dtype": (
        with_axis("dtype: [float32, bf61]"),
        "matrix-unknown-dtype",
        "m.yaml:4: axes.dtype[1] ",
        '"bf61"',
        '"bfloat16"',
    ),
    "dtype, long": (
        with_axis("dtype: flaot32"),
        "matrix-unknown-dtype",
        "m.yaml:4: axes.dtype ",
        '"flaot32"',
        '"float32"',
    ),
    "dtype of another op": (
        with_axis("dtype: int8"),
        "matrix-unsupported-dtype",
        "m.yaml:4: axes.dtype ",
        '"int8"',
        "float32, float16, bfloat16",
    ),
    "dtype a number": (with_axis("dtype: [16]"), "matrix-dtype-not-text", "m.yaml:4: axes.dtype[0] ", "16"),
    "dtype's tensor": (
        with_axis("dtype: [{x: bf16, wieght: fp32}]"),
        "matrix-unknown-tensor",
        "m.yaml:4: axes.dtype[0].wieght ",
        '"weight"',
    ),
    "dtype without the first": (
        with_axis("dtype: [{weight: fp32}]"),
        "matrix-no-first-dtype",
        "m.yaml:4: axes.dtype[0] ",
        " x",
    ),
    "dtype twice": (
        with_axis("dtype: [bf16, bfloat16]"),
        "matrix-value-twice",
        "m.yaml:4: axes.dtype[1] ",
        "x bfloat16, weight bfloat16",
        "line 4",
    ),
    "rows below": (
        shape("{rows: -1, hidden: 64}"),
        "matrix-out-of-range",
        "m.yaml:5: axes.shape[0].rows ",
        "-1",
        "0",
        "1099511627776",
    ),
    "rows above": (
        shape("{rows: 1099511627777, hidden: 64}"),
        "matrix-out-of-range",
        "m.yaml:5: axes.shape[0].rows ",
        "1099511627777",
        "0",
        "1099511627776",
    ),
    "hidden below": (
        shape("{rows: 8, hidden: 0}"),
        "matrix-out-of-range",
        "m.yaml:5: axes.shape[0].hidden ",
        "0",
        "1",
        "1073741824",
    ),
    "hidden above": (
        shape("{rows: 8, hidden: [64, 1073741825]}"),
        "matrix-out-of-range",
        "m.yaml:5: axes.shape[0].hidden[1] ",
        "1073741825",
        "1",
        "1073741824",
    ),
    "rows true": (shape("{rows: true, hidden: 64}"), "matrix-not-an-integer", "m.yaml:5: axes.shape[0].rows ", "true"),
    "rows 8.0": (shape("{rows: 8.0, hidden: 64}"), "matrix-not-an-integer", "m.yaml:5: axes.shape[0].rows ", "8.0"),
    "rows text": (shape("{rows: x, hidden: 64}"), "matrix-not-an-integer", "m.yaml:5: axes.shape[0].rows ", '"x"'),
    "rows empty": (shape("{rows: [], hidden: 64}"), "matrix-empty-value", "m.yaml:5: axes.shape[0].rows "),
    "dimension missing": (shape("{hidden: 64}"), "matrix-no-dimension", "m.yaml:5: axes.shape[0] ", "rows, hidden"),
    "dimension": (shape("{row: 8, hidden: 64}"), "matrix-unknown-dimension", "m.yaml:5: axes.shape[0].row ", '"rows"'),
    "shape a word": (
        BASE.replace("\n    - {rows: 8, hidden: 64}", " 8x64"),
        "matrix-wrong-kind",
        "m.yaml:4: axes.shape ",
        '"8x64"',
        "list",
    ),
    "shape twice": (
        shape("{rows: [8, 9], hidden: 64}\n    - {rows: 9, hidden: [32, 64], tag: other}"),
        "matrix-value-twice",
        "m.yaml:6: axes.shape[1] ",
        "9x64",
        "line 5",
    ),
    "too many shapes": (
        shape(f"{{rows: {list(range(2000))}, hidden: {list(range(1, 2000))}}}"),
        "matrix-too-many-shapes",
        "m.yaml:5: axes.shape[0] ",
        "1,000,000",
    ),
    "operation": (
        with_axis("operation: [forwrad]"),
        "matrix-unknown-operation",
        "m.yaml:4: axes.operation[0] ",
        '"forwrad"',
        '"forward"',
    ),
    "operation of another op": (
        with_axis("operation: full"),
        "matrix-unsupported-operation",
        "m.yaml:4: axes.operation ",
        '"full"',
        "forward, backward",
    ),
    "family": (with_axis("family: outlir"), "matrix-unknown-family", "m.yaml:4: axes.family ", '"outlir"', '"outlier"'),
    "layout": (
        with_axis("layout: [dense, {x: row_stridden}]"),
        "matrix-unknown-layout",
        "m.yaml:4: axes.layout[1].x ",
        '"row_stridden"',
        '"row_strided"',
    ),
    "layout not declared": (
        with_axis("layout: {x: transposed}"),
        "matrix-unknown-layout",
        "m.yaml:4: axes.layout.x ",
        "dense, row_strided, 3d, 4d",
    ),
    "layout not text": (with_axis("layout: {x: 3}"), "matrix-unknown-layout", "m.yaml:4: axes.layout.x ", "3"),
    "layout of another tensor": (
        with_axis("layout: {xx: 3d}"),
        "matrix-layout-tensor",
        "m.yaml:4: axes.layout.xx ",
        '"x"',
    ),
    "layout without a tensor": (
        with_axis("layout: 3d"),
        "matrix-layout-without-tensor",
        "m.yaml:4: axes.layout ",
        '"3d"',
        "{x: 3d}",
    ),
    "layout twice": (
        with_axis("layout: [dense, {x: dense}]"),
        "matrix-value-twice",
        "m.yaml:4: axes.layout[1] ",
        "dense",
    ),
    "layouts that clash": (
        with_axis("layout: {x: 4d, dx: 3d}"),
        "matrix-layouts-clash",
        "m.yaml:4: axes.layout ",
        "x",
        "dx",
    ),
    "a rule's layout": (
        BASE + "exclude:\n  - {x_layout: row_stided, reason: why}\n",
        "matrix-rule-value",
        "m.yaml:8: exclude[0].x_layout ",
        '"row_strided"',
    ),
    "seed": (with_axis("seed: -1"), "matrix-out-of-range", "m.yaml:4: axes.seed ", "-1", "0", "9223372036854775807"),
    "seed twice": (with_axis("seed: [1, 1]"), "matrix-value-twice", "m.yaml:4: axes.seed[1] ", "1", "line 4"),
    "parameter text": (with_axis("eps: [tiny]"), "matrix-parameter-type", "m.yaml:4: axes.eps[0] ", '"tiny"'),
    "parameter true": (with_axis("eps: true"), "matrix-parameter-type", "m.yaml:4: axes.eps ", "true"),
    "bool a number": (with_axis("weight: 1"), "matrix-parameter-type", "m.yaml:4: axes.weight ", "1"),
    "bool a word": (with_axis("weight: yes"), "matrix-parameter-type", "m.yaml:4: axes.weight ", '"yes"'),
    "int a float": (with_axis("groups: 1.0"), "matrix-parameter-type", "m.yaml:4: axes.groups ", "1.0"),
    "parameter below": (with_axis("eps: -1"), "matrix-parameter-range", "m.yaml:4: axes.eps ", "-1", ">= 0.0"),
    "parameter above": (with_axis("groups: 9"), "matrix-parameter-range", "m.yaml:4: axes.groups ", "9", "1", "8"),
    "parameter not allowed": (
        with_axis("casting: gemmma"),
        "matrix-parameter-value",
        "m.yaml:4: axes.casting ",
        '"gemmma"',
        '"gemma"',
    ),
    "variant's parameter": (
        with_axis("variant: [{ofset: 1}]"),
        "matrix-unknown-parameter",
        "m.yaml:4: axes.variant[0].ofset ",
        '"offset"',
    ),
    "parameter in two places": (
        with_axis("offset: 1\n  variant: [{offset: 0}]"),
        "matrix-parameter-twice",
        "m.yaml:4: axes.offset ",
        "axes.variant[0].offset",
    ),
    "variant a mapping": (
        with_axis("variant: {offset: 0}"),
        "matrix-wrong-kind",
        "m.yaml:4: axes.variant ",
        "mapping",
        "list",
    ),
}

PROVIDERS: Table = {
    "provider": (
        BASE.replace("[torch]", "[torhc]"),
        "matrix-unknown-provider",
        "m.yaml:6: providers[0] ",
        '"torhc"',
        '"torch"',
    ),
    "provider's key": (
        BASE.replace("[torch]", "{torhc: {}}"),
        "matrix-unknown-provider-key",
        "m.yaml:6: providers.torhc ",
        '"torch"',
    ),
    "provider twice": (
        BASE.replace("[torch]", "[torch, torch]"),
        "matrix-value-twice",
        "m.yaml:6: providers[1] ",
        '"torch"',
        "line 6",
    ),
    "no providers": (BASE.replace("providers: [torch]\n", ""), "matrix-no-providers", "m.yaml:1:", "providers: ["),
    "mode": (
        BASE.replace("[torch]", "{farm: {mode: [multi_wave_cache]}}"),
        "matrix-provider-mode",
        "m.yaml:6: providers.farm.mode[0] ",
        '"multi_wave_cache"',
        '"multi_wave_cached"',
    ),
    "mode of a provider without": (
        BASE.replace("[torch]", "{torch: {mode: [static_persistent]}}"),
        "matrix-provider-mode",
        "m.yaml:6: providers.torch.mode[0] ",
        '"static_persistent"',
        "torch: auto",
    ),
    "mode twice": (
        BASE.replace("[torch]", "{farm: {mode: [auto, auto]}}"),
        "matrix-value-twice",
        "m.yaml:6: providers.farm.mode[1] ",
        '"auto"',
        "line 6",
    ),
    "mode axis": (with_axis("mode: [autoo]"), "matrix-unknown-mode", "m.yaml:4: axes.mode[0] ", '"autoo"', '"auto"'),
    "axis of a provider": (
        BASE.replace("[torch]", "{farm: {modes: [auto]}}"),
        "matrix-provider-key",
        "m.yaml:6: providers.farm.modes ",
        '"mode"',
    ),
    "not its op": (
        "name: m\nop: product\naxes: {shape: [{m: 1, k: 1}]}\nproviders: [farm]\n",
        "matrix-provider-without-op",
        "m.yaml:4: providers[0] ",
        "farm",
        "product",
        "torch",
    ),
}

RULES: Table = {
    "no reason": (rule("provider: torch"), "matrix-exclude-no-reason", "m.yaml:8: exclude[0] ", "reason: "),
    "empty reason": (rule('provider: torch, reason: ""'), "matrix-not-text", "m.yaml:8: exclude[0].reason ", '""'),
    "reason alone": (rule("reason: x"), "matrix-exclude-everything", "m.yaml:8: exclude[0] ", "provider: "),
    "matches nothing": (
        rule('hidden: ">64", reason: x'),
        "matrix-rule-matches-nothing",
        "m.yaml:8: exclude[0] ",
        "(hidden>64)",
    ),
    "matches nothing together": (
        rule("provider: torch, mode: static_persistent, reason: x").replace("[torch]", "[farm, torch]"),
        "matrix-rule-matches-nothing",
        "m.yaml:8: exclude[0] ",
        "(provider=torch, mode=static_persistent)",
    ),
    "rule's key": (rule("hiden: 3, reason: x"), "matrix-rule-key", "m.yaml:8: exclude[0].hiden ", '"hidden"'),
    "rule's provider": (
        rule("provider: fram, reason: x"),
        "matrix-rule-value",
        "m.yaml:8: exclude[0].provider ",
        '"fram"',
        '"farm"',
    ),
    "rule's list": (
        rule("dtype: [fp32, bf61], reason: x"),
        "matrix-rule-dtype",
        "m.yaml:8: exclude[0].dtype[1] ",
        '"bf61"',
        '"bfloat16"',
    ),
    "comparison of text": (
        rule('dtype: ">3", reason: x'),
        "matrix-rule-comparison",
        "m.yaml:8: exclude[0].dtype ",
        '">3"',
    ),
    "comparison with text": (
        rule('hidden: "> x", reason: x'),
        "matrix-rule-not-a-number",
        "m.yaml:8: exclude[0].hidden ",
        '"> x"',
        '"x"',
    ),
    "rule's number as text": (
        rule('hidden: "64", reason: x'),
        "matrix-rule-integer",
        "m.yaml:8: exclude[0].hidden ",
        '"64"',
        '">8192"',
    ),
    "rules a mapping": (
        BASE + "exclude: {hidden: 64, reason: x}\n",
        "matrix-wrong-kind",
        "m.yaml:7: exclude ",
        "mapping",
        "list",
    ),
}

TIMING: Table = {
    "method": (
        BASE + "timing: {method: rotating_grap}\n",
        "matrix-timing-method",
        "m.yaml:7: timing.method ",
        '"rotating_grap"',
        '"rotating_graph"',
    ),
    "cache": (BASE + "timing: {cache: hot}\n", "matrix-timing-cache", "m.yaml:7: timing.cache ", '"hot"', "cold, warm"),
    "field": (
        BASE + "timing: {min_sample: 30}\n",
        "matrix-timing-field",
        "m.yaml:7: timing.min_sample ",
        '"min_samples"',
    ),
    "samples": (
        BASE + "timing: {min_samples: 0}\n",
        "matrix-out-of-range",
        "m.yaml:7: timing.min_samples ",
        "0",
        "1",
        "1000000",
    ),
    "least above most": (
        BASE + "timing: {min_samples: 300}\n",
        "matrix-timing-samples",
        "m.yaml:7: timing ",
        "300",
        "200",
    ),
    "twice": (
        BASE + "timing: [{cache: warm}, {cache: warm}]\n",
        "matrix-value-twice",
        "m.yaml:7: timing[1] ",
        "cache=warm",
        "line 7",
    ),
    "sim key": (BASE + "sim: {time_us: 10}\n", "matrix-sim-key", "m.yaml:7: sim.time_us ", "default, rules"),
    "script key": (
        BASE + "sim: {default: {erorr: 0.1}}\n",
        "matrix-script-key",
        "m.yaml:7: sim.default.erorr ",
        '"error"',
    ),
    "script value": (
        BASE + "sim: {default: {signal: kill}}\n",
        "matrix-script-value",
        "m.yaml:7: sim.default.signal ",
        '"kill"',
        "0",
    ),
    "script switch": (BASE + "sim: {default: {cold: 1}}\n", "matrix-script-value", "m.yaml:7: sim.default.cold ", "1"),
    "script phase": (
        BASE + "sim: {default: {hang: spawn}}\n",
        "matrix-script-value",
        "m.yaml:7: sim.default.hang ",
        '"spawn"',
        "(import, compile, check, timing)",
    ),
    "script status": (
        BASE + "sim: {default: {status: passd}}\n",
        "matrix-script-status",
        "m.yaml:7: sim.default.status ",
        '"passd"',
        '"passed"',
    ),
    "script owner": (
        BASE + "sim: {default: {status: crashed, owner: nobody}}\n",
        "matrix-script-owner",
        "m.yaml:7: sim.default.owner ",
        '"nobody"',
        "harness",
    ),
    "script telemetry": (
        BASE + "sim: {default: {telemetry: {power: 3}}}\n",
        "matrix-script-key",
        "m.yaml:7: sim.default.telemetry.power ",
        '"power_w"',
    ),
    "script list": (
        BASE + "sim: {rules: {when: {rows: 1}}}\n",
        "matrix-wrong-kind",
        "m.yaml:7: sim.rules ",
        "mapping",
        "list",
    ),
    "script's cells": (
        BASE + "sim: {rules: [{when: {hiden: 1}, exit: 3}]}\n",
        "matrix-rule-key",
        "m.yaml:7: sim.rules[0].when.hiden ",
        '"hidden"',
    ),
    "script's rule": (
        BASE + "sim: {rules: [{wen: {hidden: 1}, exit: 3}]}\n",
        "matrix-script-key",
        "m.yaml:7: sim.rules[0].wen ",
        '"when"',
    ),
    "twice once resolved": (
        BASE + "timing: [{cache: cold}, {method: host}]\n",
        "matrix-timing-twice",
        "m.yaml:7: timing ",
        "sim",
    ),
}

TOLERANCE = "{output: y, metric: rel_l2, limit: 1e-3, reason: r, date: 2026-11-20}"
TOLERANCES: Table = {
    "no date": (TOLERANCE.replace(", date: 2026-11-20", ""), "matrix-tolerance-no-date", "m.yaml:8: tolerances[0] "),
    "date": (
        TOLERANCE.replace("2026-11-20", "20th"),
        "matrix-tolerance-date",
        "m.yaml:8: tolerances[0].date ",
        '"20th"',
        "2026-01-31",
    ),
    "limit": (TOLERANCE.replace("1e-3", "-1"), "matrix-tolerance-limit", "m.yaml:8: tolerances[0].limit ", "-1"),
    "key": (
        TOLERANCE.replace("limit:", "limits:"),
        "matrix-tolerance-key",
        "m.yaml:8: tolerances[0].limits ",
        '"limit"',
    ),
    "matches nothing": (
        TOLERANCE.replace("{", "{match: {dtype: bf16}, ", 1),
        "matrix-rule-matches-nothing",
        "m.yaml:8: tolerances[0] ",
        "(dtype=bfloat16)",
    ),
}


def all_of(*tables: Table) -> list[Any]:
    return [pytest.param(*entry[:3], entry[3:], id=name) for table in tables for name, entry in table.items()]


@pytest.mark.parametrize(("text", "id", "place", "facts"), all_of(FILES, KEYS, AXES, PROVIDERS, RULES, TIMING))
def test_what_is_wrong_is_refused_in_one_sentence(
    tmp_path: Path, text: str | bytes, id: str, place: str, facts: tuple[str, ...]
) -> None:
    check(refusal(tmp_path, text), id, place, *facts)


@pytest.mark.parametrize(("text", "id", "place", "facts"), all_of(TOLERANCES))
def test_a_wrong_tolerance(tmp_path: Path, text: str, id: str, place: str, facts: tuple[str, ...]) -> None:
    check(refusal(tmp_path, f"{BASE}tolerances:\n  - {text}\n"), id, place, *facts)


def test_the_base_of_all_these_is_right(tmp_path: Path) -> None:
    assert len(load_text(tmp_path, BASE)) == 1


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    load_text(tmp_path, BASE, "smoke.yaml")
    with pytest.raises(MatrixError) as caught:
        load(tmp_path / "smok.yaml")
    check(sentence(caught.value, tmp_path), "matrix-file-missing", "smok.yaml: ", '"smoke.yaml"')


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        load(tmp_path / "no" / "x.yaml")
    check(sentence(caught.value, tmp_path), "matrix-file-missing", "no/x.yaml: ")


def test_a_folder_is_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        load(tmp_path)
    check(sentence(caught.value), "matrix-file-is-folder", f"{tmp_path}: ")


def test_a_device_is_no_matrix() -> None:
    with pytest.raises(MatrixError) as caught:
        load("/dev/zero")
    check(sentence(caught.value), "matrix-file-not-regular", "/dev/zero: ")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(MatrixError) as caught:
        load(path)
    check(sentence(caught.value, tmp_path), "matrix-file-too-big", "big.yaml: ", "100,000,000", "1,000,000")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(BASE, encoding="utf-8")
    path.chmod(0)
    with pytest.raises(MatrixError) as caught:
        load(path)
    check(sentence(caught.value, tmp_path), "matrix-file-unreadable", "m.yaml: ")


def test_many_values_are_refused_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_module, "MAX_NODES", 1000)
    found = refusal(tmp_path, BASE + "sim: {a: [" + "1, " * 1000 + "]}\n")
    check(found, "matrix-too-many-values", "m.yaml: ", "1,000 ")


def test_too_many_cells_are_counted_not_made(tmp_path: Path) -> None:
    text = shape(f"{{rows: {list(range(1000))}, hidden: 64}}").replace("axes:\n", f"axes:\n  seed: {[*range(1001)]}\n")
    check(refusal(tmp_path, text), "matrix-too-many-cells", "m.yaml:1: ", "1,001,000", "(here cpu)", "1,000,000")


def test_too_many_parameters(tmp_path: Path) -> None:
    values = [i / 1000 for i in range(1001)]
    found = refusal(tmp_path, with_axis(f"eps: {values}\n  offset: {values}"))
    check(found, "matrix-too-many-parameters", "m.yaml:4: axes.eps ", "1,000,000")


def test_two_matrices_where_one_is_needed(tmp_path: Path) -> None:
    load_text(tmp_path, BASE + "---\n" + BASE.replace("name: m", "name: n"))
    with pytest.raises(MatrixError) as caught:
        load(tmp_path / "m.yaml", **WORLD)
    check(sentence(caught.value, tmp_path), "matrix-not-one", "m.yaml: ", "2 matrices")


def test_two_files_with_one_name(tmp_path: Path) -> None:
    first = load_text(tmp_path, BASE, "a.yaml")
    second = load_text(tmp_path, BASE.replace("rows: 8", "rows: 9"), "b.yaml")
    with pytest.raises(MatrixError) as caught:
        plan(first + second, ["cpu"])
    check(sentence(caught.value, tmp_path), "plan-name-twice", "b.yaml: ", '"m"', "a.yaml")


def test_a_backend_that_the_matrix_has_no_axes_for(tmp_path: Path) -> None:
    text = "name: m\nop: norm\nproviders: [torch]\nbackends: {cuda: {shape: [{rows: 1, hidden: 1}]}}\n"
    found = load_text(tmp_path, text)
    assert len(plan(found, ["cuda"]).cells) == 1
    with pytest.raises(MatrixError) as caught:
        plan(found, ["cpu"])
    check(sentence(caught.value, tmp_path), "matrix-backend-without-axes", "m.yaml: m ", "cuda", "cpu")


SETS = [
    ("axes.dtpe", "[bf16]", "matrix-unknown-axis", "--set axes.dtpe=[bf16]: axes.dtpe ", ('"dtype"',)),
    ("tming.cache", "warm", "matrix-unknown-key", "--set tming.cache=warm: tming ", ('"timing"',)),
    ("axes.dtype", "bf61", "matrix-unknown-dtype", "--set axes.dtype=bf61: axes.dtype ", ('"bf61"', '"bfloat16"')),
    (
        "axes.dtype",
        "[fp32, bf61]",
        "matrix-unknown-dtype",
        "--set axes.dtype=[fp32, bf61]: axes.dtype[1] ",
        ('"bf61"',),
    ),
    ("axes.shape[3].rows", "1", "matrix-set-entry", "--set axes.shape[3].rows=1: axes.shape[3] ", ("1 entry",)),
    ("name.x", "1", "matrix-set-scalar", "--set name.x=1: name ", ('"m"', '"x"')),
    ("..", "1", "matrix-set-path", "--set ..=1: ", ('".."', "timing.min_samples", "axes.shape[0].rows")),
    ("op", "[", "matrix-set-not-yaml", "--set op=[: ", ()),
    ("op", "", "matrix-set-empty", "--set op=: ", ("KEY=VALUE",)),
    (
        "m:axes.foo",
        "1",
        "matrix-unknown-axis",
        "--set axes.foo=1: axes.foo ",
        ("shape, dtype, operation, variant, family, seed, layout, mode, eps, offset, casting, weight, groups, note",),
    ),
]


@pytest.mark.parametrize(("key", "value", "id", "place", "facts"), SETS)
def test_a_wrong_set(tmp_path: Path, key: str, value: str, id: str, place: str, facts: tuple[str, ...]) -> None:
    check(refusal(tmp_path, BASE, overrides=[(key, value)]), id, place, *facts)


def test_a_set_for_a_matrix_that_is_not_there(tmp_path: Path) -> None:
    load_text(tmp_path, BASE)
    with pytest.raises(UsageError) as caught:
        load_files([tmp_path / "m.yaml"], overrides=[("mm:axes.seed", "1")], **WORLD)
    check(sentence(caught.value), "matrix-set-name", "--set mm:axes.seed=1: ", '"mm"', '"m"')


SELECTS = [
    ("hiden=64", "matrix-select-key", ('"hiden"', '"hidden"')),
    ("hidden", "matrix-select-pair", ('"hidden"', "KEY=VALUE")),
    ("dtype=bf61", "matrix-rule-dtype", ("dtype ", '"bf61"', '"bfloat16"')),
    ("provider=trch", "matrix-rule-value", ("provider ", '"trch"', '"torch"')),
    ("hidden=x", "matrix-rule-not-a-number", ("hidden ", '"x"')),
    ("seed=1,seed=2", "matrix-select-twice", ("seed=a|b",)),
    ("id=a*,id=b*", "matrix-select-twice", ("id=a|b",)),
    ("status=failed", "matrix-select-key", ("--failed",)),
    ("hidden>", "matrix-select-pair", ('"hidden>"',)),
    (">=5", "matrix-select-pair", ('">=5"',)),
    ("hidden>=x", "matrix-rule-not-a-number", ('"x"',)),
    ("provider>=torch", "matrix-rule-comparison", (">=",)),
    ("provider!=trch", "matrix-rule-value", ('"torch"',)),
    ("hidden=64,", "matrix-select-pair", ('""',)),
    ("weight=1", "matrix-rule-text-not-boolean", ("weight ", '"1"')),
]


@pytest.mark.parametrize(("text", "id", "facts"), SELECTS)
def test_a_wrong_select(tmp_path: Path, text: str, id: str, facts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        select([], text, load_text(tmp_path, BASE))
    check(sentence(caught.value), id, f"--select {text}: ", *facts)


def test_a_select_that_selects_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        plan(load_text(tmp_path, BASE), ["cpu"], select="hidden=>64")
    check(sentence(caught.value), "plan-select-nothing", "--select hidden=>64 ")


EXTRAS = [
    ("torch", "matrix-provider-builtin", ('"torch"',)),
    ("nrom:mine", "matrix-provider-op", ('"nrom"', '"norm"')),
    ("my/own", "matrix-provider-name", ()),
]


@pytest.mark.parametrize(("key", "id", "facts"), EXTRAS)
def test_a_wrong_provider_of_ones_own(tmp_path: Path, key: str, id: str, facts: tuple[str, ...]) -> None:
    check(refusal(tmp_path, BASE, extra_providers={key: "a:b"}), id, f"--provider {key}: ", *facts)


def test_a_reserved_name_in_a_contract_is_refused(tmp_path: Path) -> None:
    """A contract whose parameter is named like a part of the rule language would make ids ambiguous."""
    from matrix_fakes import Norm

    from farm.contracts.base import Parameter

    class Bad(Norm):
        parameters = (Parameter("cache", str, "x"),)

    found = refusal(tmp_path, BASE, contracts=lambda op: Bad())
    check(found, "matrix-contract-reserved-name", "m.yaml:2: op ", '"cache"')

    class Twice(Norm):
        parameters = (Parameter("hidden", str, "x"),)

    found = refusal(tmp_path, BASE, contracts=lambda op: Twice())
    check(found, "matrix-contract-name-twice", "m.yaml:2: op ", '"hidden"')


@pytest.mark.parametrize("error", [SyntaxError("'(' was never closed"), KeyError("x"), AttributeError("no CONTRACT")])
def test_a_contract_that_cannot_be_imported_is_refused(tmp_path: Path, error: Exception) -> None:
    """Whoever writes an op meets this first; also a KeyError is its own, and no unknown op."""

    def broken(op: str) -> Any:
        raise error

    found = refusal(tmp_path, BASE, contracts=broken)
    check(found, "matrix-contract-import", "m.yaml:2: op ", f"({type(error).__name__}: {error})")


def test_load_all_needs_no_contract_it_does_not_read(tmp_path: Path) -> None:
    """The file's own error comes before that of the farm's inventory."""
    path = tmp_path / "m.yaml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(MatrixError) as caught:
        load_all(path, contracts=lambda op: pytest.fail(op), registry={}, ops=())
    assert caught.value.id == "matrix-empty-file"
