"""Every value of run.json replaced by every odd one: what `tests/pure/test_hostile_store.py` does with a few."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_hostile_store import KEYS, ODD, assert_odd_heads_harm_nobody
from test_hostile_store import good as good


@pytest.mark.soak(seconds=8)
@pytest.mark.parametrize("odd", range(len(ODD)))
def test_odd_values_of_a_run_harm_their_run_alone(
    odd: int, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_odd_heads_harm_nobody(ODD[odd], KEYS, good, tmp_path, capsys)
