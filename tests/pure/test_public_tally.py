"""What the documents say of false alarms on devices is what the published records add up to."""

from __future__ import annotations

import re
from pathlib import Path

from farm.compare import records
from farm.store import Store, noise_files

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ROOT / "docs" / "examples" / "store"
QUOTED = re.compile(r"identical code \((\w+)\): .* at 95 %")


def quotes(text: str) -> list[str]:
    """The numbers of false alarms in a document, but for those in a block of an example."""
    return re.findall(r"^> published: (.*)$", text, re.M)


def wanted(folder: Path) -> list[str]:
    found, damaged = noise_files.read(Store(folder), None)
    assert not damaged, damaged
    return [records.tally_line(one) for one in records.tally(found)] or ["none yet"]


def test_compare_quotes_the_published_records_and_nothing_else_does() -> None:
    assert quotes((ROOT / "docs" / "compare.md").read_text(encoding="utf-8")) == wanted(PUBLIC)
    for page in (ROOT / "README.md", ROOT / "docs" / "facts.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            for found in QUOTED.finditer(line):
                assert found[0] in wanted(PUBLIC), f"{page.name} quotes what no published record says: {found[0]}"


def test_a_record_changes_what_is_wanted(tmp_path: Path) -> None:
    """The planted fault: a record that the documents do not quote."""
    kind = records.Kind("executed", "cuda:H200", "t", "rotating_graph/2", "k")
    cell = records.CellNoise(kind, "a", 3, 0.004, 2.0, "regressed")
    noise_files.keep(Store(tmp_path), records.Record("r", "2026-11-23T00:00:00+00:00", True, (cell,)))
    (line,) = wanted(tmp_path)
    assert QUOTED.match(line) and "1 of 1 pair called changed" in line and "at most 100 % at" in line
    assert quotes(f"text\n> published: {line}\n") == [line]
