"""Pages do not mislead: what was only compiled or simulated is no `passed`, what is pending is not lost, a sure loss
has a colour, medians compare like with like, and paper loses nothing that the screen has."""

from __future__ import annotations

import math
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from compile_rows import built
from synthetic_runs import FakeRun, counts_of, fake_run, row, rows_of_run

from farm.dashboards import charts
from farm.dashboards.pages import Links, run_page, runs_page
from farm.report import cards, findings, queries, run_verdict
from farm.report.junit import junit
from farm.report.markdown import markdown
from farm.report.run_lines import run_line

LINKS = Links("index.html", lambda run_id: f"run-{run_id}.html", lambda name: name)
REAL = ("executed", "interpreted")
PENDING = {"status": "lost", "reason": "planned, no result"}


@dataclass
class Unfinished(FakeRun):
    """A run without run.json, which `writer` writes."""

    writer: str = ""


def unfinished(rows: list[dict[str, Any]], writer: str = "process 7 on host") -> Unfinished:
    head = {"run_id": "live", "created": "2026-08-02T03:00:00Z", "planned": len(rows), "argv": ["run", "m.yaml"]}
    return Unfinished("live", head, False, rows, Path("/nonexistent"), writer)


def finished(rows: list[dict[str, Any]], **head: Any) -> FakeRun:
    """A run whose run.json has devices with their kind of evidence, as the farm writes it."""
    used: dict[str, dict[str, Any]] = {}
    for r in rows:
        one = used.setdefault(
            r["backend"], {"devices": [], "counts": counts_of([x for x in rows if x["backend"] == r["backend"]])}
        )
        device = {"name": r["device"], "node": r["node"], "evidence": r["evidence"], "fingerprint": {}}
        if r["evidence"] not in ("", "compiled") and device not in one["devices"]:
            one["devices"].append(device)
    return fake_run(rows, **{"backends": used, **head})


def of(evidence: str, index: int = 0, **given: Any) -> dict[str, Any]:
    """A row with that kind of evidence."""
    if evidence == "compiled":
        return built(index, **given)
    backend = "cpu" if evidence == "interpreted" else "cuda"
    return {**row(index, backend=backend, evidence=evidence, **given), "evidence": evidence}


def tags(html: str) -> list[str]:
    return re.findall(r'class="tag v-(\w+)"', html)


def listed(run: FakeRun) -> list[str]:
    return tags(runs_page([run_line(run.head, run.id, lambda: run)], LINKS))


def text(html: str) -> str:
    return " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.S).split())


# what a verdict is based on


@pytest.mark.parametrize(
    ("kinds", "tag"),
    [
        (["compiled"], "built"),
        (["simulated"], "simulated"),
        (["compiled", "simulated"], "simulated"),
        (["executed"], "passed"),
        (["interpreted", "simulated"], "passed"),
        (["compiled", "executed"], "passed"),
    ],
)
def test_what_never_ran_on_a_device_is_not_passed(kinds: list[str], tag: str) -> None:
    run = finished([of(kind, i) for i, kind in enumerate(kinds)])
    html = run_page(run, LINKS)
    assert run_verdict.verdict(run).kind == tag and f'class="verdict v-{tag}"' in html
    assert listed(run) == [tag], "the list says of a run what its page says"
    assert run_verdict.warnings(run) == [], "run.json still has `passed`"


@pytest.mark.parametrize("writer", ["process 7 on host", ""])
@pytest.mark.parametrize("kind", ["compiled", "simulated", "executed"])
def test_the_list_marks_what_an_unfinished_run_proves(kind: str, writer: str) -> None:
    rows = [of(kind, 0), of(kind, 1), {**of(kind, 2), **PENDING, "evidence": ""}]
    run = unfinished(rows, writer)
    state = "running" if writer else "interrupted"
    assert listed(run) == {"compiled": [state, "built"], "simulated": [state, "simulated"]}.get(kind, [state])
    html = runs_page([run_line(run.head, run.id, lambda: run)], LINKS)
    assert ("ev-simulated" in html.partition("<body>")[2]) == ('<td class="fake"' in html) == (kind == "simulated")
    assert f"2 {'built' if kind == 'compiled' else 'passed'}" in text(html)


def test_a_bar_is_hatched_only_where_every_device_was_simulated() -> None:
    for kinds, hatched in ((["simulated"], 1), (["simulated", "executed"], 0), (["executed"], 0)):
        run = finished([of(kind, i) for i, kind in enumerate(kinds)])
        html = runs_page([run_line(run.head, run.id, lambda run=run: run)], LINKS)  # type: ignore[misc]
        assert html.count('<td class="fake"') == hatched
        assert ("ev-simulated" in html.partition("<body>")[2]) == ("simulated" in kinds)


