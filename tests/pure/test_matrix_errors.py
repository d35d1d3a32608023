"""Bad input: one sentence with file, line, path, what is wrong, and the near miss."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from matrix_fakes import BASE, WORLD, load_text, refusal, with_axis

from farm.errors import MatrixError, UsageError
from farm.matrix import document as document_module
from farm.matrix import load, load_all, load_files, plan, select

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


FILES = {
    "empty": ("", "m.yaml: is empty; a matrix has name, op, axes and providers"),
    "comment only": ("# nothing\n", "m.yaml: is empty; a matrix has name, op, axes and providers"),
    "list": ("- a\n", "m.yaml:1: the matrix is a list, not a mapping; it begins with name, op, axes and providers"),
    "word": ("hello", 'm.yaml:1: the matrix is "hello", not a mapping; it begins with name, op, axes and providers'),
    "empty second": (BASE + "---\n", "m.yaml:8: the matrix is null, not a mapping; it begins with name, op, axes and "
                     "providers"),
    "tab": ("name: m\n\top: norm\n", "m.yaml:2: is not YAML: a tab is used as indentation; use spaces"),
    "unclosed": ("name: [1, 2\n", "m.yaml:2: is not YAML: expected ',' or ']', but got '<stream end>'"),
    "alias of nothing": ("name: *b\n", "m.yaml:1: is not YAML: found undefined alias 'b'"),
    "control character": ("name: m\nop: \x00", "m.yaml:2: holds a control character; remove it"),
    "not UTF-8": (b"name: m\nop: \xff", "m.yaml:2: is not UTF-8 text; save the file as UTF-8"),
    "UTF-16": ("name: m".encode("utf-16"), "m.yaml:1: is not UTF-8 text; save the file as UTF-8"),
    "bomb": (bomb(), "m.yaml: has more than 100,000 values once its aliases are expanded; make it smaller"),
    "alias of itself": ("a: &a [*a]\n", "m.yaml: is nested deeper than 32 levels; make it flatter"),
    "deep": ("a: " + "[" * 100_000, "m.yaml: is nested deeper than 32 levels; make it flatter"),
    "code": (BASE + "sim: !!python/object/apply:os.system [ls]\n",
             'm.yaml:7: sim has the tag "tag:yaml.org,2002:python/object/apply:os.system"; remove it'),
    "own tag": (BASE.replace("op: norm", "op: !x norm"), 'm.yaml:2: op has the tag "!x"; remove it'),
    "merge key": (BASE + "sim: {<<: {a: 1}}\n", "m.yaml:7: sim.<< is a merge key, which a matrix does not have; "
                  "write the keys out"),
    "duplicate key": (BASE + "op: norm\n", "m.yaml:7: op is given twice (first in line 2); keep one"),
    "duplicate inside": (with_axis("dtype: fp32\n  dtype: fp16"), "m.yaml:5: axes.dtype is given twice (first in line "
                         "4); keep one"),
    "number as key": (BASE + "1: 2\n", 'm.yaml:7: the matrix has the key "1"; a key must be a word'),
    "list as key": (BASE + "? [a]\n: 2\n", "m.yaml:7: the matrix has the key a list; a key must be a word"),
    "huge number": (shape("{rows: " + "9" * 5000 + ", hidden: 1}"),
                    'm.yaml:5: axes.shape[0].rows is "' + "9" * 55 + '..."; it must be a finite number of reasonable '
                    "length"),
    "infinite": (with_axis("eps: 1e999"), 'm.yaml:4: axes.eps is "1e999"; it must be a finite number of reasonable '
                 "length"),
}  # fmt: skip

KEYS = {
    "key": (BASE + "exclud: []\n", 'm.yaml:7: exclud is no key of a matrix; did you mean "exclude"?'),
    "no name": (BASE.replace("name: m\n", ""), "m.yaml:1: the matrix has no name; add name: my-matrix"),
    "no op": (BASE.replace("op: norm\n", ""), "m.yaml:1: the matrix has no op; add op: rms_norm"),
    "bad name": (BASE.replace("name: m", "name: a b"), "m.yaml:1: name is \"a b\"; a name has letters, digits, '.', "
                 "'_' and '-'"),
    "op": (BASE.replace("op: norm", "op: nrom"), 'm.yaml:2: op is "nrom"; did you mean "norm"?'),
    "op unlike any": (BASE.replace("op: norm", "op: fft"), 'm.yaml:2: op is "fft"; the ops are norm, product'),
    "op a number": (BASE.replace("op: norm", "op: 5"), "m.yaml:2: op is 5; it must be text"),
    "op empty": (BASE.replace("op: norm", "op:"), "m.yaml:2: op is null; it must be text"),
    "same name twice": (BASE + "---\n" + BASE, 'm.yaml:8: name is "m", as another matrix in this file; rename one'),
    "backend": (BASE + "backends: {cdua: {dtype: fp16}}\n", 'm.yaml:7: backends.cdua is no backend; did you mean '
                '"cuda"?'),
    "axis of a backend": (BASE + "backends: {cuda: {dytpe: fp16}}\n",
                          'm.yaml:7: backends.cuda.dytpe is no axis of norm; did you mean "dtype"?'),
    "timing of cpu": (BASE + "backends: {cpu: {timing: {cache: warm}}}\n",
                      "m.yaml:7: backends.cpu.timing is of no use: cpu is never timed; remove it"),
    "required backend": (BASE + "require: [cudda]\n", 'm.yaml:7: require[0] is "cudda"; did you mean "cuda"?'),
    "required twice": (BASE + "require: [cuda, cuda]\n", 'm.yaml:7: require[1] gives "cuda" a second time (first in '
                       "line 7); list each cell once"),
    "phase": (BASE + "deadlines: {spwan: 3}\n", 'm.yaml:7: deadlines.spwan is no phase; did you mean "spawn"?'),
    "deadline": (BASE + "deadlines: {spawn: -3}\n", "m.yaml:7: deadlines.spawn is -3; it must be a number above 0"),
    "empty section": (BASE + "exclude:\n", "m.yaml:7: exclude is empty; fill it or leave it out"),
    "empty sim": (BASE + "sim: {}\n", "m.yaml:7: sim is empty; fill it or leave it out"),
}  # fmt: skip

AXES = {
    "axis": (with_axis("ofset: 1"), 'm.yaml:4: axes.ofset is no axis of norm; did you mean "offset"?'),
    "no shape": (BASE.replace("  shape:\n    - {rows: 8, hidden: 64}\n", "  dtype: fp32\n"),
                 "m.yaml:1: the matrix has no axes.shape; give the dimensions of norm: rows, hidden"),
    "empty axis": (with_axis("dtype: []"), "m.yaml:4: axes.dtype is empty; fill it or leave it out"),
    "null axis": (with_axis("dtype:"), "m.yaml:4: axes.dtype is empty; fill it or leave it out"),
    "dtype": (with_axis("dtype: [float32, bf61]"), 'm.yaml:4: axes.dtype[1] is "bf61"; did you mean "bfloat16"?'),
    "dtype, long": (with_axis("dtype: flaot32"), 'm.yaml:4: axes.dtype is "flaot32"; did you mean "float32"?'),
    "dtype of another op": (with_axis("dtype: int8"), 'm.yaml:4: axes.dtype is "int8"; norm takes float32, float16, '
                            "bfloat16"),
    "dtype a number": (with_axis("dtype: [16]"), "m.yaml:4: axes.dtype[0] is 16; it must be a dtype like bfloat16"),
    "dtype's tensor": (with_axis("dtype: [{x: bf16, wieght: fp32}]"),
                       'm.yaml:4: axes.dtype[0].wieght is no tensor of norm with a dtype of its own; did you mean '
                       '"weight"?'),
    "dtype without the first": (with_axis("dtype: [{weight: fp32}]"),
                                "m.yaml:4: axes.dtype[0] lacks x, whose dtype the others take; give it"),
    "dtype twice": (with_axis("dtype: [bf16, bfloat16]"),
                    "m.yaml:4: axes.dtype[1] gives x bfloat16, weight bfloat16 a second time (first in line 4); list "
                    "each cell once"),
    "rows below": (shape("{rows: -1, hidden: 64}"), "m.yaml:5: axes.shape[0].rows is -1; it goes from 0 to "
                   "1099511627776"),
    "rows above": (shape("{rows: 1099511627777, hidden: 64}"),
                   "m.yaml:5: axes.shape[0].rows is 1099511627777; it goes from 0 to 1099511627776"),
    "hidden below": (shape("{rows: 8, hidden: 0}"), "m.yaml:5: axes.shape[0].hidden is 0; it goes from 1 to "
                     "1073741824"),
    "hidden above": (shape("{rows: 8, hidden: [64, 1073741825]}"),
                     "m.yaml:5: axes.shape[0].hidden[1] is 1073741825; it goes from 1 to 1073741824"),
    "rows true": (shape("{rows: true, hidden: 64}"), "m.yaml:5: axes.shape[0].rows is true; it must be a whole number"),
    "rows 8.0": (shape("{rows: 8.0, hidden: 64}"), "m.yaml:5: axes.shape[0].rows is 8.0; it must be a whole number"),
    "rows text": (shape("{rows: x, hidden: 64}"), 'm.yaml:5: axes.shape[0].rows is "x"; it must be a whole number'),
    "rows empty": (shape("{rows: [], hidden: 64}"), "m.yaml:5: axes.shape[0].rows is empty; fill it or leave it out"),
    "dimension missing": (shape("{hidden: 64}"), "m.yaml:5: axes.shape[0] lacks rows; give each dimension of norm: "
                          "rows, hidden"),
    "dimension": (shape("{row: 8, hidden: 64}"), 'm.yaml:5: axes.shape[0].row is no dimension of norm; did you mean '
                  '"rows"?'),
    "shape a word": (BASE.replace("\n    - {rows: 8, hidden: 64}", " 8x64"), 'm.yaml:4: axes.shape is "8x64"; it must '
                     "be a list"),
    "shape twice": (shape("{rows: [8, 9], hidden: 64}\n    - {rows: 9, hidden: [32, 64], tag: other}"),
                    "m.yaml:6: axes.shape[1] gives 9x64 a second time (first in line 5); list each cell once"),
    "too many shapes": (shape(f"{{rows: {list(range(2000))}, hidden: {list(range(1, 2000))}}}"),
                        "m.yaml:5: axes.shape[0] brings the shapes to more than 1,000,000; shorten its lists"),
    "operation": (with_axis("operation: [forwrad]"), 'm.yaml:4: axes.operation[0] is "forwrad"; did you mean '
                  '"forward"?'),
    "operation of another op": (with_axis("operation: full"), 'm.yaml:4: axes.operation is "full"; norm has forward, '
                                "backward"),
    "family": (with_axis("family: outlir"), 'm.yaml:4: axes.family is "outlir"; did you mean "outlier"?'),
    "seed": (with_axis("seed: -1"), "m.yaml:4: axes.seed is -1; it goes from 0 to 9223372036854775807"),
    "seed twice": (with_axis("seed: [1, 1]"), "m.yaml:4: axes.seed[1] gives 1 a second time (first in line 4); list "
                   "each cell once"),
    "parameter text": (with_axis("eps: [tiny]"), 'm.yaml:4: axes.eps[0] is "tiny"; it must be a number'),
    "parameter true": (with_axis("eps: true"), "m.yaml:4: axes.eps is true; it must be a number"),
    "bool a number": (with_axis("weight: 1"), "m.yaml:4: axes.weight is 1; it must be true or false"),
    "bool a word": (with_axis("weight: yes"), 'm.yaml:4: axes.weight is "yes"; it must be true or false'),
    "int a float": (with_axis("groups: 1.0"), "m.yaml:4: axes.groups is 1.0; it must be a whole number"),
    "parameter below": (with_axis("eps: -1"), "m.yaml:4: axes.eps is -1; it goes from 0.0 to inf"),
    "parameter above": (with_axis("groups: 9"), "m.yaml:4: axes.groups is 9; it goes from 1 to 8"),
    "parameter not allowed": (with_axis("casting: gemmma"), 'm.yaml:4: axes.casting is "gemmma"; did you mean '
                              '"gemma"?'),
    "variant's parameter": (with_axis("variant: [{ofset: 1}]"),
                            'm.yaml:4: axes.variant[0].ofset is no parameter of norm; did you mean "offset"?'),
    "parameter in two places": (with_axis("offset: 1\n  variant: [{offset: 0}]"),
                                "m.yaml:4: axes.offset is also given in axes.variant[0].offset; give offset in one of "
                                "the two"),
    "variant a mapping": (with_axis("variant: {offset: 0}"), "m.yaml:4: axes.variant is a mapping; it must be a list"),
}  # fmt: skip

PROVIDERS = {
    "provider": (BASE.replace("[torch]", "[torhc]"), 'm.yaml:6: providers[0] is "torhc"; did you mean "torch"?'),
    "provider's key": (BASE.replace("[torch]", "{torhc: {}}"), 'm.yaml:6: providers.torhc is no provider; did you mean '
                       '"torch"?'),
    "provider twice": (BASE.replace("[torch]", "[torch, torch]"),
                       'm.yaml:6: providers[1] gives "torch" a second time (first in line 6); list each cell once'),
    "no providers": (BASE.replace("providers: [torch]\n", ""),
                     "m.yaml:1: the matrix has no providers; say who implements the op, like providers: [farm, torch]"),
    "mode": (BASE.replace("[torch]", "{farm: {mode: [multi_wave_cache]}}"),
             'm.yaml:6: providers.farm.mode[0] is "multi_wave_cache"; did you mean "multi_wave_cached"?'),
    "mode of a provider without": (BASE.replace("[torch]", "{torch: {mode: [static_persistent]}}"),
                                   'm.yaml:6: providers.torch.mode[0] is "static_persistent"; the modes of torch are '
                                   "auto"),
    "mode twice": (BASE.replace("[torch]", "{farm: {mode: [auto, auto]}}"),
                   'm.yaml:6: providers.farm.mode[1] gives "auto" a second time (first in line 6); list each cell '
                   "once"),
    "mode axis": (with_axis("mode: [autoo]"), 'm.yaml:4: axes.mode[0] is "autoo"; did you mean "auto"?'),
    "axis of a provider": (BASE.replace("[torch]", "{farm: {modes: [auto]}}"),
                           'm.yaml:6: providers.farm.modes is no key of a provider; did you mean "mode"?'),
    "not its op": ("name: m\nop: product\naxes: {shape: [{m: 1, k: 1}]}\nproviders: [farm]\n",
                   "m.yaml:4: providers[0] names farm, which has no product; torch can do it"),
}  # fmt: skip

RULES = {
    "no reason": (rule("provider: torch"), 'm.yaml:8: exclude[0] has no reason; add reason: "why these cells are not '
                  'run"'),
    "empty reason": (rule('provider: torch, reason: ""'), 'm.yaml:8: exclude[0].reason is ""; it must be text'),
    "reason alone": (rule("reason: x"), "m.yaml:8: exclude[0] excludes everything; say which cells, like provider: "
                     "torch"),
    "matches nothing": (rule('hidden: ">64", reason: x'), "m.yaml:8: exclude[0] matches no cell (hidden>64); correct "
                        "it or remove it"),
    "matches nothing together": (
        rule("provider: torch, mode: static_persistent, reason: x").replace("[torch]", "[farm, torch]"),
        "m.yaml:8: exclude[0] matches no cell (provider=torch, mode=static_persistent); correct it or remove it"),
    "rule's key": (rule("hiden: 3, reason: x"), 'm.yaml:8: exclude[0].hiden is no key of a rule; did you mean '
                   '"hidden"?'),
    "rule's provider": (rule("provider: fram, reason: x"), 'm.yaml:8: exclude[0].provider is "fram"; did you mean '
                        '"farm"?'),
    "rule's list": (rule("dtype: [fp32, bf61], reason: x"), 'm.yaml:8: exclude[0].dtype[1] is "bf61"; did you mean '
                    '"bfloat16"?'),
    "comparison of text": (rule('dtype: ">3", reason: x'),
                           'm.yaml:8: exclude[0].dtype is ">3"; dtype is not a number and cannot be compared with >'),
    "comparison with text": (rule('hidden: "> x", reason: x'), 'm.yaml:8: exclude[0].hidden is "> x"; "x" is not a '
                             "whole number"),
    "rule's number as text": (rule('hidden: "64", reason: x'),
                              'm.yaml:8: exclude[0].hidden is "64"; it must be a whole number, a list of them, or a '
                              'comparison like ">8192"'),
    "rules a mapping": (BASE + "exclude: {hidden: 64, reason: x}\n", "m.yaml:7: exclude is a mapping; it must be a "
                        "list"),
}  # fmt: skip

TIMING = {
    "method": (BASE + "timing: {method: rotating_grap}\n", 'm.yaml:7: timing.method is "rotating_grap"; did you mean '
               '"rotating_graph"?'),
    "cache": (BASE + "timing: {cache: hot}\n", 'm.yaml:7: timing.cache is "hot"; the timing caches are cold, warm'),
    "field": (BASE + "timing: {min_sample: 30}\n", 'm.yaml:7: timing.min_sample is no field of a timing; did you mean '
              '"min_samples"?'),
    "samples": (BASE + "timing: {min_samples: 0}\n", "m.yaml:7: timing.min_samples is 0; it goes from 1 to 1000000"),
    "least above most": (BASE + "timing: {min_samples: 300}\n",
                         "m.yaml:7: timing asks for at least 300 and at most 200 samples; raise max_samples"),
    "twice": (BASE + "timing: [{cache: warm}, {cache: warm}]\n",
              "m.yaml:7: timing[1] gives cache=warm a second time (first in line 7); list each cell once"),
    "sim key": (BASE + "sim: {time_us: 10}\n", "m.yaml:7: sim.time_us is no key of sim; the keys are default, rules"),
    "script key": (BASE + "sim: {default: {erorr: 0.1}}\n",
                   'm.yaml:7: sim.default.erorr is no key of a script; did you mean "error"?'),
    "script value": (BASE + "sim: {default: {signal: kill}}\n",
                     'm.yaml:7: sim.default.signal is "kill"; it must be a whole number, 0 or more'),
    "script switch": (BASE + "sim: {default: {cold: 1}}\n",
                      "m.yaml:7: sim.default.cold is 1; it must be true or false"),
    "script phase": (BASE + "sim: {default: {hang: spawn}}\n",
                     'm.yaml:7: sim.default.hang is "spawn"; it must be true or a phase (import, compile, check, '
                     "timing)"),
    "script status": (BASE + "sim: {default: {status: passd}}\n",
                      'm.yaml:7: sim.default.status is "passd"; did you mean "passed"?'),
    "script telemetry": (BASE + "sim: {default: {telemetry: {power: 3}}}\n",
                         'm.yaml:7: sim.default.telemetry.power is no key of telemetry; did you mean "power_w"?'),
    "script list": (BASE + "sim: {rules: {when: {rows: 1}}}\n",
                    "m.yaml:7: sim.rules is a mapping; it must be a list"),
    "script's cells": (BASE + "sim: {rules: [{when: {hiden: 1}, exit: 3}]}\n",
                       'm.yaml:7: sim.rules[0].when.hiden is no key of a rule; did you mean "hidden"?'),
    "script's rule": (BASE + "sim: {rules: [{wen: {hidden: 1}, exit: 3}]}\n",
                      'm.yaml:7: sim.rules[0].wen is no key of a script; did you mean "when"?'),
    "twice once resolved": (BASE + "timing: [{cache: cold}, {method: host}]\n",
                            "m.yaml:7: timing gives a policy a second time on sim; list each once"),
}  # fmt: skip

TOLERANCE = "{output: y, metric: rel_l2, limit: 1e-3, reason: r, date: 2026-11-20}"
TOLERANCES = {
    "no date": (TOLERANCE.replace(", date: 2026-11-20", ""),
                "m.yaml:8: tolerances[0] has no date; a tolerance says output, metric, limit, reason and date"),
    "date": (TOLERANCE.replace("2026-11-20", "20th"), 'm.yaml:8: tolerances[0].date is "20th"; it must be a date like '
             "2026-01-31"),
    "limit": (TOLERANCE.replace("1e-3", "-1"), "m.yaml:8: tolerances[0].limit is -1; it must be a number, 0 or more"),
    "key": (TOLERANCE.replace("limit:", "limits:"), 'm.yaml:8: tolerances[0].limits is no key of a tolerance; did you '
            'mean "limit"?'),
    "matches nothing": (TOLERANCE.replace("{", "{match: {dtype: bf16}, ", 1),
                        "m.yaml:8: tolerances[0] matches no cell (dtype=bfloat16); correct it or remove it"),
}  # fmt: skip


def all_of(*tables: dict[str, tuple[str | bytes, str]]) -> list[object]:
    return [pytest.param(text, said, id=name) for table in tables for name, (text, said) in table.items()]


@pytest.mark.parametrize(("text", "said"), all_of(FILES, KEYS, AXES, PROVIDERS, RULES, TIMING))
def test_what_is_wrong_is_told_in_one_sentence(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert refusal(tmp_path, text) == said


@pytest.mark.parametrize(("text", "said"), all_of(TOLERANCES))
def test_a_wrong_tolerance(tmp_path: Path, text: str, said: str) -> None:
    assert refusal(tmp_path, f"{BASE}tolerances:\n  - {text}\n") == said


def test_the_base_of_all_these_is_right(tmp_path: Path) -> None:
    assert len(load_text(tmp_path, BASE)) == 1


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    load_text(tmp_path, BASE, "smoke.yaml")
    with pytest.raises(MatrixError) as caught:
        load(tmp_path / "smok.yaml")
    assert str(caught.value) == (f'{tmp_path}/smok.yaml: there is no such file; did you mean "{tmp_path}/smoke.yaml"?')


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="there is no such file; check the path"):
        load(tmp_path / "no" / "x.yaml")


def test_a_folder_is_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="is a folder; name a YAML file in it"):
        load(tmp_path)


def test_a_device_is_no_matrix() -> None:
    with pytest.raises(MatrixError, match="/dev/zero: is not a regular file"):
        load("/dev/zero")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(MatrixError, match=r"big.yaml: has 100,000,000 bytes; a matrix has at most 1,000,000"):
        load(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(BASE, encoding="utf-8")
    path.chmod(0)
    with pytest.raises(MatrixError, match="cannot be read"):
        load(path)


def test_many_values_are_refused_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_module, "MAX_NODES", 1000)
    said = refusal(tmp_path, BASE + "sim: {a: [" + "1, " * 1000 + "]}\n")
    assert said == "m.yaml: has more than 1,000 values once its aliases are expanded; make it smaller"


def test_too_many_cells_are_counted_not_made(tmp_path: Path) -> None:
    text = shape(f"{{rows: {list(range(1000))}, hidden: 64}}").replace("axes:\n", f"axes:\n  seed: {[*range(1001)]}\n")
    said = refusal(tmp_path, text)
    assert said == (
        "m.yaml:1: the matrix expands to 1,001,000 cells on one backend (ascend), more than 1,000,000; split it"
    )


def test_too_many_parameters(tmp_path: Path) -> None:
    values = [i / 1000 for i in range(1001)]
    said = refusal(tmp_path, with_axis(f"eps: {values}\n  offset: {values}"))
    assert said == "m.yaml:4: axes.eps and the other parameters multiply to more than 1,000,000; shorten them"


def test_two_matrices_where_one_is_needed(tmp_path: Path) -> None:
    load_text(tmp_path, BASE + "---\n" + BASE.replace("name: m", "name: n"))
    with pytest.raises(MatrixError, match="holds 2 matrices where one is needed"):
        load(tmp_path / "m.yaml", **WORLD)


def test_two_files_with_one_name(tmp_path: Path) -> None:
    first = load_text(tmp_path, BASE, "a.yaml")
    second = load_text(tmp_path, BASE.replace("rows: 8", "rows: 9"), "b.yaml")
    with pytest.raises(MatrixError) as caught:
        plan(first + second, ["cpu"])
    assert str(caught.value) == f'{tmp_path}/b.yaml: name is "m", as in {tmp_path}/a.yaml; rename one'


def test_a_backend_that_the_matrix_has_no_axes_for(tmp_path: Path) -> None:
    text = "name: m\nop: norm\nproviders: [torch]\nbackends: {cuda: {shape: [{rows: 1, hidden: 1}]}}\n"
    found = load_text(tmp_path, text)
    assert len(plan(found, ["cuda"]).cells) == 1
    with pytest.raises(MatrixError, match="m has axes for cuda only, not for cpu; add them"):
        plan(found, ["cpu"])


SETS = [
    ("axes.dtpe", "[bf16]", '--set axes.dtpe=[bf16]: axes.dtpe is no axis of norm; did you mean "dtype"?'),
    ("tming.cache", "warm", '--set tming.cache=warm: tming is no key of a matrix; did you mean "timing"?'),
    ("axes.dtype", "bf61", '--set axes.dtype=bf61: axes.dtype is "bf61"; did you mean "bfloat16"?'),
    ("axes.dtype", "[fp32, bf61]", '--set axes.dtype=[fp32, bf61]: axes.dtype[1] is "bf61"; did you mean "bfloat16"?'),
    ("axes.shape[3].rows", "1", "--set axes.shape[3].rows=1: axes.shape[3] is not there; axes.shape has 1 entries"),
    ("name.x", "1", '--set name.x=1: name is "m" and has no "x"; set name itself'),
    ("..", "1", '--set ..=1: ".." is no path; write it like timing.min_samples or axes.shape[0].rows'),
    ("op", "[", "--set op=[: the value is not YAML; quote it"),
    ("op", "", "--set op=: the value is empty; write KEY=VALUE"),
    ("m:axes.foo", "1", "--set axes.foo=1: axes.foo is no axis of norm; the axes are shape, dtype, operation, "
     "variant, family, seed, mode, eps, offset, casting, weight, groups, note"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "said"), SETS)
def test_a_wrong_set(tmp_path: Path, key: str, value: str, said: str) -> None:
    assert refusal(tmp_path, BASE, overrides=[(key, value)]) == said


def test_a_set_for_a_matrix_that_is_not_there(tmp_path: Path) -> None:
    load_text(tmp_path, BASE)
    with pytest.raises(UsageError) as caught:
        load_files([tmp_path / "m.yaml"], overrides=[("mm:axes.seed", "1")], **WORLD)
    assert str(caught.value) == '--set mm:axes.seed=1: there is no matrix "mm"; did you mean "m"?'


SELECTS = [
    ("hiden=64", '--select hiden=64: "hiden" is no key; did you mean "hidden"?'),
    ("hidden", '--select hidden: "hidden" is not key=value'),
    ("dtype=bf61", '--select dtype=bf61: dtype is "bf61"; did you mean "bfloat16"?'),
    ("provider=trch", '--select provider=trch: provider is "trch"; did you mean "torch"?'),
    ("hidden=x", '--select hidden=x: hidden is "x"; "x" is not a whole number'),
    ("seed=1,seed=2", "--select seed=1,seed=2: seed is given twice; write seed=a|b for either"),
    ("weight=1", '--select weight=1: weight is "1"; it must be true or false'),
]


@pytest.mark.parametrize(("text", "said"), SELECTS)
def test_a_wrong_select(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        select([], text, load_text(tmp_path, BASE))
    assert str(caught.value) == said


def test_a_select_that_selects_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        plan(load_text(tmp_path, BASE), ["cpu"], select="hidden=>64")
    assert str(caught.value) == "--select hidden=>64 selects none of the matrices' cells; widen it"


EXTRAS = [
    ("torch", '--provider torch: "torch" is a provider of the farm; choose another name'),
    ("nrom:mine", '--provider nrom:mine: there is no op "nrom"; did you mean "norm"?'),
    ("my/own", "--provider my/own: a provider's name has letters, digits, _ and -; choose another name"),
]


@pytest.mark.parametrize(("key", "said"), EXTRAS)
def test_a_wrong_provider_of_ones_own(tmp_path: Path, key: str, said: str) -> None:
    assert refusal(tmp_path, BASE, extra_providers={key: "a:b"}) == said


def test_an_unreadable_contract_name_is_told(tmp_path: Path) -> None:
    """A contract whose parameter is named like a part of the rule language would make ids ambiguous."""
    from matrix_fakes import Norm

    from kernels.contract import Parameter

    class Bad(Norm):
        parameters = (Parameter("cache", str, "x"),)

    said = refusal(tmp_path, BASE, contracts=lambda op: Bad())
    assert said == ('m.yaml:2: op names an op whose contract calls something "cache", a reserved word; rename it there')


@pytest.mark.parametrize("error", [SyntaxError("'(' was never closed"), KeyError("x"), AttributeError("no CONTRACT")])
def test_a_contract_that_cannot_be_imported_is_told(tmp_path: Path, error: Exception) -> None:
    """Whoever writes an op meets this first; also a KeyError is its own, and no unknown op."""

    def broken(op: str) -> Any:
        raise error

    said = refusal(tmp_path, BASE, contracts=broken)
    assert said.startswith("m.yaml:2: op names an op whose contract.py cannot be imported (")
    assert f"({type(error).__name__}: {error})" in said


def test_load_all_needs_no_contract_it_does_not_read(tmp_path: Path) -> None:
    """The file's own error comes before that of the farm's inventory."""
    path = tmp_path / "m.yaml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(MatrixError, match="is empty"):
        load_all(path, contracts=lambda op: pytest.fail(op), registry={}, ops=())
