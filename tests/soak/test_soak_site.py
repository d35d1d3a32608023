"""A whole site of thirty nights in a real browser, and under fifty readers."""

from __future__ import annotations

import contextlib
import html
import http.client
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import night_store
import planted_site
import pytest
import synthetic_runs
from farm_process import ROOT, clean_environ, wait_for
from test_soak_pages import CHROMIUM, look, needs_chromium

from farm.cli.main import main
from farm.dashboards import live_page, pages
from farm.report import live
from farm.store import Store
from farm.store.results import planned_row

#: What a page of each kind is told apart by; the first of each is looked at closely.
KINDS = ("index", "evidence", "run", "backend", "cell", "compare", "parity")
AXE_IN = ("axe_playwright_python", "axe_core_python")
AUDIT = """<script>addEventListener("load", async () => {
document.querySelectorAll("details").forEach((d) => { d.open = true; });
const found = await axe.run(document, {resultTypes: ["violations"],
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]});
const said = document.createElement("pre");
said.id = "found";
said.textContent = JSON.stringify({dark: matchMedia("(prefers-color-scheme: dark)").matches,
  violations: found.violations.map((v) => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200),
    (v.nodes[0].any[0] || {}).message || v.help])});
document.body.append(said);
});</script>"""


def axe() -> Path | None:
    """axe-core, the newest that an installed package carries."""
    for name in AXE_IN:
        spec = importlib.util.find_spec(name)
        for folder in spec.submodule_search_locations or () if spec else ():
            if (Path(folder) / "axe.min.js").is_file():
                return Path(folder) / "axe.min.js"
    return None


