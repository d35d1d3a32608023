"""`farm doctor`: every fault that it has a code for is planted in facts that are otherwise sound.  It is reported with
its cure, and nothing else is."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_facts import ASCEND, COMMON, CUDA, ROCM, SOUND, node, trials
from doctor_plants import NEED_NO_CURE, PLANTS, env, missing, said, variable

from farm.cli.doctor import report
from farm.doctor import Asked, Facts, Finding, Level, SpaceFacts, examine, exit_code
from farm.doctor.codes import CODES

ROOT = Path(__file__).resolve().parents[2]
F = Level.FAIL
FULL = {"sound": SOUND, "cuda": CUDA, "rocm": ROCM, "ascend": ASCEND}


def accused(facts: Facts) -> list[Finding]:
    """Every finding except ok and the note that a vendor's devices are absent."""
    return [f for f in examine(facts) if f.level is not Level.OK and f.code != "backend-none"]


@pytest.mark.parametrize("name", FULL)
def test_a_sound_host_has_no_fault(name: str) -> None:
    assert accused(FULL[name]) == []
    assert exit_code(examine(FULL[name])) == 0


def test_a_sound_host_is_described() -> None:
    found = {f.section: f.what for f in examine(CUDA)}
    facts = {
        "backend cuda": ("2 ", "NVIDIA GB200"),
        "torch": ("2.11.0", "CUDA 13.0"),
        "memory": ("8.0 GiB", "/dev/shm"),
    }
    assert [s for s, parts in facts.items() if not all(part in found[s] for part in parts)] == []


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_with_its_cure(name: str) -> None:
    facts, code, level, fact = PLANTS[name]
    findings = examine(facts)
    found = [f for f in findings if f.code == code and f.level is level]
    assert found, [f"{f.code}: {f.what}" for f in findings if f.level is not Level.OK]
    assert any(fact in f.what for f in found), [f.what for f in found]
    assert all(f.cure or f.code in NEED_NO_CURE for f in found)
    assert exit_code(found) == (3 if level is Level.FAIL else 0)
    allowed = {code, "ok", "backend-none"}
    assert [f.what for f in findings if f.code not in allowed] == []  # and nothing else is accused


def test_every_code_is_planted() -> None:
    assert {code for _, code, _, _ in PLANTS.values()} == set(CODES) - {"ok"}


def test_every_code_is_in_the_guide_with_what_it_means_and_a_cure_and_no_other() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+) \| ([^|]+) \|$", text, re.M)
    assert {code: what.strip() for code, what, _ in rows} == {c: w for c, w in CODES.items() if c != "ok"}
    assert len(rows) == len(CODES) - 1
    assert all(cure.strip() for _, _, cure in rows)


def test_a_code_without_an_explanation_is_refused() -> None:
    with pytest.raises(ValueError, match="no-such-code"):
        Finding("no-such-code", "x", Level.WARN, "what", "cure")


def test_with_a_backend_the_others_are_not_spoken_of() -> None:
    only = replace(ROCM, backends=tuple(b for b in ROCM.backends if b.name == "rocm"), asked=Asked(backend="rocm"))
    assert {f.section for f in examine(only) if f.section.startswith("backend")} == {"backend rocm"}


def test_the_backend_that_the_node_names_has_to_be_there() -> None:
    found = [f for f in examine(node(SOUND, backend="rocm")) if f.code == "backend-none" and f.level is Level.FAIL]
    assert [f.section for f in found] == ["backend rocm"]


def test_a_node_that_simulates_is_not_asked_for_devices() -> None:
    simulated = node(SOUND, backend="rocm", simulates=True, devices=2)
    assert exit_code(examine(simulated)) == 0
    asked = replace(simulated, asked=Asked(backend="rocm", join=True))
    assert exit_code(examine(trials(asked, torch=missing("torch")))) == 0  # a fake needs no torch


def test_a_join_needs_no_store() -> None:
    full = replace(SOUND, store=SpaceFacts("s", failure="Permission denied"), cache=SpaceFacts("c", failure="x"))
    assert exit_code(examine(full)) == 3
    assert exit_code(examine(replace(full, asked=Asked(join=True)))) == 0


def test_a_mask_that_leaves_some_is_no_fault() -> None:
    assert accused(variable(CUDA, CUDA_VISIBLE_DEVICES="0,1")) == []


def test_an_environment_is_named_in_its_sections_and_asked_for_what_it_runs() -> None:
    broken = env(trials={**COMMON, "torch": missing("torch")})
    (found,) = accused(broken)
    assert (found.section, found.code) == ("torch (nightly)", "torch-missing")
    assert "/v/python" in found.cure


def test_an_older_kernel_for_the_same_generation_serves() -> None:
    assert accused(said(CUDA, "accelerator", architecture="sm_103")) == []
    assert accused(said(CUDA, "accelerator", architectures=["sm_90", "compute_90"])) == []  # intermediate code


def test_the_report_puts_a_cure_under_its_finding_and_shows_no_escapes() -> None:
    lines = report(
        [Finding("ray-missing", "ray", F, "is \x1b[31mred", "paint it"), Finding("ok", "x", Level.OK, "fine")]
    )
    assert lines[0] == "fail  ray  is \\x1b[31mred  [ray-missing]"
    assert lines[1].strip() == "cure: paint it"
    assert lines[-1].startswith("1 ok, 1 fail: ")


@pytest.mark.parametrize(
    "name",
    [
        "codes",
        "facts",
        "finding",
        "rules",
        *(f"check_{n}" for n in ("ascend", "cuda", "devices", "host", "node", "python", "ray", "rocm")),
    ],
)
def test_judging_does_no_io(name: str) -> None:
    tree = ast.parse((ROOT / "farm" / "doctor" / f"{name}.py").read_text(encoding="utf-8"))
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    found |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not {m.split(".")[0] for m in found} & {"os", "pathlib", "subprocess", "socket", "shutil", "time", "ctypes"}
