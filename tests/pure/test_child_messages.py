"""The door for what a child says: every honest conversation passes, and of thousands of malformed lines none does."""

from __future__ import annotations

import copy
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.actor import child_messages
from farm.actor.child_messages import MAY_SAY, Door
from farm.cell import Owner, Status
from farm.child import protocol
from farm.process.line_process import ChildLied

ROOT = Path(__file__).resolve().parents[2]
LINES = 2000  # malformed ones; the soak checks take more
IDS = {"revision": "abc", "round": 0, "attempt": 2}
NONCE = "0123456789abcdef"
CELL = {
    "timing": {"method": "rotating_graph", "min_samples": 3, "max_samples": 20},
    "op": "rms_norm",
    "operation": "forward",
}
TENSORS = [{"name": "x", "role": "input"}, {"name": "y", "role": "output"}, {"name": "dx", "role": "gradient"}]
Data = dict[str, Any]
Dice = random.Random


class Talk:
    """An order, what has been said in answer to it, and an honest message that may follow now."""

    def __init__(self, order: protocol.Message | None, before: list[str], message: Data):
        self.order, self.before = order, before
        stamp = {"nonce": NONCE, **IDS} if order else {}
        self.message = {"kind": message.pop("kind"), **stamp, **message}

    def door(self) -> Door:
        door = Door(self.order, NONCE if self.order else "")
        for phase in self.before:
            said = {"kind": "phase", "nonce": NONCE, **IDS, "phase": phase}
            assert door.read(json.dumps(said).encode())
        return door


def output(folder: Path, name: str, prefix: str = "out") -> Data:
    path = folder / f"{prefix}-{name}.bin"
    path.write_bytes(bytes(2 * 3 * 4))
    return {"name": name, "path": str(path), "dtype": "float32", "shape": [2, 3]}


def measured(folder: Path) -> Data:
    outputs, timed, other = ([output(folder, n, p) for n in ("y", "dx")] for p in ("out", "timed", "other"))
    return {
        "kind": "measured",
        "outputs": outputs,
        "facts": {
            "flags": ["a flag"],
            "mode_resolved": "auto",
            "launch": {"kernels": [{"kernel": "k", "grid": [4, 1], "meta": {"block": 64}}], "seen": {"k": 2}},
            "phases_s": {"import": 0.5, "check": 1},
            "compile_s": 1.5,
            "check_s": 0,
            "peak_memory_mib": None,
            "bytes_counted": 4096,
            "others": [{"where": "called again", "outputs": other}],
        },
        "timing": {
            "method": "rotating_graph",
            "version": 2,
            "samples_us": [1.5, 2, 0.0],
            "host_us": [9.0],
            "sets": 4,
            "launches": 8,
            "cold": True,
            "floor_us": 0.8,
            "kernels_per_call": None,
            "outside_us": None,
            "profiled": False,
            "timed_outputs": timed,
        },
        "spent": False,
    }


def talks(folder: Path) -> list[Talk]:
    run = protocol.Run("abc", 0, 2, CELL, TENSORS, {}, str(folder))
    trial = protocol.Trial("abc", 0, 2, CELL, TENSORS, {}, "")
    calibrate = protocol.Calibrate("abc", 0, 2, {"method": "host"}, 3.0)
    ready = {"kind": "ready", "protocol": protocol.VERSION, "pid": 7, "device": "H200", "evidence": "executed"}
    ready |= {"target": {"backend": "cuda", "model": "H200", "power_limit_w": 700}, "fingerprint": {"torch": "2.11"}}
    proven = {"digest": "0f", "modules": {"mylib": "/spool/mylib/__init__.py"}, "missing": "", "wrong": ""}
    ready |= {"subject": proven, "versions": {"torch": "2.11"}}
    failed = {"kind": "failed", "status": "crashed", "owner": "kernel", "reason": "why", "trace": "at", "fatal": True}
    found = {"curve": [{"bytes": 4096, "us": 1.5}], "skipped": [], "floors": {"graph": 1.0}, "gemm": []}
    found |= {"drift": {"us": []}, "notes": ["a note"], "seconds": 3.5}
    known = list(protocol.PHASES)
    return [
        Talk(None, [], ready),
        Talk(None, [], {"kind": "unusable", "reason": "no driver", "owner": "infra"}),
        Talk(run, [], {"kind": "phase", "phase": "import"}),
        Talk(run, known[:3], {"kind": "phase", "phase": "check"}),
        Talk(run, known, measured(folder)),
        Talk(run, [*known, *known], measured(folder)),  # once more, after memory was out
        Talk(run, known[:2], copy.deepcopy(failed)),
        Talk(trial, known[:2], {"kind": "phase", "phase": "timing"}),
        Talk(trial, known[:2], {"kind": "tried", "differs": "", "compile_s": 0.5, "spent": True}),
        Talk(trial, known, {**failed, "status": "capture_failed", "owner": "harness"}),
        Talk(calibrate, ["launch floors"], {"kind": "phase", "phase": "matrix products"}),
        Talk(calibrate, ["launch floors"], {"kind": "calibrated", "found": found}),
        Talk(calibrate, [], {**failed, "owner": "device"}),
    ]


