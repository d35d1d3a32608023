"""A sandbox's command line, what it shows of a host, its limits, and what a child's outputs go through."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.actor import sandboxed
from farm.child import confinement, protocol
from farm.cli import failed, resume, run_command
from farm.cli.main import main, parser
from farm.errors import UsageError
from farm.node import config, sandbox, sandbox_host
from farm.node.environment import Environment
from farm.node.sandbox import Limits, Visible
from farm.process import cgroup
from farm.process.line_process import ChildLied

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory=8 << 30, processes=100, files=1 << 30, tmp=64 << 20)
PROTECTED = ("/home/me", "/home/me/.cache/farm", "/tmp", "/etc", "/root")


def after(words: list[str], first: str) -> list[list[str]]:
    """The two words that follow each `first`."""
    return [words[i + 1 : i + 3] for i, word in enumerate(words) if word == first]


def test_nothing_is_shared_that_is_not_listed() -> None:
    seen = Visible(
        ("/usr", "/opt/py"),
        ("/spool/child-1",),
        ("/dev/nvidia0",),
        {"/bin": "usr/bin"},
        ("/proc/sys",),
        ("/proc/keys",),
    )
    words = sandbox.words("/usr/bin/bwrap", seen, LIMITS, ["python", "-c", "x"])
    for namespace in ("user", "pid", "net", "ipc", "uts"):
        assert f"--unshare-{namespace}" in words
    assert {"--disable-userns", "--die-with-parent"} <= set(words) and "--share-net" not in words
    assert after(words, "--cap-drop")[0][0] == "ALL"
    assert after(words, "--ro-bind") == [
        *(["/proc/sys"] * 2, ["/dev/null", "/proc/keys"], ["/opt/py"] * 2, ["/usr"] * 2)
    ]
    assert after(words, "--bind") == [["/spool/child-1"] * 2]
    assert after(words, "--dev-bind") == [["/dev/nvidia0"] * 2]
    assert [pair[0] for pair in after(words, "--size")] == [str(LIMITS.tmp)] * 2
    assert [pair[0] for pair in after(words, "--remount-ro")] == ["/dev", "/"]
    assert words[-4:] == ["--", "python", "-c", "x"]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (["/usr", "/usr/lib", "/opt/x/", "/opt/x/../y"], ("/opt/x", "/opt/y", "/usr")),
        (["/", "//", "relative", ""], ()),
        (["/home", "/home/me", "/home/me/.cache", "/tmp", "/etc"], ()),  # each is, or holds, what is protected
        (["/home/me/venv", "/etc/ld.so.cache", "/tmp/venv"], ("/etc/ld.so.cache", "/home/me/venv", "/tmp/venv")),
        (["/lib/x86_64-linux-gnu", "/library"], ("/library",)),  # the first is behind a link of the root
    ],
)
def test_what_may_be_seen(asked: list[str], kept: tuple[str, ...]) -> None:
    assert sandbox.readable(asked, PROTECTED, ["/lib"]) == kept


def test_variables_lead_to_no_place_of_the_host() -> None:
    given = {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "TRITON_CACHE_DIR": "/c",
        "FARM_CACHE": "/f",
        "CUDA_HOME": "/usr/c",
    }
    found = sandbox.variables(given, LIMITS, grouped=False)
    assert (found["PATH"], found["HOME"], found["CUDA_HOME"]) == ("/usr/bin", "/tmp/home", "/usr/c")
    assert "TRITON_CACHE_DIR" not in found and "FARM_CACHE" not in found
    assert json.loads(found["FARM_LIMITS"])["NPROC"] == 100
    assert "NPROC" not in json.loads(sandbox.variables(given, LIMITS, grouped=True)["FARM_LIMITS"])


def test_limits_have_defaults_by_the_hosts_memory() -> None:
    assert Limits.of({}, 100 << 30) == Limits(80 << 30, 4096, 16 << 30, 4 << 30)
    assert Limits.of({"memory_gib": 2, "processes": 9, "files_gib": 0.5, "tmp_gib": 1}, 100 << 30) == Limits(
        2 << 30, 9, 1 << 29, 1 << 30
    )


@pytest.mark.parametrize(("fork", "told", "wanted"), [(True, False, True), (True, True, False), (False, False, False)])
def test_strangers_code_needs_one(fork: bool, told: bool, wanted: bool) -> None:
    assert sandbox.required(fork, told) is wanted


def test_a_child_sets_its_limits_for_good() -> None:
    text = (
        "import json, resource, sys; sys.path.insert(0, sys.argv[1]); from farm.child import confinement as c\n"
        "c.limit(json.dumps({'NOFILE': 64, 'CORE': 1})); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    words = [sys.executable, "-I", "-c", text, str(ROOT)]
    assert subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout == "(64, 64)\n"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    confinement.limit("")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


# the host


def test_every_link_of_an_interpreter_is_seen_and_no_home_folder(tmp_path: Path) -> None:
    real, venv = tmp_path / "real", tmp_path / "venv"
    for folder in (real / "bin", venv / "bin"):
        folder.mkdir(parents=True)
    (real / "bin" / "python3").write_text("#!/bin/sh\n")
    (real / "bin" / "python3").chmod(0o755)
    (venv / "bin" / "python").symlink_to("../../real/bin/python3")
    (venv / "pyvenv.cfg").write_text("home = /opt/base/bin\n")
    word = f'source /x/set_env.sh && exec {venv}/bin/python "$@"'
    assert set(sandbox_host._prefixes(word)) == {str(venv), str(real), "/opt/base"}
    seen = sandbox_host.visible(Environment(path=(str(Path.home()), str(real))), [word], "cpu", ("/in",), ["/out"])
    assert {str(venv), str(real), "/in"} <= set(seen.read) and str(Path.home()) not in seen.read
    assert (seen.write, seen.devices) == (("/out",), ())
    assert not any(p in seen.read for p in ("/", "/etc", "/home", "/root", "/tmp", "/var", "/run"))


def test_the_supervisors_import_path_goes_without_its_checkout() -> None:
    packages = f"{sys.prefix}/lib/python3/site-packages"
    path = (str(ROOT), packages, "/elsewhere/site-packages", "/elsewhere/src")
    assert sandbox_host.own_path(path) == (packages, "/elsewhere/site-packages")


def bwrap(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A stand-in on PATH."""
    (folder / "bwrap").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_why_there_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in sandbox_host.refusal()
    bwrap(tmp_path, monkeypatch, "echo bubblewrap 0.6.1")
    assert "0.6.1; install bubblewrap 0.8 or newer" in sandbox_host.refusal()
    bwrap(
        tmp_path, monkeypatch, '[ "$1" = --version ] && echo bubblewrap 0.9.0 || { echo "No permissions" >&2; exit 1; }'
    )
    assert "forbids user namespaces (No permissions)" in sandbox_host.refusal()
    bwrap(tmp_path, monkeypatch, "echo bubblewrap 0.9.0")
    assert sandbox_host.refusal() == ""
    assert "wrapped" in sandbox_host.unfit(Environment(command=("docker", "{child}"), wrapped=True))


