"""What a subject's children get: from a working tree, a revision, a URL, a wheel, a build; and with which adapters."""

from __future__ import annotations

import argparse
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from subject_repositories import SUBJECT, committed, git, write

from farm.errors import FarmError
from farm.matrix.expand import cells
from farm.matrix.load import load_all
from farm.node import sandbox_host
from farm.shipping import subjects
from farm.subject import command_line, wheels
from farm.subject.command_line import LoadedSubject


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**dict.fromkeys(command_line.OPTIONS), "sandbox": False, **given})


def load(**given: Any) -> LoadedSubject:
    found = command_line.load(options(**given))
    assert found is not None
    return found


def names(found: LoadedSubject) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(found.packed.blob)) as tar:
        return set(tar.getnames())


def refused(id: str, **given: Any) -> str:
    with pytest.raises(FarmError) as caught:
        command_line.load(options(**given))
    assert caught.value.id == id and caught.value.exit_code == 2 and "\n" not in str(caught.value), str(caught.value)
    return str(caught.value)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write(tmp_path / "repo")


def test_the_modules_the_adapters_and_their_neighbours_are_sent_and_nothing_else(repository: Path) -> None:
    (repository / "src/mylib/__pycache__").mkdir()
    (repository / "src/mylib/__pycache__/x.pyc").write_bytes(b"x")
    own = {f"overlay/mylib/{n}" for n in ("__init__.py", "ops/__init__.py", "ops/norm.py", "ops/shared.py")}
    assert names(load(repo=str(repository))) == own | {"adapters/my_adapters.py", "adapters/beside.py"}


def test_the_digest_is_of_content_alone_and_of_all_of_it(tmp_path: Path, repository: Path) -> None:
    first, again = load(repo=str(repository)).packed, load(repo=str(write(tmp_path / "other"))).packed
    assert (first.digest, first.sha) == (again.digest, again.sha)
    seen = {first.digest}
    for name in ("src/mylib/ops/norm.py", "my_adapters.py", "beside.py"):
        (repository / name).write_text((repository / name).read_text() + "# more\n")
        seen.add(load(repo=str(repository)).packed.digest)
    assert len(seen) == 4
    (repository / "not_asked_for.py").write_text("more = 1\n")
    assert load(repo=str(repository)).packed.digest in seen


def test_what_travels_is_what_is_unpacked(tmp_path: Path, repository: Path) -> None:
    folder, path = subjects.unpack(load(repo=str(repository)).packed.plain(), str(tmp_path / "spool"))
    assert path == (str(folder / "overlay"), str(folder / "adapters"))
    assert (folder / "adapters/beside.py").read_text() == (repository / "beside.py").read_text()


def test_a_link_out_of_the_overlay_is_refused(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "secret.py").write_text("x = 1\n")
    (repository / "src/mylib/secret.py").symlink_to(tmp_path / "secret.py")
    assert "secret.py" in refused("subject-overlay-link", repo=str(repository))


def test_the_revision_is_the_commit_and_says_that_there_are_changes(repository: Path) -> None:
    assert load(repo=str(repository)).packed.revision == ""
    committed(repository)
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert load(repo=str(repository)).packed.revision == commit
    (repository / "src/mylib/ops/norm.py").write_text("def norm(x, w, eps): ...\n")
    assert load(repo=str(repository)).packed.revision == f"{commit}+"


def test_a_revision_is_read_as_it_was_committed(repository: Path) -> None:
    before = load(repo=str(committed(repository))).packed
    (repository / "src/mylib/ops/norm.py").write_text("def norm(x, w, eps): ...\n")
    git(repository, "commit", "-qam", "second")
    assert load(repo=str(repository)).packed.digest != before.digest
    told = load(repo=f"{repository}@HEAD~1").packed
    assert (told.digest, told.revision, told.source) == (before.digest, before.revision, f"{repository}@HEAD~1")
    assert '"nowhere"' in refused("subject-repo-revision", repo=f"{repository}@nowhere")
    refused("subject-repo-revision", repo=f"{repository}@--output=x")


