"""The two wheels, installed where the checkout is not on the import path, beside another distribution named `kernels`.

`kernel-farm` installs the package `farm`, `farm-kernels` the package `farm_kernels`, and neither writes a file that
another distribution may own.  Both are built and installed without a network."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from farm_process import ROOT, clean_environ

from farm.store import Store

pytest.importorskip("setuptools.build_meta", reason="wheels are built with setuptools")

#: What stands in for the foreign distribution of that name; a hub's client, not ours.
FOREIGN = {
    "kernels/__init__.py": "def get_kernel(name):\n    return name\n",
    "kernels/layer.py": "",
    "hub/__init__.py": "",
}
BUILD = "import os, sys; os.chdir(sys.argv[1]); from setuptools import build_meta as b; b.build_{}(sys.argv[2])"
#: Kept for a checkout alone: they lead to the farm.
SHIMS = {"contract.py", "gates.py"}
OURS = "[n for n in sys.modules if n in ('kernels', 'farm_kernels')]"
MATRIX = json.dumps(
    {
        "name": "installed",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 3, "hidden": 32}], "dtype": "float32", "operation": "forward"},
        "providers": ["farm", "torch", "mine"],
    }
)
MINE = f"""
import sys
import torch

def rms_norm(x, weight, eps=1e-6, *, offset=0.0, casting="llama"):
    with open("names.txt", "a") as out:
        print(*{OURS}, file=out)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight
"""


def sources(*places: str) -> list[str]:
    """The files of the checkout, without what building or running it leaves there; no link is followed."""
    found = []
    for place in places:
        top = ROOT / place
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            name = path.relative_to(ROOT)
            left = [p for p in name.parts if p in ("__pycache__", "build") or p.endswith(".egg-info")]
            if not left and path.is_file() and not any((ROOT / p).is_symlink() for p in (name, *name.parents)[:-1]):
                found.append(name.as_posix())
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout to build in: building leaves folders behind."""
    folder = tmp_path_factory.mktemp("source")
    for name in sources("farm", "kernels", "dashboards", "matrices", "pyproject.toml", "README.md"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    for name in ("dashboards", "matrices"):
        (folder / "farm" / name).symlink_to((ROOT / "farm" / name).readlink())
    return folder


@pytest.fixture(scope="module")
def wheels(source: Path) -> dict[str, Path]:
    """Both wheels, as `pip wheel --no-deps --no-build-isolation` builds them."""
    out = source / "dist"
    out.mkdir()
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD.format("wheel"), str(folder), str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for folder in (source, source / "kernels")
    ]
    for build in builds:
        said, _ = build.communicate(timeout=120)
        assert build.returncode == 0, said
    return {file.name.split("-")[0]: file for file in out.glob("*.whl")}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the other distribution named `kernels`."""
    file = tmp_path_factory.mktemp("foreign") / "kernels-0.9.0-py3-none-any.whl"
    info = "kernels-0.9.0.dist-info"
    texts = {
        **FOREIGN,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: kernels\nVersion: 0.9.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_sum(text.encode())},{len(text)}\n" for name, text in texts.items())
    with zipfile.ZipFile(file, "w") as out:
        for name, text in {**texts, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            out.writestr(name, text)
    return file


def _sum(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class Installed:
    """A virtual environment that borrows torch, Ray and the rest from this one, and has the given wheels of its own."""

    def __init__(self, folder: Path, in_turn: Iterable[Iterable[Path]]):
        venv.create(folder, symlinks=True, with_pip=False)
        self.bin = folder / "bin"
        self.site = next((folder / "lib").glob("python*/site-packages"))
        borrowed = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
        (self.site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")  # a path here reads no .pth file there
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--no-deps", "--no-index"]
        for together in in_turn:
            options = ["--no-compile", "--ignore-installed", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *options, *map(str, together)], check=True, timeout=120)

    def environ(self, **more: str) -> dict[str, str]:
        clean = {k: v for k, v in clean_environ().items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
        return {**clean, "FARM_CACHE": str(self.bin.parent / "cache"), **more}

    def python(self, code: str, cwd: Path, **environ: str) -> str:
        done = subprocess.run(
            [str(self.bin / "python"), "-c", code],
            cwd=cwd,
            env=self.environ(**environ),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def farm(self, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "farm"), *words],
            cwd=cwd,
            env=self.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )


@pytest.fixture(scope="module")
def both(wheels: dict[str, Path], foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Ours after the foreign distribution."""
    return Installed(tmp_path_factory.mktemp("both"), [[foreign], wheels.values()])


