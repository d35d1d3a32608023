"""A run of two arms over a scripted cluster: what the rounds cost, what they find, what a fault in one of them does."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_cluster import Quiet, ScriptedCluster, slot

from farm.compare.arms import Arm
from farm.compare.kernel_changes import Change, changes
from farm.compare.records import Record
from farm.coordinator import RunRequest, execute
from farm.coordinator.request import RunArm, RunOutcome
from farm.coordinator.rounds import whole
from farm.errors import UsageError
from farm.matrix import load_all, plan
from farm.matrix.arms import mates, two
from farm.node.environment import Environment
from farm.report import pairs_text
from farm.store import Run, Store, recovery
from farm.store.pairs import PAIR_COLUMNS, ROUND_COLUMNS

ARMS = (Arm("a", variables={"X": "1"}), Arm("b", variables={"X": "2"}))
Says = Callable[[Mapping[str, Any], int], dict[str, Any]]


class ArmsCluster(ScriptedCluster):
    """`says(cell, round)`: of an attempt its time, `status` and `owner` if it fails, `bits`; `dies`: the (round, arm)
    at which the device's node is lost, once."""

    def __init__(self, says: Says = lambda cell, number: {}, dies: tuple[int, str] | None = None, **more: Any):
        super().__init__(**more)
        self._says, self._dies = says, dies
        self.leases: list[tuple[str, int, list[str]]] = []  # device, round, arms in order
        self.requests: list[dict[str, Any]] = []

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        if "probe" in lease:
            super().grant(device, lease)
            return
        said: list[dict[str, Any]] = []
        self.leases.append((device, lease["attempts"][0]["round"], [a["cell"]["arm"] for a in lease["attempts"]]))
        for a in lease["attempts"]:
            cell, number = a["cell"], a["round"]
            if self._dies == (number, cell["arm"]):
                self._dies = None
                said.append({"event": "device_down", "device": device, "reason": "the node is gone", "final": False})
                self._queue.append(said)
                return
            said += self._attempt(device, a, cell, number)
        said.append({"event": "lease_done", "device": device, "lease": lease["id"]})
        self._queue.append(said)

    def _attempt(self, device: str, a: dict[str, Any], cell: dict[str, Any], number: int) -> list[dict[str, Any]]:
        told = {"time": 10.0, "bits": "b1", **self._says(cell, number)}
        at = {"device": device, "cell": cell["index"], "attempt": a["number"]}
        target = {"backend": "cuda", "model": "NVIDIA H200"}
        origin: dict[str, Any] = {"target": target, "device": device, "node": "n", "revision": "r"}
        origin |= {"fingerprint": {}, "started": 0.0, "seconds": 0.1, "evidence": "executed"}
        if told.get("status"):
            end = {"status": told["status"], "owner": told.get("owner", "kernel"), "reason": "scripted"}
            return [{"event": "started", **at}, {"event": "ended", **at, **end, "origin": origin}]
        timing = {"method": "rotating_graph", "samples_us": [told["time"]] * 20} if told["time"] else {"method": "none"}
        launch = {"kernels": [], "seen": told.get("seen", {})}
        if told.get("code"):
            launch["code"] = {"digest": told["code"], "launches": 2}
            timing["kernels_per_call"] = told.get("activities", 2)
        facts = {"flags": [], **({"launch": launch} if launch["seen"] or told.get("code") else {})}
        passed = {"status": told.get("judged", "passed"), "owner": "kernel" if "judged" in told else None}
        judged = {**passed, "output_hash": told["bits"], "input_hash": "i", **self.judge}
        if not number:
            judged |= {"metrics": {}, "gates": {}}
        return [
            {"event": "started", **at},
            {"event": "measured", **at, "round": number, "facts": facts, "timing": timing, "origin": origin},
            {"event": "judged", **at, **judged},
        ]


