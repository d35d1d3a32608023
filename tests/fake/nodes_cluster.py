"""A real Ray cluster on this host, made by `farm nodes head` and `farm nodes join`; its nodes play vendors' hosts.

Nodes are started one after another: two raylets that start at the same moment on one host now and then take each
other's ports.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from farm_process import IMPORTS, MARK, TOKENS, clean_environ, is_dead, marked, wait_for
from ray_head import free_port

NODE_MARK = "FARM_TEST_NODE"
SMALL = (
    "--ray=--object-store-memory=83886080",
    "--ray=--node-ip-address=127.0.0.1",
    "--ray=--include-log-monitor=false",
)


def carrying(name: str, value: str) -> list[int]:
    """Living processes that have this variable."""
    needle = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0") and not is_dead(int(entry.name)):
                    found.append(int(entry.name))
    return found


class NodesCluster:
    """A head, and nodes by name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self.own = tempfile.mkdtemp(prefix="ray-")  # short, for Ray's sockets; nobody else's `auto` finds it
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.environment = {
            **clean_environ(),
            "RAY_TMPDIR": self.own,
            "PYTHONPATH": IMPORTS,
            MARK: self.mark,
            "XDG_STATE_HOME": str(folder / "state"),
            "FARM_CACHE": str(folder / "cache"),
            "PYTHONUNBUFFERED": "1",
            "FARM_LOCKS": str(folder / "locks"),
        }
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def token(self) -> Path:
        """The file of the token that the head makes."""
        return self.folder / "state" / "farm" / "ray_token"

    def start_head(self) -> None:
        """As `farm nodes head` does."""
        self._start("head", ["head", f"--port={self.port}", "--ip=127.0.0.1", "--cpus=2", *SMALL[:1], SMALL[2]], {})
        self.environment["RAY_AUTH_TOKEN_PATH"] = TOKENS[self.address] = str(self.token)

    def join(
        self, name: str, config: dict[str, Any] | None = None, *arguments: str, cpus: int = 2, **environ: str
    ) -> None:
        """As `farm nodes join` does on a host with this configuration."""
        if config is not None:
            file = self.folder / f"{name}.yaml"
            file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
            environ["FARM_NODE"] = str(file)
        words = [
            "join",
            f"--head={self.address}",
            f"--name={name}",
            f"--token-path={self.token}",
            "--skip-doctor",
            f"--ray=--num-cpus={cpus}",
            *SMALL,
        ]
        self._start(name, [*words, *arguments], {NODE_MARK: f"{self.mark}-{name}", **environ})

    def _start(self, name: str, words: list[str], environ: dict[str, str]) -> None:
        log = self.folder / f"{name}.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "farm", "nodes", *words],
                env={**self.environment, **environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.nodes[name] = process

        def up() -> bool:
            said = log.read_text(encoding="utf-8", errors="replace")
            assert process.poll() is None, f"{name} ended:\n{said}"
            return "Ray runtime started" in said and self.answers()

        wait_for(f"{name} is up", up, 90)

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def farm(self, *words: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """`farm nodes WORDS` on this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "farm", "nodes", *words, "--address", self.address],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def listed(self) -> dict[str, dict[str, Any]]:
        """Node's name -> its row of `farm nodes --json`."""
        done = self.farm("--json")
        assert done.returncode == 0, done.stderr
        return {row["node"]: row for row in json.loads(done.stdout)}

    def of_node(self, name: str) -> list[int]:
        """Every process of a node: Ray's, actors, their children."""
        return carrying(NODE_MARK, f"{self.mark}-{name}")

    def lose(self, name: str) -> None:
        """What a power cut does to a node."""
        for _ in range(3):  # what was being forked meanwhile
            for pid in self.of_node(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.nodes.pop(name).wait(timeout=20)

    def end(self) -> None:
        """Nothing is left."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
        shutil.rmtree(self.own, ignore_errors=True)
