"""What the documents point at is there, and nothing in them waits to be filled in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_nothing_waits_to_be_filled_in(document: Path) -> None:
    found = re.findall(r"\b(?:TODO|FIXME|TBD|[A-Z]{4,}_TABLE|[A-Z]+COUNT)\b", document.read_text(encoding="utf-8"))
    assert found == []


def test_the_readme_names_every_command() -> None:
    from farm.cli.main import COMMANDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [c for c in COMMANDS if f"farm {c}" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_the_files_and_modules_that_a_document_names_exist(document: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", document.read_text(encoding="utf-8"))
    files = [f for s in spans for f in re.findall(r"\b(?:farm|kernels|tests|benchmarks|matrices|deploy)/[\w./*-]+", s)]
    modules = [m.replace(".", "/") for s in spans for m in re.findall(r"python -m ((?:farm|benchmarks)[\w.]*)", s)]
    wanted = [f for f in files if f.endswith((".py", ".yaml", ".json", ".sh", ".md"))]
    wanted = [f for f in wanted if not f.endswith(("/node.yaml", "/nodes-PORT.json"))]  # on a user's host
    assert [f for f in wanted if not list(ROOT.glob(f))] == []
    assert [m for m in modules if not (ROOT / f"{m}.py").exists() and not (ROOT / m).is_dir()] == []