def compared(
    tmp_path: Path,
    cluster: ArmsCluster,
    devices: int = 1,
    *,
    cells: int = 4,
    arms: tuple[Arm, Arm] = ARMS,
    finished: recovery.Recovery | None = None,
    providers: tuple[str, ...] = ("farm",),
    kernels: Sequence[Change] = (),
    noise: Sequence[Record] = (),
    only_kernels: bool = False,
    named: bool = False,
) -> tuple[RunOutcome, Run, Quiet]:
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "m.yaml"
    shape = {"rows": 2, "hidden": [64 + i for i in range(cells)]}
    axes = {"shape": [shape], "dtype": "float32"}
    file.write_text(json.dumps({"name": "m", "op": "rms_norm", "providers": [*providers], "axes": axes}))
    plans = [plan(load_all(file), ["cuda"]) for _ in arms]
    store, progress = Store(tmp_path / "store"), Quiet()
    writer = store.reopen("run") if finished else store.create("run")
    slots = [slot(f"cuda:{i}", f"h{i}") for i in range(devices)]
    both = tuple(RunArm(arm, "r", Environment.default(), {}) for arm in arms)
    finished = whole(finished, both) if finished else None
    request = RunRequest(
        two(plans, arms),
        slots,
        "farm ab",
        ["ab"],
        {"name": "r"},
        arms=both,
        finished=finished,
        kernels=kernels,
        noise=noise,
        only_kernels=only_kernels,
        named_cells=named,
    )
    outcome = execute(request, cluster, writer, progress)
    return outcome, store.run("run"), progress


def slower(cell: Mapping[str, Any], by: float = 1.05, hidden: int = 66) -> float:
    return 10.0 * by if cell["arm"] == "b" and cell["dims"]["hidden"] == hidden else 10.0


def noisy(seed: int, **script: Any) -> Says:
    """Processes vary by 0.4 %."""

    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        dice = random.Random(f"{seed} {cell['arm']} {cell['dims']} {number}")
        return {"time": slower(cell, **script) * (1 + 0.004 * dice.gauss(0, 1))}

    return says


def verdicts(outcome: RunOutcome) -> dict[str, str]:
    return {row["shape"]: row["verdict"] for row in outcome.pairs}


@pytest.mark.parametrize("devices", [1, 2])
def test_a_slowdown_of_5_percent_is_found_and_nothing_else(tmp_path: Path, devices: int) -> None:
    cluster = ArmsCluster(noisy(1))
    outcome, run, _ = compared(tmp_path, cluster, devices, cells=30)
    assert verdicts(outcome) == {**{f"2x{64 + i}": "same" for i in range(30)}, "2x66": "regressed"}
    assert outcome.final_code == 1
    (found,) = [row for row in run.table("pairs") if row["verdict"] == "regressed"]
    assert found["low"] < 1.05 < found["high"] and found["rounds"] == 12
    rounds = Counter((row["cell"], row["arm"]) for row in run.table("rounds"))
    few = {count for (cell, _), count in rounds.items() if cell != found["cell"]}
    assert few <= {2, 3} and {rounds[found["cell"], arm] for arm in "ab"} == {15} and len(rounds) == 60
    for _, number, arms in cluster.leases:  # whole, on one device, one arm after the other
        half = len(arms) // 2
        assert arms == ["ab"[number % 2]] * half + ["ba"[number % 2]] * half
    by_round: dict[tuple[str, int], set[str]] = {}
    for row in run.table("rounds"):
        by_round.setdefault((row["cell"], row["round"]), set()).add(row["device"])
    assert all(len(on) == 1 for on in by_round.values())
    text = [*pairs_text.lines(run.head["arms"], outcome.pairs, outcome.summary)]
    assert text[0] == "worse: exit 1" and any("1.0" in line and "10." in line for line in text if "2x66" in line)
    assert run.head["comparison"]["verdicts"] == {"regressed": 1, "same": 29}


def test_where_nothing_is_timed_round_0_answers(tmp_path: Path) -> None:
    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {"time": None, "bits": "other" if cell["arm"] == "b" and cell["dims"]["hidden"] == 65 else "b1"}

    cluster = ArmsCluster(says)
    outcome, run, _ = compared(tmp_path, cluster)
    assert {number for _, number, _ in cluster.leases} == {0}
    assert outcome.final_code == 0 and verdicts(outcome) == {f"2x{64 + i}": "" for i in range(4)}
    assert [row["bits"] for row in run.table("pairs")] == [1, 0, 1, 1]
    assert run.head["comparison"]["bits_equal"] == 3


