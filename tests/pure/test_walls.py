"""The walls of the house: who may import what.  Read from the sources, so that no import has to happen."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENDOR = {"pynvml", "amdsmi", "acl", "torch_npu", "mspti", "cupy", "hip"}
PEERS = {"liger_kernel", "quack", "transformers", "aiter", "flash_attn", "flashinfer", "vllm", "apex", "tilegym"}
PEERS |= {"transformer_engine", "transformer_engine_torch"}
PURE = (
    "accuracy",
    "actor/capture/fallback",
    "actor/crash_owner",
    "backends/_cuda_faults",
    "backends/api",
    "calibration/copies",
    "calibration/procedure",
    "calibration/report",
    "calibration/scripted",
    "cell",
    "cluster/base",
    "cluster/inventory",
    "cluster/listing",
    "compare",
    "compile/diff",
    "compile/gate",
    "compile/instructions",
    "compile/jobs",
    "compile/planning",
    "compile/targets",
    "contracts/call",
    "coordinator/calibration_lookup",
    "coordinator/colocation",
    "device_pattern",
    "doctor/codes",
    "doctor/facts",
    "doctor/finding",
    "doctor/rules",
    "field_checks",
    "guard/sample_checks",
    "guard/telemetry",
    "limits",
    "matrix",
    "node/admission",
    "node/sandbox",
    "pr/accuracy",
    "pr/asides",
    "pr/questions",
    "pr/repeating",
    "pr/blocks",
    "pr/commands",
    "pr/comment",
    "pr/config_block",
    "pr/decision",
    "pr/events",
    "pr/ledger",
    "pr/memory",
    "pr/patches",
    "pr/known",
    "pr/merging",
    "pr/publishing",
    "pr/queue",
    "pr/result",
    "pr/result_schema",
    "pr/measured",
    "pr/selection",
    "pr/test_reports",
    "profile",
    "scheduler",
    "sites/kit",
    "sites/merging",
    "stage_zero/answer",
    "stage_zero/pins",
    "sites/planfile",
    "sites/scrubbing",
    "subject/model",
    "store/recovery",
    "store/results",
    "timing",
    "tuning",
    "utilisation",
)
NO_IO = {"os", "pathlib", "subprocess", "socket", "shutil", "tempfile", "io", "ray", "torch", "time", "threading"}
NO_IO |= {"asyncio", "ctypes", "fcntl", "glob", "http", "mmap", "multiprocessing", "select", "signal"}
#: What touches a file whatever it is called on.
TOUCHES = {"open", "print", "input", "read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "glob"}
#: The one door of the pure core: `matrix.document.read` opens a matrix file; `matrix.load` and `matrix.known` hand
#: it the path.
DOORS = {"matrix/document.py": {"pathlib", "open", "glob"}}
DOORS |= {"matrix/load.py": {"pathlib"}, "matrix/known.py": {"pathlib"}}

#: The rooms from the ground up.  A room imports only rooms on lower floors, inside functions and for types too.
#: `backends.api` is a room of its own: what the guard and the child know of backends.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("farm", "errors", "deadline", "limits", "atomic_files", "kernel_package", "bootstrap"),
    ("cell", "device_pattern", "field_checks", "process", "utilisation"),
    ("timing", "contracts", "scheduler", "backends.api", "compare", "profile"),
    ("accuracy", "calibration", "guard", "shipping", "providers"),
    ("child", "store"),
    ("backends", "judge"),
    ("matrix",),
    ("node", "sites", "tuning"),
    ("subject", "record"),
    ("actor",),
    ("cluster", "compile"),
    ("doctor", "report"),
    ("coordinator", "dashboards"),
    ("stage_zero",),
    ("pr",),
    ("cli",),
    ("testing",),
    ("__main__",),
)
#: (who, whom, why): the arrows that go up and stay.
RISING = (
    ("child.__main__", "backends", "the root of the child process: it loads the backend that its command line names"),
)


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names of every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
        elif isinstance(node, ast.Call) and name_of(node.func).endswith("import_module"):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        found |= set(names)
    return frozenset(found)


def name_of(called: ast.expr) -> str:
    """`c` of `a.b.c` or of `c`."""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def files(*places: str) -> list[Path]:
    return [p for place in places for p in sorted((ROOT / place).rglob("*.py"))]


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_reader_of_imports_sees_nested_ones(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "def f():\n    import ray\n    from liger_kernel.ops import y\n    importlib.import_module('acl.rt')\n"
    )
    assert tops(file) == {"ray", "liger_kernel", "acl"}


#: What `farm doctor` asks of a Python, in a process of its own: whether this or that can be imported.
PROBES = "farm/doctor/probes.py"


def test_only_cluster_and_judge_import_ray() -> None:
    allowed = ("farm/cluster/", "farm/judge/pool.py", PROBES)
    guilty = [
        str(p.relative_to(ROOT))
        for p in files("farm", "kernels", "dashboards")
        if "ray" in tops(p) and not str(p.relative_to(ROOT)).startswith(allowed)
    ]
    assert guilty == []


def test_only_backends_import_a_vendor_library() -> None:
    seen = {str(p.relative_to(ROOT)) for p in files("farm", "kernels", "dashboards") if tops(p) & VENDOR}
    assert {p for p in seen if not p.startswith("farm/backends/")} == {PROBES}


def test_only_providers_import_a_peer() -> None:
    guilty = [str(p) for p in files("farm", "kernels", "dashboards") if tops(p) & PEERS and "providers" not in p.parts]
    assert guilty == []


#: What starts a process, by its name wherever it stands.
STARTS = {"Popen", "create_subprocess_exec", "create_subprocess_shell", "fork", "forkpty", "posix_spawn"}
PROC = re.compile(r"/proc(/|$)")
#: (file, text, why): texts with /proc outside of `process` and `child`.
PROC_ELSEWHERE = (
    ("farm/backends/rocm.py", "/proc/self/maps", "the libraries of a child's own process, read in the child"),
    ("farm/doctor/devices.py", "/proc/driver/nvidia/version", "a driver's file, looked for under the doctor's root"),
    ("farm/doctor/check_rocm.py", "echo 0 > /proc/sys/kernel/numa_balancing (AMD recommends it)", "advice to people"),
    ("farm/node/sandbox.py", "/proc", "where bubblewrap mounts a sandbox's own"),
    ("farm/node/sandbox_host.py", "/proc", "the same, in the trial of it"),
)


def starters(text: str) -> set[str]:
    """Names in a source that start a process."""
    if not any(name in text for name in STARTS):
        return set()
    nodes = list(ast.walk(ast.parse(text)))
    used = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return (used | {name.rpartition(".")[2] for _, name in statements(text)}) & STARTS


def proc_texts(text: str) -> set[str]:
    """Strings in a source that name something in /proc; docstrings are not looked at."""
    if "/proc" not in text:
        return set()
    nodes = list(ast.walk(ast.parse(text)))
    docs = {n.value for n in nodes if isinstance(n, ast.Expr)}
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and n not in docs and isinstance(n.value, str)}
    return {t for t in texts if PROC.search(t)}


def test_processes_are_started_in_their_room_alone() -> None:
    """`subprocess.run` with a deadline may stand elsewhere; bootstrap runs before there is a farm; what compiles ahead
    forks in its own process, so that its workers need not import anew."""
    found = {str(p.relative_to(ROOT)) for p in files("farm", "kernels", "dashboards") if starters(p.read_text("utf-8"))}
    assert found == {"farm/process/group.py", "farm/process/supervisor.py", "farm/child/compile_ahead.py"}


@pytest.mark.parametrize(
    "planted",
    [
        "import subprocess\nsubprocess.Popen(['x'])",
        "from subprocess import Popen as P",
        "def f(p: subprocess.Popen[bytes]): ...",
        "import os\nos.fork()",
        "import asyncio\nasyncio.create_subprocess_exec('x')",
    ],
)
def test_a_planted_start_of_a_process_is_seen(planted: str) -> None:
    assert starters(planted) and not starters("import subprocess\nsubprocess.run(['x'], timeout=1)")


def test_only_process_imports_psutil() -> None:
    found = {
        str(p.relative_to(ROOT)) for p in files("farm", "kernels", "dashboards", "benchmarks") if "psutil" in tops(p)
    }
    assert found == {"farm/process/procfs.py"}


def test_proc_is_read_in_its_room_and_in_the_child_alone() -> None:
    found = {
        (path, text)
        for p in files("farm", "kernels", "dashboards")
        if not (path := str(p.relative_to(ROOT))).startswith(("farm/process/", "farm/child/"))
        for text in proc_texts(p.read_text("utf-8"))
    }
    assert found == {(path, text) for path, text, _ in PROC_ELSEWHERE}


@pytest.mark.parametrize(
    "planted", ["open(f'/proc/{pid}/stat')", "Path('/proc').iterdir()", "def f(x='/proc/meminfo'): ..."]
)
def test_a_planted_reader_of_proc_is_seen(planted: str) -> None:
    assert proc_texts(planted) and not proc_texts('"""Reads /proc/self."""\nPath("/process")')


def sources() -> dict[str, str]:
    """Every module of the tree by its name within `farm`, as `child.session`; `farm` is the package."""
    found = {}
    for path in files("farm", "dashboards"):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[:2] == ["farm", "dashboards"]:  # the same files behind a link
            continue
        parts = parts[1:] if parts[0] == "farm" else parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(parts) or "farm"] = path.read_text(encoding="utf-8")
    return found


@functools.cache
def statements(text: str) -> tuple[tuple[int, str], ...]:
    """(dots, dotted name) of every import in a source, wherever in it, for types too."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(0, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.level, ".".join(w for w in (node.module, a.name) if w)) for a in node.names]
    return tuple(found)