def test_a_url_is_fetched_once_and_brought_up_to_date(repository: Path) -> None:
    url = f"file://{committed(repository)}"
    git(repository, "tag", "v1")
    commit = git(repository, "rev-parse", "HEAD")
    first = load(repo=url).packed
    assert first.revision == commit[:12]
    (repository / "beside.py").write_text("def through(function, *rest):\n    return function(*rest)  # new\n")
    git(repository, "commit", "-qam", "second")
    assert load(repo=f"{url}@base").packed.digest != first.digest
    for name in ("v1", commit, commit[:10]):
        assert load(repo=f"{url}@{name}").packed.digest == first.digest
    refused("subject-repo-revision", repo=f"{url}@v2")


def test_what_no_repository_is_says_so(tmp_path: Path, repository: Path) -> None:
    refused("subject-repo-missing", repo=str(tmp_path / "nowhere"))
    refused("subject-repo-fetch", repo=f"file://{tmp_path}/nowhere@base")
    refused("subject-repo-fetch", repo="ext::sh -c touch% x://a".replace("ext::", "ext://"))
    (repository / "farm.yaml").unlink()
    (repository / "farm.yml").write_text(SUBJECT)
    assert '"farm.yml"' in refused("subject-repo-without-file", repo=str(repository))


def test_the_operators_own_file_describes_a_repository_that_has_none(tmp_path: Path, repository: Path) -> None:
    kept = write(tmp_path / "kept")
    for name in ("farm.yaml", "my_adapters.py", "beside.py"):
        (repository / name).unlink()
    found = load(repo=str(committed(repository)), subject=str(kept / "farm.yaml"))
    assert found.packed.revision and "adapters/beside.py" in names(found)


def test_the_working_folders_repository_is_found_unless_nobody_wants_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "src")
    assert command_line.load(options()) is None  # no repository: somebody's folder that happens to hold a farm.yaml
    committed(repository)
    found = command_line.load(options())
    assert found and found.packed.name == "mylib"
    assert command_line.load(options(subject="none")) is None
    (repository / "farm.yaml").write_text("cattle: 3\n")  # of some other program
    assert refused("subject-unknown-key").endswith("to run without it: --subject none")
    (repository / "farm.yaml").write_text(SUBJECT)
    refused("subject-none-and-repo", subject="none", repo=".")
    refused("subject-none-for-option", subject="none", release="a==1")


# wheels and releases


def wheel(folder: Path, files: dict[str, str] | None = None) -> Path:
    place = folder / "mylib-2.5-py3-none-any.whl"
    folder.mkdir(exist_ok=True)
    told = {
        "mylib/__init__.py": "",
        "mylib/ops/norm.py": "def norm(x, w, eps): ...\n",
        "mylib-2.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: mylib\nVersion: 2.5\n",
        "mylib-2.5.data/purelib/mylib/data.py": "",
        "mylib-2.5.data/scripts/run": "",
    }
    with zipfile.ZipFile(place, "w") as archive:
        for name, text in (files if files is not None else told).items():
            archive.writestr(name, text)
    return place


def test_a_wheel_is_what_an_installation_would_import(tmp_path: Path, repository: Path) -> None:
    found = load(repo=str(repository), wheel=wheel(tmp_path))
    own = {"mylib/__init__.py", "mylib/ops/norm.py", "mylib/data.py", "mylib-2.5.dist-info/METADATA"}
    assert {n for n in names(found) if n.startswith("overlay/")} == {f"overlay/{n}" for n in own}
    assert (found.packed.revision, found.packed.modules) == ("2.5", ("mylib",))


def test_a_wheel_that_is_none_says_so(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "a.whl").write_text("no archive")
    refused("subject-wheel", repo=str(repository), wheel=tmp_path / "a.whl")
    refused("subject-wheel-missing", repo=str(repository), wheel=tmp_path / "b.whl")
    refused("subject-wheel-empty", repo=str(repository), wheel=wheel(tmp_path, {"README": ""}))
    other = wheel(tmp_path, {"other/__init__.py": ""})
    assert "other" in refused("subject-wheel-module", repo=str(repository), wheel=other)
    refused("subject-wheel", repo=str(repository), wheel=wheel(tmp_path, {"mylib/../../x.py": ""}))
    refused("subject-two-options", repo=str(repository), wheel=other, release="a==1")
    refused("subject-release", repo=str(repository), release="a")


