"""Wrong files, options and stores, through the command line: one sentence, exit code 2, nothing left behind."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.cli import main
from farm.cli.main import parser
from farm.cli.run import Matrices
from farm.cluster import address
from farm.errors import id_of
from farm.store import Store

BASE = """\
name: m
op: rms_norm
axes:
  shape: [{rows: 4, hidden: 64}]
  dtype: [float32, float16]
providers: [torch]
"""


class Started(Exception):
    """A run went so far as to start a cluster."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with one good matrix; starting a cluster is an error; no GPU whatever the host has."""
    monkeypatch.chdir(tmp_path)
    for name in ("FARM_STORE", "RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)

    def start(*args: object) -> None:
        raise Started

    monkeypatch.setattr("farm.cluster.ray_cluster.RayCluster", start)
    monkeypatch.setattr("farm.cli.run_command.InlineCluster", start)
    monkeypatch.setattr("farm.backends.cuda.detect", lambda count=None: [])
    (tmp_path / "m.yaml").write_text(BASE)
    return tmp_path


Refuse = Callable[..., str]


@pytest.fixture
def refuse(capfd: pytest.CaptureFixture[str], here: Path) -> Refuse:
    """Run a command line that must be refused; gives its sentence."""

    def run(*argv: str, code: int = 2) -> str:
        capfd.readouterr()
        try:
            found = main(list(argv))
        except SystemExit as exit:  # argparse
            found = int(str(exit.code))
        said = capfd.readouterr()
        assert found == code, said.err
        assert said.out == ""
        assert said.err.startswith("farm") and said.err.endswith("\n")
        sentence = said.err[:-1]
        assert sentence.isprintable(), sentence  # so: one line
        assert not re.search(r"Traceback|\bFile \"|^\w+Error:", sentence)
        assert not [p for p in here.glob("**/runs/*") if p.is_dir()]
        return sentence

    return run


def test_the_good_matrix_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the refusals below would prove nothing; and a run would start here."""
    assert main(["plan", "m.yaml"]) == 0
    assert "cpu: 2 cells" in capsys.readouterr().out
    assert main(["run", "m.yaml", "--address", "inline"]) == 3
    assert "(Started: " in capsys.readouterr().err


# Files


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "matrix-empty-file"),
    "blank": (b"\n# nothing\n\n", "matrix-empty-file"),
    "a list": (b"- 1\n", "matrix-not-a-mapping"),
    "a word": (b"hello\n", "matrix-not-a-mapping"),
    "binary": (bytes(range(256)) * 10, "matrix-file-not-utf8"),
    "nul": (b"\0\0\0", "matrix-control-character"),
    "utf-16": (BASE.encode("utf-16"), "matrix-file-not-utf8"),
    "no YAML": (b"name: [\n", "matrix-not-yaml"),
    "tabs": (b"name: m\nop:\n\trms_norm\n", "matrix-not-yaml"),
    "a tag": (b"name: !!python/object/apply:os.system [id]\nop: rms_norm\n", "matrix-tag"),
    "bomb": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)),
        "matrix-too-many-values",
    ),
    "deep": (b"[" * 5000, "matrix-too-deep"),
    "twice": (BASE.encode() + b"name: n\n", "matrix-key-twice"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_file_that_is_no_matrix(refuse: Refuse, here: Path, command: str, kind: str) -> None:
    content, id = FILES[kind]
    (here / "bad.yaml").write_bytes(content)
    sentence = refuse(command, "bad.yaml")
    assert sentence.startswith(f"farm {command}: bad.yaml")
    assert sentence.endswith(f" [{id}]")


def test_files_that_are_missing_or_not_files(refuse: Refuse, here: Path) -> None:
    sentence = refuse("run", "n.yaml")
    assert '"m.yaml"' in sentence and "[matrix-file-missing]" in sentence
    (here / "folder").mkdir()
    assert "[matrix-file-is-folder]" in refuse("run", "folder")
    os.mkfifo(here / "pipe")
    assert "[matrix-file-not-regular]" in refuse("run", "pipe")  # and does not wait for a writer
    assert "[matrix-file-not-regular]" in refuse("run", "/dev/zero")
    assert "m.yaml/x" in refuse("run", "m.yaml/x")
    assert refuse("run", "x" * 300 + ".yaml")


def test_a_file_of_100_megabytes(refuse: Refuse, here: Path) -> None:
    with (here / "big.yaml").open("wb") as file:
        file.truncate(100 << 20)
    sentence = refuse("run", "big.yaml")
    assert "104,857,600" in sentence and "[matrix-file-too-big]" in sentence


#: What each test replaces in BASE, the line that its refusal names, its identifier, and further facts.
WRONG: dict[str, tuple[Any, ...]] = {
    "unknown key": ("op: rms_norm", "op: rms_norm\nprovider: x", 3, "matrix-unknown-key", '"providers"'),
    "unknown op": ("rms_norm", "rms_nrom", 2, "matrix-unknown-op", '"rms_norm"'),
    "no op": ("op: rms_norm\n", "", 1, "matrix-no-op"),
    "unknown axis": ("dtype:", "dtpye:", 5, "matrix-unknown-axis", '"dtype"'),
    "unknown dtype": ("float16", "bf61", 5, "matrix-unknown-dtype", '"bfloat16"'),
    "unknown dimension": ("hidden: 64", "hiden: 64", 4, "matrix-unknown-dimension", '"hidden"'),
    "unknown provider": ("[torch]", "[trch]", 6, "matrix-unknown-provider", '"torch"'),
    "unknown mode": ("[torch]", "{farm: {mode: multi_wave_cachd}}", 6, "matrix-provider-mode", '"multi_wave_cached"'),
    "unknown backend": (
        "providers",
        "backends: {cdua: {dtype: fp16}}\nproviders",
        6,
        "matrix-unknown-backend",
        '"cuda"',
    ),
    "unknown operation": ("providers", "  operation: bakward\nproviders", 6, "matrix-unknown-operation", '"backward"'),
    "unknown required backend": ("providers", "require: [cuad]\nproviders", 6, "matrix-require-backend", '"cuda"'),
    "rows below": ("rows: 4", "rows: -1", 4, "matrix-out-of-range", "0", "1099511627776"),
    "rows above": ("rows: 4", "rows: 1099511627777", 4, "matrix-out-of-range", "0", "1099511627776"),
    "hidden below": ("hidden: 64", "hidden: 0", 4, "matrix-out-of-range", "1", "1073741824"),
    "hidden above": ("hidden: 64", "hidden: 1073741825", 4, "matrix-out-of-range", "1", "1073741824"),
    "size as text": ("rows: 4", "rows: four", 4, "matrix-not-an-integer", '"four"'),
    "size as fraction": ("rows: 4", "rows: 4.5", 4, "matrix-not-an-integer", "4.5"),
    "shape as number": ("[{rows: 4, hidden: 64}]", "4", 4, "matrix-wrong-kind", "a list"),
    "axes as list": (
        "  shape: [{rows: 4, hidden: 64}]\n  dtype: [float32, float16]",
        "  - 1",
        4,
        "matrix-wrong-kind",
        "a mapping",
    ),
    "dtype as number": ("float16", "16", 5, "matrix-dtype-not-text", "16"),
    "empty axis": ("[float32, float16]", "[]", 5, "matrix-empty-value"),
    "dtype twice": ("float16", "fp32", 5, "matrix-value-twice", "float32"),
    "key twice": ("op: rms_norm", "op: rms_norm\nop: matmul", 3, "matrix-key-twice", "op ", "line 2"),
    "exclude without reason": ("providers", "exclude:\n  - {dtype: fp16}\nproviders", 7, "matrix-exclude-no-reason"),
    "exclude of nothing": (
        "providers",
        'exclude:\n  - {hidden: ">64", reason: r}\nproviders',
        7,
        "matrix-rule-matches-nothing",
        "(hidden>64)",
    ),
    "unknown timing": ("providers", "timing: {method: guess}\nproviders", 6, "matrix-timing-method", "rotating_graph"),
    "escapes in a value": ("name: m", 'name: "m\\e[2Jx"', 1, "matrix-name", "\\x1b[2J"),
    "escapes in a key": (
        "name: m",
        'name: m\n"k\\e]0;x\\a\\u202Ey\\nz": 1',
        2,
        "matrix-unknown-key",
        "\\x1b]0;x\\x07\\u202ey z",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_matrix_is_refused_with_file_and_line(refuse: Refuse, here: Path, fault: str) -> None:
    old, new, line, id, *facts = WRONG[fault]
    text = BASE.replace(old, new, 1)
    assert text != BASE
    (here / "bad.yaml").write_text(text)
    sentence = refuse("run", "bad.yaml")
    assert sentence.startswith(f"farm run: bad.yaml:{line}: "), sentence
    assert sentence.endswith(f" [{id}]")
    assert [fact for fact in facts if fact not in sentence] == []


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(at=st.integers(0, len(BASE)), cut=st.integers(0, 12), put=st.text(max_size=12))
def test_a_damaged_matrix_plans_or_is_refused(
    refuse: Refuse, here: Path, capfd: pytest.CaptureFixture[str], at: int, cut: int, put: str
) -> None:
    (here / "bad.yaml").write_bytes((BASE[:at] + put + BASE[at + cut :]).encode("utf-8", "replace"))
    if main(["plan", "bad.yaml"]):
        assert "bad.yaml" in refuse("plan", "bad.yaml")


# Options


#: name -> (options, what their refusal names: its identifier, and the option or value)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "absent backend": (["--backend", "cuda"], "backend cuda", "cpu, sim", "[run-backend-absent]"),
    "unknown backend": (["--backend", "cdua"], '"cuda"'),
    "no backend": (["--backend", ","], "[option-backend-empty]"),
    "rocm": (["--backend", "rocm"], "backend rocm", "[run-backend-absent]"),
    "ascend": (["--backend", "cpu,ascend"], "backend ascend", "[run-backend-absent]"),
    "nothing selected": (["--select", "hidden=65"], "hidden=65", "[plan-select-nothing]"),
    "select unknown": (["--select", "hiden=64"], '"hidden"', "[matrix-select-key]"),
    "select no pair": (["--select", "hidden"], "hidden", "KEY=VALUE", "[matrix-select-pair]"),
    "select no number": (["--select", "hidden=many"], "many", "[matrix-rule-not-a-number]"),
    "select empty": (["--select", " "], "[option-select-empty]"),
    "set no pair": (["--set", "timing"], '"timing"', "KEY=VALUE", "[option-set-malformed]"),
    "set unknown": (["--set", "timng.method=host"], '"timing"', "[matrix-unknown-key]"),
    "set no path": (["--set", "a..b=1"], "a..b", "[matrix-set-path]"),
    "set no YAML": (["--set", "name=["], "--set", "YAML", "[matrix-set-not-yaml]"),
    "set absent place": (["--set", "axes.shape[7].rows=1"], "axes.shape[7]", "[matrix-set-entry]"),
    "set of another": (["--set", "other:name=x"], '"other"', "[matrix-set-name]"),
    "set wrong type": (["--set", "axes.shape[0].rows=x"], "rows", "x", "[matrix-not-an-integer]"),
    "provider malformed": (["--provider", "mine"], "mine", "[OP:]NAME=module:function"),
    "provider no function": (["--provider", "mine=mod"], "mine=mod", "[OP:]NAME=module:function"),
    "provider no module": (
        ["--provider", "mine=no_such_module_here:f"],
        '"no_such_module_here"',
        "[shipping-provider-module]",
    ),
    "provider path": (["--provider", "mine=../x:f"], "../x", "[option-provider-file]"),
    "provider no such function": (["--provider", "mine=own:rms_nrom"], '"rms_nrom"', "[shipping-provider-function]"),
    "provider no Python": (["--provider", "mine=broken:f"], "broken.py", "(", "[shipping-provider-not-python]"),
    "provider of the farm": (["--provider", "torch=own:f"], "torch", "[matrix-provider-builtin]"),
    "provider twice": (["--provider", "a=own:f", "--provider", "a=own:f"], "[option-provider-twice]"),
    "provider of no op": (["--provider", "rms_nrom:a=own:f"], '"rms_norm"', "[matrix-provider-op]"),
    "provider joins nothing": (["--provider", "matmul:a=own:f"], "matmul", "[matrix-provider-op-absent]"),
    "provider name": (["--provider", "a/b=own:f"], "a/b", "[matrix-provider-name]"),
    "no devices": (["--devices", "0"], "1 and 256", "[option-devices-range]"),
    "negative devices": (["--devices", "-2"], "-2", "[option-devices-range]"),
    "devices no number": (["--devices", "two"], "--devices", "'two'"),
    "run id up": (["--run-id", ".."], "[option-run-id-invalid]"),
    "run id path": (["--run-id", "a/b"], "[option-run-id-invalid]"),
    "run id absolute": (["--run-id", "/tmp/x"], "[option-run-id-invalid]"),
    "run id hidden": (["--run-id", ".x"], "[option-run-id-invalid]"),
    "run id escape": (["--run-id", "a\x1b[31m"], "[option-run-id-invalid]"),
    "run id long": (["--run-id", "x" * 300], "[option-run-id-invalid]"),
    "address": (["--address", "nonsense"], "nonsense", "local, inline, auto", "HOST:PORT"),
    "address port": (["--address", "localhost:0"], "localhost:0", "HOST:PORT"),
    "address scheme": (["--address", "ray://localhost:10001"], "ray://localhost:10001", "HOST:PORT"),
    "store in a file": (["--out", "m.yaml"], "m.yaml", "[store-unwritable]"),
    "store under a file": (["--out", "m.yaml/store"], "m.yaml/store", "[store-unwritable]"),
    "unknown option": (["--adress", "x\x1b[2J"], "--adress x\\x1b[2J"),
    "no UTF-8": (["--out", "s\udcff"], "s\\udcff", "UTF-8"),
}


@pytest.mark.parametrize("address", ["local", "inline"])
@pytest.mark.parametrize("fault", OPTIONS)
def test_a_wrong_option_is_refused_before_anything_starts(refuse: Refuse, here: Path, fault: str, address: str) -> None:
    (here / "own.py").write_text("def f(x): ...\n")
    (here / "broken.py").write_text("def f(:\n")
    argv, *facts = OPTIONS[fault]
    said = refuse("run", "m.yaml", "--address", address, *argv)
    assert all(fact in said for fact in facts), said


def test_a_run_that_exists_is_refused_before_a_cluster_starts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = here / "farm-results/runs/one"
    writer = Store(here / "farm-results").create("one")
    writer.plan({}, [])
    writer.close()
    assert main(["run", "m.yaml", "--run-id", "one"]) == 2
    said = capsys.readouterr().err
    assert "runs/one" in said and "--run-id" in said and "[store-run-exists]" in said
    assert sorted(p.name for p in folder.iterdir()) == ["journal.jsonl", "logs"]


def test_a_node_whose_accelerator_is_gone_does_not_run_on_its_cpu(
    refuse: Refuse, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A driver that fell over must not turn a night of measurements into one of the interpreter, all green."""
    (here / "node.yaml").write_text("backend: rocm\n")
    monkeypatch.setenv("FARM_NODE", str(here / "node.yaml"))
    monkeypatch.setattr("farm.backends.rocm.detect", lambda count=None: [])
    for where in ("local", "inline"):
        said = refuse("run", "m.yaml", "--address", where)
        assert "node.yaml: " in said and "rocm" in said and "[run-node-backend-absent]" in said
    assert main(["run", "m.yaml", "--backend", "cpu", "--address", "inline"]) == 3  # asked for by name
    assert "(Started: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argv", "there", "node", "chosen", "noted"),
    [
        ([], "", "", "cpu", True),
        ([], "rocm", "", "rocm", False),
        (["--backend", "cpu"], "", "", "cpu", False),
        ([], "", "backend: cpu", "cpu", False),
        (["--address", "host:1"], "", "backend: rocm", "cpu", True),
    ],
)
def test_the_interpreter_is_reported_when_it_is_a_substitute(
    here: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], there: str, node: str, chosen: str, noted: bool
) -> None:
    (here / "node.yaml").write_text(node)
    monkeypatch.setenv("FARM_NODE", str(here / "node.yaml"))
    work = Matrices(parser().parse_args(["run", "m.yaml", *argv]))
    assert work.choose(lambda backend: backend in (there, "cpu"), False) == [chosen]
    assert id_of(work.note) == ("run-on-interpreter" if noted else "")