def audited(page: Path, folder: Path, width: int, dark: bool) -> list[Any]:
    """What axe finds on a page."""
    script = axe()
    assert script and CHROMIUM
    text = page.read_text(encoding="utf-8")
    probe = folder / f"axe-{width}-{dark}-{page.name}"
    engine = f"<script>{script.read_text(encoding='utf-8')}</script>"
    probe.write_text(text.replace("</body>", engine + AUDIT + "</body>", 1), "utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    command += [f"--window-size={width},900", "--virtual-time-budget=60000", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    written = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert written, f"{page.name}: axe did not end: {done.stderr[-2000:]}"
    found = json.loads(html.unescape(written[1]))
    assert found["dark"] is dark, "the browser shows the other colours"
    return list(found["violations"])


def live_html() -> str:
    """The page of a run in progress, with a device in each state."""
    state = live.Live()
    for line in planned_lines(24):
        state.add(line)
    now = time.time()
    for i, event in enumerate(("device_up", "device_up", "device_waits", "device_down")):
        state.add({"event": event, "time": now, "device": f"cuda:{i}", "backend": "cuda", "reason": "Xid 79"})
    state.add({"event": "started", "time": now, "device": "cuda:0", "cell": 0, "attempt": 1})
    for i, line in enumerate(results(12)):
        state.add({"event": "started", "time": now + i, "device": "cuda:1", "cell": i + 1, "attempt": 1})
        state.add(line)
    links = pages.Links("index.html", lambda run_id: None, lambda name: None)
    return live_page.page(live_page.data(state, now + 20, lambda rows: "farm run m.yaml"), links, 0)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the planted store, of a run that is running, and of a part of a large run."""
    folder = tmp_path_factory.mktemp("site")
    planted_site.write(folder)
    assert main(["dashboard", "build", "last", "--out", str(folder)]) == 0
    out = folder / "pages"
    (out / "live.html").write_text(live_html(), encoding="utf-8")
    run = synthetic_runs.fake_run(synthetic_runs.wide_rows(600))
    links = replace(pages.Links(None, lambda run_id: None, lambda name: None), anchored=False)
    links = replace(links, cell_of_run=lambda row: f"#{row['index']}")
    (out / "part.html").write_text(pages.part_page(run, ("cuda", "rms_norm"), links), encoding="utf-8")
    return out


def first_of_each(site: Path) -> list[Path]:
    found = [next(iter(sorted(site.glob(f"{kind}*.html")))) for kind in (*KINDS, "live", "part")]
    failed = next(p for p in sorted(site.glob("cell-*.html")) if "v-findings" in p.read_text().partition("<main>")[0])
    return [*dict.fromkeys([*found, failed, *site.glob("backend-*.html")])]


@pytest.mark.soak(seconds=5)
def test_what_was_planted_is_named_and_nothing_else(site: Path) -> None:
    data = json.loads((site / "index.json").read_text())
    assert {(n["kind"], n["backend"], n["mode"], n["count"]) for n in data["news"]} == {
        ("new", "rocm", "row_packed", 2),
        ("slower", "cuda", "auto", 8),
        ("fixed", "cuda", "row_packed", 1),
    }
    slower = next(n for n in data["news"] if n["kind"] == "slower")
    assert slower["range"] == [night_store.revision(21), night_store.revision(22)] and slower["word"] == "regression"
    assert list(data["silent"]) == ["ascend"]
    odd = [
        d["name"] for page in site.glob("backend-*.json") for d in json.loads(page.read_text())["devices"] if d["odd"]
    ]
    assert odd == ["cuda:3"]


@pytest.mark.soak(seconds=5)
def test_each_answer_is_at_most_three_clicks_from_the_front_page(site: Path) -> None:
    """What a reader who knows the address alone looks for -> what the page that answers says."""
    wanted = {
        "the regression with its range": r"regression \+16 %.*?revision b1d5781111\.\.17ba079149",
        "its command": r"--backend cuda --select .*?mode=auto,operation=backward",
        "the wrong result": r"new failure.*?dw\.rel_l2.*?--backend rocm --select .*?mode=row_packed",
        "the sick device": r"cuda:3 (differs from its siblings|\+2\.8 % against its siblings)",
        "the silent backend": r"ascend did not report",
        "where auto is wrong": r"1\.\d+x the time of row_packed",
    }
    clicks = {"index.html": 0}
    waits = ["index.html"]
    found: dict[str, int] = {}
    while waits:
        name = waits.pop(0)
        text = (site / name).read_text(encoding="utf-8")
        plain = " ".join(html.unescape(re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", text, flags=re.S)).split())
        for what, answer in wanted.items():
            if what not in found and re.search(answer, plain):
                found[what] = clicks[name]
        for href in re.findall(r'href="?([^"#> ]+)', text):
            if clicks[name] < 3 and href.endswith(".html") and href not in clicks and (site / href).exists():
                clicks[href] = clicks[name] + 1
                waits.append(href)
    assert found.keys() == wanted.keys() and max(found.values()) <= 2, found  # a fold may be a click more


@needs_chromium
@pytest.mark.skipif(axe() is None, reason="no installed package carries axe-core: pip install axe-core-python")
@pytest.mark.soak(seconds=150)
def test_axe_finds_nothing_on_any_kind_of_page(site: Path, tmp_path: Path) -> None:
    wrong = {}
    for page in first_of_each(site):
        for width, dark in ((1280, False), (1280, True), (480, False)):
            if found := audited(page, tmp_path, width, dark):
                wrong[f"{page.name} at {width} pixels{', dark' if dark else ''}"] = found
    assert not wrong, wrong


@needs_chromium
@pytest.mark.soak(seconds=60)
def test_every_page_of_the_planted_site_fits_and_leads_somewhere(site: Path, tmp_path: Path) -> None:
    """Both widths and every tab of one page of each kind; every link of all pages."""
    for page in first_of_each(site):
        for width in (1280, 500):
            found = look(page, tmp_path, width)
            names = ("faults", "fetched", "empty_tips", "unlike_tabs", "unlike_picks")
            assert not [found[n] for n in names if found[n]] and found["overflow"] <= 0, (page.name, width, found)
            assert not found["broken"] or page.name == "part.html", (page.name, found["broken"])
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        for href in re.findall(r'href="?([^"#> ]+)', text):
            assert (site / html.unescape(href).replace("%20", " ")).exists(), (page.name, href)
        assert page.name in ("live.html", "part.html") or page.with_suffix(".json").exists(), page.name


@needs_chromium
@pytest.mark.soak(seconds=40)
def test_every_kind_of_page_prints_on_few_sheets(site: Path, tmp_path: Path) -> None:
    assert CHROMIUM
    for page in first_of_each(site):
        out = tmp_path / f"{page.stem}.pdf"
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={out}", page.as_uri()]
        subprocess.run(command, capture_output=True, timeout=60, check=False)
        sheets = out.read_bytes().count(b"/Type /Page\n") or len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))
        assert 1 <= sheets <= 25, (page.name, sheets)


# readers


def planned_lines(cells: int) -> list[dict[str, Any]]:
    """The head and the plan of a run of `cells` cells, as its journal has them."""
    out: list[dict[str, Any]] = [
        {
            "event": "run",
            "schema": 6,
            "created": night_store.created(40).isoformat(),
            "run_id": "20261028-live",
            "argv": ["run", "m.yaml"],
        }
    ]
    for i in range(cells):
        name = f"cuda/rms_norm/farm/auto/forward/fp32/8x{64 + i}/llama"
        known = {"cell_id": name, "cell_key": f"{i:064x}", "index": i, "backend": "cuda", "op": "rms_norm"}
        known |= {"provider": "farm", "mode": "auto", "role": "subject", "operation": "forward", "matrix": "m"}
        known |= {"dtypes": {"x": "float32"}, "dims": {"rows": 8, "hidden": 64 + i}, "params": {}, "family": "mixed"}
        known |= {"seed": 0, "timing": {"method": "none", "version": 2}, "contract_version": 1, "skip_reason": ""}
        out.append({"event": "cell", "cell": {**known, "tag": "", "target": ""}})
    return [*out, {"event": "planned"}]


def results(count: int) -> Iterator[dict[str, Any]]:
    """The results of the first cells but the very first; every seventh failed."""
    from farm.store.recovery import CellReader

    read = CellReader()
    for line in planned_lines(count + 1)[2:-1]:
        cell = read(line["cell"])
        failed = cell.index % 7 == 0
        row = {**planned_row(cell), "status": "crashed" if failed else "passed", "reason": "", "attempt": 1}
        row |= {"evidence": "executed", "target": "cuda:NVIDIA-H200:700W", "device": "cuda:0", "node": "n"}
        yield {"event": "result", "row": row}


@contextlib.contextmanager
def served(store: Path) -> Iterator[int]:
    """`farm dashboard serve` in a process of its own: its port."""
    words = [sys.executable, "-m", "farm", "dashboard", "serve", "--out", str(store), "--port"]
    port = random.randrange(20000, 30000)
    env = {**clean_environ(), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*words, str(port)], env=env, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for("the server", lambda: _answers(port), 60)
            yield port
        finally:
            process.terminate()
            process.wait(20)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        asked.request("GET", "/nowhere")
        return asked.getresponse().status == 404
    return False


def _crawl(port: int) -> dict[str, int]:
    """Every address that pages lead to -> its status; of cells, runs and comparisons some, since they are alike."""
    seen: dict[str, int] = {}
    waits, kinds = ["/", "/night.json", "/evidence.json"], dict.fromkeys(("cell", "run", "compare", "live"), 0)
    while waits:
        address = waits.pop(0)
        if address in seen:
            continue
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asked.request("GET", address)
        answer = asked.getresponse()
        text = answer.read().decode("utf-8", "replace")
        seen[address] = answer.status
        if "html" not in str(answer.headers["content-type"]):
            continue
        for href in re.findall(r'href="?(/[^"#> ]*)', text):
            href = html.unescape(href)
            kind = href.split("/")[1]
            if href not in seen and href not in waits and kinds.get(kind, 0) < 60:
                kinds[kind] = kinds.get(kind, 0) + 1
                waits.append(href)
                if kind in ("backend", "parity") or (kind in kinds and kinds[kind] < 4):
                    waits.append(re.sub(r"(\?|$)", r".json\1", href, count=1))
    return seen


@pytest.mark.soak(seconds=40)
def test_every_link_of_the_server_leads_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    planted_site.write(tmp_path)
    with served(tmp_path) as port:
        found = _crawl(port)
    wrong = {address: status for address, status in found.items() if status != 200}
    assert not wrong and len(found) > 150, (wrong, len(found))


READERS, SECONDS = 50, 60.0


@pytest.mark.soak(seconds=90)
def test_fifty_readers_while_a_run_is_written(tmp_path: Path) -> None:
    """Each reads a page every half a second; a run of 3,000 cells grows meanwhile.  No error, p95 under a second."""
    pytest.importorskip("uvicorn")
    planted_site.write(tmp_path)
    writer = Store(tmp_path).create("20261028-020000-live")
    lines = planned_lines(3001)
    for line in lines:
        writer.append({**line, "run_id": writer.id} if line["event"] == "run" else line)
    names = [night_store.run_id(n) for n in (27, 28, 29)]
    target = night_store.TARGETS["cuda"]
    known = ["/", "/evidence", f"/live/{writer.id}", f"/run/{writer.id}", f"/backend/{target}", "/parity/rms_norm"]
    known += [f"/run/{names[2]}", f"/run/{names[2]}/40", f"/compare/{names[1]}/{names[2]}", "/night.json"]
    known += [f"/live/{writer.id}.json"] + [f"/live/{writer.id}"] * 3
    took: list[float] = []
    wrong: list[str] = []
    end = time.monotonic() + SECONDS

    def write() -> None:
        for line in results(3000):
            if time.monotonic() > end:
                return
            writer.append(
                {
                    "event": "started",
                    "time": time.time(),
                    "device": "cuda:0",
                    "attempt": 1,
                    "cell": line["row"]["index"],
                }
            )
            writer.append(line)
            time.sleep(SECONDS / 3200)

    def reads(number: int, port: int) -> None:
        rng = random.Random(number)
        tags: dict[str, str] = {}
        time.sleep(rng.random())
        while time.monotonic() < end:
            address = rng.choice(known)
            began = time.monotonic()
            try:
                asked = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                headers = {"Accept-Encoding": "gzip", "If-None-Match": tags.get(address, "")}
                asked.request("GET", address, headers=headers)
                answer = asked.getresponse()
                answer.read()
                tags[address] = str(answer.headers["etag"])
                if answer.status not in (200, 304):
                    wrong.append(f"{address}: {answer.status}")
            except OSError as error:
                wrong.append(f"{address}: {error}")
            took.append(time.monotonic() - began)
            time.sleep(0.5)

    with served(tmp_path) as port:
        end = time.monotonic() + SECONDS
        threads = [threading.Thread(target=reads, args=(n, port), daemon=True) for n in range(READERS)]
        threads.append(threading.Thread(target=write, daemon=True))
        for one in threads:
            one.start()
        for one in threads:
            one.join(SECONDS + 60)
    writer.close()
    found = statistics.quantiles(took, n=20)
    sys.stderr.write(
        f"{len(took)} answers, p50 {statistics.median(took):.3f} s, p95 {found[-1]:.3f} s, most {max(took):.2f} s\n"
    )
    assert not wrong, wrong[:10]
    assert len(took) > READERS * 20 and found[-1] < 1.0 * max(1.0, os.getloadavg()[0] / 4), found[-1]
