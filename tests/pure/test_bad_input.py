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

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm import address
from farm.cli import main
from farm.cli.main import parser
from farm.cli.run import _Matrices

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

    monkeypatch.setattr("farm.cli.launching.RayCluster", start)
    monkeypatch.setattr("farm.cli.launching.InlineCluster", start)
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
    """Else every refusal below would be for nothing; and a run would start here."""
    assert main(["plan", "m.yaml"]) == 0
    assert "cpu: 2 cells" in capsys.readouterr().out
    assert main(["run", "m.yaml", "--address", "inline"]) == 3
    assert "Started" in capsys.readouterr().err


# Files


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b"\n# nothing\n\n", "is empty"),
    "a list": (b"- 1\n", "not a mapping"),
    "a word": (b"hello\n", "not a mapping"),
    "binary": (bytes(range(256)) * 10, "not UTF-8 text"),
    "nul": (b"\0\0\0", "control character"),
    "utf-16": (BASE.encode("utf-16"), "not UTF-8 text"),
    "no YAML": (b"name: [\n", "is not YAML"),
    "tabs": (b"name: m\nop:\n\trms_norm\n", "not YAML"),
    "a tag": (b"name: !!python/object/apply:os.system [id]\nop: rms_norm\n", "tag"),
    "bomb": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)),
        "once its aliases are expanded",
    ),
    "deep": (b"[" * 5000, "nested deeper"),
    "twice": (BASE.encode() + b"name: n\n", "name is given twice"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_file_that_is_no_matrix(refuse: Refuse, here: Path, command: str, kind: str) -> None:
    content, words = FILES[kind]
    (here / "bad.yaml").write_bytes(content)
    told = refuse(command, "bad.yaml")
    assert told.startswith(f"farm {command}: bad.yaml")
    assert words in told


def test_files_that_are_not_there_or_not_files(refuse: Refuse, here: Path) -> None:
    assert 'there is no such file; did you mean "m.yaml"?' in refuse("run", "n.yaml")
    (here / "folder").mkdir()
    assert "folder: is a folder" in refuse("run", "folder")
    os.mkfifo(here / "pipe")
    assert "not a regular file" in refuse("run", "pipe")  # and does not wait for a writer
    assert "not a regular file" in refuse("run", "/dev/zero")
    assert "m.yaml/x" in refuse("run", "m.yaml/x")
    assert refuse("run", "x" * 300 + ".yaml")


def test_a_file_of_100_megabytes(refuse: Refuse, here: Path) -> None:
    with (here / "big.yaml").open("wb") as file:
        file.truncate(100 << 20)
    assert "has 104,857,600 bytes; a matrix has at most" in refuse("run", "big.yaml")


WRONG = {
    "unknown key": ("op: rms_norm", "op: rms_norm\nprovider: x", 3, 'did you mean "providers"?'),
    "unknown op": ("rms_norm", "rms_nrom", 2, 'did you mean "rms_norm"?'),
    "no op": ("op: rms_norm\n", "", 1, "has no op"),
    "unknown axis": ("dtype:", "dtpye:", 5, 'did you mean "dtype"?'),
    "unknown dtype": ("float16", "bf61", 5, 'did you mean "bfloat16"?'),
    "unknown dimension": ("hidden: 64", "hiden: 64", 4, 'did you mean "hidden"?'),
    "unknown provider": ("[torch]", "[trch]", 6, 'did you mean "torch"?'),
    "unknown mode": ("[torch]", "{farm: {mode: multi_wave_cachd}}", 6, 'did you mean "multi_wave_cached"?'),
    "unknown backend": ("providers", "backends: {cdua: {dtype: fp16}}\nproviders", 6, 'did you mean "cuda"?'),
    "unknown operation": ("providers", "  operation: bakward\nproviders", 6, 'did you mean "backward"?'),
    "unknown required backend": ("providers", "require: [cuad]\nproviders", 6, 'did you mean "cuda"?'),
    "rows below": ("rows: 4", "rows: -1", 4, "it goes from 0 to 1099511627776"),
    "rows above": ("rows: 4", "rows: 1099511627777", 4, "it goes from 0 to 1099511627776"),
    "hidden below": ("hidden: 64", "hidden: 0", 4, "it goes from 1 to 1073741824"),
    "hidden above": ("hidden: 64", "hidden: 1073741825", 4, "it goes from 1 to 1073741824"),
    "size as text": ("rows: 4", "rows: four", 4, "it must be a whole number"),
    "size as fraction": ("rows: 4", "rows: 4.5", 4, "it must be a whole number"),
    "shape as number": ("[{rows: 4, hidden: 64}]", "4", 4, "it must be a list"),
    "axes as list": ("  shape: [{rows: 4, hidden: 64}]\n  dtype: [float32, float16]", "  - 1", 4, "a mapping"),
    "dtype as number": ("float16", "16", 5, "it must be a dtype"),
    "empty axis": ("[float32, float16]", "[]", 5, "is empty"),
    "dtype twice": ("float16", "fp32", 5, "a second time"),
    "key twice": ("op: rms_norm", "op: rms_norm\nop: matmul", 3, "op is given twice (first in line 2)"),
    "exclude without reason": ("providers", "exclude:\n  - {dtype: fp16}\nproviders", 7, "has no reason"),
    "exclude of nothing": (
        "providers", 'exclude:\n  - {hidden: ">64", reason: r}\nproviders', 7, "matches no cell (hidden>64)",
    ),
    "unknown timing": ("providers", "timing: {method: guess}\nproviders", 6, "the timing methods are"),
    "escapes in a value": ("name: m", 'name: "m\\e[2Jx"', 1, "\\x1b[2J"),
    "escapes in a key": ("name: m", 'name: m\n"k\\e]0;x\\a\\u202Ey\\nz": 1', 2, "\\x1b]0;x\\x07\\u202ey z"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_matrix_is_told_with_file_and_line(refuse: Refuse, here: Path, fault: str) -> None:
    old, new, line, words = WRONG[fault]
    text = BASE.replace(old, new, 1)
    assert text != BASE
    (here / "bad.yaml").write_text(text)
    told = refuse("run", "bad.yaml")
    assert told.startswith(f"farm run: bad.yaml:{line}: "), told
    assert words in told


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(at=st.integers(0, len(BASE)), cut=st.integers(0, 12), put=st.text(max_size=12))
def test_a_damaged_matrix_plans_or_is_refused(
    refuse: Refuse, here: Path, capfd: pytest.CaptureFixture[str], at: int, cut: int, put: str
) -> None:
    (here / "bad.yaml").write_bytes((BASE[:at] + put + BASE[at + cut :]).encode("utf-8", "replace"))
    if main(["plan", "bad.yaml"]):
        assert "bad.yaml" in refuse("plan", "bad.yaml")


# Options


OPTIONS: dict[str, tuple[list[str], str]] = {
    "absent backend": (["--backend", "cuda"], "backend cuda: no such device here (there are: cpu, sim)"),
    "unknown backend": (["--backend", "cdua"], 'did you mean "cuda"?'),
    "no backend": (["--backend", ","], "--backend names no backend"),
    "rocm": (["--backend", "rocm"], "backend rocm: no such device here"),
    "ascend": (["--backend", "cpu,ascend"], "backend ascend: no such device here"),
    "nothing selected": (["--select", "hidden=65"], "selects none"),
    "select unknown": (["--select", "hiden=64"], 'did you mean "hidden"?'),
    "select no pair": (["--select", "hidden"], "is not key=value"),
    "select no number": (["--select", "hidden=many"], "not a whole number"),
    "select empty": (["--select", " "], "--select selects nothing"),
    "set no pair": (["--set", "timing"], "is not KEY=VALUE"),
    "set unknown": (["--set", "timng.method=host"], 'did you mean "timing"?'),
    "set no path": (["--set", "a..b=1"], "is no path"),
    "set no YAML": (["--set", "name=["], "the value is not YAML"),
    "set absent place": (["--set", "axes.shape[7].rows=1"], "is not there"),
    "set of another": (["--set", "other:name=x"], 'there is no matrix "other"'),
    "set wrong type": (["--set", "axes.shape[0].rows=x"], "it must be a whole number"),
    "provider malformed": (["--provider", "mine"], "is not [OP:]NAME=module:function"),
    "provider no function": (["--provider", "mine=mod"], "is not [OP:]NAME=module:function"),
    "provider no module": (["--provider", "mine=no_such_module_here:f"], 'there is no module "no_such_module_here"'),
    "provider path": (["--provider", "mine=../x:f"], "there is no module"),
    "provider no such function": (["--provider", "mine=own:rms_nrom"], 'defines no "rms_nrom"'),
    "provider no Python": (["--provider", "mine=broken:f"], "is no Python that can be read ("),
    "provider of the farm": (["--provider", "torch=own:f"], "is a provider of the farm"),
    "provider twice": (["--provider", "a=own:f", "--provider", "a=own:f"], "is given twice"),
    "provider of no op": (["--provider", "rms_nrom:a=own:f"], 'did you mean "rms_norm"?'),
    "provider joins nothing": (["--provider", "matmul:a=own:f"], "no matrix here has the op matmul"),
    "provider name": (["--provider", "a/b=own:f"], "a provider's name has letters"),
    "no devices": (["--devices", "0"], "between 1 and 256 devices"),
    "negative devices": (["--devices", "-2"], "between 1 and 256 devices"),
    "devices no number": (["--devices", "two"], "invalid int value: 'two'"),
    "run id up": (["--run-id", ".."], "--run-id"),
    "run id path": (["--run-id", "a/b"], "--run-id"),
    "run id absolute": (["--run-id", "/tmp/x"], "--run-id"),
    "run id hidden": (["--run-id", ".x"], "--run-id"),
    "run id escape": (["--run-id", "a\x1b[31m"], "--run-id"),
    "run id long": (["--run-id", "x" * 300], "--run-id"),
    "address": (["--address", "nonsense"], "is none of local, inline, auto and HOST:PORT"),
    "address port": (["--address", "localhost:0"], "is none of"),
    "address scheme": (["--address", "ray://localhost:10001"], "is none of"),
    "store in a file": (["--out", "m.yaml"], "the store cannot be written"),
    "store under a file": (["--out", "m.yaml/store"], "the store cannot be written"),
    "unknown option": (["--adress", "x\x1b[2J"], "unrecognized arguments: --adress x\\x1b[2J"),
    "no UTF-8": (["--out", "s\udcff"], "is not UTF-8 text"),
}


@pytest.mark.parametrize("address", ["local", "inline"])
@pytest.mark.parametrize("fault", OPTIONS)
def test_a_wrong_option_is_refused_before_anything_starts(refuse: Refuse, here: Path, fault: str, address: str) -> None:
    (here / "own.py").write_text("def f(x): ...\n")
    (here / "broken.py").write_text("def f(:\n")
    argv, words = OPTIONS[fault]
    assert words in refuse("run", "m.yaml", "--address", address, *argv)


def test_a_run_that_is_there_is_told_before_a_cluster_starts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = here / "farm-results/runs/one"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("")
    assert main(["run", "m.yaml", "--run-id", "one"]) == 2
    assert "a run one is there already; choose another --run-id" in capsys.readouterr().err
    assert [p.name for p in folder.iterdir()] == ["journal.jsonl"]


def test_a_node_whose_accelerator_is_gone_does_not_run_on_its_cpu(
    refuse: Refuse, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A driver that fell over must not turn a night of measurements into one of the interpreter, all green."""
    (here / "node.yaml").write_text("backend: rocm\n")
    monkeypatch.setenv("FARM_NODE", str(here / "node.yaml"))
    monkeypatch.setattr("farm.backends.rocm.detect", lambda count=None: [])
    for where in ("local", "inline"):
        said = refuse("run", "m.yaml", "--address", where)
        assert "node.yaml: this node's backend is rocm, and there is no such device here" in said
    assert main(["run", "m.yaml", "--backend", "cpu", "--address", "inline"]) == 3  # asked for by name
    assert "Started" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argv", "there", "node", "chosen", "told"),
    [([], "", "", "cpu", True), ([], "rocm", "", "rocm", False), (["--backend", "cpu"], "", "", "cpu", False),
     ([], "", "backend: cpu", "cpu", False), (["--address", "host:1"], "", "backend: rocm", "cpu", True)],
)  # fmt: skip
def test_the_interpreter_that_stands_in_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], there: str, node: str, chosen: str, told: bool
) -> None:
    (here / "node.yaml").write_text(node)
    monkeypatch.setenv("FARM_NODE", str(here / "node.yaml"))
    work = _Matrices(parser().parse_args(["run", "m.yaml", *argv]))
    assert work.choose(lambda backend: backend in (there, "cpu"), False) == [chosen]
    assert ("no accelerator was found" in work.note) == told


def test_two_matrices_of_one_name(refuse: Refuse, here: Path) -> None:
    (here / "n.yaml").write_text(BASE.replace("64", "65"))
    assert 'name is "m", as in m.yaml; rename one' in refuse("run", "m.yaml", "n.yaml")


def test_a_required_backend_that_is_absent(refuse: Refuse, here: Path) -> None:
    (here / "m.yaml").write_text(BASE + "require: [cuda]\n")
    assert "backend cuda: no such device here" in refuse("run", "m.yaml")
    assert "the matrix requires cuda" in refuse("run", "m.yaml", "--backend", "cpu")


@pytest.mark.parametrize("argv", [[], ["rnu"], ["run"], ["export", "csv", "last"], ["dashboard", "open"]], ids=str)
def test_a_wrong_command_line(refuse: Refuse, argv: list[str]) -> None:
    assert "--help has an example" in refuse(*argv)


def test_results_that_cannot_be_written(refuse: Refuse) -> None:
    assert "--out no/plan.json: cannot be written" in refuse("plan", "m.yaml", "--out", "no/plan.json")
    assert "--port 70000: a port goes from 1 to 65535" in refuse("dashboard", "serve", "--port", "70000")
    assert "--port 0" in refuse("dashboard", "serve", "--port", "0")


def test_a_plan_that_does_not_fit_leaves_the_older_one(
    refuse: Refuse, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "p.json").write_text("an older plan")

    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert "cannot be written (No space left on device)" in refuse("plan", "m.yaml", "--out", "p.json")
    monkeypatch.undo()
    assert (here / "p.json").read_text() == "an older plan"
    assert not list(here.glob(".p.json*"))


def test_an_environment_that_this_host_does_not_name(refuse: Refuse, here: Path) -> None:
    words = ("run", "m.yaml", "--backend", "cpu", "--address", "inline", "--environment")
    assert 'there is no environment "nope"; it has default' in refuse(*words, "nope")
    assert 'did you mean "default"' in refuse(*words, "defalt")
    assert not (here / "farm-results").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("head", "--ip", "no.such.host.invalid"), "--ip no.such.host.invalid, --port 6379: nothing can listen there"),
        (("head", "--ip", "203.0.113.9"), "name an address of this host"),  # of nobody: for documentation
        (("head", "--cpus", "-3"), "--cpus -3: Ray can count 0 processors or more"),
        (("head", "--port", "70000"), "--port 70000: a port goes from 1 to 65535"),
        (("join", "--backend", "cpu", "--head", "h:99999"), "--head h:99999: is no HOST:PORT"),
        (("join", "--backend", "cpu", "--head", "h", "--time", "4:00:00"), "--time is for a batch script: add --slurm"),
        (("join", "--backend", "cpu", "--head", "h", "--gres", "gpu:8"), "--gres is for a batch script: add --slurm"),
    ],
)
def test_a_head_or_a_node_that_cannot_start(refuse: Refuse, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refuse("nodes", *words)


def test_a_heads_port_that_somebody_has(refuse: Refuse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port}: nothing can listen there" in refuse(
            "nodes", "head", "--ip", "127.0.0.1", "--port", port
        )


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
    told = refuse("run", "m.yaml", "--address", "127.0.0.1:1", code=3)
    assert "--address 127.0.0.1:1: nothing answers there (Connection refused)" in told
    assert "farm nodes head" in told
    assert "to run on this host" not in refuse("nodes", "--address", "127.0.0.1:1", code=3), "farm nodes runs nothing"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "(RAY_ADDRESS says 127.0.0.1:1): nothing" in refuse("run", "m.yaml", "--address", "auto", code=3)
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(here))
    (here / "ray").mkdir()
    (here / "ray/ray_current_cluster").write_text("127.0.0.1:1")
    assert "ray_current_cluster says 127.0.0.1:1): nothing" in refuse("run", "m.yaml", "--address", "auto", code=3)


def test_somebody_else_at_the_address(refuse: Refuse) -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        told = refuse("run", "m.yaml", "--address", f"127.0.0.1:{port}", code=3)
        assert "what answers there is not Ray" in told


def test_who_says_nothing_is_not_waited_for() -> None:
    with server(None) as port:
        assert "within 0.2 s" in str(address.silent("127.0.0.1", port, seconds=0.2))


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

NOT_BEGUN = ("empty journal", "garbage journal")  # a run may be ended before its first line is whole


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
        assert code == 3 and said.startswith("farm dashboard: run x cannot be read (") and said.count("\n") == 1
        assert said.endswith("; it has no page\n") and said.strip().isprintable()


@pytest.mark.parametrize("kind", [k for k in DAMAGE if k not in NOT_BEGUN])
@pytest.mark.parametrize("argv", [["export", "junit", "x"], ["export", "markdown", "x"], ["dashboard", "build", "x"]])
def test_a_damaged_run_by_name_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], kind: str, argv: list[str]
) -> None:
    damaged(here / "s", kind)
    code = main([*argv, "--out", "s"])
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert "s/runs/x" in said and "\n" not in said and said.isprintable()


def test_runs_and_stores_that_are_not_there(refuse: Refuse, here: Path) -> None:
    assert 'no run "nope" in this store (newest: none)' in refuse("export", "junit", "nope")
    assert 'no run "last"' in refuse("export", "markdown", "last", "--out", "nowhere")
    assert 'no run "nope"' in refuse("dashboard", "build", "nope")
    assert not (here / "nowhere").exists()
    assert "there is no store at m.yaml" in refuse("dashboard", "build", "--out", "m.yaml")
