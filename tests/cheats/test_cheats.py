"""Providers that cheat, through `farm run` with real children on the CPU: each ends in a status that names it.

The same providers run on a GPU in tests/hardware/test_cuda_cheats.py, with those that only a timed cell or a stream
shows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:  # not imported here: other tests of this process must import it first
    pytest.skip("torch is not installed", allow_module_level=True)
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "fake"), str(Path(__file__).resolve().parent)]

from expected import NAMED  # noqa: E402
from farm_process import FarmRun  # noqa: E402

from farm.child import confinement  # noqa: E402

CHEATS = (Path(__file__).parent / "cheats.py").read_text(encoding="utf-8")
MATRIX = json.dumps(
    {
        "name": "cheats",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 10, "hidden": 300}], "dtype": ["bfloat16"], "operation": ["forward"]},
        "providers": ["torch", "huggingface"],
    }
)
TOLD = {"sets_a_variable": "set environment variables (TRITON_DEBUG)"}
AT_IMPORT = {
    "import_sets_tf32": 'import torch\ntorch.set_float32_matmul_precision("high")\nfrom cheats import right\n',
    "import_patches_a_clock": "import time\ntime.perf_counter = lambda: 0.0\nfrom cheats import right\n",
    "import_starts_a_thread": (
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(60), daemon=True).start()\n"
        "from cheats import right\n"
    ),
}
#: What a host of CI has in its environment; the suffix stands nowhere else.
CANARY = "c4n4ry-of-the-host"
HOST = dict.fromkeys(
    ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "MY_CANARY"), CANARY
)
PRINTS_ALL = """
import os

def right(x, weight, eps, **kw):
    print("environment:", dict(os.environ))
    os.write(1, repr(os.environ).encode())
    os.write(2, repr(os.environ).encode())
    raise RuntimeError(f"environment: {dict(os.environ)}")
"""
#: docs/trust.md, "What a child can still read": code under test is of the same user as the farm.
READS_WHAT_IT_CAN = """
import os, socket
from pathlib import Path
import farm

def opened(path, mode):
    try:
        with open(path, mode, buffering=0) as file:
            return mode != "rb" or file.read(1 << 20)
    except OSError:
        return b""

def right(x, weight, eps, **kw):
    above = Path(f"/proc/{os.getppid()}")
    store = Path(os.environ["FARM_CACHE"]).parent / "store" / "runs"
    given = [p for base in ("/dev/shm", "/tmp") for p in Path(base).glob(f"farm-{os.getuid()}-*/inputs/*/*/x.bin")]
    variables = opened(above / "environ", "rb")
    found = {
        "variables above": b"GITHUB_TOKEN=" in variables,
        "token above": b"RAY_AUTH_TOKEN=" in variables,
        "memory above": opened(above / "mem", "r+b"),
        "files above": any(opened(p, "rb") for p in (above / "fd").glob("[3-9]*")),
        "references": list(Path(os.environ["FARM_CACHE"]).rglob("*")),
        "inputs": any(os.access(p, os.R_OK | os.W_OK) for p in given),
        "store": any(os.access(p, os.R_OK | os.W_OK) for p in store.glob("*/journal.jsonl")),
        "code": os.access(Path(farm.__file__).parent, os.R_OK | os.W_OK),
        "home": os.access(Path.home(), os.R_OK | os.W_OK),
        "network": socket.create_server(("0.0.0.0", 0)).getsockname()[1] > 0,
    }
    raise RuntimeError(f"reached: {sorted(name for name, there in found.items() if there)}")