@pytest.mark.parametrize(
    ("a", "b", "change", "code"),
    [
        ({}, {"status": "crashed"}, "broken", 1),
        ({}, {"status": "timed_out"}, "broken", 1),
        ({}, {"status": "compile_error"}, "broken", 1),
        ({}, {"judged": "inaccurate"}, "broken", 1),
        ({"status": "crashed"}, {}, "fixed", 0),
        ({"status": "crashed"}, {"status": "crashed"}, "failing", 0),
        ({"status": "unsupported"}, {"status": "crashed"}, "new", 1),
        ({}, {"status": "unsupported"}, "lost", 0),
        ({"status": "unsupported"}, {"status": "unsupported"}, "neither", 0),
        ({}, {"status": "infra_error", "owner": "infra"}, "lost", 3),
    ],
)
def test_what_an_arm_fails_at_is_its_own(
    tmp_path: Path, a: dict[str, Any], b: dict[str, Any], change: str, code: int
) -> None:
    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        return dict(a if cell["arm"] == "a" else b) if cell["dims"]["hidden"] == 64 else {}

    cluster = ArmsCluster(says)
    outcome, run, _ = compared(tmp_path, cluster)
    assert [row["change"] for row in outcome.pairs] == [change, "same", "same", "same"]
    assert outcome.final_code == code
    words = "\n".join(pairs_text.lines({}, outcome.pairs, outcome.summary))
    assert ("3 same, 1 not run in either" in words) == (change == "neither")
    timed = Counter(row["cell"] for row in run.table("rounds"))
    assert sorted(timed.values()) == [2, 4, 4, 4]  # what failed in either arm is not timed further


def test_cells_that_run_in_neither_arm_prove_nothing(tmp_path: Path) -> None:
    outcome, run, _ = compared(tmp_path, ArmsCluster(lambda cell, number: {"status": "unsupported"}))
    assert outcome.final_code == 4 and run.head["comparison"]["changes"] == {"neither": 4}


def test_a_node_that_is_lost_between_the_arms_costs_the_round_and_mixes_nothing(tmp_path: Path) -> None:
    for dies in ((0, "b"), (1, "a")):
        folder = tmp_path / str(dies[0])
        folder.mkdir()
        cluster = ArmsCluster(noisy(2), dies=dies)
        outcome, run, _ = compared(folder, cluster, devices=2)
        assert outcome.final_code == 1 and verdicts(outcome)["2x66"] == "regressed"
        on: dict[tuple[str, int], set[str]] = {}
        for row in run.table("rounds"):
            on.setdefault((row["cell"], row["round"]), set()).add(row["device"])
        assert all(len(devices) == 1 for devices in on.values())


def test_a_run_that_ended_within_a_round_goes_on_there_and_says_the_same(tmp_path: Path) -> None:
    """Every cut of the journal, resumed: the verdicts are those of the run that was not cut."""
    first, run, _ = compared(tmp_path, ArmsCluster(noisy(3)))
    lines = (run.dir / "journal.jsonl").read_text().splitlines(keepends=True)
    planned = next(i for i, line in enumerate(lines) if '"event":"planned"' in line)
    dice = random.Random(3)
    for number, end in enumerate(sorted(dice.sample(range(planned + 1, len(lines) - 1), 8))):
        folder = tmp_path / f"cut{number}"
        cut = folder / "store/runs/run"
        (cut / "logs").mkdir(parents=True)
        (cut / "journal.jsonl").write_text("".join(lines[:end]))
        known = recovery.read_located(Run(cut).journal().located())
        cluster = ArmsCluster(noisy(3))
        outcome, again, _ = compared(folder, cluster, finished=known)
        assert verdicts(outcome) == verdicts(first) and outcome.final_code == first.final_code
        done = {(row["rows"][0]["cell"], row["round"]) for row in Run(cut).journal() if row["event"] == "round"}
        table = again.table("rounds")
        assert len({(r["cell"], r["arm"], r["round"]) for r in table}) == len(table) == len(run.table("rounds"))
        assert {(r["cell"], r["round"]) for r in table} >= done
        attempts = Counter((e["cell"], e["attempt"]) for e in again.journal() if e["event"] == "started")
        assert max(attempts.values()) == 1