def test_a_place_that_only_simulated_is_not_passed() -> None:
    rows = [of("executed", 0), of("simulated", 1, provider="other"), of("compiled", 2)]
    rows[1]["cell_id"] += "@GB200"
    html = run_page(finished(rows), LINKS)
    assert tags(html) == ["passed", "simulated", "built"]


def test_no_random_run_passes_by_what_did_not_run() -> None:
    rng = random.Random(11)
    for _ in range(300):
        kinds = rng.sample(["executed", "interpreted", "compiled", "simulated"], rng.randint(1, 3))
        rows = [of(rng.choice(kinds), i) for i in range(rng.randint(1, 6))]
        for r in rows:
            if rng.random() < 0.2:
                r.update(status=rng.choice(["skipped", "unsupported"]), evidence="")
        run, ran = finished(rows), {r["evidence"] for r in rows if r["status"] in ("passed", "built")}
        kind = run_verdict.verdict(run).kind
        assert (kind == "passed") <= bool(ran & set(REAL)), rows
        assert (kind == "built") == (ran == {"compiled"}) or kind == "nothing", rows
        assert listed(run) == [kind] or kind == "nothing", rows


def test_the_comment_of_a_simulated_run_is_not_green() -> None:
    first = {kind: markdown(finished([of(kind)])).split()[1] for kind in ("executed", "simulated", "compiled")}
    assert len(set(first.values())) == 3 and first["executed"] == "✅"


# pending is not lost


def live(done: int = 24, cells: int = 60) -> Unfinished:
    rows = rows_of_run(cells)
    for r in rows[done:]:
        r.update(PENDING, evidence="", worst_ratio=None, timing_quality="none", time_us_p50=None, log="", target="")
    return unfinished(rows)


def test_a_cell_that_has_still_to_run_is_pending() -> None:
    run = live()
    html = run_page(run, LINKS)
    shown = text(html.replace(html[html.index('<section id="words"') :], ""))
    assert "lost" not in shown and "s-lost" not in html.partition("<body>")[2]
    assert "60 planned = 24 passed … 36 pending" in shown
    assert 'class="missing"' not in html, "nothing is red that is only pending"
    assert run_verdict.verdict(run).pending == 36
    line = run_line(run.head, run.id, lambda: run)
    assert line.backends == {"cuda": {"passed": 24, "pending": 36}}
    assert "36 pending" in markdown(run) and "lost" not in markdown(run)
    assert junit(run).count('<error type="pending"') == 36, (
        "a build server does not take an unfinished run for a good one"
    )


def test_a_cell_that_no_device_could_take_is_lost_even_while_the_run_is_running() -> None:
    run = live()
    run.rows[30].update(status="lost", reason="no device of cuda for 600 s")
    html = run_page(run, LINKS)
    assert run_verdict.verdict(run).pending == 35 and "24 passed ? 1 lost … 35 pending" in text(html)
    (group,) = findings.farm_faults(run)
    assert len(group.rows) == 1 and "farm resume" not in group.command


def test_the_cells_of_an_interrupted_run_are_lost() -> None:
    run = live()
    run.writer = ""
    assert run_verdict.verdict(run).pending == 36 and "24 passed ? 36 lost" in text(run_page(run, LINKS))


def test_what_is_pending_is_no_pattern_of_a_failure() -> None:
    rows = [
        of("executed", 0, dtype="float16"),
        of("executed", 1),
        *(of("executed", i, dtype="bfloat16") for i in (2, 3)),
    ]
    rows[0].update(status="inaccurate", reason="x")
    for r in rows[1:]:
        r.update(PENDING, evidence="")
    (group,) = findings.findings(queries.as_shown(unfinished(rows)))
    assert group.where == (), "no cell of another dtype has run yet"


# losses and wins have a colour


def raced(ratio: float, sure: bool) -> str:
    """The class of a cell in the table of paces."""
    p50 = {"farm": 100.0 * ratio, "torch": 100.0}
    low, high = (0.9999, 1.0001) if sure else (0.01, 100.0)
    rows = [
        of("executed", i, provider=n, role="peer" if n == "torch" else "subject", timing_method="events")
        | {"timing_quality": "ok", "time_us_p50": us, "time_us_p20": us * low, "time_us_p80": us * high}
        for i, (n, us) in enumerate(p50.items())
    ]
    html = run_page(finished(rows), LINKS)
    section = html[html.index('<section id="pace"') :].partition("</section>")[0]
    (name,) = re.findall(r"<td class=(\w+)", section)
    return str(name)


