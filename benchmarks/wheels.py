"""Whether every package that the farm needs has a wheel for an architecture: asked of the package index, by pip.

    python -m benchmarks.wheels [--machine aarch64] [--python 3.10 3.11 3.12 3.13] [--sets core cpu ascend]

Nothing is installed or downloaded as a whole: pip resolves each set of requirements of pyproject.toml for a Linux of
that architecture (glibc 2.28, what the vendors' images have at least) with wheels alone, and reports.  One line a set
and Python; exit code 1 where a set does not resolve.

pip reads environment markers (`platform_machine == "x86_64"`, `python_version < "3.11"`) of the interpreter that it
runs in, whatever it is asked to resolve for; so it runs with those answers replaced.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SETS = ("core", "cpu", "ascend")
SECONDS = 600.0
#: What a Linux with glibc 2.28 takes, newest first: pip takes the first that fits.
PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(28, 16, -1)), "manylinux2014")
#: Run in pip's process before pip is.
AS_IF = """
import runpy, sys
machine, version = sys.argv[1:3]
del sys.argv[1:3]
from pip._vendor.packaging import markers
def asked(real=markers.default_environment):
    return {**real(), "platform_machine": machine, "python_version": version, "python_full_version": version + ".0"}
markers.default_environment = asked
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Resolved:
    """What pip chose: distribution -> the wheel's file name.  `reason` says why there is nothing, else ""."""

    wheels: Mapping[str, str]
    reason: str = ""

    def astray(self, machine: str) -> list[str]:
        """Files that are no wheel for that machine: another's, or a source archive."""
        return sorted(f for f in self.wheels.values() if not fits(f, machine))


def fits(file: str, machine: str) -> bool:
    """Whether a wheel's platform tag is that machine's Linux, or any."""
    if not file.endswith(".whl"):
        return False
    tags = file.removesuffix(".whl").split("-")[-1].split(".")
    return any(t == "any" or (t.startswith(("manylinux", "linux")) and t.endswith(f"_{machine}")) for t in tags)


def requirements(which: str, text: str) -> list[str]:
    """The set's requirements in pyproject.toml: `core` are the dependencies, the others are extras."""
    project = tomllib.loads(text)["project"]
    known = {"core": project["dependencies"], **project["optional-dependencies"]}
    if which not in known:
        raise SystemExit(f"pyproject.toml has no {which}; the sets are {', '.join(known)}")
    return list(known[which])


def words(wanted: Sequence[str], machine: str, python: str, target: str) -> list[str]:
    """pip's command line."""
    places = [w for p in PLATFORMS for w in ("--platform", f"{p}_{machine}")]
    return [
        sys.executable,
        "-c",
        AS_IF,
        machine,
        python,
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--disable-pip-version-check",
        "--report",
        "-",
        "--only-binary=:all:",
        "--target",
        target,
        *places,
        "--python-version",
        python,
        "--implementation",
        "cp",
        *wanted,
    ]


def read(report: Mapping[str, Any]) -> dict[str, str]:
    """Distribution -> file name, of pip's installation report."""
    return {
        item["metadata"]["name"]: item["download_info"]["url"].rpartition("/")[2].partition("#")[0]
        for item in report["install"]
    }


def resolve(wanted: Sequence[str], machine: str, python: str) -> Resolved:
    """Ask pip; bounded in time."""
    with tempfile.TemporaryDirectory() as target:
        try:
            done = subprocess.run(
                words(wanted, machine, python, target), capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Resolved({}, f"pip did not answer within {SECONDS:g} s")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        return Resolved({}, " ".join((errors or done.stderr.splitlines() or ["pip failed"])[-1].split())[:300])
    return Resolved(read(json.loads(done.stdout)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Whether every package has a wheel for an architecture")
    parser.add_argument("--machine", default="aarch64")
    parser.add_argument("--python", nargs="+", default=list(PYTHONS))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    asked = parser.parse_args(argv)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    failed = False
    for which in asked.sets:
        wanted = requirements(which, text)
        for python in asked.python:
            begun = time.monotonic()
            found = resolve(wanted, asked.machine, python)
            astray = found.astray(asked.machine)
            failed = failed or bool(found.reason or astray)
            said = found.reason or (f"not for {asked.machine}: {', '.join(astray)}" if astray else "resolves")
            own = [f for f in found.wheels.values() if asked.machine in f]
            count = f"{len(found.wheels)} wheels, {len(own)} of them built for {asked.machine}" if found.wheels else ""
            print(
                f"{which:7} Python {python:5} {time.monotonic() - begun:6.1f} s  {said}  {count}".rstrip(), flush=True
            )
            print("".join(f"        {file}\n" for file in sorted(own)), end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
