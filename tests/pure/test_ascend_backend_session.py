"""What the ascend backend does in a child: what it sets, what it tells, and what it says of each thing that is wrong.

torch's NPU side is a pretend one on the CPU; npu-smi and acl are the stubs.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farm.backends import _cann, _mspti, _npu, ascend
from farm.errors import EnvironmentUnusable

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "tests" / "stubs"


class FakeNpu:
    """As much of `torch.npu` as opening a device takes."""

    def __init__(self, part: str = "Ascend910B3"):
        self.part, self.there, self.opened = part, True, []
        self.fails: Exception | None = None

    def is_available(self) -> bool:
        return self.there

    def set_device(self, device: Any) -> None:
        if self.fails:
            raise self.fails
        self.opened.append(str(device))

    def synchronize(self, device: Any = None) -> None:
        return

    def get_device_name(self, index: int) -> str:
        return self.part

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(
            name=self.part,
            total_memory=64 << 30,
            cube_core_num=20,
            vector_core_num=40,
            L2_cache_size=192 << 20,
            uuid="0000-11",
        )


class FakeTorch:
    """torch on the CPU, with that in it."""

    __version__ = "2.6.0+cpu"

    def __init__(self, npu: FakeNpu):
        self.npu = npu
        self.version = SimpleNamespace(cuda=None, hip=None)

    def device(self, kind: str, index: int) -> torch.device:
        assert (kind, index) == ("npu", 0)  # inside the mask the one device is number 0
        return torch.device("cpu")

    ones = staticmethod(torch.ones)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What an import gives in the child: torch, torch_npu, acl; an exception is raised."""
    monkeypatch.setattr(_npu, "PLACES", ())
    monkeypatch.setattr(_cann, "HOMES", ())
    monkeypatch.setenv("PATH", f"{STUBS / 'npu'}:/usr/bin:/bin")
    monkeypatch.setenv("FARM_STUB_NPU", json.dumps({"part": "910B3", "version": "25.5.1"}))
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", ascend.ACCEPT_ALARM):
        monkeypatch.delenv(name, raising=False)
    for name in ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD"):  # what opening sets is put back
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "path", [*sys.path, str(STUBS / "acl")])
    monkeypatch.delitem(sys.modules, "acl", raising=False)
    found: dict[str, Any] = {
        "torch": FakeTorch(FakeNpu()),
        "torch_npu": SimpleNamespace(__version__="2.6.0.post1"),
        "acl": importlib.import_module("acl"),
    }

    def module(name: str) -> Any:
        if isinstance(found[name], Exception):
            raise found[name]
        return found[name]

    monkeypatch.setattr(ascend, "_module", module)
    return found


def refused(device: str = "3", **options: Any) -> tuple[str, str]:
    with pytest.raises(EnvironmentUnusable) as error:
        ascend.open_session(device, options)
    text = str(error.value)
    assert "\n" not in text and len(text) < 600
    return text, error.value.owner


def test_a_session_says_what_it_runs_on(modules: dict[str, Any]) -> None:
    session = ascend.open_session("3", {})
    assert session.target == {"backend": "ascend", "model": "Ascend910B3"}
    assert session.device_name == "Ascend910B3 0000-11"
    told = session.fingerprint
    assert told["torch_npu"] == "2.6.0.post1" and told["driver"] == "25.5.1" and told["soc"] == "Ascend910B3"
    assert (told["vector_cores"], told["cube_cores"], told["memory_gib"], told["l2_mib"]) == (40, 20, 64.0, 192.0)
    assert session.cache_bytes == 192 << 20 and session.max_graph_launches is None
    assert session.timing_methods == ("rotating_graph", "mspti", "events", "host")
    assert session.recorder is not None and session.graph_nodes is None


