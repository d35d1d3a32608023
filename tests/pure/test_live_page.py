"""The page of a running run: what its journal says so far, whatever order things end in."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_dashboard_files import ask

from farm.dashboards import live_page
from farm.dashboards.pages import Links
from farm.report import live
from farm.store import Store
from farm.store.results import COLUMNS

BEGAN = 1_790_000_000.0
LINKS = Links("/", lambda run_id: f"/run/{run_id}", lambda name: None)


def cell(index: int, backend: str = "cuda") -> dict[str, Any]:
    name = f"{backend}/rms_norm/farm/auto/forward/fp32/8x{64 + index}/llama"
    known = {"cell_id": name, "cell_key": f"{index:064x}", "index": index, "backend": backend, "op": "rms_norm"}
    known |= {"provider": "farm", "mode": "auto", "role": "subject", "operation": "forward", "matrix": "m", "tag": ""}
    known |= {"dtypes": {"x": "float32"}, "dims": {"rows": 8, "hidden": 64 + index}, "params": {}, "family": "mixed"}
    known |= {"seed": 0, "timing": {"method": "none", "version": 2}, "contract_version": 1, "skip_reason": ""}
    return {"event": "cell", "cell": known}


def result(index: int, status: str = "passed", backend: str = "cuda", **more: Any) -> dict[str, Any]:
    plain = {k: v for k, v in cell(index, backend)["cell"].items() if k in COLUMNS and not isinstance(v, dict)}
    row = {**{c: "" if kind == "text" else None for c, kind in COLUMNS.items()}, **plain}
    row |= {"status": status, "attempt": 1, "reason": "why", "evidence": "executed"}
    return {"event": "result", "row": {**row, **more}}


def device(name: str, at: float, event: str = "device_up", **more: Any) -> dict[str, Any]:
    backend = name.partition(":")[0]
    target = {"backend": backend, "model": "H200"}
    return {"event": event, "time": BEGAN + at, "device": name, "backend": backend, "target": target, **more}


def at(seconds: float, event: str, name: str, index: int, **more: Any) -> dict[str, Any]:
    return {"event": event, "time": BEGAN + seconds, "device": name, "cell": index, "attempt": 1, **more}


HEAD = {
    "event": "run",
    "run_id": "r1",
    "created": "2026-09-21T14:13:20+00:00",
    "argv": ["run", "m.yaml"],
    "matrices": [{"name": "m", "path": "m.yaml"}],
}


def running(cells: int = 20, rocm: int = 4) -> list[dict[str, Any]]:
    """Ten of twenty cuda cells are done, one a second; rocm has no device."""
    out = [
        HEAD,
        *(cell(i) for i in range(cells)),
        *(cell(cells + i, "rocm") for i in range(rocm)),
        {"event": "planned"},
    ]
    out += [device("cuda:0", 5, node="a"), device("cuda:1", 5, node="a", evidence="executed")]
    for i in range(10):
        status = "inaccurate" if i == 3 else "passed"
        out += [at(10 + i, "started", "cuda:0", i), at(10.5 + i, "measured", "cuda:0", i)]
        out += [at(11 + i, "judged", "cuda:0", i, status=status), result(i, status)]
    return [*out, at(20, "started", "cuda:0", 10), device("cuda:1", 20, "health", state="quarantined", reason="Xid 79")]


def view(lines: list[dict[str, Any]], now: float = 30.0) -> dict[str, Any]:
    state = live.Live()
    for line in lines:
        state.add(line)
    return live_page.data(state, BEGAN + now, lambda rows: f"farm run # {len(rows)} cells")


def test_what_is_done_what_each_device_does_and_when_it_may_end() -> None:
    found = view(running())
    assert (found["planned"], found["done"], found["pending"], found["failed"]) == (24, 10, 14, 1)
    assert found["counts"] == {"passed": 9, "inaccurate": 1}, "pending is pending, not lost"
    cuda, rocm = found["backends"]
    assert cuda["per_second"] == pytest.approx(0.5) and cuda["left_seconds"] == pytest.approx(20)
    assert (rocm["state"], rocm["left_seconds"]) == ("no device", None)
    assert found["left_seconds"] is None and found["ends"] == "", "nobody knows when rocm will have a device"
    busy, sick = found["devices"]
    assert busy["doing"] == "measures" and busy["cell"].endswith("8x74/llama") and busy["for_seconds"] == 10
    assert (sick["doing"], sick["note"]) == ("quarantined", "Xid 79") and busy["done"] == 10 and busy["failed"] == 1
    (failure,) = found["failures"]
    assert failure["count"] == 1 and failure["command"] == "farm run # 1 cells"
    alone = view(running(rocm=0))
    assert alone["left_seconds"] == pytest.approx(20) and alone["ends"].startswith("2026-09-21T14:14:10")
    assert "10 of 20 cells done, 10 pending; 30 cells/min, about 20.0 s left; 1 failure so far" in alone["sentence"]


def test_too_few_results_say_nothing_of_a_rate() -> None:
    lines = running(rocm=0)
    early = lines[: next(i for i, x in enumerate(lines) if x["event"] == "result") + 1]
    assert view(early)["per_second"] is None and view(early)["left_seconds"] is None


def test_the_page_is_asked_again_without_a_script_until_the_run_is_over() -> None:
    html = live_page.page(view(running()), LINKS)
    assert '<meta http-equiv="refresh" content="5">' in html
    assert "lost" not in html.partition("<body>")[2].partition('<section id="words"')[0]
    assert "measures" in html and "Xid 79" in html and 'href="/run/r1"' in html
    over = live_page.page(view([*running(), {"event": "finished", "time": BEGAN + 40}]), LINKS)
    assert 'http-equiv="refresh"' not in over and "Finished" in over


def test_a_simulated_device_is_said_in_title_data_and_page() -> None:
    found = view([*running(), device("cuda:2", 21, evidence="simulated")])
    html = live_page.page(found, LINKS)
    assert found["simulated"] and "<title>simulated" in html and 'data-id="live-simulated"' in html


def test_a_resumed_run_counts_on_and_forgets_the_devices_of_before() -> None:
    lines = [*running(), {"event": "resumed", "time": BEGAN + 100}, device("cuda:0", 101)]
    found = view(lines, 110)
    assert found["resumed"] == 1 and found["done"] == 10 and [d["doing"] for d in found["devices"]] == ["idle"]


def test_any_order_of_events_keeps_the_sum_and_no_line_harms() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        lines = running()
        rng.shuffle(lines)
        lines = [HEAD, *lines]
        for line in rng.sample(lines, 8):  # a journal from elsewhere
            broken = dict(line)
            key = rng.choice(list(broken))
            broken[key] = rng.choice([None, 3, "x", [], {}])
            lines.insert(rng.randrange(len(lines)), broken)
        found = view(lines)
        assert found["done"] + found["pending"] == found["planned"], seed
        assert all(b["done"] + b["pending"] == b["planned"] for b in found["backends"]), seed
        assert live_page.page(found, LINKS).startswith("<!doctype html>")


def test_the_server_follows_a_run_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards import kept
    from farm.dashboards.serve import app

    monkeypatch.setattr(kept, "PATIENCE", 0.0)
    writer = Store(tmp_path).create("20260921-133320-live")
    lines = running()
    for line in lines[:-2]:
        writer.append({"schema": 6, **line} if line["event"] == "run" else line)
    site = app(Store(tmp_path))
    status, _, html = ask(site, f"/live/{writer.id}")
    assert status == 200 and "10 of 24 cells done, 14 pending" in html and "measures" not in html
    for line in lines[-2:]:
        writer.append(line)
    assert "measures" in ask(site, f"/live/{writer.id}")[2], "the new lines alone are read"
    front = ask(site, "/")[2]
    assert re.search(rf'<a href="/live/{writer.id}"><span class="tag v-running">', front)
    assert f'href="/live/{writer.id}"' in ask(site, f"/run/{writer.id}")[2]
    writer.close()
    assert "Interrupted" in ask(site, f"/live/{writer.id}")[2]
    assert ask(site, "/live/none")[0] == 404
