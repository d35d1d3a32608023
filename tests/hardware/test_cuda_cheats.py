"""On a real NVIDIA GPU, timed: the providers of tests/cheats, none of which ends `passed` with the quality `ok`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nvidia_gpus
import pytest

from farm.cli import main
from farm.store import Store

pytestmark = pytest.mark.cuda
_FOLDER = Path(__file__).resolve().parents[1] / "cheats"
sys.path.insert(0, str(_FOLDER))

from expected import NAMED, NAMED_ON_GPU  # noqa: E402

nvidia_gpus.need()

MATRIX = """
name: cheats
op: rms_norm
axes:
  shape: [{rows: 4096, hidden: 2048}]
  dtype: [bfloat16]
  operation: [forward]
providers: [farm, torch]
"""
#: With no words here, any of several findings may come first.
CHEATS = {**NAMED, **NAMED_ON_GPU}
HONEST = ("honest", "works_on_a_side_stream_and_waits", "farm", "torch")


@pytest.fixture(scope="module")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One run of them all; row by provider."""
    folder = tmp_path_factory.mktemp("cheats")
    (folder / "cheats.py").write_text((_FOLDER / "cheats.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "m.yaml").write_text(MATRIX)
    names = [*CHEATS, "honest", "works_on_a_side_stream_and_waits", "caches_in_the_timing_loop"]
    providers = [w for n in names for w in ("--provider", f"{n}=cheats:{n}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        main(
            [
                "run",
                "m.yaml",
                "--out",
                "store",
                "--backend",
                "cuda",
                "--address",
                "inline",
                "--devices",
                "1",
                "--no-page",
                "--set",
                "deadlines.check=30",
                "--set",
                "deadlines.compile=30",
                *providers,
            ]
        )
    rows = Store(folder / "store").run("last").rows
    assert len(rows) == len(names) + 2
    return {r["provider"]: r for r in rows}


#: What the launches of a timed graph give away before the judge has looked.
SEEN_EARLIER = dict.fromkeys(("cached_by_pointer_and_copied", "writes_nothing"), ("were remembered",))


@pytest.mark.parametrize("cheat", CHEATS)
def test_each_cheat_is_named_and_none_is_passed_with_a_good_time(cheated: Any, cheat: str) -> None:
    row = cheated[cheat]
    assert not (row["status"] == "passed" and row["timing_quality"] == "ok"), row
    status, words = CHEATS[cheat]
    assert row["status"] == status, (row["reason"], row["flags"])
    said = [row["reason"], *json.loads(row["flags"])]
    assert any(w in text for w in (words, *SEEN_EARLIER.get(cheat, ())) for text in said), said


def test_a_cache_that_only_a_timer_meets(cheated: Any) -> None:
    row = cheated["caches_in_the_timing_loop"]
    assert not (row["status"] == "passed" and row["timing_quality"] == "ok" and row["flags"] == "[]"), row


@pytest.mark.parametrize("provider", HONEST)
def test_honest_ones_pass(cheated: Any, provider: str) -> None:
    row = cheated[provider]
    assert row["status"] == "passed", row["reason"]
    if provider != "works_on_a_side_stream_and_waits":
        assert row["flags"] == "[]"
        assert row["timing_quality"] == "ok"


def test_a_gpu_cell_says_which_kernels_triton_launched(cheated: Any) -> None:
    launch = json.loads(cheated["farm"]["launch"])
    assert launch["kernels"] and {k["kernel"] for k in launch["kernels"]} <= set(launch["seen"])