def test_an_operators_time_is_bounded_below_the_phases_deadlines(modules: dict[str, Any]) -> None:
    from farm.matrix import DEFAULT_DEADLINES

    del modules["acl"].timeouts[:]
    session = ascend.open_session("3", {})
    shortest = min(DEFAULT_DEADLINES[phase] for phase in ("compile", "check", "timing"))
    assert modules["acl"].timeouts == [ascend.OP_TIMEOUT_S] and shortest > ascend.OP_TIMEOUT_S
    assert session.fingerprint["op_timeout_s"] == ascend.OP_TIMEOUT_S
    assert ascend.child_options(DEFAULT_DEADLINES) == {"op_timeout_s": ascend.OP_TIMEOUT_S}
    assert ascend.child_options({"spawn": 5.0, "check": 12.0, "timing": 60.0}) == {"op_timeout_s": 10}
    assert ascend.child_options({"check": 0.5}) == {"op_timeout_s": 1} and ascend.child_options({}) == {}
    assert ascend.open_session("3", {"op_timeout_s": 7}).fingerprint["op_timeout_s"] == 7
    modules["acl"].rt.set_op_execute_time_out = lambda seconds: 207000
    assert ascend.open_session("3", {}).fingerprint["op_timeout_s"] is None  # told, and the device serves


