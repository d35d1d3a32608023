"""Which sources belong to a module, and when their digest changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farm.contracts.digest import closure, digest, modules_in

TREE = {
    "farm/__init__.py": "from farm.version import NUMBER\n",
    "farm/version.py": "NUMBER = 1\n",
    "farm/ops/__init__.py": "",
    "farm/ops/norm.py": "import math\nfrom . import rounding\nfrom .shared import (\n    A,\n    B,\n)\n",
    "farm/ops/rounding.py": "from farm.store import spool\n",
    "farm/ops/shared.py": "def f():\n    import farm.deep.inner\n    import_module('farm.named')\n",
    "farm/ops/other.py": "",
    "farm/deep/__init__.py": "",
    "farm/deep/inner.py": "from farm.package import of_the_package\n",
    "farm/named.py": "",
    "farm/package/__init__.py": "from farm.package.inside import of_the_package\n",
    "farm/package/inside.py": "of_the_package = 1\n",
    "farm/store/__init__.py": "from farm.store import runs\n",
    "farm/store/runs.py": "",
    "farm/store/spool.py": "",
    "farm/pages.py": "",
    "kernels/norm.py": "",
}
OF_NORM = {
    *("farm", "farm.ops", "farm.ops.norm", "farm.ops.rounding", "farm.ops.shared", "farm.store", "farm.store.spool"),
    *("farm.deep", "farm.deep.inner", "farm.named", "farm.package", "farm.package.inside"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_closure_has_what_is_imported_anywhere_and_the_packages_above(tree: Path) -> None:
    found = closure(["farm.ops.norm"], tree)
    assert set(found) == OF_NORM
    assert found["farm.ops"] == tree / "farm/ops/__init__.py"


def test_a_package_is_followed_only_where_a_name_is_taken_from_it(tree: Path) -> None:
    assert "farm.version" not in closure(["farm.ops.norm"], tree)
    (tree / "farm/ops/rounding.py").write_text("from farm import NUMBER\n", encoding="utf-8")
    assert "farm.version" in closure(["farm.ops.norm"], tree)


def test_modules_of_a_package(tree: Path) -> None:
    assert set(modules_in("farm.ops", tree)) == {
        f"farm.ops{m}" for m in ("", ".norm", ".other", ".rounding", ".shared")
    }


def test_digest_changes_with_each_source_of_the_closure_and_with_no_other(tree: Path) -> None:
    files = {path: name for name, path in closure(["farm.ops.norm"], tree).items()}
    before = digest(["farm.ops.norm"], tree)
    for name in TREE:
        path = tree / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text + "# changed\n", encoding="utf-8")
        assert (digest(["farm.ops.norm"], tree) != before) == (path in files), name
        path.write_text(text, encoding="utf-8")
    assert digest(["farm.ops.norm"], tree) == before
    (tree / "farm/ops/shared.py").rename(tree / "farm/ops/common.py")
    norm = (tree / "farm/ops/norm.py").read_text(encoding="utf-8").replace("shared", "common")
    (tree / "farm/ops/norm.py").write_text(norm, encoding="utf-8")
    assert digest(["farm.ops.norm"], tree) != before


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_threads_may_digest_at_once(tmp_path: Path) -> None:
    """Python parses one tree at a time (CPython 3.11 raises SystemError otherwise): the judge's threads take turns."""
    write(
        tmp_path,
        {"farm/__init__.py": "", "farm/deep.py": "x = " + "(" * 60 + "1" + ")" * 60 + "\n" * 3 + "y = [1, 2]\n" * 200},
    )
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: digest(["farm.deep"], tmp_path), range(200)))) == 1
