"""Where Ray keeps its sessions, and how it gets its token: in folders and files that only this user can use."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cluster import address as addresses
from farm.cluster import ray_cluster, ray_folder, ray_token
from farm.errors import InfraError, UsageError
from farm.store import spool


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, "/tmp"),
        ({"TMPDIR": "/scratch"}, "/scratch"),
        ({"TMPDIR": "/scratch", "RAY_TMPDIR": "/r"}, "/r"),
        ({"TMPDIR": "/" + "t" * ray_folder.LONGEST_BASE}, "/tmp"),  # pytest's, for example
    ],
)
def test_the_base(environ: dict[str, str], found: str) -> None:
    assert ray_folder.base(environ) == Path(found)


def test_every_path_that_ray_makes_fits_a_socket() -> None:
    longest = {"RAY_TMPDIR": "/" + "t" * (ray_folder.LONGEST_BASE - 1)}
    name = "session_2026-11-23_01-54-44_784653_4194304/sockets/plasma_store"
    for made in (
        Path(spool.folder("abcdef", ray_folder.base(longest))) / "r" / name,
        ray_folder.of_node(longest) / "ray" / name,
    ):
        assert len(os.fsencode(made)) <= 107, made
    with pytest.raises(UsageError) as refused:
        ray_folder.base({"RAY_TMPDIR": longest["RAY_TMPDIR"] + "t"})
    assert refused.value.id == "ray-folder-long"


def test_a_runs_folder_is_closed_claimed_and_swept_when_its_process_is_dead(tmp_path: Path) -> None:
    made = Path(spool.folder("abcdef", tmp_path))
    code = f"from farm.store import spool; spool.claim({str(made)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])
    assert mode(made) == 0o700
    mine = Path(spool.folder("fedcba", tmp_path))
    spool.claim(str(mine))
    assert spool.sweep(tmp_path) == [str(made)] and mine.is_dir()


def test_a_folder_that_others_can_use_is_refused_or_closed(tmp_path: Path) -> None:
    assert mode(ray_folder.opened(tmp_path / "a" / "b")) == 0o700
    assert ray_folder.opened(tmp_path / "a" / "b").is_dir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").write_text("")
    for name in ("open", "link", "file"):
        with pytest.raises(InfraError) as refused:
            ray_folder.opened(tmp_path / name)
        assert refused.value.id in ("ray-folder-not-private", "ray-folder-failed")
    spool.claim(str(tmp_path / "open"))
    assert mode(tmp_path / "open") == 0o700
    with pytest.raises((InfraError, FileExistsError)):
        spool.claim(str(tmp_path / "link"))


def test_sessions_are_dead_where_nothing_names_them() -> None:
    chance = random.Random(7)
    for _ in range(100):
        names = [f"session_2026-11-23_{i:02}-00-00_000000_{chance.randint(1, 9999)}" for i in range(8)]
        ages = {n: 10_000.0 - chance.choice([10.0, 3599.0, 3601.0, 9000.0]) for n in names}
        named = set(chance.sample(names, 3))
        running = [f"raylet --session_dir=/tmp/farm-0/ray/{n} --x" for n in named] + ["bash"]
        gone = ray_folder.dead(ages, running, 10_000.0)
        assert gone == sorted(n for n in names if n not in named and 10_000.0 - ages[n] > 3600)


def test_the_sweep_removes_sessions_and_a_link_to_none_and_nothing_else(tmp_path: Path) -> None:
    old, young, other = (tmp_path / n for n in ("session_1", "session_2", "ray_current_cluster"))
    (old / "logs").mkdir(parents=True)
    young.mkdir()
    other.write_text("127.0.0.1:6379")
    os.utime(old, (1, 1))
    (tmp_path / "session_latest").symlink_to(old)
    (tmp_path / "session_elsewhere").symlink_to(young)
    assert ray_folder.sweep(tmp_path) == ["session_1"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ray_current_cluster", "session_2", "session_elsewhere"]
    assert ray_folder.sweep(tmp_path / "none") == []


def test_auto_finds_the_cluster_of_this_users_own_folder_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray_folder, "LONGEST_BASE", 1000)
    assert (addresses.resolved("auto"), addresses.resolved("h:1")) == ("auto", "h:1")
    for folder, port in (("ray", "1"), (f"farm-{os.getuid()}/ray", "2")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "ray_current_cluster").write_text(f"127.0.0.1:{port}\n")
        assert addresses.resolved("auto") == f"127.0.0.1:{port}"
    monkeypatch.setenv("RAY_ADDRESS", "head:3")
    assert addresses.resolved("auto") == "head:3"


# the token


@pytest.mark.parametrize("token", ["", " ", "\n\t"])
def test_an_empty_token_is_refused(token: str) -> None:
    with pytest.raises(UsageError) as refused:
        ray_token.refuse_empty({"RAY_AUTH_TOKEN": token})
    assert refused.value.id == "ray-token-empty"
    ray_token.refuse_empty({})
    ray_token.refuse_empty({"RAY_AUTH_TOKEN": "x"})


@pytest.mark.parametrize("address", ["local", "h:1"])
def test_a_run_with_an_empty_token_ends_before_ray_is_there(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would write a token of its own to ~/.ray/auth_token, for every user to read."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.setattr(ray_cluster, "settings", lambda: None)
    monkeypatch.setattr(ray_cluster, "spool_folder", lambda run_id: str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    with pytest.raises(UsageError) as refused:
        ray_cluster.RayCluster(address, 1, "r1", ["sim"])
    assert refused.value.id == "ray-token-empty" and list(tmp_path.iterdir()) == []


def test_a_token_is_written_to_a_new_file_of_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = ray_token.keep(tmp_path / "x" / "token")
        given = ray_token.keep(tmp_path / "x" / "given", "abc")
    finally:
        os.umask(before)
    assert (mode(made), mode(given), mode(made.parent)) == (0o600, 0o600, 0o700)
    assert len(made.read_text()) == 64 and given.read_text() == "abc"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for there in (made, tmp_path / "link"):
        with pytest.raises(FileExistsError):
            ray_token.keep(there, "abc")
    assert not (tmp_path / "elsewhere").exists()


def test_a_token_that_was_handed_over_is_in_no_environment(tmp_path: Path) -> None:
    """Not in what /proc shows of the process, nor in what it starts."""
    code = (
        "import os, subprocess, sys; from pathlib import Path; from farm.cluster import ray_token\n"
        "ray_token.hand_over(Path(sys.argv[1]), os.environ['RAY_AUTH_TOKEN'])\n"
        "own = Path('/proc/self/environ').read_bytes()\n"
        "started = subprocess.run(['env'], capture_output=True, check=True).stdout\n"
        "print(b's3cret' in own, b's3cret' in started, b'BEFORE=1' in own, b'AFTER=2' in own, os.environ['AFTER'],"
        " os.environ['RAY_AUTH_MODE'], b'RAY_AUTH_TOKEN_PATH=' in started)"
    )
    environ = {**os.environ, "BEFORE": "1", "RAY_AUTH_TOKEN": "s3cret", "AFTER": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "token")],
        env=environ,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["False", "False", "True", "True", "2", "token", "True"], done.stdout
    assert (tmp_path / "token").read_text() == "s3cret"
