"""Where a subject is told: calls and orders, refusals of a run, plan files, pages, comments, commands that repeat."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import outside_contracts
import pytest
from scripted_cluster import Quiet, ScriptedCluster
from subject_repositories import SUBJECT, committed, write
from synthetic_runs import FakeRun

from farm.cli.main import main
from farm.cluster.base import DeviceHandle
from farm.contracts import discovery
from farm.coordinator import RunRequest, execute
from farm.dashboards.pages import Links, run_page
from farm.errors import UsageError
from farm.matrix import load_files, plan
from farm.report import findings
from farm.report.markdown import markdown
from farm.store import Store, results
from farm.subject import command_line
from farm.subject.command_line import LoadedSubject

TOLD = {
    "name": "mylib",
    "revision": "abc123+",
    "source": "/src/mylib",
    "digest": "d1ge57",
    "modules": ["mylib"],
    "over": "",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))


def loaded(folder: Path) -> LoadedSubject:
    found = command_line.load(argparse.Namespace(**{**dict.fromkeys(command_line.OPTIONS), "repo": str(folder)}))
    assert found
    return found


def request(folder: Path, text: str, backend: str) -> RunRequest:
    subject = loaded(write(folder, farm_yaml=text))
    matrices = load_files([folder / "bench/norm.yaml"], subject=subject.providers)
    slots = [DeviceHandle(f"{backend}:0", backend, "n", {}, "n")]
    made = plan(matrices, [backend])
    return RunRequest(made, slots, "farm run", ["run"], {"name": "r"}, subject.calls, subject=subject.packed)


def test_each_order_has_the_call_of_its_backend_and_a_deadline_of_the_matrix(tmp_path: Path) -> None:
    more = 'backends: {cuda: {ops: {rms_norm: {call: "my_adapters:saving", backward: "my_adapters:backward"}}}}'
    text = SUBJECT.replace("matrices:", f"    {more}\nmatrices:")
    for backend, expected in (
        ("cuda", ("my_adapters:saving", "my_adapters:backward")),
        ("sim", ("my_adapters:rms_norm", None)),
    ):
        cluster = ScriptedCluster()
        asked = request(tmp_path / backend, text, backend)
        execute(asked, cluster, Store(tmp_path / "store").create(backend), Quiet())
        calls = {c["provider"]["name"]: c["provider"] for c in cluster.calls}
        assert (calls["liger"]["path"], calls["liger"].get("backward")) == expected
        assert calls["liger"]["subject"] == "mylib" and "backends" not in calls["liger"]
        assert calls["torch"] == {"name": "torch"}
        config = cluster.configs[f"{backend}:0"]["subject"]
        assert asked.subject and config["digest"] == asked.subject.digest and config["blob"] == asked.subject.blob
        head = json.loads((tmp_path / "store/runs" / backend / "run.json").read_text())
        assert head["subject"]["digest"] == config["digest"] and "blob" not in head["subject"]


def test_a_subject_that_a_device_does_not_take_ends_the_run(tmp_path: Path) -> None:
    down = {"event": "device_down", "reason": "subject mylib: x", "final": True, "subject_refused": True}
    cluster = ScriptedCluster({"sim:0": down})
    with pytest.raises(UsageError, match="subject mylib: x") as caught:
        execute(request(tmp_path, SUBJECT, "sim"), cluster, Store(tmp_path / "store").create("r"), Quiet())
    assert caught.value.id == "subject-not-taken" and caught.value.exit_code == 2 and not cluster.grants


def test_a_mode_that_is_not_there_is_refused_with_the_near_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SUBJECT.replace('{call: "my_adapters:rms_norm"}', '{call: "my_adapters:with_modes", modes: [auto, fast]}')
    write(tmp_path, farm_yaml=text)
    (tmp_path / "bench/norm.yaml").write_text(
        "name: n\nop: rms_norm\nproviders: {liger: {mode: fst}}\naxes: {shape: [{rows: 1, hidden: 8}]}\n"
    )
    assert main(["plan", "--repo", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert 'norm.yaml:3: providers.liger.mode is "fst"; did you mean "fast"?' in said


def test_a_subjects_name_is_taken_by_no_other_provider(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert main(["plan", "--repo", str(tmp_path), "--provider", "liger=my_adapters:rms_norm"]) == 2
    assert "a provider of the subject" in capsys.readouterr().err


def test_ops_of_its_own_contracts_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, farm_yaml=SUBJECT + "contracts: [bench/contracts]\n")
    outside_contracts.write(tmp_path / "bench" / "contracts", "same")
    matrix = tmp_path / "own.yaml"
    matrix.write_text(
        'name: own\nop: same\nproviders: {mine: {call: "math:sqrt"}}\naxes: {shape: [{rows: 4, columns: 8}]}\n'
    )
    try:
        assert main(["plan", str(matrix), "--repo", str(tmp_path), "--backend", "cpu"]) == 0
    finally:
        discovery.forget()
    assert "1 cell" in capsys.readouterr().out


def test_a_plan_is_run_with_the_subject_that_it_was_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository, file = committed(write(tmp_path / "repo")), tmp_path / "plan.json"
    assert main(["plan", "--repo", str(repository), "--backend", "cpu", "--out", str(file)]) == 0
    planned = json.loads(file.read_text())["subject"]
    assert planned["name"] == "mylib" and planned["digest"] == loaded(repository).packed.digest
    words = ["run", "--plan", str(file), "--target", "cpu", "--out", str(tmp_path / "store")]
    assert main(words) == 2
    assert "is not here" in capsys.readouterr().err
    (repository / "beside.py").write_text("through = None\n")
    assert main([*words, "--repo", str(repository)]) == 2
    assert "[run-plan-subject-differs]" in capsys.readouterr().err
    assert main(["plan", "--repo", str(repository), "--subject", "none", "--backend", "cpu"]) == 2
    other = tmp_path / "other.json"
    (tmp_path / "m.yaml").write_text(
        "name: n\nop: rms_norm\nproviders: [torch]\naxes: {shape: [{rows: 1, hidden: 8}]}\n"
    )
    assert main(["plan", str(tmp_path / "m.yaml"), "--backend", "cpu", "--out", str(other)]) == 0
    capsys.readouterr()
    assert main(["run", "--plan", str(other), "--target", "cpu", "--repo", str(repository)]) == 2
    assert "[run-plan-subject-none]" in capsys.readouterr().err


def run_of(argv: list[str], **head: Any) -> FakeRun:
    row = dict(results._EMPTY) | {
        "cell_id": "cuda/rms_norm/liger/auto/forward/fp32/1x8",
        "backend": "cuda",
        "op": "rms_norm",
        "provider": "liger",
        "mode": "auto",
        "operation": "forward",
        "dtype": "float32",
        "role": "subject",
        "status": "inaccurate",
        "evidence": "executed",
        "matrix": "m",
        "dims": "{}",
        "fingerprint": "{}",
        "provider_version": "abc123+",
        "subject": "mylib",
    }
    told = {"argv": argv, "planned": 1, "matrices": [{"name": "m", "path": "m.yaml"}], "subject": TOLD, **head}
    return FakeRun("r1", {"providers": {"rms_norm:liger": {"path": "a:b", "subject": "mylib"}}, **told}, True, [row])


def test_page_and_comment_name_the_subject_and_what_ran() -> None:
    run = run_of(["run", "--repo", "."])
    page = run_page(run, Links("index.html", lambda i: i, lambda n: n))
    for text in (page, markdown(run)):
        assert all(word in text for word in ("mylib", "abc123+", "d1ge57", "/src/mylib"))
    assert "subject" not in markdown(run_of(["run"], subject=None)).split("###")[1].split("planned")[0]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "--repo", "../x", "--release=a==1"], "--repo ../x --release=a==1"),
        (["run", "--subject", "own.yaml"], "--subject own.yaml"),
        (["run", "m.yaml"], "--repo /src/mylib"),
    ],
)
def test_the_command_that_repeats_a_cell_names_the_subject(argv: list[str], words: str) -> None:
    run = run_of(argv)
    told = findings.repeat(run, run.rows)
    assert words in told and "--provider" not in told, told


DECLARED = """name: m
op: rms_norm
axes: {shape: [{rows: 1, hidden: 8}]}
providers:
  mine: {call: "beside:through", mode: [a, b], role: peer}
  torch: {}
