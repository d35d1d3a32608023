"""Providers that try to leave the sandbox, through `farm run` with real children on the CPU: none does, and the other
cells of the run are right.  Without a sandbox most of them succeed, or these tests would show nothing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:  # not imported here: other tests of this process must import it first
    pytest.skip("torch is not installed", allow_module_level=True)
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "fake")]

from farm_process import FarmRun  # noqa: E402

from farm.node import sandbox_host  # noqa: E402
from farm.process import procfs  # noqa: E402

WHY_NOT = sandbox_host.refusal()
needs_a_sandbox = pytest.mark.skipif(bool(WHY_NOT), reason=f"no sandbox can be made here: {WHY_NOT}")
TEXT = (Path(__file__).parent / "escapes.py").read_text(encoding="utf-8")
ESCAPES = tuple(node.name for node in ast.parse(TEXT).body if isinstance(node, ast.FunctionDef) and node.decorator_list)
LINKS = "links_its_outputs_elsewhere"
MATRIX = {
    "name": "escapes",
    "op": "rms_norm",
    "axes": {"shape": [{"rows": 10, "hidden": 300}], "dtype": ["float32"], "operation": ["no-grad-forward"]},
    "providers": ["torch"],
}
LIMITS = {"memory_gib": 8, "processes": 120, "files_gib": 1, "tmp_gib": 0.05}
CANARY = "c4n4ry-of-the-host"
#: What fails without a sandbox too: for the child is confined (Landlock), or never had the right.
NEVER = {
    *("reads_the_reference", "reads_the_judges_memory", "signals_another_process", "traces_another_process", "mounts"),
    *(
        "reads_variables_of_the_host",
        "reads_another_cells_outputs",
        "yields_a_process_that_goes_on",
        "asks_a_name_server",
    ),
    *("makes_a_namespace_of_its_own", "becomes_another_user", "takes_all_memory"),
}


#: What an escape is after -> some of those that try it.
CLASSES = {
    "the reference": {"reads_the_reference"},
    "the judge's memory": {"reads_the_judges_memory"},
    "another cell's outputs": {"reads_another_cells_outputs"},
    "tokens": {"reads_the_token", "reads_variables_of_the_host"},
    "to write outside": {"writes_to_the_store", "writes_to_the_home_folder", "writes_to_the_code"},
    "the network": {"connects_to_a_server", "asks_a_name_server", "connects_to_abstract_sockets"},
    "a fork bomb": {"forks_without_end"},
    "memory and disk": {"takes_all_memory", "fills_the_folder_for_temporary_files", "writes_an_endless_file"},
    "to outlive its cell": {"yields_a_process_that_goes_on"},
    "other processes": {"signals_another_process", "traces_another_process"},
    "more rights": {"mounts", "makes_a_namespace_of_its_own", "becomes_another_user"},
}


class Host:
    """What an escape looks for: servers that count their visitors, a process, files."""

    def __init__(self, folder: Path, run_id: str):
        self.folder, self.run_id, self.visitors = folder, run_id, 0
        self.name = secrets.token_hex(4)
        self.seconds = str(10**6 + int(self.name, 16))
        self.victim = subprocess.Popen(["sleep", self.seconds], env={"GITHUB_TOKEN": CANARY})
        for name in ("home", "triton"):
            (folder / name).mkdir(parents=True)
        for name in ("token", "home/secret", "outside"):
            (folder / name).write_text("secret", encoding="utf-8")
        self.neighbour = Path(f"/tmp/farm-{os.getuid()}-{run_id}-beside")  # the outputs of another device
        (self.neighbour / "out-1").mkdir(parents=True)
        (self.neighbour / "out-1" / "out-y.bin").write_bytes(bytes(64))
        self.abstract, self.unix = f"farm-test-{self.name}", f"/tmp/farm-test-{self.name}.socket"
        self.sockets = {
            "tcp": socket.create_server(("127.0.0.1", 0)),
            "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "abstract": socket.socket(socket.AF_UNIX),
            "unix": socket.socket(socket.AF_UNIX),
        }
        self.sockets["udp"].bind(("127.0.0.1", 0))
        self.sockets["abstract"].bind(f"\0{self.abstract}")
        self.sockets["unix"].bind(self.unix)
        for name in ("abstract", "unix"):
            self.sockets[name].listen()
        for one in self.sockets.values():
            threading.Thread(target=self._count, args=(one,), daemon=True).start()

    def _count(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                _ = one.recvfrom(512) if one.type == socket.SOCK_DGRAM else one.accept()
                self.visitors += 1

    def facts(self) -> dict[str, Any]:
        ports = {name: self.sockets[name].getsockname()[1] for name in ("tcp", "udp")}
        paths = {name: str(self.folder / name) for name in ("home", "triton", "token", "outside", "cache", "store")}
        told: dict[str, Any] = {
            "folder": str(self.folder),
            "canary": CANARY,
            "seconds": self.seconds,
            "victim": self.victim.pid,
        }
        told["devices"] = [os.stat(place).st_dev for place in ("/dev/shm", "/tmp")]  # noqa: PTH116
        told["root"] = os.stat("/").st_dev  # noqa: PTH116
        return {**ports, **paths, **told, "run": self.run_id, "abstract": self.abstract, "unix": self.unix}

    def outlived(self) -> int | None:
        """A process that went on."""
        return procfs.find(lambda words: words[-1] == self.seconds, of=1)

    def close(self) -> None:
        for one in self.sockets.values():
            one.close()
        Path(self.unix).unlink()
        shutil.rmtree(self.neighbour)
        left = self.outlived()
        if left is not None:
            os.kill(left, 9)
        self.victim.kill()
        self.victim.wait()


@contextlib.contextmanager
def escaped(folder: Path, *words: str, sandbox: dict[str, float] | None) -> Iterator[tuple[FarmRun, Host]]:
    """A run of every escape, beside an honest provider."""
    names = ("honest", *ESCAPES, LINKS)
    options = [w for name in names for w in ("--provider", f"{name}=escapes:{name}")]
    run = FarmRun(folder, json.dumps(MATRIX), (*options, *words, "--no-page", "--devices", "1"), backend="cpu")
    host = Host(folder, run.run_id)
    site = [p for p in sys.path if "site-packages" in p]
    default = {"python": sys.executable, "path": site, **({"sandbox": sandbox} if sandbox is not None else {})}
    (folder / "node.yaml").write_text(json.dumps({"environments": {"default": default}}), encoding="utf-8")
    variables = {"FARM_NODE": "node.yaml", "GITHUB_TOKEN": CANARY, "HOME": "home", "TRITON_CACHE_DIR": "triton"}
    run.environment = {k: v if v == CANARY else str(folder / v) for k, v in variables.items()}
    (folder / "escapes.py").write_text(TEXT.replace("FACTS = {}", f"FACTS = {host.facts()!r}"), encoding="utf-8")
    try:
        assert run.start().wait(240) == 1, run.said()  # for the links
        yield run, host
    finally:
        run.end()
        host.close()


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FarmRun, Host]]:
    with escaped(tmp_path_factory.mktemp("sandbox"), sandbox=LIMITS) as run:
        yield run


def row_of(run: FarmRun, provider: str) -> dict[str, Any]:
    (row,) = [r for r in run.rows() if r["provider"] == provider]
    return row


def test_every_class_of_escape_is_tried() -> None:
    assert len(ESCAPES) >= 20 and all(tried <= set(ESCAPES) for tried in CLASSES.values())


@needs_a_sandbox
@pytest.mark.parametrize("escape", ESCAPES)
def test_no_escape_succeeds(boxed: tuple[FarmRun, Host], escape: str) -> None:
    row = row_of(boxed[0], escape)
    if escape == "yields_a_process_that_goes_on":
        assert "escaped" not in row["reason"]
    else:
        assert (row["status"], row["reason"]) == ("passed", "")


@needs_a_sandbox
def test_nothing_outside_was_touched_reached_or_left(boxed: tuple[FarmRun, Host]) -> None:
    run, host = boxed
    assert host.visitors == 0
    assert host.outlived() is None
    run.assert_nothing_left()
    assert {p.name for p in (run.folder / "home").iterdir()} == {"secret"}
    assert (run.folder / "outside").read_text() == "secret"
    assert not list((run.folder / "triton").iterdir()) and not list(run.store.path.glob("**/escaped*"))
    assert not run.spool.exists()
    left = [p for base in ("/dev/shm", "/tmp") for p in Path(base).glob(f"farm-*{run.run_id}*")]
    assert left == [host.neighbour]


@needs_a_sandbox
def test_an_output_that_is_a_link_costs_its_cell(boxed: tuple[FarmRun, Host]) -> None:
    row = row_of(boxed[0], LINKS)
    assert row["status"] == "crashed", row


@needs_a_sandbox
@pytest.mark.parametrize("provider", ["honest", "torch"])
def test_the_other_cells_are_right_and_say_that_they_were_sandboxed(boxed: tuple[FarmRun, Host], provider: str) -> None:
    row = row_of(boxed[0], provider)
    assert (row["status"], row["reason"], row["flags"]) == ("passed", "", "[]")
    assert json.loads(row["fingerprint"])["sandbox"].startswith("bubblewrap ")


@pytest.mark.long
def test_without_a_sandbox_most_of_them_succeed(tmp_path: Path) -> None:
    with escaped(tmp_path, sandbox=None) as (run, host):
        reached = {name for name in ESCAPES if "escaped: " in row_of(run, name)["reason"]}
        assert set(ESCAPES) - reached <= NEVER, {name: row_of(run, name)["reason"] for name in ESCAPES}
        assert host.visitors >= 3
