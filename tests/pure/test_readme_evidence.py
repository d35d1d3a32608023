"""README's first screen agrees with docs/evidence.md, and its table of peers with what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EVIDENCE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
PEERS = (ROOT / "docs" / "facts" / "2026-11-21-peers.md").read_text(encoding="utf-8")
FIRST_SCREEN = README.split("\n## ")[0]
MAX_LINES = 40

_EXECUTED = re.compile(r"20\d\d-\d\d-\d\d")  # what was executed has a date in evidence.md, what was not has none
_TARGET = re.compile(r"`((?:sm_|gfx|ascend)\w+)`")


def rows(text: str, *columns: str) -> list[dict[str, str]]:
    """The rows of the one table in `text` whose header begins with `columns`."""
    found: list[list[dict[str, str]]] = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        header = _cells(line)
        if header[: len(columns)] != list(columns):
            continue
        table = []
        for row in lines[at + 2 :]:
            if not row.startswith("|"):
                break
            table.append(dict(zip(header, _cells(row), strict=True)))
        found.append(table)
    assert len(found) == 1, f"{len(found)} tables begin with the columns {columns}"
    return found[0]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def disagreements(readme: str, evidence: str) -> list[str]:
    """Where README's table of devices differs from the table of evidence.md."""
    shown = {row["device"]: row for row in rows(readme, "device", "evidence", "when", "what")}
    known = {row["backend"]: row for row in rows(evidence, "backend", "interpreted", "compiled", "executed")}
    found = [f"{device}: not in evidence.md" for device in shown if device not in known]
    for device, row in known.items():
        executed = bool(_EXECUTED.search(row["executed"]))
        if executed == (row["executed"] == "**never**") and device != "cpu":
            found.append(f"{device}: evidence.md must give a date or **never** in the column executed")
        targets = _TARGET.findall(row["compiled"])
        if device not in shown:
            if executed or targets:
                found.append(f"{device}: missing in README")
            continue
        claim = shown[device]
        if claim["evidence"] != ("executed" if executed else "compiled only"):
            found.append(f"{device}: README says {claim['evidence']}, evidence.md does not")
        if not executed and not targets:
            found.append(f"{device}: was not even compiled")
        if claim["when"] not in row["executed" if executed else "compiled"]:
            found.append(f"{device}: evidence.md does not have the date {claim['when']}")
        if not executed and set(_TARGET.findall(claim["what"])) != set(targets):
            found.append(f"{device}: was compiled for {targets}")
    return found


def wrongly_bold(readme: str) -> list[str]:
    """Bold cells of the peers' table that are not the best of their row.  The copy kernel is not a provider."""
    found = []
    for row in rows(readme, "", "copy kernel", "ours"):
        name, speeds = row[""], {k: v for k, v in row.items() if k not in ("", "copy kernel")}
        best = max(_speed(v) for v in speeds.values())
        found += [f"{name}: {k}" for k, v in speeds.items() if v.startswith("**") and _speed(v) < best]
    return found


def _speed(cell: str) -> float:
    text = cell.strip("*")
    return 0.0 if text == "-" else float(text)


def test_the_first_screen_agrees_with_evidence() -> None:
    assert disagreements(FIRST_SCREEN, EVIDENCE) == []
    assert len(FIRST_SCREEN.splitlines()) <= MAX_LINES
    assert "docs/evidence.md" in FIRST_SCREEN


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("| cuda, GB200 | compiled only |", "| cuda, GB200 | executed |", "cuda, GB200: README says executed"),
        ("| cuda, H200 | executed |", "| cuda, H200 | compiled only |", "cuda, H200: README says compiled only"),
        ("| rocm, MI355X |", "| rocm, MI450X |", "rocm, MI450X: not in evidence.md"),
        ("| cuda, H100 |", "| cuda, any MIG device |", "cuda, any MIG device: was not even compiled"),
        ("`gfx942`", "`gfx90a`", "rocm, MI300X and MI325X: was compiled for"),
        ("| 2026-11-22 |", "| 2026-11-23 |", "cuda, H100: evidence.md does not have the date 2026-11-23"),
    ],
)
def test_a_wrong_claim_is_found(old: str, new: str, complaint: str) -> None:
    assert FIRST_SCREEN.count(old) == 1
    assert complaint in " ".join(disagreements(FIRST_SCREEN.replace(old, new), EVIDENCE))


def test_a_missing_device_is_found() -> None:
    less = "\n".join(line for line in FIRST_SCREEN.splitlines() if not line.startswith("| ascend, 910B |"))
    assert disagreements(less, EVIDENCE) == ["ascend, 910B: missing in README"]


def test_evidence_without_a_date_is_found() -> None:
    assert EVIDENCE.count("**never**") >= 5
    found = disagreements(FIRST_SCREEN, EVIDENCE.replace("**never**", "soon"))
    assert any("must give a date or **never**" in line for line in found)


def test_bold_is_the_best_of_the_row() -> None:
    assert wrongly_bold(README) == []
    bolder = README.replace("| 4060 | 2621 |", "| **4060** | 2621 |")
    assert wrongly_bold(bolder) == ["rms_norm forward 8192x131072: ours"]


def test_the_peers_table_has_the_measured_numbers() -> None:
    names = {"rms_norm": "rms_norm", "fused": "fused_add_rms_norm"}
    for row in rows(README, "", "copy kernel", "ours"):
        op, direction, shape = row[""].split()
        section = PEERS.split(f"\n## {names[op]} {direction}, GB/s of model bytes\n")[1].split("\n## ")[0]
        (line,) = [r for r in rows(section, "shape", "dtype") if (r["shape"], r["dtype"]) == (shape, "bf16")]
        measured = [line[k] for k in ("roof", "farm", "torch", "torch_compile", "liger", "quack")]
        assert [cell.strip("*") for cell in list(row.values())[1:]] == measured, row[""]


def test_the_limits_of_the_peers_table_stand_beside_it() -> None:
    section = README.split("\n## Kernels to compare with\n")[1].split("\n## ")[0]
    for shape in ("2560", "1536", "11008", "18432", "7x262144", "31 of 32"):
        assert shape in section, shape
