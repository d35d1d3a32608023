"""The node's configuration against the node.  Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from farm.backends import Identity
from farm.doctor.facts import Device, Facts
from farm.doctor.finding import Findings, fail, note, ok, warn
from farm.nodes import admission


def node(f: Facts) -> Findings:
    n = f.node
    if n.failure:
        yield fail("node-configuration", "node", n.failure, "correct it, or unset FARM_NODE")
        return
    if not n.file:
        return
    yield ok("node", f"{n.file}" + (f": backend {n.backend}" if n.backend else ""))
    if n.simulates:
        what = "its devices are fakes (simulate): every result says that it is simulated"
        yield note("node-simulates", "node", what, f"take simulate out of {n.file} where the devices are real")
    if n.backend and f.asked.backend and n.backend != f.asked.backend:
        what = f"{n.file} says backend {n.backend}, and {f.asked.backend} was asked for"
        yield fail("node-backend", "node", what, f"correct it, or ask for --backend {n.backend}")
    b = f.backend(n.backend)
    if b is None or not b.devices or n.simulates:
        return
    if n.devices is not None and n.devices > len(b.devices):
        what = f"{n.file} says {n.devices} devices, and there are {len(b.devices)}: the others never come up"
        yield warn("node-devices", "node", what, f"say devices: {len(b.devices)}, or look for those that are missing")
    for device in b.devices:
        refused = _refused(f, n.backend, device)
        if refused:
            what = f"device {device.id}: {refused}"
            yield fail("node-expect", "node", what, f"correct {n.file}, or the node; such a device is not admitted")


def _refused(f: Facts, backend: str, device: Device) -> str:
    """As admission would say it once the child is there, of what can be known before; the device's uuid is the child's
    to tell."""
    e = f.environments[0] if f.environments else None
    told = {k: e.trial(k).text for k in ("torch", "triton", "python") if e is not None and e.trial(k).ok}
    expect = {k: v for k, v in f.node.expect.items() if k not in ("torch", "triton", "python") or k in told}
    return admission.refusal(expect, f.node.labels, identity(device), {"backend": backend}, told)


def identity(device: Device) -> Identity | None:
    """The device's identity as it was read; what a newer farm may have added to it is left out."""
    if device.identity is None:
        return None
    known = {field.name for field in fields(Identity)}
    given: dict[str, Any] = {k: v for k, v in device.identity.items() if k in known}
    return Identity(**given)
