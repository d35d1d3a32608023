"""What every comment of a pull request is: an answer first, seven questions, plain text below a limit, rows by harm."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pr_results import pair, result, slower, static, target

from farm.pr import comment as comments
from farm.pr import result as results

WIDE = "cuda/rms_norm/liger/auto/forward/bf16/8192x4096/llama"
NARROW = "cuda/rms_norm/liger/auto/forward/bf16/32768x128/llama"
QUESTIONS = (
    *(
        "What got worse?",
        "By how much?",
        "How sure?",
        "On which hardware?",
        "Did accuracy change?",
        "What was not run?",
    ),
    "How to repeat one cell?",
)


def answered(text: str) -> dict[str, str]:
    """Question -> answer, of the list below the first lines."""
    found = re.findall(r"^- \*\*([^*]+\?)\*\* (.*)$", text, re.M)
    assert tuple(q for q, _ in found) == QUESTIONS
    return dict(found)


def interpreted(n: int, **given: Any) -> dict[str, Any]:
    axes = {"dtype": "float32", "operation": "forward", "rows": "8", "hidden": "4096"}
    more = {"ratio": None, "gbps_a": None, "axes": axes}
    return pair(f"cpu/rms_norm/liger/auto/forward/fp32/{n}x4096", **{**more, **given})


def test_seven_questions_are_answered_of_a_timed_regression() -> None:
    wrong = pair("cuda/zeta/x/auto/forward/bf16/8x8", status_b="inaccurate", worst_a=0.2, worst_b=3.0, same_bits=False)
    wrong |= {"speed": "none", "ratio": None}
    amd = {"what": "rocm", "why": "no device of it ran"}
    right = pair("cuda/a/x/auto/forward/bf16/1x8")
    text = comments.comment(result(slower(WIDE, 1.18), slower(NARROW, 1.06), wrong, right, not_run=[amd]))
    at = answered(text)
    assert "1 of 4 cells broke: right in base, not in head; first cuda/zeta" in at["What got worse?"]
    assert "2 of 3 timed cells got slower; the slowest is cuda/rms" in at["What got worse?"]
    assert "8x8: the error is 20 % of the tolerance in base, 3.00 times the tolerance in head" in at["By how much?"]
    assert "takes 1.180 times base's time" in at["By how much?"]
    assert (
        "3 cells were timed: 1 is judged by 3 rounds and 2 by 15." in at["How sure?"]
        and "beyond the cell's threshold (2.0 %)" in at["How sure?"]
    )
    assert at["On which hardware?"] == "NVIDIA H200: 4 cells executed (compiled and run on the device)."
    assert at["Did accuracy change?"].startswith("Yes, beyond the tolerance in 1 cell, first cuda/zeta")
    assert at["What was not run?"] == "rocm (AMD GPU): no device of it ran."
    assert "on Linux with an NVIDIA GPU" in at["How to repeat one cell?"]
    steps = text.partition("How to repeat")[2].split("```")[1].splitlines()
    assert steps[1:3] == ["git clone https://github.com/someone/kernels repeated && cd repeated",
                          "git fetch origin pull/7/head"] and steps[-1] == wrong["repeat"]  # fmt: skip


def test_simulated_times_are_said_to_be_of_no_hardware() -> None:
    played = {"backend": "sim", "evidence": "simulated", "target": "sim"}
    text = comments.comment(result({**slower(WIDE), **played}))
    at = answered(text)
    assert at["On which hardware?"].startswith("None: no GPU or NPU took part; sim: 1 cell simulated (played from a")
    assert "Of real speed nothing is known." in at["How sure?"]
    assert text.splitlines()[1].startswith("### 🧪 **SIMULATED, no hardware: nothing is known of real speed")
    assert "1.18" not in text.splitlines()[1] and "❌" not in text


def test_a_cell_without_a_time_to_judge_is_undecided_and_said() -> None:
    unfit = pair(NARROW, speed="unfit", ratio=None, low=None, high=None, reason="no round gave a time in both arms")
    text = comments.comment(result(slower(WIDE), pair("cuda/a/x/auto/forward/bf16/1x8"), unfit))
    at = answered(text)
    assert "1 of 2 timed cells got slower" in at["What got worse?"] and "Undecided: 1 cell: cuda/" in at["How sure?"]
    assert "1 cell without a time that can be judged: first cuda/rms" in at["What was not run?"]
    assert "no round gave a time" in at["What was not run?"] and "**Slower, rms\\_norm: 1 of 2 timed cells**" in text


def test_seven_questions_are_answered_without_a_device() -> None:
    ascend = target(target="ascend910b", backend="ascend", sizes="rows 2048; hidden 4096")
    failing = interpreted(3, status_a="crashed", status_b="crashed", reason="no room", same_bits=None)
    text = comments.comment(result(interpreted(1), failing, static=static(targets=[ascend])))
    at = answered(text)
    assert at["What got worse?"] == "Nothing that was seen: none of 2 cells broke; speed was not measured."
    assert at["By how much?"].startswith("Not measured") and "Of speed nothing is known." in at["How sure?"]
    assert "2 cells interpreted (run by Triton's interpreter on a CPU" in at["On which hardware?"]
    assert "compiled for ascend910b (NPU), and not run from that" in at["On which hardware?"]
    assert at["Did accuracy change?"].startswith("No: the same bits in 1 cell.")
    assert "ascend (NPU), 12 cells only compiled for ascend910b (other machine code in 10)" in at["What was not run?"]
    assert "1 cell ran and failed in base too" in at["What was not run?"]
    assert "on Linux with no GPU, Python" in at["How to repeat one cell?"]
    assert "- 1 cell, first cpu/rms\\_norm/liger/auto/forward/fp32/3x4096: crashed: no room" in text
    assert "their sizes differ, as the interpreter is slow." in text
    assert "| rows 8; hidden 4096 |" in text and "| rows 2048; hidden 4096 |" in text
    alike = [target(sizes="rows 8; hidden 4096")]
    assert "interpreter is slow" not in comments.comment(result(interpreted(1), static=static(targets=alike)))


def test_a_change_of_comments_alone_is_answered_from_what_was_read() -> None:
    nothing = static(changed=[], targets=[], tools=[])
    at = answered(comments.comment(result(static=nothing)))
    assert at["What got worse?"].startswith("Nothing:") and at["By how much?"].startswith("Not at all:")
    assert at["How sure?"].startswith("By reading: the kernels") and at["How sure?"].endswith("Nothing was run.")
    assert at["Did accuracy change?"].startswith("No: no code that computes anything changed")


def test_what_gave_no_output_and_what_no_cell_launches_is_said_where_it_is_asked_for() -> None:
    hung = pair(WIDE, status_b="timed_out", same_bits=None, worst_b=None, speed="none", ratio=None)
    idle = [f"_k{n}" for n in range(5)]
    at = answered(comments.comment(result(pair(NARROW), hung, static=static(unreached=idle))))
    assert at["By how much?"].startswith("cuda/rms")  # an id is copied as it stands
    assert at["Did accuracy change?"].startswith("No: the same bits in 1 cell.")
    assert at["Did accuracy change?"].endswith("In 1 cell head gave no output to compare.")
    named = "\\_k0, \\_k1, \\_k2 and 2 more"
    assert f"unknown for {named}: changed, but launched by no cell" in at["What got worse?"]
    assert f"5 changed kernels that no cell launches: {named}" in at["What was not run?"]


EXAMPLES = sorted(Path(__file__).resolve().parents[2].glob("docs/examples/comments/*.json"))


@pytest.mark.parametrize("file", EXAMPLES, ids=[p.stem for p in EXAMPLES])
def test_examples_in_docs_are_what_their_results_give(file: Path) -> None:
    text = comments.comment(results.read(file.read_bytes()))
    assert text.partition("\n")[2] == file.with_suffix(".md").read_text(encoding="utf-8"), f"make {file.stem}.md again"
    answered(text)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


SOME = st.none() | st.floats(0.25, 4.0)
STATUSES = ("passed", "inaccurate", "crashed", "lost", "unsupported", "absent")
KIND = {
    "backend": st.sampled_from(["cuda", "rocm", "ascend", "cpu", "sim"]),
    **{f"status_{arm}": st.sampled_from(STATUSES) for arm in "ab"},
    "speed": st.sampled_from(["regressed", "improved", "same", "inconclusive", "none"]),
    "same_bits": st.sampled_from([True, False, None]),
    **dict.fromkeys(("ratio", "low", "high", "worst_b"), SOME),
    **{name: st.text(max_size=300) for name in ("reason", "place", "launch_a")},
}
NAMES = st.lists(st.text(max_size=300), max_size=30)
REASONS = st.lists(st.fixed_dictionaries({"what": st.text(max_size=300), "why": st.text(max_size=1000)}), max_size=9)


@st.composite
def random_results(draw: st.DrawFn) -> dict[str, Any]:
    """Results of one cell to 5,000: a few kinds of cells, repeated under other names and with other times."""
    kinds = draw(st.lists(st.fixed_dictionaries(KIND), min_size=1, max_size=5))
    long = draw(st.integers(0, 250))
    pairs = []
    for n in range(draw(st.sampled_from([1, 2, 7, 60, 700, 5000]))):
        kind = kinds[n % len(kinds)]
        name = f"{kind['backend']}/op{n % 7}/p{'y' * long}/auto/forward/{n}x64"
        ratio = kind["ratio"] and kind["ratio"] * (1 + n / 10_000)
        pairs.append(pair(name[:300], **{**kind, "ratio": ratio}))
    found = static(changed=draw(NAMES), unreached=draw(NAMES), host=draw(NAMES))
    found["targets"] *= draw(st.integers(0, 50))
    given = {"static": draw(st.sampled_from([None, found])), "not_run": draw(REASONS) * 20}
    return result(*pairs, number=draw(st.integers(0, 10**7)), **given)


@given(random_results())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_result_is_plain_text_below_the_limit_that_answers_first(found: dict[str, Any]) -> None:
    text = comments.comment(found)
    assert len(text) <= comments.LIMIT and text.count("\n### ") == 1 and text.splitlines()[1].startswith("### ")
    assert text.count("<details>") == text.count("</details>")
    bare = re.sub(r"</?(details|summary)>", "", text.partition("\n")[2])
    assert not re.search(r"[<\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", bare)
    answered(text)
    assert comments.headline(found, results.outcome(found)) in text


@given(random_results(), st.randoms())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_are_ordered_by_harm_and_never_by_name(found: dict[str, Any], generator: random.Random) -> None:
    """Other names of the same length change nothing but the names."""
    pairs = found["pairs"][:60]
    tokens = [f"{n:04d}" for n in range(len(pairs))]
    others = generator.sample(tokens, len(tokens))
    both = []
    for names in (tokens, others):
        made = [{**p, "cell": f"{p['backend']}/op/p{name}", "op": "op"} for p, name in zip(pairs, names)]
        both.append(comments.comment({**found, "pairs": made, "static": None}).partition("\n")[2])
    swap = dict(zip(tokens, others))
    assert re.sub(r"(?<=op/p)\d{4}", lambda m: swap[m[0]], both[0]) == both[1]
