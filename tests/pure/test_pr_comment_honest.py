"""A comment claims no more than was computed: simulated cells, untouched targets, undecided cells, steps to repeat."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pr_results import move, own_test, pair, result, slower, static, target

from farm.cli import pr_inputs
from farm.errors import UsageError
from farm.pr import comment as comments
from farm.pr import ledger, merging, repeating
from farm.pr import result as results
from farm.pr.repeating import Links, package
from farm.pr.result import Json
from farm.pr.selection import select
from farm.shipping import revision
from farm.subject.model import Source, Subject

PLAYED = "sim/rms_norm/x/auto/forward/bf16/8192x4096/llama"
CPU = "cpu/rms_norm/x/auto/forward/fp32/8x4096"
NO_TIME = {"ratio": None, "us_a": None, "gbps_a": None}


def first_line(found: Json) -> str:
    return comments.comment(found).splitlines()[1]


@pytest.mark.parametrize("kind", ["slower", "broken", "lost"])
def test_what_simulated_devices_find_fails_no_check_unless_the_repository_says_so(kind: str) -> None:
    bad = {"slower": slower(PLAYED), "broken": pair(PLAYED, status_b="crashed"), "lost": pair(PLAYED, status_b="lost")}
    found = result(bad[kind], pair(CPU, **NO_TIME))
    assert results.outcome(found).exit_code == 4 and not ledger.after(None, found).failing
    assert first_line(found).startswith("### 🧪 **SIMULATED, no hardware") and "❌" not in first_line(found)
    counted = {**found, "counts_simulated": True}
    assert results.outcome(counted).exit_code == {"slower": 1, "broken": 1, "lost": 3}[kind]
    assert "SIMULATED, no hardware" in first_line(counted) and "1.18" not in first_line(counted)
    assert merging.merged([counted, found])["counts_simulated"] is False  # every site says so, or none
    hardware = result(bad[kind], pair("cuda/rms_norm/x/auto/forward/bf16/8x8"))
    assert results.outcome(hardware).exit_code == 0 and "SIMULATED" not in first_line(hardware)


def test_bits_are_counted_only_where_they_were_computed() -> None:
    found = result(pair(PLAYED), pair(CPU, **NO_TIME))
    assert "bits identical in 1 of 1 cell that was computed (interpreted on a CPU), 1 more" in first_line(found)
    text = comments.comment(result(pair(PLAYED, same_bits=False), pair(CPU, **NO_TIME)))
    assert "**Did accuracy change?** No: the same bits in 1 cell" in text and "Other bits" not in text


def test_identical_code_of_a_target_that_compiles_no_changed_kernel_proves_nothing() -> None:
    idle = target(target="ascend910b", backend="ascend", same_code=12, changed_cells=0)
    touched = target(same_code=12, changed_cells=3)
    text = comments.comment(result(pair(CPU, **NO_TIME), static=static(targets=[idle, touched])))
    assert "is identical for sm\\_90; for ascend910b no cell compiles a changed kernel" in text.splitlines()[1]
    assert "No cell for ascend910b compiles a kernel that changed" in text
    assert "launch parameters and host code are not covered" in text
    assert "are not covered" not in comments.comment(result(pair(CPU), static=static(targets=[idle])))
    assert "are not covered" not in comments.comment(result(pair(CPU), static=static(targets=[target(same_code=0)])))


def test_moves_say_what_is_not_listed_and_which_way_is_better() -> None:
    other = target(moves=[move(worse=False)], rewritten=4)
    text = comments.comment(result(pair(CPU, **NO_TIME), static=static(targets=[other])))
    assert "none of these counts, which are not listed: 4 of 10 for sm\\_90." in text
    assert "registers per thread 64 → 80" in text and "registers: per thread, fewer let more threads run" in text


def test_rows_have_both_times_and_no_ratio_inside_of_the_threshold() -> None:
    axes = {"dtype": "float32", "operation": "forward", "rows": "8", "hidden": "64"}
    noisy = pair("cuda/rms_norm/x/auto/forward/fp32/8x64", speed="inconclusive", ratio=1.03, axes=axes)
    text = comments.comment(result(slower("cuda/rms_norm/x/auto/forward/bf16/1x1"), pair(), noisy))
    table = text.partition("<details>")[2]
    assert (
        "| 1.180 | 32.00 → 37.76 |" in table and "| ≈ 1 (as fast) | 32.00 → 32.00 |" in table and "1.001" not in table
    )
    assert text.count("medians of each alone") == 1
    assert "seen at dtype bf16; rows 8192; hidden 4096; 1 cell undecided (dtype fp32; rows 8; hidden 64)" in text


@pytest.mark.parametrize(
    ("code", "voice", "words"),
    [
        (1, "block", "Check: failed; this blocks the merge where the repository requires the check"),
        (1, "advise", "Check: neutral, so this blocks no merge (the farm's voice here is *advise*: findings fail no"),
        (1, "report", "Check: none, so this blocks no merge (the farm's voice here is *report*"),
        (1, "", "Check: failed, and blocks the merge, only where the repository lets the farm block"),
        (0, "block", "Check: success, so this blocks no merge"),
        (3, "block", "Check: neutral, so this blocks no merge: the farm failed"),
        (4, "", "Check: neutral, so this blocks no merge: nothing is proven"),
    ],
)
def test_what_becomes_of_the_check_is_in_plain_words(code: int, voice: str, words: str) -> None:
    assert comments.check_words(code, voice).startswith(words)


def test_own_tests_are_counted_in_both_arms_and_their_absence_is_reported() -> None:
    tests = [own_test(status_b="crashed"), own_test(id="b"), own_test(id="c", kind="benchmark", status_b="unsupported")]
    assert "own tests**: base 2 of 2 pass, head 1 of 2" in comments.comment(result(pair(), tests=tests))
    assert "its farm.yaml names none" in comments.comment(result(pair()))
    said = {"what": "the repository's own tests", "why": "the config block does not ask for it"}
    assert "names none" not in comments.comment(result(pair(), not_run=[said]))


def test_the_steps_to_repeat_name_everything_that_is_needed() -> None:
    files = [{"path": "subject/x.yaml", "sha256": "7" * 64}, {"path": "../../etc/passwd", "sha256": "7" * 64}]
    tools = static(tools=["torch 2.13.0+cpu", "triton 3.7.1", "torch 1; curl evil"])
    found = result(pair(CPU, **NO_TIME), static=tools, inputs=files, python="3.11.7")
    links = Links(run="123", docs="https://a.example/docs", package="https://a.example/farm.whl", digest="9" * 64)
    text = comments.comment(found, links=links)
    for words in (
        "git clone https://github.com/someone/kernels repeated",
        "git fetch origin pull/7/head",
        "gh run download 123 --repo someone/kernels --name farm-result --dir ../farm-result",
        "pip install https://a.example/farm.whl torch==2.13.0+cpu triton==3.7.1 --extra-index-url",
        "Python 3.11.7",
        "subject/x.yaml (SHA-256 777777777777)",
        "about the kernel farm: https://a.example/docs · workflow run: https://github.com/someone/kernels/actions/runs/123",
        "result.json in its artifact farm-result (SHA-256 9999999999999999)",
        "Expected: passed in base, passed in head; it prints bits equal: 1 of 1; on its page the largest error",
    ):
        assert words in text
    assert "passwd" not in text and "curl" not in text.partition("```")[2].partition("```")[0]
    secret = "git+https://user:hunter2@a.example/farm"
    assert package("git+https://a.example/farm@v1.0") and not package("https://a.example/x y; curl evil")
    assert (
        not package(secret)
        and not package("git+https://hunter2@a.example/farm")
        and "hunter2" not in comments.comment(found, links=Links(package=secret, docs=secret))
    )
    local = comments.comment({**found, "repository": "local/repository", "number": 0})
    assert "git clone" not in local and "only who has its commits can repeat this" in local


def test_files_of_the_command_line_are_kept_beside_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("s/f.yaml", 'call: "used:f"'), ("s/used.py", "1"), ("s/other.py", "2"), ("repo/m.yaml", "3")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    args = argparse.Namespace(matrices=["repo/m.yaml", "s/gone.yaml"], subject="s/f.yaml", repository=None, number=3)
    files = pr_inputs.given(args, tmp_path / "repo")
    assert [name for name, _ in files] == ["s/f.yaml", "s/used.py"]
    for name in ("s/m.yaml", "s/own/op/contract.py"):  # what the description names lies beside it, too
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("4")
    home = tmp_path / "s"
    beside = {"matrices": (str(home / "m.yaml"), str(tmp_path / "repo/m.yaml")), "contracts": (str(home / "own"),)}
    described = Subject("s/f.yaml", str(home), "", "x", Source(), {}, **beside)
    kept = [name for name, _ in pr_inputs.given(args, tmp_path / "repo", described)]
    assert kept == ["s/f.yaml", "s/m.yaml", "s/own/op/contract.py", "s/used.py"]
    pr_inputs.keep(files, tmp_path / "repo")
    assert (tmp_path / "repo" / pr_inputs.FOLDER / "s" / "used.py").read_text() == "1"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / pr_inputs.FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="leads elsewhere"):
        pr_inputs.keep(files, tmp_path / "out")
    assert pr_inputs.named(args) == (pr_inputs.LOCAL, 0)
    args.repository = "a/b"
    assert pr_inputs.named(args) == ("a/b", 3)


def test_how_much_has_the_numbers_of_both_arms_where_only_errors_grew_or_a_status_changed() -> None:
    grew = pair(CPU, **NO_TIME, same_bits=False, worst_a=0.021, worst_b=0.035)
    text = comments.comment(result(grew))
    assert "By how much?** The error that grew most is 2.1 % of the tolerance in base, 3.5 % of the" in text
    text = comments.comment(result(pair(CPU, **NO_TIME, status_b="crashed", worst_b=None, same_bits=None)))
    assert ": passed (its largest error 30 % of the tolerance) in base, crashed in head; of time nothing is" in text
    both = comments.comment(result({**grew, "cell": "cuda/a/x/auto/forward/bf16/1x8", "evidence": "executed"}, pair()))
    assert "3.5 % of the tolerance in head (cuda/a/x" in both and "head takes 1.001 to 1.001 times base's time" in both


def test_the_first_line_says_how_many_planned_cells_launch_what_changed() -> None:
    idle = pair("cuda/a/x/auto/forward/bf16/1x8", kernels=[])
    found = result(pair(), idle, static=static())
    line = comments.headline(found, results.outcome(found))
    assert "; 1 of 2 cells launches a changed kernel; " in line
    gone = result(pair(), {**idle, "status_b": "crashed"}, static=static())
    assert "; 1 of 2 cells seen to launch a changed kernel; " in comments.headline(gone, results.outcome(gone))
    chosen = {"planned": 40, "reached": 30, "chosen": 32}
    found["selection"] = chosen
    results.read(json.dumps(found))
    assert "; 30 of 40 cells launch a changed kernel; " in comments.headline(found, results.outcome(found))
    assert merging.merged([found, result(pair(), static=static())]).get("selection") is None
    unseen = static(unknown=[{"kernel": "ops/rms_norm.py:_forward", "why": "launches are not seen"}])
    assert "launch a changed" not in comments.headline(result(pair(), static=unseen), results.outcome(found))
    assert select(["a/1", "a/2", "a/3"], {"a/1": ["k"]}, sentinels=1).told() == {**chosen, "planned": 3, "reached": 1,
                                                                              "chosen": 2}  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from(["same", "regressed", "inconclusive", "unfit", "none"]), st.sampled_from([3, 7, 12])),
        max_size=30,
    )
)
@settings(deadline=None, max_examples=40)
def test_cells_that_were_timed_add_up(given_: list[tuple[str, int]]) -> None:
    rows = [
        pair(f"cuda/a/x/auto/forward/bf16/{n}x8", speed=speed, rounds=rounds, ratio=None if speed == "unfit" else 1.1)
        for n, (speed, rounds) in enumerate(given_)
    ]
    found = re.search(r"([0-9]+) cells? w\w+ timed: ([^.]*)\.", comments.comment(result(*rows)))
    timed = sum(speed != "none" for speed, _ in given_)
    if not any(speed not in ("none", "unfit") for speed, _ in given_):
        assert found is None
        return
    assert found is not None and int(found[1]) == timed
    told = re.sub(r"by [0-9]+( rounds)?", "", found[2])
    assert sum(map(int, re.findall(r"[0-9]+", told))) == timed, found[0]


def test_bits_that_differ_never_stand_in_a_row_that_says_as_base() -> None:
    differ = [pair(f"cuda/a/x/auto/forward/bf16/{n}x8", same_bits=n > 1) for n in range(5)]
    fixed = pair("cuda/a/x/auto/forward/bf16/9x8", status_a="crashed")
    text = comments.comment(result(*differ, fixed))
    row = next(line for line in text.splitlines() if line.startswith("| NVIDIA H200 |"))
    assert row.endswith("| 0 | 0 | 5 | 1 | 2 | 0 | 0 | 5 | 0 |"), row
    assert "≈ as base" not in text and "| as base |" not in text and "*Otherwise*: fixed by head" in text


def test_a_stranger_is_told_what_to_install_or_that_nobody_knows() -> None:
    static_ = static(tools=["triton-ascend 3.2.0", "torch 2.11.0+cpu", "triton 3.6.0"])
    static_["targets"] = [target(target="ascend910b", backend="ascend")]
    one = pair(repeat="farm ab --a revision=aaaa --b revision=bbbb --backend cuda")
    text = comments.comment(result(one, static=static_, farm="0.1.0 (commit 0123456789ab)"))
    assert "version 0.1.0 (commit 0123456789ab); this comment knows no address" in text
    assert 'install "${FARM_PACKAGE:?is not set}" torch==2.11.0 triton==3.6.0' in text
    assert "farm compile --setup ascend  # once; here triton-ascend was 3.2.0\nfarm pr" in text
    npu = {**one, "backend": "ascend", "cell": "ascend/a/x/auto/forward/bf16/1x8"}
    links = repeating.Links(package="git+https://example.org/farm@0123abc")
    text = comments.comment(result(npu, static=static_), links=links)
    assert "install git+https://example.org/farm@0123abc triton-ascend==3.2.0 torch==2.11.0\n" in text
    assert "knows no address" not in text and "an Ascend NPU with CANN and torch_npu" in text.replace("\\", "")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ('{"url": "https://example.org/f.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}}',
         "git+https://example.org/f.git@0a1b"),
        ('{"url": "https://example.org/farm-0.1.0.whl", "archive_info": {}}', "https://example.org/farm-0.1.0.whl"),
        ('{"url": "file:///home/me/farm", "dir_info": {"editable": true}}', ""),
        ('{"url": "https://me:12@example.org/f.git", "vcs_info": {"commit_id": "0a1b"}}', ""),
        ("[]", ""), ("{", ""), (None, ""),
    ],
)  # fmt: skip
def test_the_address_is_the_one_that_pip_took(monkeypatch: pytest.MonkeyPatch, text: str | None, address: str) -> None:
    monkeypatch.setattr(revision.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert package(revision.origin()) == address
