"""A user's provider on its way to the devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.errors import InfraError, UsageError
from farm.shipping import providers as shipping


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is not on the import path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p and Path(p).resolve() != tmp_path.resolve()])
    return tmp_path


@pytest.mark.parametrize("spec", ["", "mine", "mine=", "mine=mod", "mine=mod:", "=mod:f", "mine=:f", "mod:f"])
def test_what_is_no_provider(spec: str) -> None:
    with pytest.raises(UsageError) as refused:
        shipping.parse(spec)
    assert refused.value.id == "shipping-provider-form" and "[OP:]NAME=module:function" in str(refused.value)


def test_specs() -> None:
    assert shipping.parse("mine=a.b:c.d") == ("mine", "a.b:c.d")
    assert shipping.parse("rms_norm:mine=a:b") == ("rms_norm:mine", "a:b")


def test_a_module_travels_as_one_file_and_back(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "mine.py").write_text("def f(x):\n    return x  # é\n", encoding="utf-8")
    shipped = shipping.pack(["mine:f"])
    assert shipped is not None
    assert list(shipped["files"]) == ["mine.py"]
    spool = tmp_path_factory.mktemp("spool")
    where = shipping.unpack(shipped, str(spool))
    assert Path(where, "mine.py").read_bytes() == (folder / "mine.py").read_bytes()
    assert shipping.unpack(shipped, str(spool)) == where
    assert [p.name for p in (spool / "providers").iterdir()] == [shipped["sha"]]
    code = subprocess.run(
        [sys.executable, "-c", "import mine; print(mine.f(3))"],
        env={**os.environ, "PYTHONPATH": where},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd="/",
    )
    assert code.stdout == "3\n"


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "a/../../out.py", ""])
def test_files_do_not_leave_their_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InfraError) as refused:
        files = {"mine.py": b"", name: b"x"}
        shipping.unpack({"sha": shipping.digest(files), "files": files}, str(tmp_path / "spool"))
    assert refused.value.id == "shipping-provider-entry"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []  # and no temporary folder is left


def test_of_two_that_unpack_at_once_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"mine.py": b"x = 1\n"}
    shipped = {"sha": shipping.digest(files), "files": files}
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        shipping.unpack(shipped, str(tmp_path))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    where = shipping.unpack(shipped, str(tmp_path))
    assert [p.name for p in (tmp_path / "providers").iterdir()] == [shipped["sha"]] and Path(where, "mine.py").is_file()


def test_a_package_travels_whole_without_its_litter(folder: Path) -> None:
    for name in ("pkg/__init__.py", "pkg/sub/deep.py", "pkg/data.bin", "pkg/__pycache__/x.pyc", "pkg/.git/config"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def f(): pass\n" if name.endswith(".py") else "")
    shipped = shipping.pack(["pkg.sub.deep:f"])
    assert shipped is not None
    assert sorted(shipped["files"]) == ["pkg/__init__.py", "pkg/data.bin", "pkg/sub/deep.py"]


def test_what_it_imports_from_the_same_folder_travels_with_it_and_nothing_else(folder: Path) -> None:
    texts = {
        "mine.py": "import json, torch, farm\nfrom beside import helper\n\ndef f(x):\n    import later.part\n",
        "beside.py": "import further\n",
        "further.py": "import mine\n",
        "later/__init__.py": "",
        "later/part.py": "from . import other\nimport deep\n",
        "later/other.py": "",
        "deep.py": "",
        "unasked.py": "",
        "json.py": "",
        "torch.py": "",
        "farm/__init__.py": "",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    shipped = shipping.pack(["mine:f"])
    assert shipped is not None
    assert set(shipped["files"]) == set(texts) - {"unasked.py", "json.py", "torch.py", "farm/__init__.py"}
    (folder / "beside.py").write_text("import further  # changed\n")
    again = shipping.pack(["mine:f"])
    assert again is not None and again["sha"] != shipped["sha"]


def test_the_name_is_of_the_content(folder: Path) -> None:
    (folder / "mine.py").write_text("def f(): pass\n")
    first = shipping.pack(["mine:f"])
    os.utime(folder / "mine.py", (1, 1))
    same = shipping.pack(["mine:f", "mine:f"])
    (folder / "mine.py").write_text("def f(): return 1\n")
    other = shipping.pack(["mine:f"])
    assert first is not None
    assert same is not None
    assert other is not None
    assert first["sha"] == same["sha"] != other["sha"]


def test_nothing_to_ship() -> None:
    assert shipping.pack([]) is None


def refusal(path: str) -> tuple[str, str]:
    """The identifier and the sentence with which a provider's path is refused."""
    with pytest.raises(UsageError) as refused:
        shipping.pack([path])
    return refused.value.id, str(refused.value)


def test_refusals_state_the_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id, sentence = refusal("absent_module:f")
    assert id == "shipping-provider-module" and '"absent_module"' in sentence and "PYTHONPATH" in sentence
    (folder / "mine.py").write_text("def g(): pass\n")
    id, sentence = refusal("mine:f")
    assert id == "shipping-provider-function" and '"f"' in sentence and str(folder / "mine.py") in sentence
    id, sentence = refusal("mine.sub:f")
    assert id == "shipping-provider-not-a-package" and '"mine.sub"' in sentence
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    id, sentence = refusal("pack.sub:f")
    assert id == "shipping-provider-submodule" and '"pack.sub"' in sentence
    (folder / "mine.py").write_text("def f(:\n")
    id, sentence = refusal("mine:f")
    assert id == "shipping-provider-not-python" and "line 1" in sentence
    (folder / "mine.py").write_text("def f(): pass\n")
    monkeypatch.setattr(shipping, "MAX_BYTES", 3)
    assert refusal("mine:f")[0] == "shipping-provider-too-big"


@pytest.mark.parametrize(
    "text",
    [
        "f = 1",
        "class f: 0",
        "from os import path as f",
        "import os as f",
        "from os import *",
        "def __getattr__(n): 0",
        "if True:\n    def f(): pass",
    ],
)
def test_every_way_to_define_a_name_is_seen(folder: Path, text: str) -> None:
    (folder / "mine.py").write_text(text + "\n")
    assert shipping.pack(["mine:f"]) is not None


def test_a_module_without_a_source_is_refused(folder: Path) -> None:
    """A built-in or a compiled module cannot travel."""
    with pytest.raises(UsageError):
        shipping.pack(["sys:exit"])
