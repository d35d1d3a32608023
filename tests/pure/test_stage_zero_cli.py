"""`farm ab --stage-0`: what it refuses, and that equal arms stop it; nothing here compiles or interprets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from subject_repositories import committed, write

from farm.cli import stage_zero
from farm.cli.main import parser
from farm.coordinator.request import RunOutcome
from farm.errors import FarmError, InfraError
from farm.stage_zero import run as stages


def run(*words: str) -> int:
    argv = ["ab", *words]
    args = parser("ab").parse_args(argv)
    args.argv = argv
    if not args.stage_0:
        stage_zero.refuse_options(args)
    return stage_zero.run(args)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    return committed(write(tmp_path / "repo"))


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (("--target", "sm_90"), "stage-0-option"),
        (("--no-interpreter",), "stage-0-option"),
        (("--workers", "2"), "stage-0-option"),
        (("--stage-0", "--backend", "cuda"), "stage-0-backend"),
        (("--stage-0", "--workers", "0"), "compile-workers-range"),
        (("--stage-0", "--target", "sm_9O"), "compile-target-unknown"),
        (("--stage-0", "--run-id", "../x"), "option-run-id-invalid"),
        (("--stage-0", "--devices", "0"), "option-devices-range"),
        (("--stage-0", "--write", "junit=x.xml"), "stage-0-device"),
        (("--stage-0", "--sanitize"), "stage-0-device"),
        (("--stage-0", "--strict-peers"), "stage-0-device"),
        (("--stage-0", "--wait", "0"), "stage-0-device"),
        (("--stage-0", "-x"), "stage-0-device"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(words: tuple[str, ...], id: str) -> None:
    with pytest.raises(FarmError) as caught:
        run("m.yaml", "--a", "revision=HEAD", "--b", "revision=.", *words)
    assert caught.value.id == id and caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_equal_arms_stop_it(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--stage-0", "--repo", str(repository), "--a", "revision=base", "--b", "revision=.")
    assert run(*words) == 0 and "nothing else differs: nothing was compared" in capsys.readouterr().out
    assert run(*words, "--json") == 0 and json.loads(capsys.readouterr().out)["exit_code"] == 0


def test_a_run_that_stops_by_itself_says_why(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the node's environment starts no child: nobody interrupted it."""
    place = repository / "src/mylib/ops/norm.py"
    place.write_text(place.read_text() + "\n# other\n")
    monkeypatch.setattr(stages, "execute", lambda *_: RunOutcome([], "", 3, True, "no device can be used"))
    with pytest.raises(InfraError, match="the interpreter's run stopped: no device can be used"):
        run("--stage-0", "--repo", str(repository), "--a", "revision=base", "--b", "revision=.")
    monkeypatch.setattr(stages, "execute", lambda *_: RunOutcome([], "", 3, True))
    with pytest.raises(KeyboardInterrupt):
        run("--stage-0", "--repo", str(repository), "--a", "revision=base", "--b", "revision=.")
