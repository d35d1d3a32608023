"""`farm run --watch`: which save concerns which cells, when a save is over, and what a waiting child proves."""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from farm.child import preloaded
from farm.cli import main, watch
from farm.shipping import providers as shipping

MATRIX = "name: m\nop: rms_norm\naxes: {shape: [{rows: 4, hidden: 64}], dtype: float32}\nproviders: [torch]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(MATRIX)
    (tmp_path / "mine.py").write_text("import beside\ndef f(x, weight, eps):\n    return beside.g(x)\n")
    (tmp_path / "beside.py").write_text("def g(x):\n    return x\n")
    (tmp_path / "other.py").write_text("def f(x, weight, eps):\n    return x\n")
    return tmp_path


def options(*words: str) -> argparse.Namespace:
    from farm.cli.main import parser

    args = parser("run").parse_args(["run", "m.yaml", *words])
    args.argv = ["run", "m.yaml", *words]
    return args


def test_a_file_concerns_the_cells_that_read_it(here: Path) -> None:
    args = options("--provider", "a=mine:f", "--provider", "rms_norm:b=other:f")
    known = watch.concerns(args, {})
    assert {path.name: concern for path, concern in known.items()} == {
        "m.yaml": {None},
        "mine.py": {("provider", "a")},
        "beside.py": {("provider", "a")},
        "other.py": {("provider", "b")},
    }
    assert watch.selection(known, {here / "beside.py"}) == "provider=a"
    assert watch.selection(known, {here / "beside.py", here / "other.py"}) == "provider=a|b"
    assert watch.selection(known, {here / "mine.py", here / "m.yaml"}) == ""
    assert watch.selection(known, {here / "unknown.py"}) == ""
    (here / "mine.py").write_text("def f(:\n")
    later = watch.concerns(args, known)
    assert later == known  # until it is correct again
    assert watch.concerns(args, {})[here / "mine.py"] == {("provider", "a")}


def test_a_contract_concerns_its_op(here: Path) -> None:
    from farm.contracts import discovery
    from tests.pure import outside_contracts

    outside_contracts.write(here / "ops", "one")
    outside_contracts.write(here / "ops", "two")
    (here / "ops" / "both.py").write_text("X = 1\n")
    try:
        known = watch.concerns(options("--contracts", "ops"), {})
    finally:
        discovery.forget()
    assert watch.selection(known, {here / "ops" / "one" / "contract.py"}) == "op=one"
    assert watch.selection(known, {here / "ops" / "both.py"}) == ""


@pytest.mark.parametrize(
    ("select", "clause", "both"),
    [
        ("", "provider=a", "provider=a"),
        ("rows=4", "provider=a|b", "rows=4,provider=a|b"),
        ("provider=a|torch,rows=4", "provider=a", "rows=4,provider=a"),
        (" provider = a | b ", "provider=b|c", "provider=b"),
        ("provider=torch", "provider=a", "provider=torch"),
        ("provider!=a", "provider=a", "provider!=a"),
    ],
)
def test_one_condition_of_both(select: str, clause: str, both: str) -> None:
    assert watch.joined(select, clause) == both


def test_a_run_of_what_was_touched_names_no_watch(here: Path) -> None:
    args = options("--watch", "--select", "rows=4", "--provider", "a=mine:f")
    made = watch.narrowed(args, "provider=a")
    assert made.argv == ["run", "m.yaml", "--select", "rows=4,provider=a", "--provider", "a=mine:f"]
    assert made.no_page and not args.no_page and args.select == "rows=4"
    assert watch.narrowed(args, "").argv == ["run", "m.yaml", "--select", "rows=4", "--provider", "a=mine:f"]


def test_only_another_content_is_a_save_and_one_that_is_over(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, gone = here / "mine.py", here / "other.py"
    seen = watch.Seen.of({file: None, gone: None, here / "not there": None})
    steps: list[Any] = [
        lambda: file.write_text(file.read_text()),  # touched
        lambda: None,
        lambda: file.write_text("one"),
        lambda: file.write_text("another"),  # still being written
        gone.unlink,
    ]
    assert seen.changed() == set()
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: steps.pop(0)() if steps else None)
    assert watch.wait(seen, lambda: False) == {file, gone} and not steps
    assert watch.wait(seen, lambda: True) is None


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (("--address", "local"), "watch-address"),
        (("--plan", "p"), "watch-with"),
        (("--failed", "r"), "watch-with"),
        (("--run-id", "r"), "watch-with"),
        (("--json",), "watch-with"),
        (("--select", "rows=5"), "plan-select-nothing"),
        (("--provider", "mine=nothing:f"), "shipping-provider-module"),
    ],
)
def test_what_cannot_be_watched(
    words: tuple[str, ...], id: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*given: object) -> None:
        raise KeyboardInterrupt  # the module may be saved yet

    monkeypatch.setattr(watch, "wait", ended)
    code = main(["run", "m.yaml", "--watch", "--backend", "cpu", *words])
    said = capsys.readouterr().err
    assert f"[{id}]" in said and code == (3 if id == "shipping-provider-module" else 2)


def test_a_waiting_child_proves_what_it_would_call(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "sent"
    folder.mkdir()
    (folder / "sent_mine.py").write_text("X = 1\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "sent_mine.pyc").write_text("of another child")
    order = {"modules": ["sent_mine"], "folder": str(folder), "digest": shipping.digest({"sent_mine.py": b"X = 1\n"})}
    preloaded.prove(order)
    preloaded.prove({**order, "digest": ""})
    (folder / "sent_mine.py").write_text("X = 2\n")
    with pytest.raises(preloaded.Stale, match="digest"):
        preloaded.prove(order)
    (folder / "sent_mine.py").write_text("X = 1\n")
    monkeypatch.setitem(sys.modules, "sent_mine.part", types.ModuleType("sent_mine.part"))
    with pytest.raises(preloaded.Stale, match="sent_mine was imported before"):
        preloaded.prove(order)


def test_a_few_interpreted_cells_need_one_child() -> None:
    from farm.cli import run_command

    def planned(count: int) -> Any:
        return types.SimpleNamespace(cells=[None] * count)

    few, many = planned(run_command.FEW_CELLS), planned(run_command.FEW_CELLS + 1)
    assert run_command._enough(["cpu"], few) == 1
    assert [run_command._enough(*of) for of in ((["cpu"], many), (["sim"], few), (["cpu", "sim"], few))] == [None] * 3
    assert run_command._enough(["cpu"], ["a calibration's backends"]) is None
