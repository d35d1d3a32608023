"""What this host has to offer a cluster: its devices, what they are, and whether that fits its configuration."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from farm import __version__, backends
from farm.backends import Identity
from farm.errors import BackendError, UsageError
from farm.nodes import admission
from farm.nodes.command import Host
from farm.nodes.config import NodeConfig


def gather(
    config: NodeConfig,
    backend: str,
    name: str = "",
    labels: Mapping[str, str] | None = None,
    devices: int | None = None,
) -> Host:
    """The host as a node of `backend`, its devices held to the configuration.

    BackendError where it has no such device, or fewer than were asked for; UsageError where its configuration is of
    another backend, or a device is not what a label or the configuration says.
    """
    if config.backend and config.backend != backend:
        raise UsageError(
            f"--backend {backend}: this node's configuration ({config.file}) is of backend {config.backend}; "
            "name that, or correct the file"
        )
    wanted = devices or config.devices
    simulated = bool(config.simulate) and config.backend == backend
    if simulated:
        found = backends.get("sim").detect(wanted or config.simulate.get("devices"))
    else:
        found = backends.usable(backend).detect(wanted)
    if not found or (wanted and len(found) < wanted):
        has = f"{len(found)} of the {wanted} devices" if wanted else "no such device"
        raise BackendError(
            f"--backend {backend}: this host has {has}; farm doctor --backend {backend} says what is wrong"
        )
    said = {**config.labels, **(labels or {})}
    ask = getattr(backends.get("sim" if simulated else backend), "identity", None)
    options = {**config.simulate, "as": backend} if simulated else {}
    known: list[Identity] = []
    for device in found:
        identity = ask(device.id, options) if ask else None
        reason = admission.refusal(config.expect, said, identity)
        if reason:
            raise UsageError(f"device {device.id} of this host: {reason}")
        if identity is not None:
            known.append(identity)
    machine = socket.gethostname()
    return Host(
        backend=backend,
        name=name or os.environ.get("SLURMD_NODENAME") or machine,
        machine=machine,
        devices=len(found),
        model=_same(i.model for i in known),
        partition=_same(i.partition for i in known),
        driver=_same(i.driver for i in known),
        version=__version__,
        labels=said,
        simulated=simulated,
    )


def _same(values: object) -> str:
    """What all say; a node of several parts has no label for them, and each device is known when it comes up."""
    found = set(values)  # type: ignore[call-overload]
    return str(found.pop()) if len(found) == 1 else ""


def ray_words() -> list[str]:
    """What runs Ray's command line in this Python, and in no other that PATH may lead to."""
    beside = Path(sys.executable).with_name("ray")
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "ray.scripts.scripts"]
