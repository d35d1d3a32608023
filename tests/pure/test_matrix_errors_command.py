"""Bad input on the command line (--set, --select, --provider), and contracts that cannot be used: one sentence each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matrix_fakes import BASE, WORLD, check, load_text, refusal, sentence

from farm.errors import MatrixError, UsageError
from farm.matrix import load_all, load_files, plan, select

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
