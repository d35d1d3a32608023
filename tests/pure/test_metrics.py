"""`/metrics`: what a strict reader of the text format makes of it, whatever names runs bring."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

import night_store
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dashboard_files import ask

from farm.dashboards import metrics, views
from farm.store import Store

NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
BACK = {'\\"': '"', "\\\\": "\\", "\\n": "\n"}
Parsed = dict[str, list[tuple[dict[str, str], float]]]


def parsed(text: str) -> Parsed:
    """Metric -> samples; fails for anything that the format does not allow."""
    out: Parsed = {}
    state = ""
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    for number, line in enumerate(lines):
        if line == "# EOF":
            assert number == len(lines) - 1
        elif line.startswith("# HELP "):
            state = line.split(" ")[2]
            assert re.fullmatch(NAME, state) and state not in out
            out[state] = []
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {state} gauge"
        else:
            found = SAMPLE.fullmatch(line)
            assert found and found[1] == state, line
            labels = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found[2] or "")
            plain = {k: re.sub(r'\\["\\n]', lambda m: BACK[m[0]], v) for k, v in labels}
            assert plain not in [known for known, _ in out[state]], line
            out[state].append((plain, float(found[3])))
    return out


@settings(max_examples=40, deadline=None)
@given(st.text(), st.floats(allow_nan=False))
def test_whatever_a_run_is_called_stays_in_its_label(text: str, value: float) -> None:
    gauge = metrics.Gauge("x", "help")
    gauge.add(value, device=text, other="y")
    assert parsed(metrics.text([gauge], openmetrics=True)) == {
        "kernel_farm_x": [({"device": text, "other": "y"}, value)]
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six nights; in the last, without ascend, a device and an op have hostile names."""
    folder = tmp_path_factory.mktemp("metrics")
    for number in range(24, 29):
        night_store.write_run(folder, number)
    rows = night_store.night(29, ("cuda", "rocm"))
    for row in rows:
        row["device"] = row["device"].replace("cuda:0", 'cuda:0"} 1\n# EOF')
        row["op"] = row["op"] if row["backend"] == "cuda" else 'a\\b"\nc'
    night_store.write_run(folder, 29, rows)
    return folder


def test_the_newest_night_as_metrics(store: Path) -> None:
    newest = views.newest(views.checked(Store(store)))
    now = datetime(2026, 10, 18, 2, tzinfo=timezone.utc).timestamp()
    found = parsed(metrics.text(metrics.gauges(newest, now, 6, 0)))

    def of(name: str, **wanted: str) -> list[float]:
        return [v for labels, v in found["kernel_farm_" + name] if wanted.items() <= labels.items()]

    assert newest is not None and sum(of("night_cells")) == len(newest.rows) and of("runs") == [6]
    for backend in ("cuda", "rocm"):
        for status in ("passed", "inaccurate"):
            want = sum(r["backend"] == backend and r["status"] == status for r in newest.rows)
            assert sum(of("night_cells", backend=backend, status=status)) == want
    assert of("night_age_seconds") == [86400.0] and of("backend_age_seconds", backend="ascend") == [2 * 86400.0]
    assert of("backend_silent", backend="ascend") == [1] and of("backend_silent", backend="cuda") == [0]
    assert sum(of("news_cells", kind="new", backend="rocm")) > 0
    assert of("device_cells", device='cuda:0"} 1\n# EOF')[0] > 0 and of("news_cells", op='a\\b"\nc')
    assert parsed(metrics.text(metrics.gauges(None, now)))["kernel_farm_runs"] == [({}, 0)]


def test_it_is_served(store: Path) -> None:
    pytest.importorskip("starlette")
    from farm.dashboards.serve import app

    live = app(Store(store))
    (_, head, text), (_, other, ended) = (
        ask(live, "/metrics", headers) for headers in ({}, {"accept": "application/openmetrics-text"})
    )
    assert head["content-type"] == metrics.PLAIN and "kernel_farm_night_cells" in parsed(text)
    assert other["content-type"] == metrics.OPENMETRICS and ended.endswith("\n# EOF\n")
    assert ask(app(Store(store), "secret"), "/metrics")[0] in (401, 403)
