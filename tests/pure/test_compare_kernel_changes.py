"""Which kernels two trees differ in: what is moved or commented is not changed, what a kernel uses is part of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from farm.compare.kernel_changes import changes, code_changes, host_changes, kernels

ROOT = Path(__file__).resolve().parents[2]
KERNEL = '''"""Rows."""
import triton
import triton.language as tl
from .shared import scaled, helpers
from . import shared as sh

WIDTH: tl.constexpr = tl.constexpr(128)
UNUSED = 1
if triton.__version__ > "3":
    AHEAD = 2
else:
    AHEAD = 1


@triton.autotune(configs=[triton.Config({"B": 64})], key=["n"])
@triton.jit
def rows(x, n, B: tl.constexpr):
    """Scale each row."""
    # a comment
    i = tl.arange(0, WIDTH)
    tl.store(x + i, scaled(tl.load(x + i), AHEAD) + sh.OFFSET)


@triton.jit
def other(x):
    tl.store(x, 1)


def launch(x):
    rows[(1,)](x, 3)
'''
SHARED = """import triton
from .deep import *

OFFSET = 3


@triton.jit
def scaled(v, by):
    return v * by + EPS
"""
DEEP = "EPS = 1e-6\nNEVER = 2\n"
BASE = {"src/pkg/__init__.py": "", "src/pkg/rows.py": KERNEL, "src/pkg/shared.py": SHARED, "src/pkg/deep.py": DEEP}


def states(after: dict[str, str], before: dict[str, str] = BASE) -> dict[str, str]:
    return {c.name: c.state for c in changes(before, after)}


def edited(path: str, old: str, new: str) -> dict[str, str]:
    assert old in BASE[path]
    return {**BASE, path: BASE[path].replace(old, new)}


SAME = {"rows": "same", "other": "same", "scaled": "same"}


@pytest.mark.parametrize(
    "old, new",
    [
        ("# a comment", "# another one\n\n"),
        ('"""Scale each row."""', '"""Scale every row."""'),
        ('"""Rows."""', "\n\n\n"),
        ("tl.store(x + i, scaled", "tl.store(\n        x + i,\n        scaled"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("rows[(1,)](x, 3)", "rows[(2,)](x, 3)"),
    ],
)
def test_what_no_kernel_uses_changes_none(old: str, new: str) -> None:
    assert states(edited("src/pkg/rows.py", old, new)) == SAME


def test_a_kernel_that_was_moved_is_not_changed() -> None:
    moved = {("lib" + p.removeprefix("src/pkg") if "pkg" in p else p): text for p, text in BASE.items()}
    found = changes(BASE, moved)
    assert {c.name: c.state for c in found} == SAME and all(c.moved for c in found)


@pytest.mark.parametrize(
    "path, old, new, changed, why",
    [
        ("rows.py", "scaled(tl.load(x + i), AHEAD)", "scaled(tl.load(x), AHEAD)", {"rows"}, "the kernel itself"),
        ("rows.py", "constexpr(128)", "constexpr(256)", {"rows"}, "WIDTH"),
        ("rows.py", "AHEAD = 1", "AHEAD = 3", {"rows"}, "AHEAD"),  # in one branch of two
        ("rows.py", '"B": 64', '"B": 32', {"rows"}, "the kernel itself"),  # what is tuned
        ("rows.py", "import triton.language as tl", "import other.language as tl", {"rows", "other"}, "outside"),
        ("shared.py", "v * by", "v / by", {"rows", "scaled"}, "scaled()"),
        ("shared.py", "OFFSET = 3", "OFFSET = 4", {"rows"}, "OFFSET"),
        ("deep.py", "1e-6", "1e-5", {"rows", "scaled"}, "EPS"),  # through a function, through a star
    ],
)
def test_what_a_kernel_uses_is_part_of_it(path: str, old: str, new: str, changed: set[str], why: str) -> None:
    found = changes(BASE, edited(f"src/pkg/{path}", old, new))
    assert {c.name for c in found if c.state == "changed"} == changed
    assert {c.state for c in found if c.name not in changed} <= {"same"}
    (rows,) = (c for c in found if c.name == "rows")
    assert any(part.startswith(why) for part in rows.why), rows.why


def test_new_and_gone() -> None:
    renamed = edited("src/pkg/rows.py", "def other(x)", "def another(x)")
    assert states(renamed) == {"rows": "same", "scaled": "same", "other": "gone", "another": "new"}


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("from .shared import scaled, helpers", "from elsewhere import *", "may come from `from elsewhere import *`"),
        ("AHEAD) + sh.OFFSET", "AHEAD) + NOWHERE", "NOWHERE is defined nowhere in src/pkg/rows.py"),
    ],
)
def test_what_cannot_be_followed_is_unknown_and_not_the_same(old: str, new: str, why: str) -> None:
    tree = edited("src/pkg/rows.py", old, new)
    (rows,) = (c for c in changes(tree, tree) if c.name == "rows")
    assert rows.state == "unknown" and any(why in w for w in rows.why)


def test_a_name_of_the_tree_does_not_hide_an_installed_package() -> None:
    """A subpackage `triton` of the repository is not what `import triton` means inside of it."""
    tree = {**BASE, "src/pkg/triton/__init__.py": "def jit(f): return f\n"}
    assert states(tree) == SAME
    assert not any(k.unknown for k in kernels(tree).values())


@pytest.mark.parametrize(
    "text, count",
    [
        ("from triton import jit\n@jit\ndef k(): pass\n", 1),
        ("from numba import jit\n@jit\ndef k(): pass\n", 0),
        ("import triton.experimental.gluon as gluon\n@gluon.jit\ndef k(): pass\n", 1),
        ("import cuda.tile as ct\n@ct.kernel(occupancy=2)\ndef k(): pass\n", 1),
        ("import cutlass.cute as cute\nclass A:\n    @cute.jit\n    def k(self): pass\n", 1),
        ("import triton\ndef make():\n    @triton.jit\n    def k(): pass\n    return k\n", 1),
        ("def k(): pass\n", 0),
    ],
)
def test_what_is_a_kernel(text: str, count: int) -> None:
    assert len(kernels({"a.py": text})) == count


def test_host_code_is_reported_apart_from_kernels() -> None:
    assert host_changes(BASE, edited("src/pkg/rows.py", "rows[(1,)]", "rows[(2,)]")) == ["src/pkg/rows.py"]
    assert host_changes(BASE, edited("src/pkg/rows.py", "# a comment", "# b")) == []
    assert host_changes(BASE, edited("src/pkg/rows.py", "tl.store(x, 1)", "tl.store(x, 2)")) == []
    assert host_changes(BASE, {**BASE, "new.py": "x = ("}) == ["new.py"]


def test_comments_and_docstrings_alone_are_no_change_of_code() -> None:
    file, star = "src/pkg/rows.py", {"src/pkg/star.py": "from somewhere import *\n"}  # a kernel there would be unknown
    quiet = {**edited(file, "# a comment", "# b\n\n"), **star}
    assert code_changes({**BASE, **star}, quiet) == []
    for old, new in (("rows[(1,)]", "rows[(2,)]"), ("tl.store(x, 1)", "tl.store(x, 2)")):
        assert code_changes(BASE, edited(file, old, new)) == [file]
    assert code_changes(BASE, {**BASE, "new.py": ""}) == ["new.py"] == code_changes({**BASE, "new.py": "x = ("}, BASE)
    a, b = ({"m.py": f"def f():\n    {text}\n    return 1  # {text}\n"} for text in ("'one'", "'two'"))
    assert code_changes(a, b) == [] and code_changes(a, {"m.py": a["m.py"].replace("1", "2")}) == ["m.py"]


def test_our_own_kernels_are_all_read_and_every_number_of_them_counts() -> None:
    """In each file the last integer of a kernel's body becomes another: that kernel is changed, and what calls it."""
    paths = sorted((ROOT / "kernels").rglob("*.py"))
    tree = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths}
    found = kernels(tree)
    assert len(found) > 30 and not [k for k in found.values() if k.unknown]
    assert {c.state for c in changes(tree, tree)} == {"same"}
    tried = set()
    for kernel in found.values():
        lines = tree[kernel.path].splitlines()
        (node,) = (
            n
            for n in ast.walk(ast.parse(tree[kernel.path]))
            if isinstance(n, ast.FunctionDef) and n.lineno == kernel.line and n.name == kernel.name
        )
        numbers = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int]
        if kernel.path in tried or not numbers:
            continue
        tried.add(kernel.path)
        last = max(numbers, key=lambda n: (n.lineno, n.col_offset))
        line = lines[last.lineno - 1]
        lines[last.lineno - 1] = line[: last.col_offset] + re.sub(r"^\w+", "77", line[last.col_offset :])
        others = kernels({**tree, kernel.path: "\n".join(lines)})
        changed = {k.name for key, k in others.items() if k.digest != found[key].digest}
        assert kernel.name in changed, (kernel, lines[last.lineno - 1])
    assert len(tried) >= 5