@pytest.mark.parametrize("words", [["--sandbox"], []])
def test_a_run_that_needs_one_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    node = {"environments": {"default": {"python": sys.executable, "sandbox": not words}}}
    (tmp_path / "node.yaml").write_text(json.dumps(node))
    (tmp_path / "m.yaml").write_text(
        '{"name": "m", "op": "rms_norm", "providers": ["torch"], "axes": {"shape": [{"rows": 2, "hidden": 64}]}}'
    )
    monkeypatch.setenv("FARM_NODE", str(tmp_path / "node.yaml"))
    monkeypatch.setattr(sandbox_host, "refusal", lambda: "bubblewrap (bwrap) is not installed")
    options = ["--backend", "sim", "--address", "inline", "--out", str(tmp_path / "store"), *words]
    assert main(["run", str(tmp_path / "m.yaml"), *options]) == 2
    said = capsys.readouterr().err
    assert "no sandbox can be made here: bubblewrap (bwrap) is not installed" in said and "Traceback" not in said
    assert not list((tmp_path / "store").glob("runs/*"))


def test_what_repeats_a_run_asks_for_it_too() -> None:
    first = parser("run").parse_args(["run", "m.yaml", "--sandbox"])
    assert run_command.environment(first).sandbox == {}
    assert "--sandbox" in failed.words(first)
    again = parser("resume").parse_args(["resume", "last"])
    resume._as_begun(again, ["run", "m.yaml", "--sandbox"])
    assert again.sandbox is True
    without = parser("run").parse_args(["run", "m.yaml"])
    assert run_command.environment(without).sandbox is None and "--sandbox" not in failed.words(without)