def test_a_crash_in_a_later_round_is_a_finding_and_no_status(tmp_path: Path) -> None:
    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        bad = cell["arm"] == "b" and cell["dims"]["hidden"] == 64 and number == 1
        return {"status": "crashed"} if bad else {}

    outcome, run, _ = compared(tmp_path, ArmsCluster(says))
    row = outcome.pairs[0]
    assert (row["change"], row["status_b"]) == ("broken", "passed") and "crashed in round 1" in row["note"]
    assert outcome.final_code == 1 and {r["status"] for r in run.rows} == {"passed"}


def test_bits_that_change_from_round_to_round_are_told(tmp_path: Path) -> None:
    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {"bits": f"b{number if cell['arm'] == 'a' else 0}"}

    outcome, _, _ = compared(tmp_path, ArmsCluster(says), cells=1)
    assert "arm a gave other output bits in round 1 than in round 0" in outcome.pairs[0]["note"]


def test_peers_that_run_the_same_code_are_controls_and_never_accused(tmp_path: Path) -> None:
    """The environment is 4 % slower while b runs."""

    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {"time": 10.4 if cell["arm"] == "b" else 10.0}

    arms = (Arm("a", "revision", "main"), Arm("b", "revision", "."))
    outcome, run, _ = compared(tmp_path, ArmsCluster(says), arms=arms, cells=6, providers=("farm", "torch"))
    assert outcome.final_code == 0 and run.head["comparison"]["controls"] == 6
    assert {row["verdict"] for row in outcome.pairs} == {"same"}


SAME = (Arm("a", variables={"X": "1"}), Arm("b", variables={"X": "1"}))


def test_an_arm_held_against_itself_is_recorded_and_sets_later_thresholds(tmp_path: Path) -> None:
    """One cell's processes vary by 3 %, which no other cell's rounds can say."""

    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        dice = random.Random(f"{cell['arm']} {cell['dims']} {number}")
        sd = 0.03 if cell["dims"]["hidden"] == 65 else 0.004
        return {"time": 10.0 * (1 + sd * dice.gauss(0, 1))}

    first, run, _ = compared(tmp_path, ArmsCluster(says), arms=SAME, cells=12)
    assert first.summary is not None and (first.summary.name, first.final_code) == ("no false alarm", 0)
    found = first.noise
    assert found is not None and found.same and len(found.cells) == 12 and found.run == "run"
    assert {c.called for c in found.cells} <= {"same", "inconclusive"} and run.head["comparison"]["same"]
    assert {c.kind.timing for c in found.cells} == {"rotating_graph/2"} and found.cells[1].sd > 0.01  # type: ignore[operator]
    earlier = replace(found, made="2000-01-01T00:00:00+00:00")
    folder = tmp_path / "later"
    folder.mkdir()
    then, later, _ = compared(folder, ArmsCluster(noisy(7)), cells=12, noise=[earlier])
    without = {row["shape"]: row["threshold"] for row in compared_pairs(folder / "w")}
    with_it = {row["shape"]: row["threshold"] for row in then.pairs}
    assert with_it["2x65"] > 0.05 > without["2x65"] and later.head["comparison"]["with_records"] == 12
    assert then.noise is not None and not then.noise.cells  # it had no identical code


def compared_pairs(folder: Path) -> Sequence[Mapping[str, Any]]:
    folder.mkdir()
    return compared(folder, ArmsCluster(noisy(7)), cells=12)[0].pairs


def test_identical_code_that_is_told_apart_is_a_finding(tmp_path: Path) -> None:
    """Whichever child comes second is slower where the cell is large: no shift that all share."""

    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {"time": slower(cell, 1.08), **({"bits": "x"} if number == 1 else {})}

    outcome, run, _ = compared(tmp_path, ArmsCluster(says), arms=SAME, cells=8)
    assert outcome.summary is not None and outcome.final_code == 1
    assert outcome.summary.name == "false alarms" and "1 cell called changed: first cuda/" in outcome.summary.why[0]
    assert outcome.noise is not None and [c.called for c in outcome.noise.cells].count("regressed") == 1
    assert run.head["comparison"]["verdicts"] == {"regressed": 1, "same": 7}
    text = "\n".join(pairs_text.lines({}, outcome.pairs, outcome.summary, told=run.head["comparison"]))
    assert "both arms are the same code" in text


