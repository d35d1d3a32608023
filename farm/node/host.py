"""What this host offers to a cluster: its devices, their identity, and whether they match its configuration."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from farm import PROTOCOL, __version__, backends
from farm.backends import Identity
from farm.errors import BackendError, UsageError, id_of
from farm.node import admission
from farm.node.config import NodeConfig
from farm.node.join_command import JoiningHost
from farm.process.own_modules import module_words


def gather(
    config: NodeConfig,
    backend: str,
    name: str = "",
    labels: Mapping[str, str] | None = None,
    devices: int | None = None,
) -> JoiningHost:
    """The host as a node of `backend`, with its devices compared with the configuration.

    Raises BackendError if it has no such device or fewer than requested, UsageError if its configuration is for another
    backend or a device differs from a label or the configuration.
    """
    if config.backend and config.backend != backend:
        raise UsageError(
            f"--backend {backend}: this node's configuration ({config.file}) is for backend {config.backend}; use "
            f"--backend {config.backend}, or correct the file",
            id="node-other-backend",
        )
    wanted = devices or config.devices
    simulated = bool(config.simulate) and config.backend == backend
    if simulated:
        found = backends.get("sim").detect(wanted or config.simulate.get("devices"))
    else:
        found = backends.usable(backend).detect(wanted)
    if not found or (wanted and len(found) < wanted):
        has = f"{len(found)} of the {wanted} devices" if wanted else "no device of this backend"
        raise BackendError(
            f"--backend {backend}: this host has {has}; farm doctor --backend {backend} shows what is wrong",
            id="node-no-device",
        )
    stated = {**config.labels, **(labels or {})}
    ask = getattr(backends.get("sim" if simulated else backend), "identity", None)
    options = {**config.simulate, "as": backend} if simulated else {}
    known: list[Identity] = []
    for device in found:
        identity = ask(device.id, options) if ask else None
        reason = admission.refusal(config.expect, stated, identity)
        if reason:
            raise UsageError(f"device {device.id} of this host: {reason}", id=id_of(reason))
        if identity is not None:
            known.append(identity)
    machine = socket.gethostname()
    return JoiningHost(
        backend=backend,
        name=name or os.environ.get("SLURMD_NODENAME") or machine,
        machine=machine,
        devices=len(found),
        model=_same(i.model for i in known),
        partition=_same(i.partition for i in known),
        driver=_same(i.driver for i in known),
        version=__version__,
        protocol=str(PROTOCOL),
        labels=stated,
        simulated=simulated,
    )


def _same(values: object) -> str:
    """The common value, or "": a node with several parts has no label for them; each device reports its own later."""
    found = set(values)  # type: ignore[call-overload]
    return str(found.pop()) if len(found) == 1 else ""


def ray_words() -> list[str]:
    """The words that run Ray's command line with this Python, and not with another one on PATH."""
    beside = Path(sys.executable).with_name("ray")
    return [str(beside)] if beside.is_file() else [*module_words("ray.scripts.scripts")]
