"""A real Ray head of this host, for tests that join it or ask it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from farm_process import MARK, ROOT, clean_environ, marked, wait_for


def free_port() -> int:
    """A port of this host that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def ray_head(folder: Path, *words: str, token: str = "") -> Iterator[tuple[str, str]]:
    """(address, mark of its processes) of a head that `ray start --head WORDS` makes, with a token where one is given.
    Its log is in `folder`."""
    port, mark = free_port(), secrets.token_hex(8)
    # a folder of its own, or `--address auto` of others on this host would find this cluster; short, for its sockets
    own = tempfile.mkdtemp(prefix="ray-")
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": own, "PYTHONPATH": str(ROOT), MARK: mark}
    environment = {**clean_environ(), **secret, **ours}
    with (folder / "ray.txt").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--head",
                "--block",
                f"--port={port}",
                "--include-dashboard=false",
                f"--object-store-memory={80 << 20}",
                "--disable-usage-stats",
                "--node-ip-address=127.0.0.1",
                *words,
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, "ray start ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return any("raylet" in line for line in marked(mark).values())
        return False

    try:
        wait_for("the head answers", answers, 60)
        yield f"127.0.0.1:{port}", mark
    finally:
        for pid in marked(mark):  # not asked to end: that takes Ray 20 seconds
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=20)
        shutil.rmtree(own, ignore_errors=True)
