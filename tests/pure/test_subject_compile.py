"""A subject in `farm compile`: its call, its row, and the refusal where a worker would import something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from subject_repositories import SUBJECT, write
from test_subject_told import loaded

from farm.cli.main import main
from farm.compile import worker
from farm.compile.planning import plan_for
from farm.compile.run import CompileRequest, Silent, _Compilation
from farm.compile.targets import parse
from farm.compile.workers import SAID
from farm.matrix import load_files
from farm.shipping import subjects


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))


def test_a_cell_has_the_call_of_its_backend_and_says_whose_it_is(tmp_path: Path) -> None:
    more = 'backends: {rocm: {ops: {rms_norm: {call: "my_adapters:saving", backward: "my_adapters:backward"}}}}'
    subject = loaded(write(tmp_path, farm_yaml=SUBJECT.replace("matrices:", f"    {more}\nmatrices:")))
    matrices = load_files([tmp_path / "bench/norm.yaml"], subject=subject.providers)
    targets = parse("sm_90,gfx942")
    request = CompileRequest(
        plan_for(matrices, targets, None), targets, providers=subject.calls, subject=subject.packed
    )
    made = _Compilation(request, None, Silent())
    calls = {c.backend: made._provider(c) for c in made.cells if c.provider == "liger"}
    assert calls["cuda"]["path"] == "my_adapters:rms_norm" and "backward" not in calls["cuda"]
    assert calls["rocm"]["path"] == "my_adapters:saving" and calls["rocm"]["backward"] == "my_adapters:backward"
    told = {c.provider: made._provenance(c) for c in made.cells}
    assert told["liger"]["subject_digest"] == subject.packed.digest and not told.get("torch")
    assert made._head()["subject"]["name"] == "mylib"


def test_a_worker_that_would_import_something_else_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = loaded(write(tmp_path / "repo")).packed
    place, _ = subjects.unpack(packed.plain(), str(tmp_path))
    told: dict[str, Any] = {**packed.described(), "folder": str(place)}
    assert worker._not_taken(None) == ""
    assert "does not find mylib" in worker._not_taken(told)
    monkeypatch.syspath_prepend(str(place / "overlay"))
    assert worker._not_taken(told) == ""
    assert "changed" in worker._not_taken({**told, "digest": "other"})
    SAID["refused"](json.loads('{"event": "refused", "reason": "x"}'), "refused")


def test_revisions_of_our_kernels_are_not_compared_with_a_subject(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    words = ["compile", str(tmp_path / "bench/norm.yaml"), "--target", "sm_90", "--repo", str(tmp_path)]
    assert main([*words, "--diff", "HEAD", "."]) == 2
    assert "[compile-diff-subject]" in capsys.readouterr().err