def test_two_matrices_of_one_name(refuse: Refuse, here: Path) -> None:
    (here / "n.yaml").write_text(BASE.replace("64", "65"))
    said = refuse("run", "m.yaml", "n.yaml")
    assert "n.yaml" in said and "m.yaml" in said and '"m"' in said
    assert "[plan-name-twice]" in said


def test_a_required_backend_that_is_absent(refuse: Refuse, here: Path) -> None:
    (here / "m.yaml").write_text(BASE + "require: [cuda]\n")
    assert "[run-backend-absent]" in refuse("run", "m.yaml")
    said = refuse("run", "m.yaml", "--backend", "cpu")
    assert "cuda" in said and "[run-backend-required]" in said


@pytest.mark.parametrize("argv", [[], ["rnu"], ["run"], ["export", "pdf", "last"], ["dashboard", "open"]], ids=str)
def test_a_wrong_command_line(refuse: Refuse, argv: list[str]) -> None:
    assert "--help" in refuse(*argv)


def test_results_that_cannot_be_written(refuse: Refuse) -> None:
    assert "--out no/plan.json: " in refuse("plan", "m.yaml", "--out", "no/plan.json")
    for port in ("70000", "0"):
        said = refuse("dashboard", "serve", "--port", port)
        assert f"--port {port}: " in said and "65535" in said and "[dashboard-port-range]" in said


