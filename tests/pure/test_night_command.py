"""`farm night`: what it prints, its exit codes, and one notification for each group."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import night_store

from farm.cli import main, night
from farm.compare.touched import touched
from farm.report.confirming import arms_of, chosen, verdicts
from farm.store import confirmations

HOOK = """import json, sys
data = json.load(sys.stdin)
open(sys.argv[1], "a").write(json.dumps([data["notice"], data["text"], data["group"].get("repeat", "")]) + "\\n")
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three nights; in the newest a cell newly fails, and a backend is silent."""
    for number in (8, 9, 10):
        backends = ("cuda", "rocm") if number < 10 else ("cuda",)
        rows = [r for r in night_store.night(number, backends) if r["shape"] == "4096x1024"]
        night_store.write_run(tmp_path, number, rows)
    return tmp_path


def ask(store: Path, *words: str) -> int:
    return main(["night", "--out", str(store), *words])


def test_each_group_is_notified_once(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook, told = store / "hook; touch oops.py", store / "told $(touch oops)"
    hook.write_text(HOOK)
    command = f"{sys.executable} '{hook}' '{told}'"
    assert ask(store, "--notify", command) == 1
    out = capsys.readouterr().out
    assert "new failure: rms_norm farm/row_packed" in out and "rocm did not report" in out
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [kind for kind, *_ in lines] == ["new", "silent"]
    assert lines[0][2].startswith("farm run matrices/rms_norm.yaml --backend cuda --select")
    assert not list(Path().glob("oops*")) and not list(store.glob("oops*")), "no shell reads it"
    assert ask(store, "--notify", command) == 1 and len(told.read_text().splitlines()) == 2, "each only once"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("'{python}' -c 'import time; time.sleep(60)'", 3, "took more than 0.3 s and was killed"),
        ("'{python}' -c 'raise SystemExit(\"no such channel\")'", 3, "ended with 1 (no such channel)"),
        ("./no-such-command", 3, "cannot be started"),
        ("'unbalanced", 2, "quote its words"),
        (" ", 2, "--notify is empty"),
    ],
)
def test_a_command_that_fails_is_said_and_asked_again(
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(night, "NOTIFY_SECONDS", 0.3)
    for _ in range(2 if code == 3 else 1):
        assert ask(store, "--notify", command.format(python=sys.executable)) == code
        assert words in capsys.readouterr().err


def test_json_and_a_store_without_nights(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(store, "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["silent"] == {"rocm": night_store.run_id(9)} and data["news"][0]["kind"] == "new"
    (tmp_path / "none" / "runs").mkdir(parents=True)
    assert ask(tmp_path / "none") == 0
    assert ask(tmp_path / "nowhere") in (1, 2, 3) and "no store exists" in capsys.readouterr().err


# what a commit range did to an op

KERNEL = "import triton\nfrom .shared import scale\n\n\n@triton.jit\ndef _norm(x):\n    return scale(x)\n"
SHARED = "import triton\n\n\n@triton.jit\ndef scale(x):\n    return x * 2\n"
TREE = {
    "ops/norm.py": KERNEL,
    "ops/shared.py": SHARED,
    "ops/other.py": "A = 1\n",
    "launch/norm/tiles.py": "BLOCK = 128\n",
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, ()),
        ({"ops/other.py": "A = 2\n"}, ()),
        ({"ops/norm.py": "# a comment\n" + KERNEL}, ()),
        ({"ops/norm.py": KERNEL.replace("(x)\n", "(x + 1)\n")}, ("_norm", "ops/norm.py")),
        ({"ops/shared.py": SHARED.replace("2", "3")}, ("_norm",)),
        ({"launch/norm/tiles.py": "BLOCK = 256\n"}, ("launch/norm/tiles.py",)),
    ],
)
def test_only_what_the_op_is_made_of_counts(changed: dict[str, str], found: tuple[str, ...]) -> None:
    assert touched(TREE, TREE | changed, "norm") == found
    assert touched(TREE, TREE | changed, "absent") is None


# which step is measured again, and what the rounds say of it


def step(**more: Any) -> Any:
    made = {
        "before": night_of("a" * 40),
        "since": night_of("b" * 40),
        "sure": True,
        "confirmed": "",
        "rows": (),
        "cause": "",
    }
    return type("News", (), made | more)


def night_of(revision: str) -> Any:
    return type("Night", (), {"revision": revision, "created": "2026-10-01"})


@pytest.mark.parametrize(
    ("a", "b", "arms"),
    [
        ("a" * 40, "b" * 40, (f"revision={'a' * 40}", f"revision={'b' * 40}")),
        ("liger-kernel 0.8.4", "liger-kernel 0.8.5", ("version=liger-kernel==0.8.4", "version=liger-kernel==0.8.5")),
        ("a" * 40, "a" * 40, "no commit lies between"),
        ("a" * 40 + "+", "b" * 40, "name both arms"),
    ],
)
def test_the_arms_are_the_last_good_and_the_first_bad_revision(a: str, b: str, arms: Any) -> None:
    found = arms_of(step(before=night_of(a), since=night_of(b)))
    assert found == arms if isinstance(arms, tuple) else arms in found


def test_a_regression_is_confirmed_before_a_suspicion_and_none_twice() -> None:
    before = night_of("a")
    suspected, sure = step(before=before, since=before, sure=False), step(before=before, since=before)
    done = step(before=before, since=before, confirmed="confirmed")
    assert chosen([suspected, done, sure], None) is sure and chosen([done], None) is None
    named = step(before=before, since=before, rows=({"cell_id": "c"},))
    assert chosen([sure, named], "c") is named and chosen([sure], "c") is None


@pytest.mark.parametrize(
    ("words", "slower", "verdict"),
    [
        (["regressed", "same", "same"], True, "confirmed"),
        (["regressed", "same", "same"], False, "not confirmed"),
        (["improved", "inconclusive"], False, "confirmed"),
        (["same", "same", "inconclusive"], True, "not confirmed"),
        (["same", "inconclusive", "unfit"], True, "undecided"),
        (["", "", ""], True, "undecided"),
    ],
)
def test_what_rounds_say_of_a_step(tmp_path: Path, words: list[str], slower: bool, verdict: str) -> None:
    rows = [{"cell_id": f"c{i}", "cell_key": f"k{i}", "named": ""} for i in range(len(words))]
    pairs = [
        {"cell": f"c{i}", "verdict": word, "ratio": 1.05, "low": 1.04, "high": 1.06} for i, word in enumerate(words)
    ]
    found = verdicts(rows, pairs, slower=slower)
    assert found["verdict"] == verdict
    of = {
        "id": "x",
        "created": "2026",
        "run": "x",
        "before": "a",
        "since": "b",
        "kind": "slower",
        "arms": [],
        "range": [],
    }
    confirmations.keep(tmp_path, {**of, **found})
    (tmp_path / "confirmations" / "y.json").write_text('{"schema": 1, "verdict": "surely"}')
    (tmp_path / "confirmations" / "z.json").write_text("{")
    kept, bad = confirmations.read(tmp_path)
    assert [r["verdict"] for r in kept] == [verdict] and len(bad) == 2