def test_an_attempts_own_deadlines_bound_its_operators(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child serves cells of several matrices; it was started with their longest deadlines."""
    from farm.child.session import TorchSession

    held: list[int] = []  # what held while each attempt ran
    timeouts = modules["acl"].timeouts
    monkeypatch.setattr(TorchSession, "run", lambda self, message, say: held.append(timeouts[-1]) or message)
    session = ascend.open_session("3", {"op_timeout_s": 50})

    def attempt(**call: Any) -> None:
        message = SimpleNamespace(call=call)
        assert session.run(message, lambda said: None) is message

    short, long = {"spawn": 1.0, "check": 6.0, "timing": 60.0}, {"check": 60.0, "timing": 60.0}
    for call in ({"deadlines": short}, {"deadlines": short}, {"deadlines": long}, {"deadlines": short}, {}):
        attempt(**call)
    assert held == [5, 5, 50, 5, 50]
    before = len(timeouts)
    attempt(deadlines=long)  # as it is set already
    assert len(timeouts) == before

    def refuses(seconds: int) -> int:
        raise RuntimeError("507000")

    modules["acl"].rt.set_op_execute_time_out = refuses
    attempt(deadlines=short)  # the attempt goes on, within what was set last
    assert held[-1] == 50


def test_a_part_that_tells_no_cache_and_no_cores_has_a_910bs_cache(modules: dict[str, Any]) -> None:
    modules["torch"].npu.get_device_properties = lambda index: SimpleNamespace(name="x", total_memory=1 << 30)
    session = ascend.open_session("3", {})
    assert session.cache_bytes == 192 << 20 and "vector_cores" not in session.fingerprint


def test_canns_own_modules_are_found_without_the_shells_path(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child gets no PYTHONPATH of the shell that sourced set_env.sh, and starts Pythons of its own."""
    for part in ("python/site-packages", "opp/built-in/op_impl/ai_core/tbe"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "version.cfg").write_text("runtime_running_version=[7.8.0.2.220:8.5.0]\n")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/bundle")
    session = ascend.open_session("3", {})
    assert session.fingerprint["cann"] == "8.5.0"
    wanted = [str(tmp_path / "python/site-packages"), str(tmp_path / "opp/built-in/op_impl/ai_core/tbe")]
    assert sys.path[-2:] == wanted and os.environ["PYTHONPATH"].split(os.pathsep) == ["/bundle", *wanted]
    assert os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


# each listed breakage


def test_no_acl(modules: dict[str, Any]) -> None:
    modules["acl"] = ModuleNotFoundError("No module named 'acl'", name="acl")
    text, owner = refused()
    assert "acl, CANN's Python interface, cannot be imported" in text and "ASCEND_TOOLKIT_HOME is not set" in text
    assert "source CANN's set_env.sh" in text and "1091 s" in text and owner == "infra"
    modules["acl"] = SimpleNamespace()  # a folder that happens to have the name
    assert "cannot be imported" in refused()[0]


def test_torch_npu_that_breaks_import_torch(modules: dict[str, Any]) -> None:
    modules["torch"] = RuntimeError("Failed to load the backend extension: torch_npu. You can disable autoload")
    text, owner = refused()
    assert text.startswith("import torch fails (RuntimeError: Failed to load the backend extension: torch_npu")
    assert "install the CPU build of torch" in text and owner == "infra"


def test_no_torch_npu(modules: dict[str, Any]) -> None:
    modules["torch_npu"] = ModuleNotFoundError("No module named 'torch_npu'", name="torch_npu")
    text, owner = refused()
    assert "torch_npu is not installed, but torch 2.6.0+cpu is; install torch-npu of the same version" in text
    assert owner == "infra"
    modules["torch_npu"] = ModuleNotFoundError("No module named 'yaml'", name="yaml")
    assert "install the missing module" in refused()[0]


@pytest.mark.parametrize("library", ["libhccl.so", "libascendcl.so"])
def test_no_cann_libraries(modules: dict[str, Any], library: str) -> None:
    modules["torch_npu"] = ImportError(f"{library}: cannot open shared object file: No such file or directory")
    text, owner = refused()
    assert f"import torch_npu fails (ImportError: {library}" in text and "source CANN's set_env.sh" in text
    assert owner == "infra"


def test_a_torch_for_gpus(modules: dict[str, Any]) -> None:
    modules["torch"].version.cuda = "13.0"
    text, owner = refused()
    assert "built for another vendor's GPUs" in text and "install the CPU build" in text and owner == "infra"
    modules["torch"].version.cuda, modules["torch"].version.hip = None, "6.4"
    assert "another vendor's" in refused()[0]


def test_versions_that_do_not_fit(modules: dict[str, Any]) -> None:
    modules["torch_npu"] = RuntimeError("torch_npu 2.6.0 requires torch 2.6.0")
    assert "install the torch-npu that matches" in refused()[0]
    modules["torch_npu"] = SimpleNamespace()
    del modules["torch"].npu
    assert "did not register with torch 2.6.0+cpu" in refused()[0]


def test_no_device_behind_the_mask(modules: dict[str, Any]) -> None:
    modules["torch"].npu.there = False
    text, owner = refused("9")
    assert "torch_npu sees no NPU (ASCEND_RT_VISIBLE_DEVICES=9)" in text and "/dev/davinci*" in text
    assert owner == "infra"


@pytest.mark.parametrize("state", ["Alarm", "Critical"])
def test_a_device_that_is_not_well_is_not_opened(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("FARM_STUB_NPU", json.dumps({"health": {"3/0": state}}))
    text, owner = refused()
    assert "device 3 (NPU 3, chip 0)" in text and state.upper() in text and owner == "device"
    assert modules["torch"].npu.opened == []


def test_a_device_that_an_earlier_process_left_wedged(modules: dict[str, Any]) -> None:
    modules["torch"].npu.fails = RuntimeError("Initialize failed, error code is 507018\nEZ9999: Inner Error!")
    text, owner = refused()
    assert "device 3 cannot be opened (the AI CPU raised an exception (507018)); see `npu-smi info`" in text
    assert owner == "device"
    modules["torch"].npu.fails = RuntimeError("error code is 507035")  # no kernel of a cell has run yet
    assert refused()[1] == "device"
    modules["torch"].npu.fails = RuntimeError("error code is 207006")
    assert refused()[1] == "infra"


def test_mspti_that_cannot_be_loaded_is_told_when_it_is_asked_for(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ascend.open_session("3", {})
    monkeypatch.setattr(_mspti, "_RECORDER", [])
    monkeypatch.setitem(sys.modules, "mspti", None)
    with pytest.raises(NotImplementedError, match="MSPTI cannot be loaded in this process"):
        session.recorder()


def test_a_real_child_ends_with_the_reason(tmp_path: Path) -> None:
    """The whole way to the supervisor: an installed torch_npu without CANN, in a process of its own."""
    environment = {
        "PATH": f"{STUBS / 'npu'}:/usr/bin:/bin",
        "FARM_STUB_NPU": "{}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(STUBS / "torch_npu"), str(STUBS / "acl")]),
        **ascend.child_env("0"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "farm.child", "ascend", "0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    said = json.loads(done.stdout)
    assert said["kind"] == "unusable" and said["owner"] == "infra" and done.returncode == 1
    assert "import torch_npu fails (ImportError: libhccl.so: cannot open shared object file" in said["reason"]
