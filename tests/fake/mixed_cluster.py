"""A Ray cluster of several vendors on this host: real raylets, each with the node configuration and the environment
that a host of that vendor would have; the devices are fakes that say whose they play."""

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm_process import MARK, ROOT, is_dead, marked, wait_for

#: What each vendor's host looks like; `torch` and the like are what its fake says of its environment.
VENDORS: dict[str, dict[str, Any]] = {
    "cuda": {"model": "NVIDIA GB200", "power_limit_w": 1200, "driver": "580.65.06", "stack": "13.0"},
    "rocm": {"model": "AMD Instinct MI300X", "driver": "6.12.12", "stack": "7.0.0"},
    "ascend": {"model": "Ascend910B3", "driver": "25.2.0", "stack": "8.5.0"},
}
RESOURCES = {"cuda": "--num-gpus={n}", "rocm": "--num-gpus={n}", "ascend": '--resources={{"NPU": {n}}}',
             "cpu": '--resources={{"farm_cpu": {n}}}', "sim": '--resources={{"farm_sim": {n}}}'}  # fmt: skip


@dataclass
class Node:
    """One raylet."""

    name: str
    backend: str
    process: subprocess.Popen[bytes]
    log: Path

    def raylets(self, mark: str) -> list[int]:
        """Its raylet: a process of this node's session."""
        return [
            pid
            for pid, line in marked(mark).items()
            if "raylet/raylet" in line.split(" ", 1)[0] and os.getsid(pid) == self.process.pid
        ]


@dataclass
class MixedCluster:
    """Started node by node; `close` leaves nothing."""

    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.own = tempfile.mkdtemp(prefix="ray-")  # short: Ray's sockets lie below it

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(
        self,
        name: str,
        backend: str,
        devices: int,
        *,
        head: bool = False,
        real: Mapping[str, str] | None = None,
        **configuration: Any,
    ) -> Node:
        """Start a node of `devices` fakes of a vendor (real slots for cpu), and wait until it is in the cluster.

        `real`: the devices are real, and these variables show the node its own."""
        config: dict[str, Any] = {"backend": backend, **configuration}
        if backend in VENDORS and real is None:
            config.setdefault("simulate", {**VENDORS[backend], "devices": devices})
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "FARM_", "TRITON_", "PYTEST_"))}
        environment = {
            **clean, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": self.own,
            "FARM_NODE": str(file), "FARM_CACHE": str(self.folder / "cache"), "PYTHONPATH": str(ROOT), MARK: self.mark,
            "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
            "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "3", **(real or {}),
        }  # fmt: skip
        where = (
            ["--head", f"--port={self.port}", "--include-dashboard=false"] if head else [f"--address={self.address}"]
        )
        words = [
            sys.executable, "-m", "ray.scripts.scripts", "start", *where, "--block", "--num-cpus=1",
            f"--labels=farm/backend={backend},farm/name={name}", f"--object-store-memory={80 << 20}",
            "--disable-usage-stats", "--node-ip-address=127.0.0.1", f"--node-name={name}",
            RESOURCES[backend].format(n=devices),
        ]  # fmt: skip
        if backend not in ("cuda", "rocm"):
            words.append("--num-gpus=0")
        log = self.folder / f"{name}.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        node = Node(name, backend, process, log)
        self.nodes.append(node)

        def answers() -> bool:
            said = log.read_text(encoding="utf-8", errors="replace")
            assert process.poll() is None, f"{name}: ray start ended:\n{said}"
            return "Ray runtime started" in said and bool(node.raylets(self.mark))

        wait_for(f"node {name}", answers, 90)
        return node

    def kill(self, node: Node) -> None:
        """What a power cut does to a host: everything of it ends at once, and nothing says goodbye."""
        pids = [pid for pid in marked(self.mark) if _session(pid) == node.process.pid]
        children = [pid for pid in marked(self.mark) if _descends(pid, set(pids))]
        for pid in dict.fromkeys([*pids, *children]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.process.wait(timeout=20)
        wait_for("its processes are gone", lambda: all(is_dead(pid) for pid in [*pids, *children]), 20)

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.process.terminate()
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.process.wait(timeout=20)
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.own, ignore_errors=True)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _descends(pid: int, roots: set[int]) -> bool:
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            pid = int(stat.rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return False
        if pid in roots:
            return True
    return False
