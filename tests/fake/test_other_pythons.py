"""Children on other Pythons than the supervisor's: each imports the farm and the kernels from bundles, the rest from
its own interpreter, and one run has children on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from farm_process import ROOT, FarmRun
from one_device import OneDevice
from other_python import CANDIDATES, _answers, _places

from farm.shipping import bundle

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
Start = Callable[..., OneDevice]
#: Wheels of NumPy stay here between sessions.
CACHE = Path(tempfile.gettempdir(), f"farm-tests-{os.getuid()}")


def interpreter(version: str) -> str:
    """An interpreter of that version on this host; skips where there is none."""
    found = next((p for p in _places(version) if _answers(p, version)), None)
    if found is None:
        pytest.skip(f"no Python {version} answers on this host")
    return found


def numpy_for(version: str) -> str:
    """A folder with NumPy for that version, got once per host by this interpreter's pip; skips where it cannot be."""
    final = CACHE / f"numpy-{version}"
    if not final.is_dir():
        CACHE.mkdir(exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=CACHE))
        words = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
            str(making / "site"),
            "--python-version",
            version,
            "--only-binary=:all:",
            "--no-deps",
            "numpy",
        ]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"pip found no NumPy for Python {version}: {done.stderr.strip()[-200:]}")
        (making / "site").rename(final)
    return str(final)


#: `make test` has the oldest and the newest.
OTHERS = [
    pytest.param(v, marks=[pytest.mark.long] if 0 < n < len(CANDIDATES) - 2 else [])
    for n, v in enumerate(sorted(v for v in CANDIDATES if v != HERE))
]


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[OneDevice] = []

    def start(environments: dict[str, Any], **more: Any) -> OneDevice:
        folder = tmp_path / f"device{len(started)}"
        folder.mkdir()
        (folder / "node.yaml").write_text(json.dumps({"environments": environments}))
        monkeypatch.setenv("FARM_NODE", str(folder / "node.yaml"))
        started.append(OneDevice(folder, "sim", **more))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def variables_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


