"""Compares the node's configuration with the node.  Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from farm.backends import Identity
from farm.doctor.facts import DeviceFacts, Facts
from farm.doctor.finding import Findings, fail, note, ok, warn
from farm.node import admission


def node(f: Facts) -> Findings:
    n = f.node
    if n.failure:
        yield fail("node-configuration", "node", n.failure, "correct the file, or unset FARM_NODE")
        return
    if not n.file:
        return
    yield ok("node", f"{n.file}" + (f": backend {n.backend}" if n.backend else ""))
    if n.simulates:
        what = "this node's devices are simulated (`simulate`), and every result is marked as simulated"
        yield note("node-simulates", "node", what, f"remove `simulate` from {n.file} if the devices are real")
    if n.backend and f.asked.backend and n.backend != f.asked.backend:
        what = f"{n.file} names backend {n.backend}, but {f.asked.backend} was requested"
        yield fail("node-backend", "node", what, f"correct the file, or use --backend {n.backend}")
    b = f.backend(n.backend)
    if b is None or not b.devices or n.simulates:
        return
    if n.devices is not None and n.devices > len(b.devices):
        what = (
            f"{n.file} states devices: {n.devices}, but the host has {len(b.devices)}: the missing devices never appear"
        )
        yield warn("node-devices", "node", what, f"write `devices: {len(b.devices)}`, or find the missing devices")
    for device in b.devices:
        refused = _refused(f, n.backend, device)
        if refused:
            what = f"device {device.id}: {refused}"
            yield fail(
                "node-expect", "node", what, f"correct {n.file} or the node; a device that differs is not admitted"
            )


def _refused(f: Facts, backend: str, device: DeviceFacts) -> str:
    """Admission's refusal, from what is known before a child exists; only the child reports the device's uuid."""
    e = f.environments[0] if f.environments else None
    found = {k: e.trial(k).text for k in ("torch", "triton", "python") if e is not None and e.trial(k).ok}
    expect = {k: v for k, v in f.node.expect.items() if k not in ("torch", "triton", "python") or k in found}
    return admission.refusal(expect, f.node.labels, identity(device), {"backend": backend}, found)


def identity(device: DeviceFacts) -> Identity | None:
    """The device's identity as it was read, without fields that a newer farm may have added."""
    if device.identity is None:
        return None
    known = {field.name for field in fields(Identity)}
    given: dict[str, Any] = {k: v for k, v in device.identity.items() if k in known}
    return Identity(**given)
