"""The walls of the house: who may import what.  Read from the sources, so that no import has to happen."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENDOR = {"pynvml", "amdsmi", "acl", "torch_npu", "cupy", "hip"}
PEERS = {"liger_kernel", "quack", "transformers", "aiter", "flash_attn"}
PURE = ("cell", "nodes/admission", "backends/_cuda_faults", "scheduler", "targets",
        "coordinator/neighbours", "results", "calls", "simulation", "accuracy", "guard/telemetry",
        "guard/plausible", "timing/statistics", "timing/methods", "timing/kernels", "compile/targets",
        "compile/planning", "compile/jobs", "compile/gate", "compile/diff", "compile/instructions", "timing/roof",
        "calibration/copies", "calibration/procedure", "calibration/report", "calibration/scripted",
        "store/before", "actor/captures", "sites/planfile", "sites/merging",
        "doctor/codes", "doctor/finding", "doctor/facts", "doctor/judgement",
        "coordinator/roofs")  # fmt: skip
NO_IO = {"os", "pathlib", "subprocess", "socket", "shutil", "tempfile", "io", "ray", "torch", "time", "threading"}


def imports(path: Path) -> set[str]:
    """Top-level names of every module that a file imports, wherever in it; `farm.x` and `kernels.x` keep two parts."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
        found |= set(names)
    return found


def files(*places: str) -> list[Path]:
    return [p for place in places for p in sorted((ROOT / place).rglob("*.py"))]


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_reader_of_imports_sees_nested_ones(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    import ray\n    from liger_kernel.ops import y\n")
    assert tops(file) == {"ray", "liger_kernel"}


def test_only_coordinator_actor_and_judge_import_ray() -> None:
    allowed = ("farm/coordinator/", "farm/actor/device.py", "farm/judges.py")
    guilty = [
        str(p.relative_to(ROOT))
        for p in files("farm", "kernels", "dashboards")
        if "ray" in tops(p) and not str(p.relative_to(ROOT)).startswith(allowed)
    ]
    assert guilty == []


def test_only_backends_import_a_vendor_library() -> None:
    guilty = [str(p) for p in files("farm", "kernels", "dashboards") if tops(p) & VENDOR and "backends" not in p.parts]
    assert guilty == []


def test_only_providers_import_a_peer() -> None:
    guilty = [str(p) for p in files("farm", "kernels", "dashboards") if tops(p) & PEERS and "providers" not in p.parts]
    assert guilty == []


def test_kernels_import_nothing_of_farm() -> None:
    assert [str(p) for p in files("kernels") if tops(p) & {"farm", "dashboards", "ray"}] == []


def test_dashboards_know_no_ray_no_torch_and_no_coordinator() -> None:
    for path in files("dashboards"):
        assert not tops(path) & {"ray", "torch", "triton"}, path
        assert not any(n.startswith(("farm.coordinator", "farm.actor", "farm.scheduler")) for n in imports(path)), path


@pytest.mark.parametrize("place", PURE)
def test_the_pure_core_does_no_io(place: str) -> None:
    found = [ROOT / "farm" / f"{place}.py"] if (ROOT / "farm" / f"{place}.py").is_file() else files(f"farm/{place}")
    assert found
    for path in found:
        assert not tops(path) & NO_IO, f"{path}: {tops(path) & NO_IO}"


def test_child_never_imports_ray_or_the_supervising_side() -> None:
    for path in files("farm/child", "farm/providers", "farm/timing", "farm/calibration"):
        names = imports(path)
        assert not any(
            n.startswith(("ray", "farm.coordinator", "farm.actor", "farm.judge", "farm.store")) for n in names
        )


def run_blocked(code: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    """`code` in a process where importing `blocked` fails."""
    preamble = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {set(blocked)!r}: raise ImportError('blocked ' + name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", preamble + code], capture_output=True, text=True, check=False, timeout=60
    )


def test_contracts_load_with_torch_and_triton_blocked() -> None:
    done = run_blocked(
        "import farm.ops as o\nassert o.known_ops()\nfor n in o.known_ops(): print(o.contract(n).op)",
        "torch",
        "triton",
        "ray",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fused_add_rms_norm", "matmul", "rms_norm", "rms_norm_quantize"]


def test_planning_needs_no_torch_no_triton_no_ray() -> None:
    done = run_blocked(
        "from farm.cli import main\nsys.exit(main(['plan', 'matrices/smoke.yaml']))", "torch", "triton", "ray"
    )
    assert done.returncode == 0, done.stderr


def test_blocking_blocks() -> None:
    done = run_blocked("import torch", "torch")
    assert done.returncode == 1
    assert "blocked torch" in done.stderr