@pytest.mark.parametrize("version", OTHERS)
def test_a_child_on_another_python(
    device: Start, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, site = interpreter(version), numpy_for(version)
    astray = tmp_path / "astray"  # the supervisor's working directory; Python 3.10 would import from there first
    (astray / "farm").mkdir(parents=True)
    (astray / "farm" / "__init__.py").write_text("raise ImportError('the wrong farm')")
    monkeypatch.chdir(astray)
    for name in ("RAY_AUTH_TOKEN", "PYTHONHOME_X", "VIRTUAL_ENV", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "of the supervisor")
    one = device({"default": {"python": python, "path": [site], "variables": {"OF_THE_NODE": "1"}}})
    up = one.up()
    assert up["event"] == "device_up", up
    assert up["fingerprint"]["python"].startswith(f"{version}.")
    assert up["command"] == [python, "{child}"]
    measured, judged = one.run()
    assert judged["status"] == "passed", judged
    assert measured["origin"]["fingerprint"]["environment"] == "default"
    variables = variables_of(up["pid"])
    assert not [k for k in variables if k.startswith(("RAY_", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONSTARTUP"))]
    assert variables["OF_THE_NODE"] == "1"
    folders = variables["PYTHONPATH"].split(":")
    assert folders[-1] == site
    assert [Path(p).parent for p in folders[:-1]] == [one.spool / "bundles"] * 2
    assert not any("site-packages" in p for p in folders)


def test_children_of_one_host_on_two_pythons(device: Start) -> None:
    other = next((v for v in CANDIDATES if v != HERE and any(_answers(p, v) for p in _places(v))), None)
    if other is None:
        pytest.skip("no other Python from 3.10 on was found")
    environment = {"python": interpreter(other), "path": [numpy_for(other)]}
    ours, theirs = device({}), device({"default": environment})
    versions = [one.up()["fingerprint"]["python"].rpartition(".")[0] for one in (ours, theirs)]
    assert versions == [HERE, other]
    assert [one.run()[1]["status"] for one in (ours, theirs)] == ["passed", "passed"]


def test_a_child_imports_the_bundles_whatever_its_python_has(device: Start, tmp_path: Path) -> None:
    """A node where a farm is installed so that it comes first, as `make` does; and one whose `kernels` is another's."""
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    (site,) = home.glob("lib/python*/site-packages")
    for name in ("farm", "kernels"):
        (tmp_path / "installed" / name).mkdir(parents=True)
        (tmp_path / "installed" / name / "__init__.py").write_text(f"raise ImportError('the node has its own {name}')")
    (site / "_first.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n")
    one = device({"default": {"python": str(home / "bin" / "python"), "path": [str(Path(numpy.__file__).parents[1])]}})
    up = one.up()
    assert up["event"] == "device_up", up
    assert one.run()[1]["status"] == "passed"


def test_a_child_imports_the_coordinators_revision(device: Start, tmp_path: Path) -> None:
    """Bundles that came along go before what is installed here, also on the supervisor's own Python."""
    root = tmp_path / "revision"
    for one in bundle.pack_all():
        folder = bundle.install(one.sha, one.blob, tmp_path / "plain")
        (folder / one.name).rename(root / one.name) if root.is_dir() else folder.rename(root)
    session = root / "farm" / "backends" / "_sim_session.py"
    session.write_text(
        session.read_text().replace('self.device_name = f"{model} #{device_id}"', 'self.device_name = "other"')
    )
    bundles = [b.plain() for b in bundle.pack_all(root)]
    assert {b["sha"] for b in bundles} != {b.sha for b in bundle.pack_all()}
    assert device({}).up()["name"] == "sim-1 #0"
    there = device({}, bundles=bundles)
    up = there.up()
    assert (up["event"], up["name"]) == ("device_up", "other")
    assert there.run()[1]["status"] == "passed"


def test_a_bundle_that_arrived_broken_is_told(device: Start) -> None:
    broken = {**bundle.pack("kernels").plain(), "blob": b"cut"}
    down = device({}, bundles=[broken]).up()
    assert down["event"] == "device_down"
    assert broken["sha"][:16] in down["reason"]


def test_an_interpreter_that_is_gone_is_told(device: Start) -> None:
    down = device({"default": {"python": "/nowhere/python"}}).up()
    assert (down["event"], down["final"]) == ("device_down", True)
    assert "environments.default.python is /nowhere/python" in down["reason"]


def test_an_interpreter_without_numpy_is_told_by_its_child(device: Start, tmp_path: Path) -> None:
    home = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    one = device({"default": {"python": str(home / "bin" / "python")}})
    assert one.up()["event"] == "device_up"  # a fake opens without it
    _, ended = one.run()
    assert ended["event"] in ("ended", "device_down")
    assert "numpy" in (ended.get("log", "") + ended["reason"])


@pytest.mark.parametrize("version", sorted(CANDIDATES))
def test_what_travels_compiles_on_every_python(version: str, tmp_path: Path) -> None:
    python = sys.executable if version == HERE else interpreter(version)
    for one in bundle.pack_all():
        bundle.install(one.sha, one.blob, tmp_path)
    code = (
        "import sys, pathlib\n"
        "for p in pathlib.Path(sys.argv[1]).rglob('*.py'): compile(p.read_text(encoding='utf-8'), str(p), 'exec')\n"
    )
    done = subprocess.run([python, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


#: Imported on every Python although there is no torch: what a child imports before it opens its device.
FIRST = "farm.child.protocol farm.backends farm.contracts.discovery farm.accuracy.evaluate farm.doctor.probes kernels"


@pytest.mark.parametrize("version", OTHERS)
def test_a_child_needs_none_of_the_supervisors_packages(version: str, tmp_path: Path) -> None:
    """Nothing is there but the standard library, NumPy and the bundles; every backend's host side is read too."""
    python, site = interpreter(version), numpy_for(version)
    folders = [str(bundle.install(b.sha, b.blob, tmp_path)) for b in bundle.pack_all()]
    code = (
        f"for name in {FIRST!r}.split(): __import__(name)\n"
        "from farm import backends\nfrom farm.contracts import discovery as ops\n"
        "for name in backends.known(): backends.get(name)\n"
        "print(*ops.known_ops(), *(ops.contract(n).op for n in ops.known_ops()))\n"
    )
    done = subprocess.run(
        [python, "-I", "-S", "-c", f"import sys; sys.path[:0] = {[*folders, site]!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split().count("rms_norm") == 2


RUN = json.dumps(
    {
        "name": "named",
        "op": "rms_norm",
        "providers": ["farm"],
        "axes": {"shape": [{"rows": 2, "hidden": [64, 65]}], "dtype": "float32"},
        "sim": {"default": {"time_us": 10}},
    }
)


def test_a_run_asks_for_an_environment_by_name(farm: Callable[..., FarmRun], tmp_path: Path) -> None:
    python = {"python": sys.executable, "path": [str(Path(numpy.__file__).parents[1])]}
    (tmp_path / "node.yaml").write_text(json.dumps({"environments": {"nightly": python}}))
    node = {"FARM_NODE": str(tmp_path / "node.yaml")}
    run = farm(RUN, "--environment", "nightly", "--devices", "2", environment=node)
    assert run.wait() == 0, run.said()
    assert {json.loads(r["fingerprint"])["environment"] for r in run.rows()} == {"nightly"}
    assert run.run.head["environments"] == {"nightly": {f"{sys.executable} {{child}}": ["sim:0", "sim:1"]}}
    assert {d["environment"] for d in run.run.head["backends"]["sim"]["devices"]} == {"nightly"}
    plain = farm(RUN, "--devices", "1", environment=node)
    assert plain.wait() == 0, plain.said()
    assert plain.run.head["environments"] == {"default": {"{python} {child}": ["sim:0"]}}


def test_a_run_that_asks_for_what_this_host_has_not_is_refused(farm: Callable[..., FarmRun]) -> None:
    run = farm(RUN, "--environment", "nightly", "--devices", "2")
    assert run.wait() == 2, run.said()
    assert '"nightly"' in run.said() and "[node-no-environment]" in run.said()
    assert not (run.store.path / "runs" / run.run_id).exists()
