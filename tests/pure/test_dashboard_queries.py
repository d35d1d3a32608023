"""Verdicts, groups and numbers: what a page says follows from the rows."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import fake_run, row, rows_of_run

from farm.cell import FARM_FAULTS, FINDINGS, Status
from farm.dashboards import charts, heat
from farm.report import cards, format, provenance, queries, run_verdict, wording
from farm.report import findings as found


def some(*rows):
    return fake_run(list(rows))


def test_words_cover_every_status():
    assert set(format.STATUSES) == {s.value for s in Status} | {format.PENDING}, "pending is shown, never stored"
    assert set(format.HARM) == {s.value for s in FINDINGS}
    assert set(format.FARM_FAULTS) == {s.value for s in FARM_FAULTS}


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([row(0)], "passed"),
        ([row(0), row(1, status="inaccurate")], "findings"),
        ([row(0), row(1, status="inaccurate", role="peer", provider="torch")], "passed"),
        ([row(0), row(1, status="inaccurate"), row(2, status="lost")], "farm_fault"),
        ([row(0, status="infra_error", role="peer")], "farm_fault"),
        ([row(0, status="unsupported"), row(1, status="skipped")], "nothing"),
        ([row(0, status="unsupported"), row(1, role="peer", provider="torch")], "nothing"),
    ],
)
def test_verdict(rows, kind):
    assert run_verdict.verdict(some(*rows)).kind == kind


def test_a_doubt_is_the_verdict_a_warning_and_the_title():
    wrong = {"status": "inaccurate", "role": "peer", "worst_metric": "max_ulp", "worst_ratio": 9.0}
    run = some(row(0), row(0, provider="torch", **wrong), row(0, provider="liger", **wrong), row(1))
    verdict = run_verdict.verdict(run)
    assert (verdict.id, verdict.kind, verdict.doubted, verdict.peers) == (
        "in-doubt",
        "farm_fault",
        1,
        ("liger", "torch"),
    )
    assert wording.title(verdict) == "IN DOUBT 1"
    assert run_verdict.kind_of(run, run.rows) == "farm_fault"
    (warning,) = [w for w in run_verdict.warnings(run) if w.id == "report-in-doubt"]
    assert run.rows[0]["cell_id"] in warning and "every peer (liger, torch)" in warning and "Run again" in warning


def test_strict_peers_are_findings():
    run = some(row(0), row(1, status="crashed", role="peer", provider="torch"))
    assert len(found.peer_failures(run)) == 1 and not found.findings(run)
    run.head["command"] += " --strict-peers"
    assert run_verdict.verdict(run).kind == "findings"
    assert len(found.findings(run)) == 1 and not found.peer_failures(run)


def test_all_green_names_the_backend_on_which_nothing_ran():
    verdict = run_verdict.verdict(some(row(0), row(1, backend="cuda", status="unsupported", role="peer")))
    assert (verdict.id, verdict.idle) == ("all-passed", ("cuda",))
    assert "cuda" in wording.sentence(verdict)


def test_a_subject_of_which_nothing_is_supported_is_named():
    verdict = run_verdict.verdict(some(row(0), row(1, backend="cuda", status="unsupported", provider="farm")))
    assert (verdict.id, verdict.kind, verdict.unsupported) == ("nothing-supported", "nothing", ("farm on cuda",))
    assert "farm on cuda" in wording.sentence(verdict)


FACTS = {"failed": 41, "groups": 42, "planned": 143, "pending": 44, "writer": "process 45 on host", "faults": 46}
FACTS |= {"cause": "cause-47", "unsupported": ("subject-48",), "passed": {"executed": 49}, "rest": {"skipped": 50}}
FACTS |= {"idle": ("idle-51",), "impossible": 52, "doubted": 53, "peers": ("peer-54",)}
#: Verdict -> the facts that its sentence states.
STATED = {
    "running": "45 44 99 143 41 42",
    "interrupted": "44 143 41 42",
    "infrastructure-failures": "46 47 41 42",
    "in-doubt": "53 54 41 42",
    "findings": "41 42",
    "nothing-ran": "",
    "nothing-supported": "48",
    "all-compiled": "49 99 50 51 52",
    "all-simulated": "49 99 50 51 52",
    "all-imported": "49 51 52",
    "all-passed": "49 99 50 51 52",
    "passed-by-evidence": "49 51 52",
}


@pytest.mark.parametrize("name", run_verdict.KINDS)
def test_every_verdict_has_a_sentence_with_its_facts(name):
    text = wording.sentence(run_verdict.RunVerdict(name, **FACTS))
    assert text[0].isupper() and text.endswith(".") and "  " not in text
    missing = [fact for fact in STATED[name].split() if fact not in text]
    assert not missing, text


@pytest.mark.parametrize("many", [1, 2, 1234])
def test_sentences_count_one_as_one(many):
    facts = {"failed": many, "groups": many, "planned": many, "pending": many, "faults": many, "impossible": many}
    facts |= {"doubted": many}
    for name in run_verdict.KINDS:
        text = wording.sentence(run_verdict.RunVerdict(name, **facts, passed={"executed": many}))
        assert not re.search(r"\b1 (cells|failures|timings|distinct failures)\b|1234", text), text


def test_peers_that_count_as_findings_are_mentioned():
    verdicts = [run_verdict.RunVerdict("findings", failed=2, groups=1, strict=strict) for strict in (False, True)]
    assert ["peers" in wording.sentence(verdict) for verdict in verdicts] == [False, True]


def test_findings_come_worst_first_and_hold_every_failed_cell():
    run = fake_run()
    groups = found.findings(run)
    assert [g.kind for g in groups] == sorted((g.kind for g in groups), key=format.HARM.index)
    failed = sum(len(g.rows) for g in groups + found.peer_failures(run) + found.farm_faults(run))
    aside = sum(n for *_, n in found.set_aside(run))
    passed = queries.counts(run.rows)["passed"]
    assert failed + aside + passed == len(run.rows)


def test_a_group_says_what_its_cells_have_in_common():
    group = found.findings(fake_run())[0]
    assert (group.kind, group.mode, len(group.rows)) == ("inaccurate", "row_packed", 8)
    assert group.where == ("dtype fp16", "operation backward", "hidden 16384, 32768")
    assert {"dw.rel_l2", "5.3x"} <= set(group.worst.split())


def test_a_group_names_the_layouts_that_its_cells_have_in_common():
    """A row has no column for them: the cell's id shows what is not dense."""
    some = [dict(r) for r in rows_of_run(200) if r["status"] == "passed"][:6]
    for i, r in enumerate(some):
        r.update(op="norm", provider="mine", mode="auto", role="subject", evidence="executed", reason="wrong")
        r["cell_id"] = f"{r['cell_id']}{('', '/x_layout=heads', '/x_layout=packed/dy_layout=strided')[i % 3]}"
        r["status"] = "inaccurate" if "heads" in r["cell_id"] else "passed"
    group = found.findings(fake_run(some))[0]
    assert "x_layout heads" in group.where and "x_layout=heads" in group.command and "dense" not in group.command