@pytest.mark.parametrize("ratio", [1.001, 1.01, 1.05, 1.07, 1.072, 1.5, 2.0, 40.0])
def test_every_sure_ratio_has_a_colour(ratio: float) -> None:
    slower, faster = raced(ratio, True), raced(1 / ratio, True)
    assert int(slower[1:]) > 5 > int(faster[1:]), "a sure loss of 7 % was white"
    assert int(slower[1:]) - 5 == 5 - int(faster[1:])
    assert raced(ratio, False) == "unsure"


def colours(scheme: str) -> dict[str, tuple[float, float, float]]:
    """Class -> its background over the page's, for the classes of paces; `page`: the page's own."""
    css = (Path(charts.__file__).parent / "farm.css").read_text() + charts.scale_css()
    roots = re.findall(r":root\{(.*?)\}", css)
    named = dict(
        pair.split(":") for pair in (roots[0] + (";" + roots[1] if scheme == "dark" else "")).split(";") if pair
    )

    def rgb(value: str, under: tuple[float, float, float]) -> tuple[float, float, float]:
        value = re.sub(r"var\((--\w+)\)", lambda m: named[m[1]], value)
        if value.startswith("#"):
            digits = "".join(c * 2 for c in value[1:]) if len(value) == 4 else value[1:]
            return tuple(int(digits[i : i + 2], 16) for i in (0, 2, 4))  # type: ignore[return-value]
        r, g, b, alpha = map(float, re.findall(r"[\d.]+", value))
        return tuple(alpha * c + (1 - alpha) * u for c, u in zip((r, g, b), under))  # type: ignore[return-value]

    page = rgb("var(--bg)", (0, 0, 0))
    found = dict(re.findall(r"\.(d\d+|unsure)\{[^}]*?background:([^;}]+)", css))
    return {"page": page, **{name: rgb(value, page) for name, value in found.items()}}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_grey_is_no_white_and_every_step_is_seen(scheme: str) -> None:
    seen = colours(scheme)
    steps = [f"d{i}" for i in range(11) if i != 5]
    assert set(steps) <= set(seen) and "d5" not in seen, "no sure ratio is without colour"
    for name in (*steps, "unsure"):
        assert math.dist(seen[name], seen["page"]) > 35, (name, "looks like the page")
    ink = charts.luminance({"light": (27, 29, 33), "dark": (228, 230, 234)}[scheme])
    for name in (*steps, "unsure"):
        low, high = sorted((ink, charts.luminance(tuple(map(round, seen[name])))))  # type: ignore[arg-type]
        assert (high + 0.05) / (low + 0.05) >= 4.5, (name, "hides its number")
    for name in steps:
        red, _, blue = seen[name]
        assert math.dist(seen[name], seen["unsure"]) > 20, (name, "looks like grey")
        assert (blue > red) == (int(name[1:]) < 5)


def test_a_legend_says_what_blue_and_red_mean() -> None:
    html = run_page(fake_run(rows_of_run(300)), LINKS)
    section = html[html.index('<section id="pace"') :].partition("</section>")[0]
    (legend,) = re.findall(r'<p class="legend">(.*?)</p>', section)
    assert [f"d{i}" in legend for i in (0, 4, 6, 10)] == [True] * 4 and "unsure" in legend
    words = text(legend)
    assert "faster" in words and "slower" in words and "within noise" in words


# shares and speeds on cards


FLAG = "the cell's bytes are below the calibrated sizes, so the share of the roof is extrapolated"


def timed(
    index: int, provider: str, us: float, share: float | None = None, flag: str = "", **given: Any
) -> dict[str, Any]:
    role = "subject" if provider in ("farm", "mine") else "peer"
    made = of("executed", index, provider=provider, role=role, timing_method="events", **given)
    made.update(timing_quality="ok", time_us_p50=us, time_us_p20=us, time_us_p80=us, share_of_roof=share)
    made.update(bandwidth_gbps=1e4 / us, bytes_moved=10_000_000, operations=10, flags=f'["{flag}"]' if flag else "[]")
    return made


def test_a_share_that_is_extrapolated_is_in_no_median() -> None:
    shares = [(0.8, ""), (0.9, ""), *[(1.24, FLAG)] * 5]
    run = finished([timed(i, "farm", 9.0, share, flag, hidden=64 + i) for i, (share, flag) in enumerate(shares)])
    (card,) = cards.cards(run)
    assert card.parts[0].share == pytest.approx(0.85)
    html = run_page(run, LINKS)
    assert "124 %" not in text(html[html.index('id="cards"') :].partition("</section>")[0])
    (note,) = [n for n in card.notes if n.id == "report-share-extrapolated"]
    assert "5 cells" in note and f'data-id="{note.id}"' in html


