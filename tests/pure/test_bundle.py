"""What travels to a child on another Python or host: the same bytes everywhere, nothing that is bound to a machine,
all that a child imports, and nothing that an archive could smuggle in."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import shutil
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.errors import InfraError
from farm.kernel_package import ROOT
from farm.shipping import bundle

#: What the child's interpreter need not have: the supervisor's own packages.
SUPERVISORS = {"ray", "packaging", "yaml", "pyarrow", "jinja2", "rich", "psutil", "starlette", "uvicorn", "dashboards"}
#: Where a child's process may begin, and what it imports by a name made at run time.
ROOTS = ("farm.child.", "farm.backends.", "farm.providers.", "farm.doctor.probes", "farm.subject", "kernels.")
PLATFORM = re.compile(r"x86|amd64|aarch64|arm64|linux|darwin|win32|manylinux|cp3\d\d", re.IGNORECASE)


@pytest.fixture(scope="module")
def packed() -> dict[str, bundle.Bundle]:
    return {b.name: b for b in bundle.pack_all()}


def members(blob: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(blob)) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def copy_of(tmp_path: Path) -> Path:
    """Our packages, elsewhere, with other times, made in another order."""
    for name in reversed(bundle.NAMES):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    return tmp_path


def test_the_same_sources_are_the_same_bytes(packed: dict[str, bundle.Bundle], tmp_path: Path) -> None:
    again = {b.name: b for b in bundle.pack_all(copy_of(tmp_path))}
    assert {n: b.sha for n, b in again.items()} == {n: b.sha for n, b in packed.items()}
    for one in packed.values():
        assert one.sha == hashlib.sha256(one.blob).hexdigest()
        assert one.plain() == {"name": one.name, "sha": one.sha, "blob": one.blob}
    (tmp_path / "kernels" / "contract.py").write_text("changed = True\n")
    assert bundle.pack("kernels", tmp_path).sha != packed["kernels"].sha
    assert bundle.pack("farm", tmp_path).sha == packed["farm"].sha  # two revisions of kernels, one farm


def bound(name: str, content: bytes) -> str:
    """Why a file would not serve another architecture or Python, "" where it would."""
    if PLATFORM.search(name):
        return "its name says a platform"
    if content[:4] in (b"\x7fELF", b"MZ\x90\0", b"\xcf\xfa\xed\xfe") or b"\0" in content:
        return "it is binary"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "it is no text"
    return "" if Path(name).suffix in bundle.KINDS else "it is neither code nor data"


def test_nothing_in_it_is_bound_to_an_architecture(packed: dict[str, bundle.Bundle]) -> None:
    for one in packed.values():
        found = members(one.blob)
        assert len(found) > 10
        assert {name: why for name, content in found.items() if (why := bound(name, content))} == {}
        with tarfile.open(fileobj=io.BytesIO(one.blob)) as tar:
            assert {(m.mtime, m.uid, m.gid, m.mode, m.uname, m.type) for m in tar} == {
                (0, 0, 0, 0o644, "", tarfile.REGTYPE)
            }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("kernels/_x.cpython-311-x86_64-linux-gnu.so", b"\x7fELF"),
        ("kernels/a.py", b"\x7fELF\x02"),
        ("kernels/aarch64/a.py", b""),
        ("kernels/a.json", b"\xff\xfe"),
        ("kernels/a.o", b""),
    ],
)
def test_what_is_bound_is_seen(name: str, content: bytes) -> None:
    assert bound(name, content)


def test_a_build_in_the_working_tree_is_left_at_home(packed: dict[str, bundle.Bundle], tmp_path: Path) -> None:
    root = copy_of(tmp_path)
    (root / "kernels" / "_native.so").write_bytes(b"\x7fELF")
    (root / "kernels" / "__pycache__").mkdir()
    (root / "kernels" / "__pycache__" / "x.py").write_text("")
    (root / "farm" / "cli" / "more.py").write_text("import ray\n")
    assert {b.name: b.sha for b in bundle.pack_all(root)} == {n: b.sha for n, b in packed.items()}


def imported(name: str, source: bytes, there: Callable[[str], bool]) -> set[str]:
    """Absolute names of the modules that a module imports anywhere in it, but for its type checker.  `there` says of
    the b in `from a import b` whether it is a module."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = name.split(".")[: -node.level] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            found |= {base, *(full for a in node.names if there(full := f"{base}.{a.name}"))}
    return found