def test_the_repeat_command_selects_what_the_cells_share():
    run = some(
        *(row(i, status="crashed", hidden=128, rows=i + 1, dtype=d) for i, d in enumerate(["float16", "bfloat16"] * 3))
    )
    run.head["matrices"][0]["path"] = "my matrices/a.yaml"
    run.head["argv"] = ["run", "a.yaml", "--provider", "rms_norm:farm=mod:f", "--set=timing.cache=warm"]
    run.head["argv"] += ["--provider", "other=mod:farm", "--provider=more=farm=x:y", "--set", "a=b", "--out", "x"]
    run.head["argv"] += ["--contracts", "ops"]
    words = shlex.split(found.findings(run)[0].command)
    assert words[:5] == ["farm", "run", "my matrices/a.yaml", "--backend", "cpu"]
    carried = ["--provider", "rms_norm:farm=mod:f", "--set=timing.cache=warm", "--set", "a=b", "--contracts", "ops"]
    assert words[5:13] == [*carried, "--select"], "another provider of the run is not carried along"
    chosen = dict(pair.split("=") for pair in words[13].split(","))
    assert chosen["hidden"] == "128" and chosen["mode"] == "auto" and chosen["dtype"] == "float16|bfloat16"
    assert "rows" not in chosen, "too many values to name"