def test_a_heat_map_has_no_colour_for_a_share_that_nobody_measured() -> None:
    rows = [
        timed(i, "farm", 9.0, share, flag, hidden=64 + i) for i, (share, flag) in enumerate([(0.5, ""), (1.24, FLAG)])
    ]
    rows += [timed(2, "farm", 9.0, 0.9, hidden=128), timed(3, "farm", 9.0, None, hidden=256)]
    html = run_page(finished(rows), LINKS)
    assert re.findall(r"<td id=c\d+ class=(\w+)", html) == ["v10", "unsure", "v18", "unsure"]
    assert "extrapolated" in text(re.findall(r'<p class="legend">.*?share of the roof.*?</p>', html)[0])


def test_only_extrapolated_shares_are_no_share() -> None:
    (card,) = cards.cards(finished([timed(0, "farm", 9.0, 1.24, FLAG)]))
    assert card.parts[0].share is None and [n.id for n in card.notes] == ["report-share-extrapolated"]


def test_a_share_over_the_roof_is_explained() -> None:
    (card,) = cards.cards(finished([timed(0, "farm", 9.0, 1.03), timed(1, "farm", 9.0, 1.01, hidden=8)]))
    assert [n.id for n in card.notes] == ["report-share-above"]
    assert cards.cards(finished([timed(0, "farm", 9.0, 0.99)]))[0].notes == ()


def test_the_flag_of_the_coordinator_is_the_one_that_pages_know() -> None:
    from farm.coordinator.calibration_lookup import beyond_the_curve

    for where in ("below", "above"):
        (flag,) = beyond_the_curve({}, {"extrapolated": where})["flags"]
        assert queries.extrapolated(timed(0, "farm", 9.0, 1.2, flag))
    assert not queries.extrapolated(timed(0, "farm", 9.0, 1.2, "noisy"))


def test_peers_are_compared_on_the_cells_that_both_have() -> None:
    """torch has only the small shapes: its median speed beside ours said nothing."""
    rng = random.Random(5)
    ours, theirs = [rng.uniform(5, 900) for _ in range(9)], [rng.uniform(5, 900) for _ in range(4)]
    rows = [timed(i, "farm", us, hidden=64 << i) for i, us in enumerate(ours)]
    rows += [timed(20 + i, "torch", us, hidden=64 << i) for i, us in enumerate(theirs)]
    rows += [timed(30, "torch", 7.0, hidden=64, dtype="float16"), timed(31, "torch", 7.0, hidden=64, mode="fast")]
    (card,) = cards.cards(finished(rows))
    parts = {p.provider: p for p in card.parts}
    want = geometric_mean([a / b for a, b in zip(ours, theirs, strict=False)])
    ((name, ratio, n),) = parts["torch"].against
    assert (name, n) == ("farm", 4) and ratio == pytest.approx(want)
    assert parts["torch"].speed is None and parts["torch"].share is None, "no median of another set beside ours"
    assert parts["farm"].speed is not None and parts["farm"].timed == 9 and parts["farm"].against == ()
    shown = text(run_page(finished(rows), LINKS))
    assert f"{want:.2f} our time ÷ theirs, 4 cells" in shown
    assert f"{want:.2f} our time ÷ theirs, 4 cells" in markdown(finished(rows))


def test_two_subjects_have_medians_over_the_same_cells() -> None:
    rows = [timed(i, "farm", 10.0 * (i + 1), 0.1 * (i + 1), hidden=64 << i) for i in range(5)]
    rows += [timed(20 + i, "mine", 50.0, 0.5, hidden=64 << i) for i in range(2)]
    farm, mine = cards.cards(finished(rows))[0].parts
    assert (
        (farm.timed, mine.timed) == (2, 2) and farm.speed == pytest.approx(750.0) and farm.share == pytest.approx(0.15)
    )
    rows[-2:] = [timed(20, "mine", 50.0, 0.5, hidden=32)]
    farm, mine = cards.cards(finished(rows))[0].parts
    assert (farm.speed, mine.speed) == (None, None), "no cell in common"