def test_every_honest_message_passes(tmp_path: Path) -> None:
    for talk in talks(tmp_path):
        message = talk.door().read(json.dumps(talk.message).encode())
        said = {"kind": message.kind, **message.__dict__}
        assert said == {k: v for k, v in talk.message.items() if k != "nonce"}


@pytest.mark.parametrize("seed", range(20))
def test_what_may_be_left_out_may_be_left_out(tmp_path: Path, seed: int) -> None:
    dice, needed = random.Random(seed), {"flags", "method", "samples_us", "kernels"}
    for talk in talks(tmp_path):
        if talk.message["kind"] == "measured":
            for part in ("facts", "timing"):
                talk.message[part] = {k: v for k, v in talk.message[part].items() if k in needed or dice.random() < 0.5}
        assert talk.door().read(json.dumps(talk.message).encode())


def test_seconds_of_a_patched_clock_pass_so_that_the_patch_is_what_is_reported(tmp_path: Path) -> None:
    talk = next(t for t in talks(tmp_path) if t.message["kind"] == "measured")
    talk.message["facts"].update(check_s=-3.0, compile_s=-0.5, phases_s={"check": -1.0}, flags=["patched a clock"])
    assert talk.door().read(json.dumps(talk.message).encode())


def test_every_failure_that_a_child_may_give_passes_and_no_other(tmp_path: Path) -> None:
    said = {"kind": "failed", "reason": "r"}
    run = protocol.Run("abc", 0, 2, CELL, TENSORS, {}, str(tmp_path))
    for status in [*(s.value for s in Status), "capture_failed", "haha", ""]:
        for owner in [*(o.value for o in Owner), "nobody", ""]:
            talk = Talk(run, ["import"], {**said, "status": status, "owner": owner})
            if owner in MAY_SAY.get(status, ()):
                assert talk.door().read(json.dumps(talk.message).encode())
            else:
                with pytest.raises(ChildLied):
                    talk.door().read(json.dumps(talk.message).encode())
    assert not {"passed", "built", "skipped", "lost"} & set(MAY_SAY)


def test_whatever_a_backend_makes_of_its_vendors_words_may_be_said() -> None:
    named = {"_KERNEL": "kernel", "_DEVICE": "device", "_INFRA": "infra"}
    pair = re.compile(r'"([a-z_]+)",\s*(_KERNEL|_DEVICE|_INFRA|"kernel"|"device"|"infra")')
    pairs = {
        (status, named.get(owner, owner.strip('"')))
        for file in (ROOT / "farm" / "backends").glob("_*.py")
        for status, owner in pair.findall(file.read_text())
        if status in {s.value for s in Status}
    }
    assert len(pairs) > 6
    assert [p for p in pairs if p[1] not in MAY_SAY[p[0]]] == []


# ---- malformed lines ----

