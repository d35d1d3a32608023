"""The run that is published with the docs: whole, readable, and without names of hosts, devices, folders or people."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from benchmarks import publish_run
from farm.dashboards import pages
from farm.dashboards.pages import Links
from farm.store import Store

STORE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "store"
#: A host, a folder of somebody's, what tells a device from all others of its kind, an address.
PRIVATE = re.compile(
    r"GPU-[0-9a-f]{8}|/(?:root|home|tmp|mnt|data)/|\d+\.\d+\.\d+\.\d+:\d|[\w.]+@[\w.]+\.\w"
    r"|\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b"
)


def test_it_names_nobody(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "s")
    for run in Store(tmp_path / "s").runs():
        rows = run.rows
        texts = [run.dir.joinpath(name).read_text() for name in ("run.json", "journal.jsonl")]
        texts += [str(value) for row in rows for value in row.values() if isinstance(value, str)]
        found = sorted({m[0] for text in texts for m in PRIVATE.finditer(text)})
        assert found == []
        assert {row["node"] for row in rows} <= {"", "node-1"} and all(
            "serial" in r["device"] for r in rows if r["node"]
        )


def test_its_page_says_what_ran_where(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "s")
    (run,) = Store(tmp_path / "s").runs()
    assert run.complete and {r["evidence"] for r in run.rows if r["status"] == "passed"} == {"executed"}
    page = pages.run_page(run, Links("index.html", lambda name: None, lambda name: None))
    assert "NVIDIA H200" in page and "executed" in page


def test_what_is_private_is_found_and_replaced() -> None:
    content = {"run/journal.jsonl": b'{"node": "gpu17", "x": "/home/ann/farm"}\n', "run/run.json": b"{}"}
    assert publish_run.private(content) == {"gpu17": "node-1", "/home/ann/farm": "/folder-1"}
