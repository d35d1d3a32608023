"""A subject in a child: an overlay that did not take effect is seen, and one module loads without its packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.kernel_package import ROOT
from farm.shipping import subjects

CODE = {"mylib/__init__.py": "", "mylib/norm.py": "WHOSE = 'sent'\n"}


def sent(folder: Path, files: dict[str, str] = CODE, **told: Any) -> dict[str, Any]:
    """A subject as it lies on a node, and as a child is told of it."""
    content = {f"overlay/{name}": text.encode() for name, text in files.items()}
    given = {"name": "mylib", "revision": "r", "source": "s", "modules": ("mylib",), "over": False, **told}
    packed = subjects.pack(content, **given)
    place, _ = subjects.unpack(packed.plain(), str(folder))
    return {**packed.described(), "folder": str(place)}


def child(subject: dict[str, Any], code: str = "", path: tuple[Path, ...] = (), first: str = "") -> dict[str, Any]:
    """What a child on this path proves; it runs `first` before and `code` after, which may set `said`."""
    script = (
        f"import json,sys\n{first}\nfrom farm.child import subject_files\n"
        f"said=subject_files.place(json.loads(sys.argv[1]))\n{code}\nprint(json.dumps(said))"
    )
    places = [f"{subject['folder']}/overlay", *map(str, path), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(subject)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": ""},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def installed(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def test_a_child_proves_where_it_imports_the_subject_from(tmp_path: Path) -> None:
    subject = sent(tmp_path / "spool")
    elsewhere = installed(tmp_path / "site", {"mylib/__init__.py": "", "mylib/norm.py": "WHOSE = 'installed'\n"})
    said = child(
        subject, "import mylib.norm; subject_files.placed.check(); said['whose'] = mylib.norm.WHOSE", (elsewhere,)
    )
    assert (said["wrong"], said["missing"], said["digest"], said["whose"]) == ("", "", subject["digest"], "sent")
    assert said["modules"] == {"mylib": f"{subject['folder']}/overlay/mylib/__init__.py"}
    assert child(subject)["digest"] == subject["digest"]  # also once Python has kept its bytecode there


FINDER = """
import importlib.abc, importlib.util
class Editable(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "mylib":
            return importlib.util.spec_from_file_location(name, {file!r}, submodule_search_locations=[{folder!r}])
sys.meta_path.insert(0, Editable())
"""


@pytest.mark.parametrize("how", ["a finder of an editable install", "a path in front", "imported before"])
def test_an_overlay_that_did_not_take_effect_is_seen(how: str, tmp_path: Path) -> None:
    subject = sent(tmp_path / "spool")
    site = installed(tmp_path / "site", CODE)
    folder = str(site / "mylib")
    first = {
        "a finder of an editable install": FINDER.format(file=f"{folder}/__init__.py", folder=folder),
        "a path in front": f"sys.path.insert(0, {str(site)!r})",
        "imported before": f"sys.path.insert(0, {str(site)!r}); import mylib; del sys.path[0]",
    }[how]
    said = child(subject, first=first)
    assert f"{folder}/__init__.py" in said["wrong"] and said["digest"] == subject["digest"]


def test_a_module_that_python_does_not_find_and_files_that_changed_are_seen(tmp_path: Path) -> None:
    subject = sent(tmp_path / "spool", modules=("mylib", "other"))
    assert "does not find other" in child(subject)["wrong"]
    Path(subject["folder"], "overlay/mylib/norm.py").write_text("WHOSE = 'changed'\n")
    assert child(subject)["digest"] != subject["digest"]


def test_what_is_imported_from_elsewhere_later_is_seen_in_the_cell(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", {"more/late.py": ""})
    subject = sent(tmp_path / "spool", {"mylib/__init__.py": f"__path__.append({str(site / 'more')!r})\n"})
    code = (
        "import mylib.late\ntry:\n    subject_files.placed.check()\n"
        "except subject_files.NotTheSubject as error:\n    said['wrong'] = str(error)"
    )
    assert "mylib.late was imported from" in child(subject, code)["wrong"]


def test_python_of_the_revision_lies_over_what_is_installed(tmp_path: Path) -> None:
    old = {
        "__init__.py": "",
        "norm.py": "WHOSE = 'installed'\n",
        "only.py": "",
        "sub/deep.py": "",
        "sub/lib.so": "code",
    }
    site = installed(tmp_path / "site", {f"mylib/{name}": text for name, text in old.items()})
    new = {"mylib/__init__.py": "", "mylib/norm.py": "WHOSE = 'sent'\n", "mylib/sub/new.py": ""}
    subject = sent(tmp_path / "spool", new, over=True)
    code = (
        "import mylib.norm, mylib.sub.deep, mylib.sub.new, mylib.only\nfrom pathlib import Path\n"
        "subject_files.placed.check()\nsaid['whose'] = mylib.norm.WHOSE\n"
        "said['native'] = (Path(mylib.sub.new.__file__).parent / 'lib.so').read_text()"
    )
    for _ in range(2):  # the second child finds it merged
        said = child(subject, code, (site,))
        assert (said["wrong"], said["missing"], said["whose"], said["native"]) == ("", "", "sent", "code")
        assert said["digest"] == subject["digest"]


def test_an_overlay_over_what_is_not_installed_is_missing_and_not_wrong(tmp_path: Path) -> None:
    said = child(sent(tmp_path / "spool", over=True))
    assert "installed mylib" in said["missing"] and said["wrong"] == ""


BARE = {
    "pack/__init__.py": "import what_is_not_there\nNAME = 1\n",
    "pack/ops/__init__.py": "raise RuntimeError('no compiler')\n",
    "pack/ops/norm.py": "from pack.utils import scale\nfrom . import other\nWHOSE = scale\n",
    "pack/ops/other.py": "",
    "pack/utils.py": "scale = 2\n",
    "fine/__init__.py": "NAME = 1\n",
    "fine/inner.py": "",
}


def python(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"from farm.subject import bare\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_bare_loads_one_module_without_the_init_of_its_packages(tmp_path: Path) -> None:
    installed(tmp_path, BARE)
    assert "what_is_not_there" in python(tmp_path, "import pack.ops.norm")
    assert (
        python(tmp_path, "print(bare('pack.ops.norm').WHOSE, bare('pack.ops.norm') is bare('pack.ops.norm'))")
        == "2 True"
    )
    assert python(tmp_path, "import fine; bare('fine.inner'); print(fine.NAME, fine.inner.__name__)") == "1 fine.inner"
    assert python(tmp_path, "print(bare('json').__name__)") == "json"


def test_what_a_bare_package_lacks_says_why(tmp_path: Path) -> None:
    installed(tmp_path, BARE)
    assert "loaded bare" in python(tmp_path, "bare('pack.ops.norm'); import pack; pack.NAME")
    assert "there is no package 'pock'" in python(tmp_path, "bare('pock.ops')")
    assert "pack.nothing" in python(tmp_path, "bare('pack.nothing')")


def test_bare_needs_the_standard_library_alone(tmp_path: Path) -> None:
    code = (
        "import sys; print([m for m in ('torch', 'numpy', 'yaml') if m in sys.modules], 'farm.matrix' in sys.modules)"
    )
    assert python(tmp_path, code) == "[] False"