@pytest.fixture(scope="module")
def alone(wheels: dict[str, Path], foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The farm without its kernels, and the foreign distribution after it."""
    return Installed(tmp_path_factory.mktemp("alone"), [[wheels["kernel_farm"]], [foreign]])


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if ".dist-info/" not in name}


def test_the_farms_wheel_is_the_package_farm_and_complete(wheels: dict[str, Path]) -> None:
    found = names(wheels["kernel_farm"])
    assert found == {*sources("farm"), *(f"farm/{name}" for name in sources("dashboards", "matrices"))}
    kinds = {Path(name).suffix for name in found}
    assert kinds == {".py", ".typed", ".html", ".css", ".js", ".yaml"}


def test_the_kernels_wheel_is_the_package_farm_kernels_without_the_farm(wheels: dict[str, Path]) -> None:
    left_out = {"kernels/pyproject.toml", *(f"kernels/{shim}" for shim in SHIMS)}
    want = {f"farm_{name}" for name in sources("kernels") if name not in left_out}
    assert names(wheels["farm_kernels"]) == want
    with zipfile.ZipFile(wheels["farm_kernels"]) as file:
        text = {name: file.read(name).decode() for name in file.namelist()}
    meta = next(t for name, t in text.items() if name.endswith("/METADATA"))
    assert [line for line in meta.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line] == []
    code = "\n".join(t for name, t in text.items() if name.endswith(".py"))
    assert "import farm" not in code and "from farm" not in code


@pytest.mark.long
def test_the_source_archive_has_what_the_wheel_is_built_from(source: Path, wheels: dict[str, Path]) -> None:
    out = source / "sdist"
    out.mkdir()
    subprocess.run(
        [sys.executable, "-c", BUILD.format("sdist"), str(source), str(out)],
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        found = {m.name.partition("/")[2] for m in archive if m.isfile()}
    assert names(wheels["kernel_farm"]) <= found


@pytest.mark.long
def test_no_file_is_overwritten_in_either_order(both: Installed, alone: Installed, tmp_path: Path) -> None:
    for there in (both, alone):
        owners: dict[str, str] = {}
        for record in there.site.glob("*.dist-info/RECORD"):
            for path, digest, _ in csv.reader(record.read_text().splitlines()):
                place = os.path.normpath(there.site / path)
                assert owners.setdefault(place, record.parent.name) == record.parent.name, place
                if digest:
                    assert _sum(Path(place).read_bytes()) == digest, place
        assert not (there.site / "dashboards").exists()
        code = "import kernels\nprint(kernels.__file__, kernels.get_kernel('x'))"
        assert there.python(f"import farm.kernel_package as p\np.use_our_kernels()\n{code}", tmp_path) == (
            f"{there.site}/kernels/__init__.py x"
        )


@pytest.mark.long
def test_the_kernels_run_without_ray_and_without_the_farm(both: Installed, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = """
import sys
sys.modules.update(dict.fromkeys(("ray", "farm", "kernels"), None))  # each is an ImportError now
from farm_kernels import rms_norm
import torch
x, w = torch.randn(3, 32), torch.randn(32)
torch.testing.assert_close(rms_norm(x, w, 1e-6), torch.nn.functional.rms_norm(x, (32,), w, 1e-6))
import farm_kernels
print(farm_kernels.__file__)
"""
    assert both.python(code, tmp_path, TRITON_INTERPRET="1") == f"{both.site}/farm_kernels/__init__.py"


@pytest.mark.parametrize(
    ("first", "then", "want"),
    [
        ("", "", ["kernels", "farm_kernels"]),  # the foreign one, which was imported first, and ours
        (str(ROOT), "", ["kernels"]),  # a checkout before the wheel: its kernels are the revision under test
        ("", str(ROOT), ["kernels", "farm_kernels"]),  # code under test finds the checkout later
    ],
)
def test_a_process_loads_ours_under_one_name(
    both: Installed, tmp_path: Path, first: str, then: str, want: list[str]
) -> None:
    code = f"""
import sys
import kernels
from farm import kernel_package
one = kernel_package.load("launches")
sys.path[:0] = {[then] if then else []}
assert kernel_package.load("launches") is one
ours = {{m.__name__.split(".")[0] for n, m in sys.modules.items() if n.split(".")[-1] == "launches"}}
print(*{OURS}, len(ours), kernel_package.version())
"""
    version = "" if want == ["kernels"] else " 0.1.0"
    assert both.python(code, tmp_path, PYTHONPATH=first) == f"{' '.join(want)} 1{version}"


@pytest.mark.long
def test_a_child_of_another_python_gets_ours_from_the_bundle(both: Installed, alone: Installed, tmp_path: Path) -> None:
    """The bundle of an installed farm, in an environment that has the wheels and the foreign distribution too."""
    code = "from farm.shipping import bundle\nprint(*(bundle.install(b.sha, b.blob, '.') for b in bundle.pack_all()))"
    folders = [str(tmp_path / name) for name in both.python(code, tmp_path).split()]
    assert len(folders) == 2
    assert sorted(p.name for p in Path(folders[1], "farm").iterdir() if p.name in ("dashboards", "matrices")) == []
    look = f"""
import sys
from farm import kernel_package
module = kernel_package.load("launches")
print(*{OURS}, module.__file__, kernel_package.ROOT)
"""
    want = f"kernels {folders[0]}/kernels/launches.py {folders[1]}"
    assert both.python(look, tmp_path, PYTHONPATH=os.pathsep.join(folders)) == want
    assert len(alone.python(code, tmp_path).split()) == 1  # the farm: there are no kernels to send


def run(there: Installed, folder: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, tuple[str, str]]]:
    """A user's matrix and provider in a folder of their own."""
    folder.mkdir()
    (folder / "m.yaml").write_text(MATRIX)
    (folder / "mod.py").write_text(MINE)
    words = ("run", "m.yaml", "--backend", "cpu", "--address", "inline", "--devices", "1", "--out", "store")
    done = there.farm(folder, *words, "--run-id", "r", "--provider", "rms_norm:mine=mod:rms_norm")
    rows = Store(folder / "store").run("r").rows
    assert {row["revision"] for row in rows} == {"0.1.0"}
    return done, {row["provider"]: (row["status"], row["reason"]) for row in rows}


def test_a_users_matrix_passes(both: Installed, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done, found = run(both, tmp_path / "user")
    assert done.returncode == 0, done.stdout
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(("farm", "torch", "mine"), "passed")
    assert (tmp_path / "user" / "store" / "pages" / "run-r.html").is_file()
    loaded = set((tmp_path / "user" / "names.txt").read_text().splitlines())
    assert loaded == {"farm_kernels"}, loaded


@pytest.mark.long
def test_without_its_kernels_the_farm_tests_others(alone: Installed, tmp_path: Path) -> None:
    done, found = run(alone, tmp_path / "user")
    reason = "provider farm: the farm's own kernels are not installed; install farm-kernels, or run from a checkout"
    assert found["farm"] == ("unsupported", reason)
    assert {found[name][0] for name in ("torch", "mine")} == {"passed"}
    assert done.returncode == 4, done.stdout  # inconclusive: a subject that was asked for proved nothing
    missing = alone.farm(tmp_path, "run", "smoke.yaml")
    assert missing.returncode == 2
    assert f'did you mean "{alone.site}/farm/matrices/smoke.yaml"?' in missing.stdout