class Pip:
    """Stands for pip: gives the wheel, or fails."""

    def __init__(self, given: Path | None):
        self.given, self.calls = given, 0

    def __call__(self, words: list[str], seconds: float) -> Any:
        self.calls += 1
        if self.given:
            Path(words[words.index("-d") + 1], self.given.name).write_bytes(self.given.read_bytes())
        said = "" if self.given else "ERROR: No matching distribution found for mylib==2.5\n"
        return argparse.Namespace(code=0 if self.given else 1, out="", err=said)


def test_a_release_is_downloaded_once_and_kept_by_its_hash(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip(wheel(tmp_path / "index"))
    monkeypatch.setattr(wheels.command, "run", pip)
    (repository / "farm.yaml").write_text(
        SUBJECT.replace("overlay: {path: src, modules: [mylib]}", "release: mylib==2.5")
    )
    first, again = load(repo=str(repository)).packed, load(repo=str(repository)).packed
    assert first == again and pip.calls == 1 and first.source == "mylib==2.5"
    (kept,) = (tmp_path / "cache/subjects/wheels").glob("*/*.whl")
    kept.write_bytes(b"damaged")
    kept.unlink()
    kept.parent.rmdir()
    assert load(repo=str(repository)).packed == first and pip.calls == 2
    pip.given = None
    assert "No matching distribution" in refused("subject-release-download", repo=str(repository), release="mylib==2.6")


# builds

BUILD = SUBJECT.replace(
    "overlay: {path: src, modules: [mylib]}",
    'build: {command: "cp -r src out && echo x >> $COUNT", inputs: [src], gives: out, minutes: 1}',
)


def test_a_build_runs_once_for_each_content_of_its_inputs(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    monkeypatch.setenv("COUNT", str(count))
    (repository / "farm.yaml").write_text(BUILD)
    first = load(repo=str(repository))
    (repository / "beside.py").write_text("def through(function, *rest):\n    return function(*rest)  # changed\n")
    load(repo=str(repository))
    assert count.read_text() == "x\n" and "overlay/mylib/ops/norm.py" in names(first)
    assert not (repository / "out").exists()
    (repository / "src/mylib/ops/norm.py").write_text("def norm(x, w, eps): ...\n")
    assert load(repo=str(repository)).packed.digest != first.packed.digest
    assert count.read_text() == "x\nx\n"


def test_the_revisions_python_lies_over_what_was_built(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNT", "/dev/null")
    text = BUILD.replace("inputs: [src]", "inputs: [beside.py]") + "overlay: {path: src, modules: [mylib]}\n"
    (repository / "farm.yaml").write_text(text)
    first = load(repo=str(repository)).packed
    (repository / "src/mylib/ops/norm.py").write_text("def norm(x, w, eps): ...\n")  # no input of the build
    assert load(repo=str(repository)).packed.digest != first.digest


@pytest.mark.parametrize(
    ("old", "new", "id", "fact"),
    [
        ("cp -r", "echo no compiler >&2; false; #", "subject-build-failed", "no compiler"),
        ("gives: out", 'gives: "dist/*.whl"', "subject-build-gives", "nothing matches"),
        ("inputs: [src]", "inputs: [csrc]", "subject-build-input", "csrc"),
        ("cp -r src out", "sleep 30", "subject-build-failed", "minutes"),
    ],
)
def test_a_build_that_gives_nothing_says_why(
    repository: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, id: str, fact: str
) -> None:
    monkeypatch.setenv("COUNT", "/dev/null")
    (repository / "farm.yaml").write_text(BUILD.replace(old, new).replace("minutes: 1", "minutes: 0.01"))
    assert fact in refused(id, repo=str(repository))


# modes that are asked for


def entry(text: str) -> str:
    return SUBJECT.replace('{call: "my_adapters:rms_norm"}', text)


def test_a_backend_may_have_other_modes(repository: Path) -> None:
    there = "\n    backends: {cuda: {ops: {rms_norm: {modes: [fast, slow]}}}}"
    text = entry('{call: "my_adapters:with_modes", modes: [auto, fast]}')
    (repository / "farm.yaml").write_text(text.replace("\nmatrices:", there + "\nmatrices:"))
    matrix = repository / "bench/norm.yaml"
    shape = "axes: {shape: [{rows: 1, hidden: 8}]%s}\n"
    planned = {}
    for asked in ("", ", mode: [auto, fast, slow]"):
        matrix.write_text("name: n\nop: rms_norm\nproviders: [liger]\n" + shape % asked)
        (found,) = load_all(matrix, subject=load(repo=str(repository)).providers)
        for backend in ("cpu", "cuda"):
            planned[asked != "", backend] = [c.mode for c in cells(found, [backend]) if c.operation == "forward"]
    assert planned == {
        (False, "cpu"): ["auto"],
        (False, "cuda"): ["fast"],
        (True, "cpu"): ["auto", "fast"],
        (True, "cuda"): ["fast", "slow"],
    }


def test_modes_are_asked_in_a_child_with_the_subjects_files(repository: Path) -> None:
    call = '{call: "my_adapters:with_modes", modes: "my_adapters:%s"}'
    (repository / "farm.yaml").write_text(entry(call % "modes"))
    found = load(repo=str(repository))
    assert found.providers["liger"].of("rms_norm").modes == ("auto", "fast")
    assert found.calls["rms_norm:liger"]["path"] == "my_adapters:with_modes"
    (repository / "farm.yaml").write_text(entry(call % "no_modes"))
    assert "RuntimeError: no compiler" in refused("subject-modes-asked", repo=str(repository))


def test_nothing_of_a_repository_runs_outside_of_the_sandbox(repository: Path, tmp_path: Path) -> None:
    (repository / "farm.yaml").write_text(BUILD.replace("$COUNT", str(tmp_path / "ran")))
    assert "build.command would run outside" in refused("subject-sandbox-build", repo=str(repository), sandbox=True)
    assert not (tmp_path / "ran").exists()
    (repository / "contracts").mkdir()
    text = SUBJECT + "contracts: [contracts]\n"
    (repository / "farm.yaml").write_text(text)
    assert "decide what is right" in refused("subject-sandbox-contracts", repo=str(repository), sandbox=True)
    own = write(tmp_path / "operators", farm_yaml=text) / "farm.yaml"
    (repository / "contracts").rename(tmp_path / "operators" / "contracts")
    assert load(repo=str(repository), subject=str(own), sandbox=True).subject.contracts


@pytest.mark.skipif(bool(sandbox_host.refusal()), reason="no sandbox can be made here")
def test_modes_are_asked_in_the_sandbox(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function tries to leave a file, and to read one."""
    monkeypatch.setenv("FARM_SECRET", str(tmp_path / "secret"))
    (tmp_path / "secret").write_text("it")
    adapters = repository / "my_adapters.py"
    tries = (
        "import os\n\ndef asked():\n"
        f"    there = os.path.exists({str(tmp_path / 'secret')!r}) or 'FARM_SECRET' in os.environ\n"
        f"    try:\n        open({str(repository / 'ran')!r}, 'w')\n        there = True\n"
        "    except OSError:\n        pass\n"
        "    return ['reached' if there else 'nothing']\n"
    )
    adapters.write_text(adapters.read_text() + "\n\n" + tries)
    (repository / "farm.yaml").write_text(entry('{call: "my_adapters:with_modes", modes: "my_adapters:asked"}'))
    modes = [
        load(repo=str(repository), sandbox=boxed).providers["liger"].of("rms_norm").modes for boxed in (True, False)
    ]
    assert modes == [("nothing",), ("reached",)]