def arrows(tree: dict[str, str]) -> set[tuple[str, str]]:
    """(module, module that it imports)."""
    packages = {"farm", *(m.rpartition(".")[0] for m in tree)}
    found = set()
    for module, text in tree.items():
        place = ["farm", *module.split(".")] if module != "farm" else ["farm"]
        for dots, name in statements(text):
            above = place[: len(place) + (module in packages) - dots] if dots else []
            full = ".".join([*above, name])
            if full.split(".")[0] == "farm":
                found.add((module, known(tree, full.removeprefix("farm").lstrip("."))))
    return {(a, b) for a, b in found if a != b}


def known(tree: dict[str, str], name: str) -> str:
    """The module that a dotted name means: itself, or the longest beginning that is a module."""
    while name and name not in tree:
        name = name.rpartition(".")[0]
    return name or "farm"


def room(module: str) -> str:
    return "backends.api" if module == "backends.api" else module.split(".")[0]


def rising(tree: dict[str, str]) -> list[str]:
    """The arrows that do not go down, and the rooms that have no floor."""
    floor = {name: height for height, names in enumerate(FLOORS) for name in names}
    homeless = [f"{name} has no floor" for name in sorted({room(m) for m in tree} - set(floor))]
    up = [
        f"{a} -> {b}"
        for a, b in sorted(arrows(tree))
        if room(a) != room(b)
        and not homeless
        and floor[room(a)] <= floor[room(b)]
        and not any(a == who and room(b) == whom for who, whom, _ in RISING)
    ]
    return homeless + up