@pytest.mark.parametrize("argv", [["ab", "--a", "revision=v0", "--b", "revision=."], ["ab", "--same"], ["run"]])
def test_a_matrix_that_came_with_a_subject_is_not_named_by_where_it_was_unpacked(argv: list[str]):
    run = some(row(0, status="crashed"))
    run.head["matrices"][0]["path"] = "/home/x/.cache/farm/trees/1f2e/bench/norm.yaml"
    run.head["argv"] = argv
    if argv == ["run"]:
        run.head["subject"] = {"source": "https://host/repo"}
    command = found.findings(run)[0].command
    assert ".cache" not in command and command.startswith(f"farm {argv[0]} --backend cpu")
    assert all(word in shlex.split(command) for word in argv)
    run.head["argv"] = [*argv, "bench"]
    run.head["matrices"][0]["path"] = "bench/norm.yaml"
    assert "bench/norm.yaml" in shlex.split(found.findings(run)[0].command)


def test_the_repeat_command_is_one_that_the_farm_takes():
    from farm.matrix.rules import Kind, parse_select

    run = fake_run()
    kinds = {n: Kind("str") for n in ("op", "provider", "mode", "operation")}
    kinds |= {"dtype": Kind("dtype"), "rows": Kind("int"), "hidden": Kind("int")}
    for group in found.findings(run):
        words = shlex.split(group.command)
        parse_select(words[words.index("--select") + 1], kinds)


def test_cards_never_mix_evidence_or_targets():
    rows = [row(0, backend="cuda", evidence="executed"), row(1, backend="cuda", evidence="compiled", status="built")]
    rows += [row(2, backend="cuda", evidence="executed"), row(3, backend="cuda", status="skipped")]
    rows[2]["target"] = "cuda:other"
    made = cards.cards(some(*rows))
    assert [c.counts for c in made] == [{"passed": 1}, {"built": 1}, {"passed": 1}]
    assert [c.not_run for c in made] == [{"skipped": 1}, {}, {}]


def test_a_card_counts_what_was_planned():
    lost = {"status": "lost", "evidence": ""}
    rows = [row(0, evidence="interpreted"), row(1, evidence="interpreted", status="inaccurate"), row(2, **lost)]
    rows += [row(3, status="skipped"), row(4, **lost, provider="torch", role="peer"), row(5, **lost)]
    (card,) = cards.cards(some(*rows))
    assert (card.counts, card.missing) == ({"passed": 1, "inaccurate": 1}, {"lost": 3})
    parts = {p.provider: (p.passed, p.cells, p.missing) for p in card.parts}
    assert parts == {"farm": (1, 4, {"lost": 2}), "torch": (0, 1, {"lost": 1})}
    bar = charts.status_bar(card.counts, card.missing)
    assert 'class="bare s-lost" style="flex-grow:0.6000" title="3 lost' in bar
    assert 'class="s-passed" style="flex-grow:0.2000"' in bar


@pytest.mark.parametrize(
    ("reason", "over", "worst"),
    [
        ("planted: a metric", 5.0, ("y.rel_l2", "5.0x")),
        ("planted: changed inputs", 0.02, ()),
        ("planted: not finite", 1e9, ()),
    ],
)
def test_a_metric_that_was_not_the_reason_is_not_named(reason, over, worst):
    bad = row(0, status="inaccurate", reason=reason, worst_output="y", worst_metric="rel_l2", worst_ratio=over)
    text = queries.worst_error(bad)
    assert set(worst) <= set(text.split()) and (text == reason) == (not worst)
    (group,) = found.findings(some(bad))
    assert (group.worst, group.reasons) == (text if worst else "", ((reason, 1),)), "a reason is shown once"
    ((table,),) = heat.heats([bad], {}).values()
    assert table.spots[0].text == ("≠ 5.0" if worst else "≠")


