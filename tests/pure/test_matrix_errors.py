"""Bad input: one sentence with file, line, path, what is wrong, and the nearest valid name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bad_matrices import Table, all_of, shape
from matrix_fakes import BASE, WORLD, check, load_text, refusal, sentence, with_axis

from farm.errors import MatrixError
from farm.matrix import load, plan, yaml_reader


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
    "a farm.yaml": ("farm: 1\nsubject: s\n", "matrix-unknown-key", "m.yaml:1: farm ", "--subject"),
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


@pytest.mark.parametrize(("text", "id", "place", "facts"), all_of(FILES, KEYS, AXES))
def test_what_is_wrong_is_refused_in_one_sentence(
    tmp_path: Path, text: str | bytes, id: str, place: str, facts: tuple[str, ...]
) -> None:
    check(refusal(tmp_path, text), id, place, *facts)


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
    monkeypatch.setattr(yaml_reader, "MAX_NODES", 1000)
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