#: Below these anything that is plain passes, within bounds.
FREE = {"fingerprint", "kernels", "curve", "skipped", "floors", "gemm", "drift"}
#: Texts that may be any other text.
ANY_TEXT = {"reason", "trace", "differs", "where", "mode_resolved", "device", "model"}
#: Numbers that may be any other finite number.
ANY_NUMBER = {
    "compile_s",
    "check_s",
    "samples_us",
    "host_us",
    "phases_s",
    "floor_us",
    "outside_us",
    "kernels_per_call",
    "seconds",
}
WRONG: dict[type, list[Any]] = {
    str: [7, None, True, [], {}, 1.5],
    bool: [1, 0, "true", None, []],
    int: ["7", None, True, [], {}, 1.5, -1, 2**63, 10**4000],
    float: ["1.5", True, [], {}, float("nan"), float("inf"), -float("inf")],
    list: [{}, None, "x", 3, True],
    dict: [[], "x", 3, True, None],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of a message that may not be of any form."""
    if path:
        yield path
    if path and path[-1] in FREE:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def at(message: Data, path: tuple[Any, ...]) -> Any:
    for key in path:
        message = message[key]
    return message


def put(message: Data, path: tuple[Any, ...], value: Any) -> Data:
    at(message, path[:-1])[path[-1]] = value
    return message


def other_type(talk: Talk, dice: Dice) -> Data | None:
    path = dice.choice(list(places(talk.message)))
    held = at(talk.message, path)
    if held is None or path[-1] in FREE or path[-1] == "nonce":
        return None
    wrong = dice.choice(WRONG[type(held)])
    if type(held) is float and wrong is None:
        return None
    names = {p for p in path if isinstance(p, str)}
    if type(wrong) in (int, float) and type(held) is int and names & ANY_NUMBER:
        wrong = "7"
    if wrong is None and path[-1] in ("compile_s", "check_s", "peak_memory_mib", "floor_us", "power_limit_w"):
        return None
    return put(talk.message, path, wrong)


def not_finite(talk: Talk, dice: Dice) -> str | None:
    found = [p for p in places(talk.message) if type(at(talk.message, p)) in (int, float)]
    if not found:
        return None
    line = json.dumps(put(talk.message, dice.choice(found), "@@"))
    return line.replace('"@@"', dice.choice(["NaN", "Infinity", "-Infinity", "1e999", "-1e999"]))


def missing(talk: Talk, dice: Dice) -> Data | None:
    may = {"evidence", "subject", "versions"} | (
        {"spent", "trace", "fatal", "compile_s", "nonce"} if talk.order else set()
    )
    key = dice.choice([k for k in talk.message if k not in may])
    del talk.message[key]
    return talk.message


def more(talk: Talk, dice: Dice) -> Data:
    found = [p for p in places(talk.message) if isinstance(at(talk.message, p), dict) and p[-1] not in FREE]
    path = dice.choice([(), *[p for p in found if p[-1] not in ("phases_s", "seen")]])
    at(talk.message, path)[dice.choice(["cell", "status ", "__class__", "x" * 5000, ""])] = 1
    return talk.message


def other_ids(talk: Talk, dice: Dice) -> Data | None:
    if talk.order is None:
        return {**talk.message, "nonce": dice.choice(["x", 3, None, [NONCE]])}
    key = dice.choice(["revision", "round", "attempt", "nonce"])
    wrong = {"revision": ["abd", "", "abc "], "nonce": ["", NONCE[:-1], NONCE.upper(), None, 3, [NONCE]]}
    talk.message[key] = dice.choice(wrong.get(key, [1, 3, -1, 10**9, True, 2.0, "2", None]))
    return talk.message


def other_kind(talk: Talk, dice: Dice) -> Data:
    allowed = child_messages.ANSWERS[talk.order.kind if talk.order else None]
    kinds: list[Any] = [k for k in protocol.KINDS if k not in allowed]
    return {**talk.message, "kind": dice.choice([*kinds, "haha", "", None, 3, ["phase"], {"a": 1}, True])}


def twins(talk: Talk, dice: Dice) -> str:
    key = dice.choice(list(talk.message))
    again = json.dumps({key: talk.message[key]})
    return json.dumps(talk.message)[:-1] + "," + again[1:]


def broken_text(talk: Talk, dice: Dice) -> bytes:
    line = json.dumps(talk.message).encode()
    where = dice.randrange(len(line))
    return dice.choice(
        [
            line[:where],
            line[:where] + b"\0" + line[where:],
            line[:where] + bytes([dice.choice([0x80, 0xC0, 0xFF])]) + line[where:],
            line + b"}",
            line + line,
            b"[" + line + b"]",
            line.decode().encode("utf-16"),
            b"",
            b"all cells passed",
            line.replace(b'"', b"'"),
            bytes(dice.randrange(256) for _ in range(30)),
        ]
    )


def nested(talk: Talk, dice: Dice) -> str:
    depth = dice.choice([12, 500, 5000, 60_000])
    path = dice.choice([p for p in places(talk.message) if p[-1] != "nonce"])
    both = ("[" * depth, "]" * depth) if dice.random() < 0.5 else ('{"a":' * depth + "1", "}" * depth)
    return json.dumps(put(talk.message, path, "@@")).replace('"@@"', "".join(both))


HUGE = (
    "[" + '"x",' * 20_000 + '"x"]',
    json.dumps({str(i): i for i in range(10_001)}),
    '"' + "x" * (2 << 20) + '"',
    "[" + "1," * 250_000 + "1]",
)


def huge(talk: Talk, dice: Dice) -> str:
    path = dice.choice([p for p in places(talk.message) if p[-1] != "nonce"])
    (told,) = dice.choices(HUGE, (8, 8, 3, 1))
    return json.dumps(put(talk.message, path, "@@")).replace('"@@"', told)


def bad_path(talk: Talk, dice: Dice) -> Data | None:
    if talk.message["kind"] != "measured":
        return None
    facts, timing = talk.message["facts"], talk.message["timing"]
    outputs = dice.choice([talk.message["outputs"], timing["timed_outputs"], facts["others"][0]["outputs"]])
    one = dice.choice(outputs)
    folder, name = os.path.split(one["path"])
    away = Path(folder).with_name("elsewhere")
    target = Path(one["path"])

    def replaced(make: Callable[[Path], object]) -> str:
        target.unlink()
        make(target)
        return str(target)

    one["path"] = dice.choice(
        [
            lambda: f"{folder}/../{Path(folder).name}/{name}",
            lambda: f"{folder}/./{name}",
            lambda: f"{folder}//{name}",
            lambda: f"{folder}/{name}/",
            lambda: f"{folder}/sub/{name}",
            lambda: f"{away}/{name}",
            lambda: name,
            lambda: "/etc/passwd",
            lambda: "/dev/zero",
            lambda: folder,
            lambda: f"{folder}/..",
            lambda: f"{folder}/.",
            lambda: "",
            lambda: f"{folder}/a\0b",
            lambda: f"{folder}/{'x' * 300}",
            lambda: f"{folder}/missing.bin",
            lambda: outputs[1 - outputs.index(one)]["path"],
            lambda: replaced(lambda p: p.symlink_to(away / name)),
            lambda: replaced(lambda p: p.symlink_to("/dev/zero")),
            lambda: replaced(os.mkfifo),
            lambda: replaced(Path.mkdir),
            lambda: replaced(lambda p: os.link(away / name, p)),
            lambda: replaced(lambda p: p.write_bytes(bytes(23))),
            lambda: replaced(lambda p: p.write_bytes(b"")),
        ]
    )()
    return talk.message


def bad_outputs(talk: Talk, dice: Dice) -> Data | None:
    if talk.message["kind"] != "measured":
        return None
    facts, timing = talk.message["facts"], talk.message["timing"]
    outputs = dice.choice([talk.message["outputs"], timing["timed_outputs"], facts["others"][0]["outputs"]])
    dice.choice(
        [
            lambda: outputs.pop(),
            lambda: outputs.append(outputs[0]),
            lambda: outputs.clear(),
            lambda: outputs[0].update(name="dx"),
            lambda: outputs[0].update(name="x"),
            lambda: outputs[0].update(dtype="float64"),
            lambda: outputs[0].update(dtype="complex64"),
            lambda: outputs[0].update(shape=[2, 4]),
            lambda: outputs[0].update(shape=[]),
            lambda: outputs[0].update(shape=[2, -3]),
            lambda: outputs[0].update(shape=[2**40, 2**40, 2**40]),
        ]
    )()
    return talk.message


def bad_times(talk: Talk, dice: Dice) -> Data | None:
    if talk.message["kind"] != "measured":
        return None
    timing = talk.message["timing"]
    dice.choice(
        [
            lambda: timing.update(method="host"),
            lambda: timing.update(method="haha"),
            lambda: timing.update(method="events"),  # nobody told it to
            lambda: timing.update(launches=0),
            lambda: timing.update(samples_us=[1.0] * 1100),
            lambda: timing.update(host_us=[1.0] * 1100),
            lambda: talk.before.pop() and talk.before.__delitem__(slice(3, None)),  # samples, but never timed
            lambda: talk.before.clear(),
        ]
    )()
    return talk.message


def bad_failure(talk: Talk, dice: Dice) -> Data | None:
    if talk.message["kind"] != "failed":
        return None
    wrong = [("passed", "kernel"), ("built", "kernel"), ("lost", "infra"), ("skipped", "kernel"), ("haha", "kernel")]
    wrong += [("infra_error", "kernel"), ("crashed", "infra"), ("crashed", "nobody"), ("inaccurate", "harness")]
    wrong += [("PASSED", "kernel"), ("", ""), ("timed_out", "device"), ("capture_failed", "kernel")]
    status, owner = dice.choice(wrong)
    return {**talk.message, "status": status, "owner": owner}


def bad_phase(talk: Talk, dice: Dice) -> Data | None:
    if talk.message["kind"] != "phase" or isinstance(talk.order, protocol.Calibrate):
        return None
    wrong = ["spawn", "teardown", "", "Check", "measured"]
    wrong += ["compile", "check"] if not talk.before else ["compile"] if "check" in talk.before else []
    if dice.random() < 0.3 and talk.before:
        talk.before += ["import", "compile"]
        wrong = ["import"]  # a third time
    return {**talk.message, "phase": dice.choice(wrong)}


MUTATIONS: tuple[Callable[[Talk, Dice], Data | str | bytes | None], ...] = (
    *(other_type, not_finite, missing, more, other_ids, other_kind, twins, broken_text, nested, huge),
    *(bad_path, bad_outputs, bad_times, bad_failure, bad_phase),
)


def shown(told: Data | str | bytes) -> bytes:
    if isinstance(told, dict):
        told = json.dumps(told)
    return told.encode() if isinstance(told, str) else told


def hammer(folder: Path, dice: Dice, lines: int) -> Counter[str]:
    """So many malformed lines, each of which is refused by ChildLied and by nothing else."""
    done: Counter[str] = Counter()
    here, away = folder / "out", folder / "elsewhere"
    for place in (here, away):
        place.mkdir()
        measured(place)
    honest = talks(here)
    while sum(done.values()) < lines:
        mutate = dice.choice(MUTATIONS)
        talk = copy.deepcopy(dice.choice(honest))
        told = mutate(talk, dice)
        if told is None:
            continue
        done[mutate.__name__] += 1
        line = shown(told)
        try:
            talk.door().read(line)
        except ChildLied as reason:
            assert len(str(reason)) < 1500, reason
        else:
            raise AssertionError(f"{mutate.__name__} was believed: {line[:2000]!r}")
        if mutate is bad_path:  # which leaves what it has put there
            for file in here.iterdir():
                file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
            measured(here)
    return done


def test_no_malformed_line_is_believed(tmp_path: Path) -> None:
    done = hammer(tmp_path, random.Random(20261122), LINES)
    assert min(done[m.__name__] for m in MUTATIONS) >= 15, done


def test_a_folder_that_was_exchanged_for_a_link_is_refused(tmp_path: Path) -> None:
    here = tmp_path / "out"
    here.mkdir()
    talk = next(t for t in talks(here) if t.message["kind"] == "measured")
    here.rename(tmp_path / "elsewhere")
    here.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ChildLied, match="folder of its outputs"):
        talk.door().read(json.dumps(talk.message).encode())


def test_phases_do_not_go_on_for_ever(tmp_path: Path) -> None:
    """Each begins a deadline: without end, a cell would have none."""
    for talk in talks(tmp_path):
        if talk.message["kind"] == "phase":
            door = talk.door()
            with pytest.raises(ChildLied):
                for _ in range(child_messages.MOST_STEPS + 1):
                    door.read(json.dumps(talk.message).encode())


@pytest.mark.parametrize(
    "more, operation, fine",
    [
        ({}, "forward", False),
        ({"may_overwrite": True}, "forward", True),
        ({"role": "mutated"}, "forward", True),
        ({}, "backward", True),
    ],
)
def test_events_stand_in_for_another_method_only_where_a_call_may_overwrite_what_it_reads(
    tmp_path: Path, more: Data, operation: str, fine: bool
) -> None:
    """Its inputs, or, in a backward, what the forward saved."""
    tensors = [{**TENSORS[0], **more}, *TENSORS[1:]]
    order = protocol.Run("abc", 0, 2, {**CELL, "operation": operation}, tensors, {}, str(tmp_path))
    said = measured(tmp_path)
    if more.get("role"):
        said["outputs"], said["timing"]["timed_outputs"] = (
            [*found, output(tmp_path, "x", prefix)]
            for found, prefix in ((said["outputs"], "out"), (said["timing"]["timed_outputs"], "timed"))
        )
        said["facts"].pop("others")
    said["timing"]["method"] = "events"
    talk = Talk(order, list(protocol.PHASES), said)
    if fine:
        assert talk.door().read(json.dumps(talk.message).encode()).kind == "measured"
    else:
        with pytest.raises(ChildLied):
            talk.door().read(json.dumps(talk.message).encode())