def test_two_cells_that_the_id_does_not_tell_apart_both_stand():
    twins = [row(0), row(1)]
    (table,) = heat.heats(twins, {})["cpu", "rms_norm"]
    spots = [i for b in table.layout.bodies for line in b.lines for i in line.cells]
    assert spots == [0, 1] == list(table.spots)


def test_rest_of_an_id_keeps_rows_apart():
    plain, shifted = row(0), row(1)
    shifted["cell_id"] += "/offset=1.0"
    (table,) = heat.heats([plain, shifted], {})["cpu", "rms_norm"]
    assert [b.label for b in table.layout.bodies] == ["forward · llama", "forward · llama offset=1.0"]


def test_matrix_products_are_shown_in_tflops():
    fast = {"time_us_p50": 10.0, "tflops": 612.0, "bandwidth_gbps": 50.0, "timing_quality": "ok"}
    product = row(0, backend="cuda", op="matmul", evidence="executed", operations=10**12, bytes_moved=10**8, **fast)
    (table,) = heat.heats([product], {})["cuda", "matmul"]
    assert table.unit == "TFLOP/s" and table.spots[0].text == "612"


def test_only_like_is_compared_with_like():
    def timed(provider, p50, **given):
        given = {"backend": "cuda", "evidence": "executed", "timing_method": "events", "timing_quality": "ok", **given}
        role = "subject" if provider == "farm" else "peer"
        times = {"time_us_p50": p50, "time_us_p20": p50 * 0.99, "time_us_p80": p50 * 1.01}
        return row(0, provider=provider, role=role, **{**times, **given})

    def paces(*rows):
        return [p for race in heat.paces(rows).values() for b in race.panes["float32"].values() for _, p in b]

    assert paces(timed("farm", 10.0), timed("torch", 20.0))[0][0].ratio.value == 0.5
    assert paces(timed("farm", 10.0), timed("torch", 20.0))[0][0].ratio.sure
    assert not paces(timed("farm", 10.0), timed("torch", 10.1))[0][0].ratio.sure, "their spreads overlap"
    assert not heat.paces([timed("farm", 10.0), timed("torch", 20.0, timing_method="host")])
    assert not heat.paces([timed("farm", 10.0), timed("torch", 20.0, timing_quality="impossible")])
    assert not heat.paces([timed("farm", 10.0, status="inaccurate"), timed("torch", 20.0)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (0.004, "<.01"),
        (0.424, "0.42"),
        (0.9996, "0.999"),
        (1.0, "1"),
        (1.0001, ">1"),
        (1.004, "1.004"),
        (5.31, "5.3"),
        (120, "120"),
        (23456.0, "2e4"),
        (float("inf"), "∞"),
    ],
)
def test_ratio(value, text):
    assert format.ratio(value) == text


def test_numbers_have_three_digits_and_no_exponent():
    assert [format.sig(v) for v in (0.01234, 1.5, 12.345, 1234.6, 0.0)] == ["0.0123", "1.50", "12.3", "1,235", "0"]


def test_nan_and_infinity_do_not_take_the_page_down():
    rows = rows_of_run(60)
    rows[0].update(status="inaccurate", worst_ratio=float("inf"), worst_metric="max_ulp")
    rows[1].update(status="inaccurate", worst_ratio=float("nan"))
    rows[2].update(metrics="{broken", dims="{broken", fingerprint="not json")
    run = fake_run(rows)
    from farm.dashboards.pages import Links, run_page

    html = run_page(run, Links(None, lambda i: None, lambda n: None))
    assert "∞</text>" in html and "nan" not in html.lower().replace("finance", "")


