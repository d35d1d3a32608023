"""What this host gives a cluster: its devices, and a folder for a run's tensors."""

from __future__ import annotations

import secrets
from pathlib import Path

from farm import backends
from farm.errors import BackendError
from farm.node import config as node_config
from farm.process import supervisor
from farm.store import spool


def spool_folder(run_id: str) -> str:
    """The run's folder for tensors, claimed by this process; folders that killed runs left behind are removed."""
    path = spool.folder(f"{run_id}-{secrets.token_hex(4)}")  # two stores may have a run of one id
    spool.sweep(Path(path).parent)
    supervisor.removes(path)  # when it has ended, however that comes about
    spool.claim(path)
    return path


def local_devices(backend: str, count: int | None = None) -> list[backends.HostDevice]:
    """Devices of this host as its configuration has them: fakes where it simulates the backend, at most its `devices`;
    at most `count`."""
    config = node_config.load()
    most = count or (config.devices if config.backend == backend else None)
    if config.simulate and config.backend == backend:
        fakes: list[backends.HostDevice] = backends.get("sim").detect(most or config.simulate.get("devices"))
        return fakes
    found: list[backends.HostDevice] = backends.usable(backend).detect(most)
    return found


def host_devices(backend: str, count: int | None) -> list[backends.HostDevice]:
    """Devices of this host, BackendError if there are none."""
    found = local_devices(backend, count)
    if not found:
        raise BackendError(
            f"--backend {backend}: this host has no device of this backend; see farm doctor --backend {backend}, or "
            "omit --backend to run on the CPU",
            id="host-backend-absent",
        )
    return found