def test_floors_no_import_goes_back_up() -> None:
    assert rising(sources()) == []


def test_every_exception_is_needed() -> None:
    there = {(a, room(b)) for a, b in arrows(sources())}
    assert [who for who, whom, why in RISING if (who, whom) not in there or not why] == []


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("cell", "from farm.timing.roof import parse"),
        ("cell", "import farm.timing.roof"),
        ("timing.roof", "def f():\n    from farm import store"),
        ("scheduler.core", "from farm import matrix"),
        ("matrix.plan", "from farm.cluster import base"),
        ("matrix.plan", "from ..cluster import base"),
        ("backends._nvml", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from farm.matrix import plan"),
        ("guard.device", "from farm import backends"),
        ("child.fault_owner", "from farm import backends"),
        ("errors", "from farm.cell import Cell"),
        ("report.format", "from farm.dashboards import pages"),
        ("attic.box", "x = 1"),
    ],
)
def test_floors_see_a_planted_import(module: str, planted: str) -> None:
    tree = sources()
    found = rising({**tree, module: f"{tree.get(module, '')}\n{planted}\n"})
    assert len(found) == 1 and found[0].startswith(module.split(".")[0]), found


def test_floors_let_an_import_go_down() -> None:
    tree = sources()
    assert rising({**tree, "matrix.plan": tree["matrix.plan"] + "\nfrom farm.backends import cpu\n"}) == []


def at_import(text: str) -> set[str]:
    """Every module that a file imports as soon as it is imported itself: outside functions."""
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    return found


def test_backends_load_the_child_only_when_a_device_is_opened() -> None:
    """Its session needs torch; the supervising side, which imports the same module, has none."""
    guilty = [
        p.name
        for p in files("farm/backends")
        if p.name != "_sim_session.py" and any(n.startswith("farm.child") for n in at_import(p.read_text("utf-8")))
    ]
    assert guilty == []


SHIMS = ("contract.py", "gates.py")


def outside(path: str, text: str) -> set[str]:
    """What a file of the kernels imports of the farm, against the rule."""
    forbidden = {"farm", "dashboards", "ray"}
    if path in SHIMS:
        return {n for n in at_import(text) if n.split(".")[0] != "typing"}
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return {n for n in found if n.split(".")[0] in forbidden | {"kernels", "farm_kernels"}}


def test_kernels_import_nothing_of_farm() -> None:
    """But for two shims of one release, which import the contracts that moved only when somebody uses them.  Each other
    they import by relative imports, so that the package works as `kernels` in a checkout and as `farm_kernels` from its
    wheel."""
    found = {str(p.relative_to(ROOT / "kernels")): p.read_text(encoding="utf-8") for p in files("kernels")}
    assert set(SHIMS) <= set(found) and len(found) > 10
    assert {path: names for path, text in found.items() if (names := outside(path, text))} == {}