def test_random_runs_pair_like_with_like() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        us: dict[str, dict[int, float]] = {}
        rows = []
        for i in range(rng.randint(1, 40)):
            who, hidden = rng.choice(["farm", "torch", "liger"]), rng.randint(1, 12)
            if hidden not in us.setdefault(who, {}):
                us[who][hidden] = rng.uniform(1, 1000)
                rows.append(timed(i, who, us[who][hidden], hidden=hidden))
        found = {p.provider: p.against for card in cards.cards(finished(rows)) for p in card.parts}
        for who in ("torch", "liger"):
            both = sorted(us.get("farm", {}).keys() & us.get(who, {}).keys())
            want = [us["farm"][h] / us[who][h] for h in both]
            given = [(n, pytest.approx(geometric_mean(want))) for n in [len(want)] if n]
            assert [(p.cells, p.ratio) for p in found.get(who, ())] == given, seed


# paper


def printed() -> str:
    """The rules of farm.css that are for paper."""
    css = (Path(charts.__file__).parent / "farm.css").read_text()
    return "".join(css[m.end() :].partition("}}")[0] + "}" for m in re.finditer(r"@media print\{", css))


def declared(selector: str, css: str) -> str:
    """What a stylesheet declares for a selector."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", css)
    return ";".join(body for names, body in rules if selector in [n.strip() for n in names.split(",")])


def test_on_paper_each_table_has_the_name_of_its_tab() -> None:
    html = run_page(fake_run(rows_of_run(300)), LINKS)
    panes = re.findall(r'<div class="pane"([^>]*)>', html)
    named = [re.findall(r'data-name="([^"]+)"', p) for p in panes]
    assert len(panes) > 3 and all(len(n) == 1 for n in named)
    assert {n for ns in named for n in ns} <= {"bf16", "fp16", "fp32"}
    assert "attr(data-name)" in declared(".pane::before", printed())
    assert "display:none" in declared(".tabs>label", printed()), "names of tabs that nobody can press"


def test_on_paper_no_column_is_cut_and_no_colour_lost() -> None:
    html, css = run_page(fake_run(rows_of_run(300)), LINKS), printed()
    assert "overflow:visible" in declared(".scroll", css)
    for name in ("heat",):
        tables = re.findall(rf'<table class="?{name}[^>]*>', html)
        assert tables and all(re.search(r'style="--n:\d+"', t) for t in tables), "paper scales a table by its columns"
        assert "var(--n)" in declared(f".{name}", css)
    assert "print-color-adjust:exact" in declared(":root", css)
    assert "@media screen and (prefers-color-scheme:dark){:root" in html, "paper is white"


def test_no_button_is_printed() -> None:
    assert "display:none" in declared(".cmdbox button", printed())


# the title, and where a number leads


@pytest.mark.parametrize(
    ("run", "title"),
    [
        (finished([of("executed", i, status="crashed", reason="x") for i in range(17)]), "FAILED 17"),
        (finished([of("executed")]), "PASSED"),
        (finished([of("compiled")]), "BUILT"),
        (finished([of("simulated")]), "SIMULATED"),
        (finished([of("executed", status="unsupported")]), "INCONCLUSIVE"),
        (
            finished([of("executed", status="infra_error"), of("executed", 1, status="crashed")]),
            "INFRASTRUCTURE FAILURE 1, FAILED 1",
        ),
        (live(), "RUNNING 24/60"),
        (unfinished(live().rows, ""), "INTERRUPTED 24/60"),
    ],
)
def test_the_title_begins_with_the_verdict(run: FakeRun, title: str) -> None:
    (found,) = re.findall("<title>(.*?)</title>", run_page(run, LINKS))
    assert found == f"{title} · run {run.id} · kernel farm"


@pytest.mark.parametrize("role", ["subject", "peer"])
def test_failed_leads_to_the_findings(role: str) -> None:
    run = finished([of("executed", role=role, status="crashed", reason="x"), of("executed", 1)])
    html = runs_page([run_line(run.head, run.id, lambda: run)], LINKS)
    (address,) = re.findall(r'<a href="([^"]+)">1</a>', html)
    page, _, anchor = address.partition("#")
    assert page == f"run-{run.id}.html" and run_page(run, LINKS).count(f' id="{anchor}"') == 1
    good = finished([of("executed")])
    assert "#findings" not in runs_page([run_line(good.head, good.id, lambda: good)], LINKS)
    assert "#findings" not in runs_page(
        [run_line(run.head, run.id, lambda: run)], Links(None, lambda i: None, lambda n: n)
    )


# what can be read and pressed


def test_small_texts_keep_their_contrast_and_links_their_height() -> None:
    css = (Path(charts.__file__).parent / "farm.css").read_text()
    assert "opacity" not in declared(".builds td i", css)
    size, padding = (
        re.search(r"font-size:([\d.]+)px", declared("nav", css)),
        re.search(r"padding:([\d.]+)px", declared("nav a", css)),
    )
    assert size and padding and float(size[1]) * 1.45 + 2 * float(padding[1]) >= 24