"""


def test_a_matrix_declares_a_provider(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(DECLARED)
    (matrix,) = load_files([tmp_path / "m.yaml"])
    assert matrix.calls == {"mine": "beside:through"}
    told = {(c.provider, c.mode, c.role) for c in plan([matrix], ["cpu"]).cells}
    assert told == {("mine", "a", "peer"), ("mine", "b", "peer"), ("torch", "auto", "peer")}
    (given,) = load_files([tmp_path / "m.yaml"], extra_providers={"mine": "other:function"})
    assert given.calls == {}  # the command line has the last word


@pytest.mark.parametrize(
    ("old", "new", "id", "fact"),
    [
        ("mine:", "torch_compile:", "matrix-declared-known", "m.yaml:5: providers.torch_compile "),
        ("beside:through", "beside", "matrix-declared-call", "m.yaml:5: providers.mine.call "),
        ("role: peer", "role: pear", "matrix-declared-role", '"peer"'),
        ("role: peer", "rule: peer", "matrix-provider-key", '"role"'),
        ("mode: [a, b]", "mode: []", "matrix-empty-value", "m.yaml:5: providers.mine.mode "),
        ("torch: {}", "torch: {role: subject}", "matrix-provider-key", "m.yaml:6: providers.torch.role "),
    ],
)
def test_a_declaration_that_is_wrong_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, id: str, fact: str
) -> None:
    (tmp_path / "m.yaml").write_text(DECLARED.replace(old, new))
    assert main(["plan", str(tmp_path / "m.yaml")]) == 2
    said = capsys.readouterr().err
    assert f"[{id}]" in said and fact in said, said


def test_two_matrices_of_an_op_give_one_name_one_meaning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.yaml").write_text(DECLARED)
    (tmp_path / "n.yaml").write_text(DECLARED.replace("name: m", "name: n").replace("beside:through", "beside:other"))
    assert main(["plan", str(tmp_path / "m.yaml"), str(tmp_path / "n.yaml")]) == 2
    assert "[matrix-declared-differs]" in capsys.readouterr().err
