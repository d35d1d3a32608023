"""`pytest --farm` with a real run: two workers of pytest-xdist read the results of one run on simulated devices."""

from __future__ import annotations

import os
import re

import pytest
from farm_process import IMPORTS, clean_environ

from farm.store import Store

pytest_plugins = "pytester"
MATRIX = """\
name: m
op: rms_norm
axes: {shape: [{rows: 3, hidden: [16, 17, 18, 19, 20]}], dtype: float32}
providers: [farm]
sim:
  rules:
    - {when: {hidden: 17}, error: 0.5}
    - {when: {hidden: 18}, status: unsupported, reason: takes no such width}
    - {when: {hidden: 19}, status: infra_error, owner: device, reason: gone}
exclude: [{hidden: 20, reason: because}]
"""


def test_workers_of_xdist_read_the_results_of_one_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(os.environ) - set(clean_environ()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    pytester.makefile(".yaml", m=MATRIX)
    words = ("-p", "farm.testing.plugin", "-n", "2", "-v", "--junitxml", "j.xml")
    farm = ("--farm", "m.yaml --backend sim --no-page --run-id one")
    done = pytester.runpytest_subprocess(*words, *farm, timeout=120)
    done.assert_outcomes(passed=1, failed=1, skipped=2, errors=1)
    said = done.stdout.str()
    assert "inaccurate: y: every element is wrong, scaled by 1.5; first [0, 0]" in said
    assert set(re.findall(r"\[gw(\d)\]", said)) == {"0", "1"}
    assert "infrastructure failures in 1 cell: exit 3" in said
    (run,) = Store(pytester.path / "farm-results").runs()
    assert run.complete and run.head["planned"] == 5
    assert 'name="status" value="inaccurate"' in (pytester.path / "j.xml").read_text()