@pytest.mark.parametrize(
    ("value", "found"),
    [("true", {}), ("false", None), ("{memory_gib: 4, processes: 64}", {"memory_gib": 4.0, "processes": 64})],
)
def test_a_node_asks_for_one(tmp_path: Path, value: str, found: dict[str, float] | None) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(f"environments: {{default: {{python: {sys.executable}, sandbox: {value}}}}}\n")
    environment = config.read(file).environments["default"]
    assert environment.sandbox == found
    assert Environment.of(json.loads(json.dumps(environment.plain()))) == environment


@pytest.mark.parametrize(
    ("value", "id_"),
    [
        ("sandbox: 3", "value"),
        ("sandbox: {memory: 3}", "key"),
        ("sandbox: {processes: 0}", "value"),
        ("sandbox: {memory_gib: -1}", "value"),
        ("sandbox: true, wrapped: true", "sandbox-wrapped"),
    ],
)
def test_what_a_node_cannot_ask_for(tmp_path: Path, value: str, id_: str) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(f"environments: {{default: {{python: {sys.executable}, {value}}}}}\n")
    with pytest.raises(UsageError) as refused:
        config.read(file)
    assert refused.value.id == f"node-config-{id_}"


@pytest.mark.skipif(bool(sandbox_host.refusal()), reason="no sandbox can be made here")
def test_a_command_runs_once_in_one(tmp_path: Path) -> None:
    """In a folder of the host that it can read, beside one that it can write and one that is not there."""
    for name in ("read", "write", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    text = f"cat file; touch new; cat {tmp_path}/hidden/file; echo > {tmp_path}/write/new"
    read, write = str(tmp_path / "read"), str(tmp_path / "write")
    words = sandbox_host.words(Environment(), ["/bin/sh", "-c", text], [write], [read], cwd=read)
    assert subprocess.run(words, capture_output=True, text=True, check=False, timeout=30).stdout == "read"
    assert (tmp_path / "write" / "new").exists() and not (tmp_path / "read" / "new").exists()


# control groups


def groups(folder: Path, own: str) -> dict[str, Any]:
    (folder / "own").write_text(own)
    return {"root": folder / "cgroup", "own": folder / "own"}


def test_a_group_is_made_where_the_controllers_are_handed_down(tmp_path: Path) -> None:
    where = groups(tmp_path, "0::/slice/unit\n")
    for name, handed in (("", "cpu memory pids"), ("slice", "memory pids"), ("slice/unit", "memory pids")):
        place = tmp_path / "cgroup" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.subtree_control").write_text(handed)
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("memory pids")
    found = cgroup.make("x", 1 << 30, 99, **where)
    (folder,) = found.folders
    assert folder == tmp_path / "cgroup" / "slice" / "farm-child-x"  # beside the own one, which has processes
    assert found.counts == {"memory", "processes"}
    assert {f.name: f.read_text() for f in folder.iterdir()} == {"pids.max": "99", "memory.max": str(1 << 30)}


def test_without_a_group_there_is_none(tmp_path: Path) -> None:
    where = groups(tmp_path, "0::/\n3:cpu:/\n")
    assert cgroup.make("x", 1, 1, **where) == cgroup.Group()
    assert cgroup.Group().words(["a", "b"]) == ["a", "b"]
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("memory")
    (tmp_path / "cgroup" / "cgroup.subtree_control").write_text("memory")
    assert cgroup.make("x", 1, 1, **where) == cgroup.Group()


def test_version_1_limits_processes(tmp_path: Path) -> None:
    where = groups(tmp_path, "8:pids:/me\n0::/\n")
    (tmp_path / "cgroup" / "pids" / "me").mkdir(parents=True)
    found = cgroup.make("x", 1, 7, **where)
    assert found.folders == (tmp_path / "cgroup" / "pids" / "me" / "farm-child-x",) and found.counts == {"processes"}


def test_a_command_joins_its_groups_first(tmp_path: Path) -> None:
    group = cgroup.Group((tmp_path,))
    done = subprocess.run(group.words(["echo", "a b"]), capture_output=True, text=True, check=True, timeout=30)
    assert (done.stdout, (tmp_path / "cgroup.procs").read_text()) == ("a b\n", "0\n")
    lost = cgroup.Group((tmp_path / "nowhere",)).words(["echo"])
    assert subprocess.run(lost, capture_output=True, check=False, timeout=30).returncode == 125


# a child's folder


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sandboxed.Sandbox:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(cgroup, "make", lambda *_: cgroup.Group())
    (tmp_path / "tmp").mkdir()
    (tmp_path / "spool").mkdir()
    return sandboxed.Sandbox(Environment(sandbox={"files_gib": 0.001}), "cpu", str(tmp_path / "spool"))


def reply(folder: str) -> protocol.Measured:
    outputs = [{"name": "y", "path": f"{folder}/out-y.bin", "shape": [1], "dtype": "int8"}]
    facts = {"others": [{"where": "again", "outputs": outputs}]}
    return protocol.Measured("r", 0, 1, outputs, facts, {"timed_outputs": outputs})


def test_what_a_cell_wrote_leaves_the_childs_reach(box: sandboxed.Sandbox, tmp_path: Path) -> None:
    out_dir = tmp_path / "spool" / "out-1"
    out_dir.mkdir()
    inner = box.place(str(out_dir))
    assert Path(inner).parent == box.folder
    Path(inner, "out-y.bin").write_bytes(b"1")
    found = box.taken(reply(inner), str(out_dir))
    paths = [found.outputs, found.timing["timed_outputs"], found.facts["others"][0]["outputs"]]
    assert {o["path"] for (o,) in paths} == {f"{out_dir}/out-y.bin"}
    assert (out_dir / "out-y.bin").read_bytes() == b"1" and not list(box.folder.iterdir())
    (box.folder / "left").mkdir()
    (box.folder / "link").symlink_to("/etc")
    again = box.place(str(tmp_path / "spool" / "out-2"))
    assert [str(p) for p in box.folder.iterdir()] == [again]  # nothing of an earlier cell
    box.close()
    assert not box.folder.exists() and not box.there and Path("/etc").is_dir()


def test_a_folder_that_was_exchanged_is_a_lie(box: sandboxed.Sandbox, tmp_path: Path) -> None:
    other = tmp_path / "spool" / "out-other"
    other.mkdir()
    for put in (lambda p: p.symlink_to(other), lambda p: None):
        out_dir = tmp_path / "spool" / "out-1"
        out_dir.mkdir()
        inner = Path(box.place(str(out_dir)))
        inner.rmdir()
        put(inner)
        with pytest.raises(ChildLied, match="exchanged the folder"):
            box.taken(reply(str(inner)), str(out_dir))
        assert not out_dir.exists() and other.is_dir()


def test_too_much_is_seen(box: sandboxed.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert box.overfull(0) == ""
    assert "printed more than" in box.overfull(2 << 20)
    (box.folder / "a").mkdir()
    (box.folder / "a" / "big").write_bytes(os.urandom(2 << 20))
    assert "wrote more than" in box.overfull(0)
    (box.folder / "a" / "big").unlink()
    monkeypatch.setattr(sandboxed, "MOST_FILES", 10)
    for i in range(10):
        (box.folder / "a" / str(i)).touch()
    assert "made more than" in box.overfull(0)