def test_a_control_that_the_rule_would_accuse_is_told_and_recorded(tmp_path: Path) -> None:
    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        odd = cell["provider"] == "torch" and cell["dims"]["hidden"] == 66 and cell["arm"] == "b"
        return {"time": 10.8 if odd else 10.0}

    arms = (Arm("a", "revision", "main"), Arm("b", "revision", "."))
    outcome, run, _ = compared(tmp_path, ArmsCluster(says), arms=arms, cells=8, providers=("farm", "torch"))
    assert outcome.final_code == 0 and run.head["comparison"]["controls_changed"] == 1
    assert outcome.noise is not None and len(outcome.noise.cells) == 8 and not outcome.noise.same
    text = "\n".join(pairs_text.lines({}, outcome.pairs, outcome.summary, told=run.head["comparison"]))
    assert "1 cell would have been called changed, although the code is the same" in text


@pytest.mark.parametrize("only_kernels", [True, False])
def test_cells_of_equal_machine_code_or_unchanged_sources_are_controls(tmp_path: Path, only_kernels: bool) -> None:
    """All times of b are 4 % larger.  Of 18 cells six have equal machine code, six have not, and one that only seems
    to; of the sources, a kernel of the first nine is changed."""
    changed = changes(
        {"k.py": KERNELS}, {"k.py": KERNELS.replace("one(x):\n    return x + 1", "one(x):\n    return x")}
    )

    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        hidden = cell["dims"]["hidden"] - 64
        own = {"code": f"c{hidden}{cell['arm'] if hidden % 3 else ''}"} if hidden < 18 else {}
        beside = {"activities": 3} if hidden == 3 else {}  # something else runs, too: a copy
        time = 10.4 if cell["arm"] == "b" else 10.0
        name = "one" if hidden < 9 else "two" if hidden < 18 else "named_by_itself"
        return {"time": time, "seen": {name: 1}, **own, **beside}

    arms = (Arm("a", "revision", "main"), Arm("b", "revision", "."))
    outcome, run, _ = compared(
        tmp_path, ArmsCluster(says), arms=arms, cells=19, kernels=changed, only_kernels=only_kernels
    )
    told = run.head["comparison"]
    assert told["same_code"] == {"machine code": 5, **({"unchanged kernels": 6} if only_kernels else {})}
    equal = {0, 6, 9, 12, 15} | ({10, 11, 13, 14, 16, 17} if only_kernels else set())
    controls = {int(row["shape"][2:]) - 64 for row in outcome.pairs if row["control"]}
    assert controls == equal and {row["verdict"] for row in outcome.pairs} == {"same"}
    text = "\n".join(pairs_text.lines({}, outcome.pairs, outcome.summary, told=told))
    assert f"same code in both arms: {len(equal)} cells (5 by equal machine code" in text


def test_where_a_changed_kernel_was_launched_by_nobody_no_sources_count_as_unchanged(tmp_path: Path) -> None:
    """It may be handed to a kernel as an argument."""
    changed = changes(
        {"k.py": KERNELS}, {"k.py": KERNELS.replace("one(x):\n    return x + 1", "one(x):\n    return x")}
    )
    arms = (Arm("a", "revision", "main"), Arm("b", "revision", "."))
    cluster = ArmsCluster(lambda cell, number: {"seen": {"two": 1}, "time": slower(cell, 1.1)})
    outcome, run, _ = compared(tmp_path, cluster, arms=arms, cells=8, kernels=changed, only_kernels=True)
    assert run.head["comparison"]["same_code"] == {} and verdicts(outcome)["2x66"] == "regressed"


def test_equal_machine_code_says_nothing_of_arms_whose_environments_differ(tmp_path: Path) -> None:
    cluster = ArmsCluster(lambda cell, number: {"code": "c", "time": 10.5 if cell["arm"] == "b" else 10.0})
    outcome, run, _ = compared(tmp_path, cluster)
    assert set(verdicts(outcome).values()) == {"regressed"} and run.head["comparison"]["same_code"] == {}


KERNELS = "import triton\n\n@triton.jit\ndef one(x):\n    return x + 1\n\n@triton.jit\ndef two(x):\n    return x + 1\n"


