"""The guide to subjects says what the code does, and its example outside of a repository is read and planned."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from subject_repositories import write

from farm import backends
from farm.contracts import discovery
from farm.matrix import load_files, plan
from farm.subject import read
from farm.subject.command_line import OPTIONS, LoadedSubject
from farm.subject.read import SubjectReader

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/test-your-repository.md").read_text(encoding="utf-8")


def reader() -> SubjectReader:
    return SubjectReader(discovery.known_ops(), discovery.find, backends.known())


def test_the_file_of_the_guide_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.M | re.S)
    found = reader().file(write(tmp_path, farm_yaml=text) / "farm.yaml")
    assert found.providers["mylib"].ops["fused_add_rms_norm"].declares == {"sum": "unrounded"}


def test_the_guide_names_every_key_and_option() -> None:
    told = re.sub(r"^```.*?^```", "", GUIDE, flags=re.M | re.S)
    words = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", told))))
    keys = {*read.KEYS, *read.OVERLAY, *read.BUILD, *read.PROVIDER, *read.ENTRY, *read.ON_BACKEND}
    assert {*keys, *(f"--{option}" for option in OPTIONS)} - words <= {"farm", "subject"}


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Contracts outside the farm are known to this test only."""
    yield
    discovery.forget()


@pytest.mark.parametrize("name", sorted(p.parent.name for p in (ROOT / "docs/examples").glob("*/farm.yaml")))
def test_the_examples_are_subjects_whose_matrices_load(name: str, forgotten: None) -> None:
    folder = ROOT / "docs/examples" / name
    found = reader().file(folder / "farm.yaml")
    for contracts in found.contracts:
        discovery.add(contracts)
    assert found.source.release and found.matrices
    known = LoadedSubject(found, None).providers  # type: ignore[arg-type]  # nothing is downloaded here
    planned = plan(load_files(found.matrices, subject=known), ["cpu"]).cells
    told = re.search(r"(\d+) ops,\s+forward and backward,\s+(\d+) cells", GUIDE)
    ops = {c.op for c in planned}
    assert told and ((len(ops), len(planned)) == (int(told[1]), int(told[2])) or name != "liger")
    assert {c.role for c in planned if c.provider in known} == {"subject"}


def test_the_matrices_of_faults_that_were_mended_load(forgotten: None) -> None:
    folder = ROOT / "docs/examples/liger"
    found = reader().file(folder / "farm.yaml")
    for contracts in found.contracts:
        discovery.add(contracts)
    known = LoadedSubject(found, None).providers  # type: ignore[arg-type]
    page = (ROOT / "docs/facts/2026-11-23-upstream.md").read_text(encoding="utf-8")
    for file in sorted((folder / "upstream").glob("*.yaml")):
        planned = plan(load_files([str(file)], subject=known), ["cpu"]).cells
        assert 0 < len(planned) <= 8, file
        assert f"`{file.stem}`" in page, file


def test_the_adapters_of_the_examples_define_what_is_named() -> None:
    from farm.subject import adapters

    for file in (ROOT / "docs/examples").glob("*/farm.yaml"):
        found = reader().file(file)
        assert adapters.collect(file.parent, found.paths(), {}, ()).keys() == {"farm_adapters.py"}