def test_viridis_is_bright_at_the_top_and_text_stays_readable():
    def luminance(rgb):
        lin = [c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    steps = [charts.viridis(i / charts.STEPS) for i in range(charts.STEPS + 1)]
    assert all(luminance(a) < luminance(b) for a, b in pairwise(steps))
    css = charts.scale_css()
    for i, rgb in enumerate(steps):
        white = f".v{i}{{background:#{rgb[0]:02x}{rgb[1]:02x}{rgb[2]:02x};color:#fff}}" in css
        contrast = 1.05 / (luminance(rgb) + 0.05) if white else (luminance(rgb) + 0.05) / 0.05
        assert contrast >= 4.5, i


def test_what_ran_in_an_environment_and_a_cluster_is_repeated_there():
    run = some(row(0, status="crashed", fingerprint='{"environment": "nightly"}'), row(1, status="lost"))
    run.head["argv"] = ["run", "a.yaml", "--address", "10.0.0.1:6379", "--environment=nightly", "--run-id", "r1"]
    for group in [*found.findings(run), *found.farm_faults(run)]:
        words = shlex.split(group.command)
        assert words[words.index("--environment") + 1] == "nightly"
        assert words[words.index("--address") + 1] == "10.0.0.1:6379"
    plain = some(row(0, status="crashed", fingerprint='{"environment": "default"}'))
    plain.head["argv"] = ["run", "a.yaml", "--address", "inline"]
    assert not {"--environment", "--address"} & set(shlex.split(found.findings(plain)[0].command))


def test_a_provider_that_a_plan_named_is_named_when_its_cell_is_repeated():
    run = some(row(0, status="crashed", provider="mine"))
    run.head |= {"argv": ["merge", "a", "b"], "providers": {"rms_norm:mine": {"path": "m:f", "sha256": ""}}}
    assert "--provider rms_norm:mine=m:f" in found.findings(run)[0].command


def test_a_run_is_repeated_under_another_name():
    head = {"argv": ["run", "a b.yaml", "--run-id", "r1", "--devices", "2"], "command": "farm run ..."}
    assert found.whole(head) == "farm run 'a b.yaml' --devices 2"
    assert found.whole({**head, "argv": ["run", "a.yaml", "--run-id=r1"]}) == "farm run a.yaml"
    assert found.whole({"command": "farm run x.yaml"}) == "farm run x.yaml"


def test_what_no_site_reported_is_run_by_its_part_of_the_plan():
    lost = {"status": "lost", "evidence": ""}
    run = some(row(0), row(1, **lost, backend="ascend", reason="no site reported ascend"))
    run.head |= {"plan": {"part": "", "of": ["cpu", "ascend"]}, "argv": ["merge", "a", "--plan", "my PLAN"]}
    assert found.farm_faults(run)[0].command == "farm run --plan 'my PLAN' --target ascend"
    run.head |= {"plan": {"part": "ascend", "of": ["cpu", "ascend"]}, "argv": ["run"]}
    assert found.farm_faults(run)[0].command == f"farm run --plan {run.dir / 'plan.json'} --target ascend"


def test_devices_that_differ_only_in_their_uuid_are_one_entry():
    given = [
        {"name": "H200", "node": "n", "target": "cuda:H200", "fingerprint": {"driver": d, "uuid": f"GPU-{i}"}}
        for i, d in enumerate(["580", "580", "570"])
    ]
    run = some(row(0))
    run.head["backends"] = {"cuda": {"devices": given}}
    first, other = provenance.environment(run)
    assert [n.partition(" on ")[0] for n in first[1]] == ["H200 GPU-0", "H200 GPU-1"] and len(other[1]) == 1
    assert first[2] == [("driver", "580")], "the UUID stands with its device"


def test_a_verdict_never_adds_simulated_cells_to_executed_ones():
    rows = [row(0, backend="cuda", evidence="executed"), row(1, backend="cuda", evidence="executed")]
    verdict = run_verdict.verdict(some(*rows, row(2, backend="rocm", evidence="simulated")))
    assert (verdict.id, verdict.passed) == ("passed-by-evidence", {"executed": 2, "simulated": 1})
    assert {"2 executed", "1 simulated"} <= set(re.findall(r"\d+ \w+", wording.sentence(verdict)))
    assert run_verdict.verdict(some(*rows)).id == "all-passed"