def test_a_changed_kernel_that_no_cell_launched_is_a_finding(tmp_path: Path) -> None:
    changed = changes({"k.py": KERNELS}, {"k.py": KERNELS.replace("x + 1", "x + 2")})

    def says(cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {"seen": {"one": 1} if cell["dims"]["hidden"] < 66 else {"other": 1}}

    outcome, run, _ = compared(tmp_path, ArmsCluster(says), kernels=changed)
    assert outcome.final_code == 1 and outcome.summary is not None
    assert outcome.summary.why == ("the changed kernel two was launched by no cell",)
    assert [row["kernels"] for row in run.table("pairs")] == ["one", "one", "", ""]
    named, _, _ = compared(tmp_path / "named", ArmsCluster(says), kernels=changed, named=True)
    assert named.final_code == 0  # a repeated cell answers for itself
    found = run.head["comparison"]["kernels"]
    assert {one["kernel"]: one["state"] for one in found} == {"one": "reached", "two": "unreached"}
    text = "\n".join(pairs_text.lines({}, outcome.pairs, outcome.summary, kernels=found))
    assert "one (k.py): changed, launched by 2 cells" in text and "changed, launched by no cell: two (k.py)" in text


def test_devices_of_unlike_targets_are_refused(tmp_path: Path) -> None:
    up = {"cuda:1": {"target": {"backend": "cuda", "model": "NVIDIA H100"}}}
    with pytest.raises(UsageError, match="unlike targets"):
        compared(tmp_path, ArmsCluster(up=up), devices=2)


def test_each_arm_gets_its_own_of_everything_and_leases_carry_it(tmp_path: Path) -> None:
    cluster = ArmsCluster()
    compared(tmp_path, cluster)
    told = cluster.configs["cuda:0"]["arms"]
    assert {name: arm["variables"] for name, arm in told.items()} == {"a": {"X": "1"}, "b": {"X": "2"}}


def test_a_cell_has_an_arm_in_its_id_and_none_in_its_key(tmp_path: Path) -> None:
    _, run, _ = compared(tmp_path, ArmsCluster(), cells=1)
    a, b = run.cells()
    assert (a.cell_id[:-2], a.cell_id[-2:], b.cell_id[-2:]) == (b.cell_id[:-2], "~a", "~b")
    assert a.cell_key == b.cell_key and mates([a, b], ARMS) == {0: 1}


def test_an_interrupted_comparison_has_no_verdict_and_says_how_many_cells_were_decided(tmp_path: Path) -> None:
    outcome, run, _ = compared(tmp_path, ArmsCluster(noisy(1)), cells=1)
    more = {**outcome.pairs[0], "verdict": "unfit"}
    text = list(pairs_text.lines(run.head["arms"], [*outcome.pairs, more], outcome.summary, complete=False))
    assert text[0] == "not decided: the run was interrupted"
    (times,) = [line for line in text if "times" in line]
    assert times.startswith("times so far, of 2 cells: 1 ") and times.endswith(", 1 not decided yet")
    early = [{**row, "verdict": "unfit"} for row in outcome.pairs]
    assert not [n for n in pairs_text.lines(run.head["arms"], early, None, complete=False) if "times" in n]


def test_every_column_of_both_tables_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/run-on-disk.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([a-z_0-9]+\*?)`", text[text.index("## rounds.parquet") : text.index("## journal.jsonl")]))
    both = {f"{name[:-2]}_*" if name.endswith(("_a", "_b")) else name for name in PAIR_COLUMNS}
    assert both | set(ROUND_COLUMNS) <= told


def test_arms_of_two_providers_pair_what_is_equal_but_for_them(tmp_path: Path) -> None:
    arms = (Arm("a", provider="farm"), Arm("b", provider="torch"))
    outcome, _, _ = compared(tmp_path, ArmsCluster(), arms=arms, providers=("farm", "torch", "liger"))
    assert [(row["provider_a"], row["provider_b"]) for row in outcome.pairs] == [("farm", "torch")] * 4
    plans = [plan(load_all(tmp_path / "m.yaml"), ["cuda"])] * 2
    with pytest.raises(UsageError, match="--b names none"):
        two(plans, (arms[0], Arm("b", variables={"X": "2"})))
    with pytest.raises(UsageError, match="no cell of provider quack"):
        two(plans, (arms[0], Arm("b", provider="quack")))
