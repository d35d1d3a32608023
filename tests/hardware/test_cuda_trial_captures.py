"""The trial of a capture on a real GPU: an NVIDIA one that plays a device whose runtime wants trials, as AMD's does."""

from __future__ import annotations

import time
from pathlib import Path

import capture_faults
import nvidia_gpus
import pytest

from farm.backends import cuda

pytestmark = pytest.mark.cuda


nvidia_gpus.need()


def test_what_a_capture_kills_stops_or_spoils_is_timed_by_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "TRIAL_CAPTURE", True, raising=False)
    begun = time.monotonic()
    rows, journal = capture_faults.run("cuda", tmp_path, monkeypatch)
    print(f"{time.monotonic() - begun:.1f} s for {len(rows)} cells of {len(capture_faults.WORDS)} calls with trials")
    for row in sorted(rows, key=lambda r: r["cell_id"]):
        print(row["cell_id"], row["timing_method"], row["time_us_p50"], row["flags"])
    capture_faults.assert_each_is_timed_as_its_trial_says(rows, journal)