"""


@pytest.fixture(scope="module")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmRun]:
    folder = tmp_path_factory.mktemp("cheats")
    names = {n: f"cheats:{n}" for n in ("honest", *NAMED, *TOLD)} | {
        n: f"{n}:right" for n in (*AT_IMPORT, "prints_all", "reads")
    }
    words = [w for name, path in names.items() for w in ("--provider", f"{name}={path}")]
    words += ["--set", "deadlines.check=30"]
    run = FarmRun(folder, MATRIX, tuple(words), backend="cpu", environment=HOST)
    for name, text in {"cheats": CHEATS, **AT_IMPORT, "prints_all": PRINTS_ALL, "reads": READS_WHAT_IT_CAN}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    try:
        assert run.start().wait(240) == 1, run.said()
        yield run
    finally:
        run.end()


def row_of(run: FarmRun, provider: str) -> dict[str, Any]:
    (row,) = [r for r in run.rows() if r["provider"] == provider]
    return row


@pytest.mark.parametrize("cheat", NAMED)
def test_each_cheat_ends_in_a_status_that_names_it(cheated: FarmRun, cheat: str) -> None:
    row = row_of(cheated, cheat)
    status, words = NAMED[cheat]
    assert row["status"] == status, row
    assert row["reason"] and words in row["reason"], row["reason"]
    assert row["fault_owner"] == "kernel"
    assert row["attempt"] == 1  # nobody tries a cheat again


def test_no_secret_of_the_host_is_in_a_child_a_row_a_log_or_a_page(cheated: FarmRun) -> None:
    row = row_of(cheated, "prints_all")
    assert row["status"] == "crashed" and "environment: {" in row["reason"] + cheated.said(), row
    assert not row["log"] or "FARM_CHILD_MARK" in (cheated.run.dir / row["log"]).read_text(encoding="utf-8")
    assert CANARY not in json.dumps([dict(row) for row in cheated.rows()])
    written = [p for p in cheated.folder.rglob("*") if p.is_file()]
    assert {".html", ".jsonl", ".txt", ".parquet"} <= {p.suffix for p in written}
    for path in written:
        assert CANARY.encode() not in path.read_bytes(), path


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_what_a_child_can_still_read_as_the_same_user(cheated: FarmRun) -> None:
    row = row_of(cheated, "reads")
    for name in ("inputs", "store", "code", "home", "network"):
        assert f"'{name}'" in row["reason"], row
    confined = not confinement.refusal()
    for name in ("token above", "references", *(("memory above", "files above") if confined else ())):
        assert f"'{name}'" not in row["reason"], row
    if not confined:
        assert "'variables above'" in row["reason"], row
        assert "'memory above'" in row["reason"] or os.getuid() != 0, row  # a host may forbid it (ptrace_scope)
    elif os.getuid() != 0:
        assert "'variables above'" not in row["reason"], row


@pytest.mark.parametrize("provider", ["honest", "torch", "huggingface"])
def test_a_right_provider_has_no_flag_beside_cheats(cheated: FarmRun, provider: str) -> None:
    row = row_of(cheated, provider)
    assert (row["status"], row["reason"], row["flags"]) == ("passed", "", "[]")


@pytest.mark.parametrize("provider", TOLD)
def test_what_only_tells_is_a_flag(cheated: FarmRun, provider: str) -> None:
    row = row_of(cheated, provider)
    assert TOLD[provider] in json.loads(row["flags"])


def test_what_an_import_switches_is_put_back_and_told(cheated: FarmRun) -> None:
    row = row_of(cheated, "import_sets_tf32")
    assert row["status"] == "passed"
    assert json.loads(row["flags"]) == ["importing the provider changed torch's TF32 from highest to high (undone)"]


def test_a_clock_that_an_import_patches_is_a_cheat(cheated: FarmRun) -> None:
    row = row_of(cheated, "import_patches_a_clock")
    assert (row["status"], row["reason"]) == ("inaccurate", "the provider patched time.perf_counter at import")


def test_a_thread_of_an_import_is_a_cheat(cheated: FarmRun) -> None:
    row = row_of(cheated, "import_starts_a_thread")
    assert row["status"] == "inaccurate"
    assert "left a thread running" in row["reason"]


def test_every_finding_is_on_the_page_as_a_flag(cheated: FarmRun) -> None:
    for cheat in ("cached_by_pointer", "patches_allclose", "sets_tf32", "forks_a_child"):
        row = row_of(cheated, cheat)
        assert row["reason"].removeprefix("the provider ") in json.loads(row["flags"])


def test_nothing_of_a_cheat_outlives_the_run(cheated: FarmRun) -> None:
    cheated.assert_nothing_left()  # nor the daemon that left its process group
    assert not cheated.spool.exists()
