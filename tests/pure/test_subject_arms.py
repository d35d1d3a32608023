"""What an arm holds: files of revisions, patches, wheels and our own kernels; hostile names and links."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from subject_repositories import committed, git, write

from farm.errors import FarmError
from farm.subject import arms
from farm.subject.arms import ArmContent

PATCH = """--- a/src/mylib/ops/shared.py
+++ b/src/mylib/ops/shared.py
@@ -1,5 +1,5 @@
 import torch
 
 def scaled(x, w, eps):
-    y = x.float()
+    y = x.double()
     y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
"""  # noqa: W293


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    return committed(write(tmp_path / "repo"))


def contents(a: str, b: str, repo: Path, subject: str = "") -> tuple[ArmContent, ArmContent]:
    return arms.contents(*arms.pair(a, b), repo=str(repo), subject=subject)


def refused(id: str, a: str, b: str, repo: Path, subject: str = "") -> str:
    with pytest.raises(FarmError) as caught:
        contents(a, b, repo, subject)
    assert caught.value.id == id and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_revision_beside_the_working_tree(repository: Path) -> None:
    a, b = contents("revision=HEAD", "revision=.", repository)
    assert a.digest == b.digest and not a.notes + b.notes
    (repository / "src/mylib/ops/norm.py").write_text("def norm(x, w, eps): ...\n")
    a, b = contents("revision=HEAD", "revision=.", repository)
    assert a.digest != b.digest and b.revision == f"{a.revision}+"
    assert b.sources()["overlay/mylib/ops/norm.py"] == "def norm(x, w, eps): ...\n"
    assert (repository / ".git/HEAD").read_text().startswith("ref:"), "nothing was checked out"


def test_a_patch_is_applied_to_a_copy(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "what_if.diff").write_text(PATCH)
    before = (repository / "src/mylib/ops/shared.py").read_text()
    for base in ("revision=HEAD", "revision=."):
        a, b = contents(base, f"patch={tmp_path}/what_if.diff", repository)
        assert "x.double()" in b.sources()["overlay/mylib/ops/shared.py"]
        assert a.digest != b.digest and b.revision == f"{a.revision}+what_if.diff"
    assert (repository / "src/mylib/ops/shared.py").read_text() == before


@pytest.mark.parametrize(
    ("diff", "id"),
    [
        ("not a diff", "arm-patch-fails"),
        (PATCH.replace("x.float", "y.float"), "arm-patch-fails"),
        (PATCH.replace("src/mylib/ops/shared.py", "../../../out.py"), "arm-patch-fails"),
        (
            "diff --git a/src/mylib/x.py b/src/mylib/x.py\nnew file mode 120000\n--- /dev/null\n"
            "+++ b/src/mylib/x.py\n@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n",
            "arm-patch-link",
        ),
    ],
)
def test_a_patch_that_cannot_be_is_refused(repository: Path, tmp_path: Path, diff: str, id: str) -> None:
    (tmp_path / "x.diff").write_text(diff)
    refused(id, "revision=HEAD", f"patch={tmp_path}/x.diff", repository)
    assert not (tmp_path / "out.py").exists()


def test_a_patch_that_is_not_there_is_refused(repository: Path, tmp_path: Path) -> None:
    refused("arm-patch-unreadable", "revision=HEAD", f"patch={tmp_path}/nowhere.diff", repository)


def test_hostile_and_unknown_revisions_are_refused(repository: Path) -> None:
    subprocess.run(["git", "update-ref", "refs/heads/--output=x", "HEAD"], cwd=repository, check=False)
    for name in ("nowhere", "HEAD:src", "refs/heads/--output=y"):
        assert name in refused("subject-repo-revision", f"revision={name}", "revision=HEAD", repository)
    assert not (repository / "x").exists()


def test_links_and_submodules_of_a_revision_are_told(repository: Path) -> None:
    (repository / "src/mylib/more.py").symlink_to("/etc/passwd")
    git(repository, "add", "-A")
    entry = f"160000,{git(repository, 'rev-parse', 'HEAD').strip()},src/mylib/deps"
    git(repository, "update-index", "--add", "--cacheinfo", entry)
    git(repository, "commit", "-qm", "links")
    a, b = contents("revision=HEAD~1", "revision=HEAD", repository)
    assert not a.notes and "mylib/deps (a submodule), src/mylib/more.py (a link)" in b.notes[0]
    assert a.digest == b.digest


def test_a_revision_has_what_its_commit_has(repository: Path) -> None:
    """Attributes of the commit itself would keep files from being measured that are merged."""
    plain = contents("revision=base", "revision=HEAD", repository)[1].sources()
    lines = ("*.py export-ignore", "*.py export-subst ident text eol=crlf filter=x", "src export-ignore")
    for line in lines:
        (repository / ".gitattributes").write_text(f"[attr]own -text\n{line}\n")
        (repository / "src" / ".gitattributes").write_text("* export-ignore\n")
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", line)
        assert contents("revision=base", "revision=HEAD", repository)[1].sources() == plain


def test_a_wheel_and_a_revision(repository: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "mylib-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mylib/__init__.py", "")
        archive.writestr("mylib-1.2.dist-info/METADATA", "Version: 1.2\n")
    a, b = contents("revision=HEAD", f"wheel={wheel}", repository)
    assert b.revision == "1.2" and a.digest != b.digest
    refused("subject-wheel-missing", "revision=HEAD", "wheel=nowhere.whl", repository)


def test_the_adapters_are_each_arms_own_and_arm_a_describes_both(repository: Path) -> None:
    (repository / "beside.py").write_text("def through(function, *rest):\n    return function(*rest)  # new\n")
    (repository / "farm.yaml").write_text(
        (repository / "farm.yaml").read_text().replace("liger:", "other:") + "tuning: {triton: each}\n"
    )
    git(repository, "commit", "-qam", "adapters")
    a, b = contents("revision=HEAD~1", "revision=HEAD,tuning=none", repository)
    assert (a.arm.tuning, b.arm.tuning) == ("", "none")  # arm a says nothing, and so does its farm.yaml
    assert contents("revision=HEAD", "revision=HEAD~1", repository)[1].arm.tuning == "each"
    assert "# new" in b.sources()["adapters/beside.py"] and "# new" not in a.sources()["adapters/beside.py"]
    assert any("adapters differ (adapters/beside.py)" in note for note in b.notes)
    assert any("that of arm a counts" in note for note in b.notes)
    assert a.subject and b.subject and set(a.subject.providers) == set(b.subject.providers) == {"liger"}


def test_a_revision_changes_nothing_of_a_release(repository: Path) -> None:
    text = (repository / "farm.yaml").read_text()
    (repository / "farm.yaml").write_text(text.replace("overlay: {path: src, modules: [mylib]}", "release: mylib==1.2"))
    git(repository, "commit", "-qam", "release")
    refused("arm-revision-of-release", "revision=HEAD", "revision=.", repository)


def test_our_own_kernels_need_no_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    repo = tmp_path / "own"
    (repo / "kernels").mkdir(parents=True)
    (repo / "kernels/__init__.py").write_text("")
    (repo / "kernels/launches.py").write_text("")
    committed(repo)
    (repo / "kernels/launches.py").write_text("X = 1\n")
    a, b = contents("revision=HEAD", "revision=.", repo)
    assert a.kernels and b.kernels and a.digest != b.digest
    assert b.sources() == {"kernels/__init__.py": "", "kernels/launches.py": "X = 1\n"}
    refused("subject-none-for-option", "version=k==1", "revision=HEAD", repo)
    (repo / "kernels/launches.py").unlink()
    git(repo, "commit", "-qam", "gone")
    refused("arm-without-file", "revision=HEAD~1", "revision=HEAD", repo)