def test_a_plan_that_does_not_fit_leaves_the_older_one(
    refuse: Refuse, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "p.json").write_text('{"sha256": "an older plan"')

    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert "(No space left on device)" in refuse("plan", "m.yaml", "--out", "p.json")
    monkeypatch.undo()
    assert (here / "p.json").read_text() == '{"sha256": "an older plan"'
    assert not list(here.glob(".p.json*"))


def test_an_environment_that_this_host_does_not_name(refuse: Refuse, here: Path) -> None:
    words = ("run", "m.yaml", "--backend", "cpu", "--address", "inline", "--environment")
    said = refuse(*words, "nope")
    assert '"nope"' in said and "default" in said
    assert '"default"' in refuse(*words, "defalt")
    assert not (here / "farm-results").exists()


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("head", "--ip", "no.such.host.invalid"), ("--ip no.such.host.invalid", "--port 6379")),
        (("head", "--ip", "203.0.113.9"), ("--ip 203.0.113.9",)),  # an address for documentation
        (("head", "--cpus", "-3"), ("--cpus -3", "0")),
        (("head", "--port", "70000"), ("--port 70000", "65535")),
        (("join", "--backend", "cpu", "--head", "h:99999"), ("--head h:99999", "HOST:PORT")),
        (("join", "--backend", "cpu", "--head", "h", "--no-token", "--time", "4:00:00"), ("--time", "--slurm")),
        (("join", "--backend", "cpu", "--head", "h", "--no-token", "--gres", "gpu:8"), ("--gres", "--slurm")),
    ],
)
def test_a_head_or_a_node_that_cannot_start(refuse: Refuse, words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    said = refuse("nodes", *words)
    assert all(fact in said for fact in facts), said


def test_a_heads_port_that_somebody_has(refuse: Refuse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port}: " in refuse("nodes", "head", "--ip", "127.0.0.1", "--port", port)


# Addresses


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Somebody who listens and says `answer`; None: nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def serve() -> None:
            talk, _ = listening.accept()
            with talk:
                talk.recv(100)
                if answer is None:
                    over.wait(20)
                else:
                    talk.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            thread.join(20)


def test_nobody_at_the_address(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """Ray itself would try for minutes.  It is the cluster that fails, not the command line: exit code 3."""
    said = refuse("run", "m.yaml", "--address", "127.0.0.1:1", code=3)
    assert "--address 127.0.0.1:1: " in said and "(Connection refused)" in said
    assert "farm nodes head" in said and "--address local" not in refuse("nodes", "--address", "127.0.0.1:1", code=3)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    said = refuse("run", "m.yaml", "--address", "auto", code=3)
    assert "RAY_ADDRESS" in said and "127.0.0.1:1" in said
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(here))
    (here / "ray").mkdir()
    (here / "ray/ray_current_cluster").write_text("127.0.0.1:1")
    said = refuse("run", "m.yaml", "--address", "auto", code=3)
    assert "ray_current_cluster" in said and "127.0.0.1:1" in said


def test_somebody_else_at_the_address(refuse: Refuse) -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        said = refuse("run", "m.yaml", "--address", f"127.0.0.1:{port}", code=3)
        assert f"127.0.0.1:{port}" in said and "Ray" in said


def test_who_says_nothing_is_not_waited_for() -> None:
    with server(None) as port:
        assert "0.2 s" in str(address.silent("127.0.0.1", port, seconds=0.2))


def test_who_speaks_like_ray_is_joined() -> None:
    with server(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])) as port:
        assert address.silent("127.0.0.1", port) is None
        assert address.parse("[::1]:6379", "x") == ("::1", 6379)


