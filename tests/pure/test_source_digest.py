"""Which sources belong to a module, and when their digest changes."""

from __future__ import annotations

import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.contracts.digest import closure, digest, modules_in, origin
from farm.contracts.discovery import known_ops, module_of

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


@pytest.mark.parametrize(
    "around",
    [
        "async def f():\n    async with g():\n        async for i in h():\n            {0}\n",
        "class A:\n    def f(self):\n        while True:\n            {0}\n",
        "for i in ():\n    pass\nelse:\n    {0}\n",
        "if a:\n    pass\nelif b:\n    pass\nelse:\n    {0}\n",
        "match a:\n    case 1:\n        {0}\n",
        "try:\n    pass\nexcept E:\n    {0}\n",
        "try:\n    pass\nfinally:\n    {0}\n",
        "try:\n    pass\nexcept* E:\n    pass\nelse:\n    {0}\n",
        "with f():\n    x = 1; {0}\n",
    ],
)
def test_an_import_is_found_in_every_kind_of_block(tree: Path, around: str) -> None:
    (tree / "farm/ops/other.py").write_text(around.format("import farm.named"), encoding="utf-8")
    assert "farm.named" in closure(["farm.ops.other"], tree)


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


#: How a module comes to use module `b` of its package `p`; `dots` lead from it to the package.
STYLES = (
    "import {p}.{b}",
    "import {p}.{b} as it",
    "from {p}.{b} import value",
    "from {p}.{b} import *",
    "from {dots}{b} import value",
    "import {p}\nx = lambda: {p}.{b}.value",
    "def f():\n    from {p} import {first}\n    return {b}.value",
    "from importlib import import_module\nimport_module('{p}.{b}')",
)
NAMES = ("a", "b", "c", "sub.d", "sub.e", "sub.deep.f")
_counter = itertools.count()


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(STYLES)), max_size=7), st.data()
)
@settings(max_examples=30)
def test_a_digest_changes_with_whatever_a_contract_comes_to_use_and_with_nothing_else(
    links: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    """Of a package that is neither of the farm nor installed."""
    package = f"law{next(_counter)}"
    texts = {"op/contract.py": "from ..a import value\n", "op/table.bin": "1", "op/stray.py": "", "notes.txt": ""}
    texts |= {f"{folder}__init__.py": "" for folder in ("", "op/", "sub/", "sub/deep/", "other/")}
    file_of = {name: f"{name.replace('.', '/')}.py" for name in NAMES}
    texts |= {file_of[name]: f"value = '{name}'\n" for name in NAMES} | {"unused.py": "", "other/g.py": ""}
    for user, used, style in links:
        dots, first = "." * (user.count(".") + 1), used.partition(".")[0]
        texts[file_of[user]] += style.format(p=package, b=used, dots=dots, first=first) + "\n"
    reached, waiting = set(), ["a"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [used for user, used, _ in links if user == name]
    expected = {file_of[name] for name in reached} | {n for n in texts if n.startswith("op/")}
    expected |= {"__init__.py", "notes.txt"}  # data lies beside a module that counts
    expected |= {f"{'/'.join(n.split('.')[:i])}/__init__.py" for n in reached for i in range(1, len(n.split(".")))}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        root = Path(folder, package)
        write(root, texts)
        found = origin([f"{package}.op.contract"])
        assert {path.relative_to(root).as_posix() for path in found.files.values()} == expected
        write(root, {name: f"{text}#\n" for name, text in texts.items() if name not in expected})
        assert origin([f"{package}.op.contract"]).digest == found.digest
        changed = data.draw(st.sampled_from(sorted(expected)))
        write(root, {changed: f"{texts[changed]}#\n"})
        assert origin([f"{package}.op.contract"]).digest != found.digest, changed


def test_installed_packages_count_by_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"site-packages/vendored/__init__.py": "", "mine/__init__.py": ""})
    (tmp_path / "mine/op.py").write_text("import math, numpy, vendored, absent_here\nfrom numpy import linalg\n")
    for place in (tmp_path, tmp_path / "site-packages"):
        monkeypatch.syspath_prepend(str(place))
    found = origin(["mine.op"])
    assert set(found.files) == {"mine", "mine.op", "mine/__init__.py", "mine/op.py"}
    assert set(found.versions) == {"python", "numpy", "vendored", "absent_here"}
    assert found.versions["numpy"] == np.__version__ and found.versions["absent_here"] == ""
    (tmp_path / "site-packages/vendored/__init__.py").write_text("x = 1\n")  # it says no version
    assert origin(["mine.op"]).digest != found.digest


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import importlib\nname = 'a'\nimportlib.import_module(name)\n", 3),
        ("from importlib import import_module as load\n", 1),
        ("m = [__import__(n) for n in 'ab']\n", 1),
        ("exec(open('x.py').read())\n", 1),
        ("import runpy\nrunpy.run_path('x.py')\n", 0),
        ("import importlib\nimportlib.import_module('math')\nclass A:\n    def eval(self): return self.eval()\n", 0),
    ],
)
def test_what_cannot_be_followed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, {"strange.py": text})
    assert origin(["strange"]).computed == ([f"{tmp_path / 'strange.py'}:{line}"] if line else [])


def test_every_contract_of_the_farm_can_be_followed() -> None:
    for op in known_ops():
        found = origin([module_of(op), "farm.accuracy.evaluate"])
        assert found.computed == [] and {"python", "numpy"} == set(found.versions) - {"torch"}
        assert {"farm.contracts.base", "farm.contracts.view", "farm.accuracy.inputs", "farm.cell"} <= set(found.files)


def test_threads_may_digest_at_once(tmp_path: Path) -> None:
    """Python parses one tree at a time (CPython 3.11 raises SystemError otherwise): the judge's threads take turns."""
    write(
        tmp_path,
        {"farm/__init__.py": "", "farm/deep.py": "x = " + "(" * 60 + "1" + ")" * 60 + "\n" * 3 + "y = [1, 2]\n" * 200},
    )
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: digest(["farm.deep"], tmp_path), range(200)))) == 1