@pytest.mark.parametrize(
    ("path", "planted"),
    [
        ("ops/x.py", "from farm.contracts import base"),
        ("ops/x.py", "def f():\n    import farm.cell"),
        ("ops/x.py", "from kernels.ops import rms_norm"),
        ("ops/x.py", "import farm_kernels"),
        ("gates.py", "import farm.contracts.gates"),
        ("contract.py", "if True:\n    from farm.contracts import base"),
    ],
)
def test_an_import_planted_in_the_kernels_is_seen(path: str, planted: str) -> None:
    assert outside(path, planted)
    assert not outside(path, "from typing import Any" if path in SHIMS else "import torch\nfrom . import y")


def test_dashboards_know_no_ray_no_torch_and_no_coordinator() -> None:
    for path in files("dashboards"):
        assert not tops(path) & {"ray", "torch", "triton"}, path
        assert not any(n.startswith(("farm.coordinator", "farm.actor", "farm.scheduler")) for n in imports(path)), path


def io_of(path: str, text: str) -> set[str]:
    """What a file of the pure core does to the world: modules that it imports, calls that touch a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names} & NO_IO
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {(node.module or "").split(".")[0]} & NO_IO
        elif isinstance(node, ast.Call):
            found |= {name_of(node.func)} & TOUCHES
    return found - DOORS.get(path, set())


@pytest.mark.parametrize("place", PURE)
def test_the_pure_core_does_no_io(place: str) -> None:
    found = [ROOT / "farm" / f"{place}.py"] if (ROOT / "farm" / f"{place}.py").is_file() else files(f"farm/{place}")
    assert found
    for path in found:
        done = io_of(path.relative_to(ROOT / "farm").as_posix(), path.read_text(encoding="utf-8"))
        assert not done, f"{path}: {done}"


@pytest.mark.parametrize(
    "planted",
    [
        "import os",
        "def f():\n    from pathlib import Path",
        "open('x')",
        "p.read_text()",
        "print('x')",
        "import ray.util",
    ],
)
def test_io_planted_in_the_pure_core_is_seen(planted: str) -> None:
    for path in ("matrix/plan.py", "cell.py", "scheduler/core.py", "accuracy/tolerances.py"):
        assert io_of(path, planted)


def test_child_never_imports_ray_or_the_supervising_side() -> None:
    for path in files("farm/child", "farm/providers", "farm/timing", "farm/calibration", "farm/contracts"):
        names = imports(path)
        assert not any(
            n.startswith(("ray", "farm.coordinator", "farm.actor", "farm.judge.judge", "farm.store")) for n in names
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


def test_contracts_load_with_torch_triton_ray_and_the_kernels_blocked() -> None:
    done = run_blocked(
        "import farm.contracts.discovery as o\nassert o.known_ops()\nfor n in o.known_ops(): print(o.contract(n).op)",
        "torch",
        "triton",
        "ray",
        "kernels",
        "farm_kernels",
    )
    assert done.returncode == 0, done.stderr
    ours = ["block_scaled_matmul", "fused_add_rms_norm", "matmul", "rms_norm", "rms_norm_quantize"]
    catalogue = ["attention", "cross_entropy", "layer_norm", "rope", "softmax", "swiglu"]
    assert done.stdout.split() == sorted([*ours, *catalogue])


def test_planning_needs_no_torch_no_triton_no_ray() -> None:
    done = run_blocked(
        "from farm.cli import main\nsys.exit(main(['plan', 'matrices/smoke.yaml']))", "torch", "triton", "ray"
    )
    assert done.returncode == 0, done.stderr


#: What the Python of a site that runs a kit need not have, of what the farm's own has.
NOT_AT_A_SITE = ("yaml", "pyarrow", "psutil", "ray", "rich", "jinja2", "packaging", "starlette", "httpx", "jsonschema")


def test_a_kits_run_needs_no_package_of_the_farms() -> None:
    done = run_blocked("import farm.cli.kit_site, farm.judge.worker", *NOT_AT_A_SITE, "torch")
    assert done.returncode == 0, done.stderr
    planted = run_blocked("import farm.cli.kit_site, farm.matrix.yaml_reader", *NOT_AT_A_SITE)
    assert planted.returncode == 1 and "blocked yaml" in planted.stderr


def test_blocking_blocks() -> None:
    done = run_blocked("import torch", "torch")
    assert done.returncode == 1
    assert "blocked torch" in done.stderr