# Stores


DAMAGE = {
    "empty journal": {"journal.jsonl": ""},
    "garbage journal": {"journal.jsonl": "\0\1\2 not json\n"},
    "corrupt head": {"journal.jsonl": "", "run.json": "{"},
    "binary head": {"journal.jsonl": "", "run.json": "\0\udcff"},
    "no table": {"journal.jsonl": "", "run.json": '{"schema": 1, "run_id": "x", "planned": 1}'},
    "garbage table": {"journal.jsonl": "", "run.json": '{"schema": 1, "run_id": "x"}', "cells.parquet": "junk"},
    "half a cell": {"journal.jsonl": '{"event": "cell", "cell": {"backend": "cpu"}}\n'},
    "a list as head": {"journal.jsonl": "", "run.json": "[]"},
    "a list in the journal": {"journal.jsonl": "[1]\n"},
    "null in the journal": {"journal.jsonl": "null\n"},
}

NOT_BEGUN = ("empty journal",)  # a run may be ended before its first line is whole


def damaged(store: Path, kind: str) -> None:
    folder = store / "runs" / "x"
    folder.mkdir(parents=True)
    for name, text in DAMAGE[kind].items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_does_not_hide_the_others(here: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    damaged(here / "s", kind)
    code = main(["dashboard", "build", "--out", "s"])
    said = capsys.readouterr().err
    assert (here / "s/pages/index.html").is_file()
    if kind in NOT_BEGUN:
        assert (code, said) == (0, "")
    else:
        assert code == 3 and said.startswith("farm dashboard: run x ") and said.count("\n") == 1
        assert said.endswith(" [dashboard-run-unreadable]\n") and said.strip().isprintable()


@pytest.mark.parametrize("kind", [k for k in DAMAGE if k not in NOT_BEGUN])
@pytest.mark.parametrize("argv", [["export", "junit", "x"], ["export", "markdown", "x"], ["dashboard", "build", "x"]])
def test_a_damaged_run_by_name_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], kind: str, argv: list[str]
) -> None:
    damaged(here / "s", kind)
    code = main([*argv, "--out", "s"])
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert "s/runs/x" in said and said.endswith(" [run-unreadable]") and "\n" not in said and said.isprintable()


def test_runs_and_stores_that_are_not_there(refuse: Refuse, here: Path) -> None:
    for name, argv in (
        ("nope", ("export", "junit", "nope")),
        ("last", ("export", "markdown", "last", "--out", "nowhere")),
        ("nope", ("dashboard", "build", "nope")),
    ):
        said = refuse(*argv)
        assert f'"{name}"' in said and "[store-run-unknown]" in said
    assert not (here / "nowhere").exists()
    assert "m.yaml" in refuse("dashboard", "build", "--out", "m.yaml")
