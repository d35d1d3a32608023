"""A child is kept out of the farm's processes where the kernel can do it, and nothing fails where it cannot."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.child import confinement

ROOT = Path(__file__).resolve().parents[2]
#: A confined process, on what its parent has.
CONFINED = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from farm.child import confinement
assert confinement.confine() == ""
above = f"/proc/{os.getppid()}"

def tried(act):
    try:
        act()
        return True
    except OSError:
        return False

folder = sys.argv[2]
os.makedirs(f"{folder}/a"); os.makedirs(f"{folder}/b")
open(f"{folder}/a/file", "w").close()
os.replace(f"{folder}/a/file", f"{folder}/b/file")  # compilers move what they have made into their caches
os.link(f"{folder}/b/file", f"{folder}/a/link")
own = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
assert tried(lambda: open(f"/proc/{own.pid}/environ").read()) and tried(own.kill)
print(
    tried(lambda: open(f"{above}/mem", "r+b")),
    tried(lambda: os.readlink(f"{above}/cwd")),
    tried(lambda: os.kill(os.getppid(), 0)),
    subprocess.run([sys.executable, "-c", f"open('{above}/mem', 'rb')"], stderr=subprocess.DEVNULL).returncode,
)
"""


@pytest.mark.skipif(bool(confinement.refusal()), reason=f"cannot be confined: {confinement.refusal()}")
def test_a_confined_process_reaches_its_own_and_no_others(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-c", CONFINED, str(ROOT), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    signals = str(confinement.version() < confinement._SCOPE_SINCE)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "False", signals, "1"]), done.stderr


@pytest.mark.parametrize(
    ("version", "words"),
    [(0, "no Landlock, or the container forbids it"), (1, "version 1; version 2 is needed (Linux 5.19)")],
)
def test_a_host_without_it_gives_the_reason_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, version: int, words: str
) -> None:
    def call(number: int, *_: object) -> int:
        if not version:
            raise OSError(errno.ENOSYS, "Function not implemented")
        return version

    monkeypatch.setattr(confinement, "_call", call)
    assert words in confinement.confine()


def test_what_fails_on_the_way_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(number: int, *arguments: object) -> int:
        if arguments[0] is None:
            return 3
        raise OSError(errno.E2BIG, "Argument list too long")

    monkeypatch.setattr(confinement, "_call", call)
    assert confinement.confine() == "Landlock failed ([Errno 7] Argument list too long)"


def test_a_driver_that_still_needs_its_helper_is_not_kept_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without privilege a confined process starts no program with more rights, and CUDA's library has one to start."""
    calls = []

    def call(number: int, *arguments: object) -> int:
        calls.append(number)
        if number == confinement._RESTRICT_SELF:
            raise OSError(errno.EPERM, "Operation not permitted")
        return 3 if arguments[0] is None else os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(confinement, "_call", call)
    monkeypatch.setattr(confinement, "_NVIDIA", tmp_path)
    monkeypatch.setattr(confinement, "_NVIDIA_UVM", tmp_path / "nvidia-uvm")
    assert "nvidia-modprobe -u creates it" in confinement.confine()
    assert calls.count(confinement._RESTRICT_SELF) == 1