def modules(packed: dict[str, bundle.Bundle]) -> dict[str, bytes]:
    """Every module of the bundles; a package by its `__init__`, which counts as a module inside itself."""
    out = {}
    for one in packed.values():
        for path, content in members(one.blob).items():
            if path.endswith(".py"):
                out[path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")] = content
    return out


def in_our_tree(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def reached(known: dict[str, bytes], there: Callable[[str], bool] = in_our_tree) -> set[str]:
    """Everything that is imported from `ROOTS` on: our modules by their names, others' by their first part."""
    seen: set[str] = set()
    waiting = [name for name in known if name.startswith(ROOTS)]
    while waiting:
        name = waiting.pop()
        if name.split(".")[0] not in bundle.NAMES:
            seen.add(name.split(".")[0])
        elif name not in seen:
            seen.add(name)
            parts = name.split(".")
            waiting += [".".join(parts[:i]) for i in range(1, len(parts))]
            waiting += imported(name, known.get(name, b""), there)
    return seen


def test_all_that_a_child_imports_of_ours_is_in_it_and_nothing_that_it_may_not_have(
    packed: dict[str, bundle.Bundle],
) -> None:
    known = modules(packed)
    assert {"farm.child.__main__", "farm.backends.cuda", "farm.contracts.base"} <= set(known)
    found = reached(known)
    assert {n for n in found if n.split(".")[0] in bundle.NAMES and n not in known} == set()
    assert found & SUPERVISORS == set()
    assert {"torch", "numpy", "triton"} <= found  # the walk does go through


def test_the_walk_sees_what_is_missing_and_what_may_not_be() -> None:
    known = {
        "farm": b"",
        "farm.child": b"",
        "farm.child.a": b"def f():\n    from farm import matrix, nothing\n    from . import b",
        "farm.child.b": b"import yaml.reader\nif TYPE_CHECKING:\n    import ray\nelse:\n    from farm.store import x",
    }
    found = reached(known, {"farm.matrix", "farm.child.b"}.__contains__)
    assert found == {*known, "farm.matrix", "farm.store", "yaml"}


def test_it_is_unpacked_once_and_whole(packed: dict[str, bundle.Bundle], tmp_path: Path) -> None:
    one = packed["kernels"]
    first = bundle.install(one.sha, one.blob, tmp_path / "bundles")
    assert members(one.blob) == {str(p.relative_to(first)): p.read_bytes() for p in first.rglob("*") if p.is_file()}
    stamp = (first / "kernels" / "contract.py").stat().st_mtime_ns
    assert bundle.install(one.sha, one.blob, tmp_path / "bundles") == first
    assert (first / "kernels" / "contract.py").stat().st_mtime_ns == stamp
    assert bundle.install(one.sha, b"never read", tmp_path / "bundles") == first
    assert [p.name for p in first.parent.iterdir()] == [first.name]


def test_several_may_unpack_at_once(packed: dict[str, bundle.Bundle], tmp_path: Path) -> None:
    one = packed["kernels"]
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(bundle.install(one.sha, one.blob, tmp_path))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 8
    assert len(set(results)) == 1
    assert [p.name for p in tmp_path.iterdir()] == [results[0].name]


def tar_of(kind: bytes, name: str, link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        content = b"x = 1\n" if kind == tarfile.REGTYPE else b""
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "name", "link"),
    [
        (tarfile.REGTYPE, "../escaped.py", ""),
        (tarfile.REGTYPE, "a/../../escaped.py", ""),
        (tarfile.REGTYPE, "/escaped.py", ""),
        (tarfile.SYMTYPE, "kernels", "/etc"),
        (tarfile.LNKTYPE, "a.py", "/etc/hosts"),
        (tarfile.FIFOTYPE, "pipe", ""),
        (tarfile.CHRTYPE, "null", ""),
    ],
)
def test_an_archive_that_reaches_out_is_refused(tmp_path: Path, kind: bytes, name: str, link: str) -> None:
    blob = tar_of(kind, name, link)
    place = tmp_path / "in" / "here"
    with pytest.raises(InfraError) as refused:
        bundle.install(hashlib.sha256(blob).hexdigest(), blob, place)
    assert refused.value.id == "shipping-bundle-entry" and f'"{name}"' in str(refused.value)
    assert [p for p in tmp_path.rglob("*") if p.name not in ("in", "here")] == []
    fine = tar_of(tarfile.REGTYPE, "kernels/a.py")
    assert (bundle.install(hashlib.sha256(fine).hexdigest(), fine, place) / "kernels" / "a.py").read_text() == "x = 1\n"


def test_what_is_not_what_its_hash_says_is_refused(packed: dict[str, bundle.Bundle], tmp_path: Path) -> None:
    one = packed["kernels"]
    with pytest.raises(InfraError) as refused:
        bundle.install(one.sha, one.blob + b"\0", tmp_path)
    assert refused.value.id == "shipping-bundle-hash" and one.sha[:16] in str(refused.value)
    for junk in (b"no archive at all", one.blob[: len(one.blob) // 2 - 100]):
        with pytest.raises(InfraError) as refused:
            bundle.install(hashlib.sha256(junk).hexdigest(), junk, tmp_path)
        assert refused.value.id == "shipping-bundle-archive"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InfraError) as refused:
        bundle.pack("kernels", tmp_path)
    assert refused.value.id == "shipping-package-missing" and str(tmp_path / "kernels") in str(refused.value)


def test_a_folder_that_cannot_be_written_is_reported(packed: dict[str, bundle.Bundle], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = packed["kernels"]
    with pytest.raises(InfraError) as refused:
        bundle.install(one.sha, one.blob, tmp_path / "file" / "in")
    assert refused.value.id == "shipping-bundle-unpack"
