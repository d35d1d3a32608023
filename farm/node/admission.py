"""Compares a device with what its node states, and adds to its target what only the host can read.  Pure.

Two sources describe a node: its labels (which the cluster's scheduler uses) and `expect` in its configuration (which
its operator wrote).  Two sources describe the device: the vendor's tool on the host (`Identity`) and the child that
opened it.  If any two disagree, the device is refused with both values: a wrong label would publish numbers of one part
under the name of another.  Before a child exists (`farm nodes join`, `farm doctor`), facts that only a child can report
are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from farm.backends import Identity
from farm.device_pattern import same_part, serves
from farm.errors import Message

__all__ = ["EXPECTED", "LABELS", "complete", "refusal", "serves"]

#: Labels that describe a device; a node's other labels are free for its operator.
LABELS = ("backend", "model", "partition", "driver", "stack")
#: Keys that `expect` may have.
EXPECTED = ("model", "partition", "driver", "stack", "torch", "triton", "python")
#: Reported only by the child.
_CHILDS = ("backend", "torch", "triton", "python")
#: Names for a device without partitions; SPX with NPS1 is that mode of AMD's parts.
_WHOLE = frozenset({"", "whole", "none", "spx", "spx-nps1"})
#: Words with a digit that do not name a part: memory, its kind, the socket, a MIG profile.
_NOT_A_PART = re.compile(r"\d+G(i?B)?|(HBM|SXM|GDDR|NVL)\w*|\d+g\.\d+gb.*", re.IGNORECASE)


def refusal(
    expect: Mapping[str, str],
    labels: Mapping[str, str],
    identity: Identity | None,
    ready_target: Mapping[str, Any] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> str:
    """Why the device is refused, as one sentence with both values; "" if it is admitted.

    expect: `expect` of the node's configuration.  labels: the node's `farm/...` labels without that prefix.
    ready_target, fingerprint: the child's, None before there is one.  A version matches by its leading components
    ("2.11" matches "2.11.0+cu130", never "2.110"), a model as in `farm.device_pattern.same_part`.
    """
    child = ready_target is not None
    found = _found(identity, ready_target or {}, fingerprint or {})
    for who, verb, cure, key, wanted in _claims(expect, labels):
        if key in _CHILDS and not child:
            continue
        has = found.get(key)
        if has is None:
            if child:
                text = f"{who} {verb} {_shown(key, wanted)}, but the device's {key} cannot be read: "
                return Message(f"{text}install the vendor's tool, or correct {cure}", id="node-device-unread")
        elif not _fits(key, wanted, has):
            text = f"{who} {verb} {_shown(key, wanted)}, but {_actually(key, has)}: correct {cure} or the node"
            return Message(text, id="node-device-differs")
    return _two_devices(identity, ready_target or {}, fingerprint or {})


def complete(target: Mapping[str, Any], identity: Identity | None) -> dict[str, Any]:
    """The child's target with what only the host can read: partition, power limit, clocks policy, and the part's name
    if the child's runtime knows only the family ("AMD Radeon Graphics", where ROCm lacks its list of names)."""
    out = dict(target)
    if identity is None:
        return out
    if identity.model and not _numbered(str(out.get("model", ""))):
        out["model"] = identity.model
    for name in ("partition", "power_limit_w", "clocks"):
        value = getattr(identity, name)
        if value and not out.get(name):
            out[name] = value
    return out


def _claims(expect: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[tuple[str, str, str, str, str]]:
    for key in LABELS:
        if labels.get(key):
            yield "the node's label", "states", "the label", key, str(labels[key])
    for key in EXPECTED:
        if key in expect and (str(expect[key]) or key == "partition"):
            yield "the node's configuration", "expects", "the configuration", key, str(expect[key])


def _found(identity: Identity | None, target: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """What is known about the device and its child, by key; a key that cannot be read is missing."""
    host = identity or Identity()
    reported = {k: str(v) for k, v in fingerprint.items() if isinstance(v, (str, int, float))}
    childs = str(target.get("model", ""))
    found = {
        "backend": str(target.get("backend", "")),
        "model": host.model or childs,
        "driver": host.driver or reported.get("driver", ""),
        # the child's first: a container may have a different ROCm or CANN than its host
        "stack": reported.get("stack", "") or reported.get("rocm", "") or reported.get("cann", "") or host.stack,
        **{k: reported.get(k, "") for k in ("torch", "triton", "python")},
    }
    known = {k: v for k, v in found.items() if v}
    if identity is not None or target.get("partition"):
        known["partition"] = str(target.get("partition") or host.partition)
    return known


def _fits(key: str, wanted: str, has: str) -> bool:
    if key == "model":
        return same_part(wanted, has)
    if key == "backend":
        return wanted.lower() == has.lower()
    if key == "partition":
        return _plain(wanted) == _plain(has) or {_plain(wanted), _plain(has)} <= _WHOLE
    return _version_fits(wanted, has)


def _version_fits(wanted: str, has: str) -> bool:
    """Component by component, so that 7.1 matches 7.1.2 and never 7.10; a local part ("+cu130") counts only if it is
    wanted."""
    (want, _, local), (have, _, actual) = wanted.strip().partition("+"), has.strip().partition("+")
    parts = want.lower().split(".")
    return parts == have.lower().split(".")[: len(parts)] and (not local or local.lower() == actual.lower())


def _two_devices(identity: Identity | None, target: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """The refusal if the host read one device and the child opened another, because of a mask; "" otherwise."""
    if identity is None:
        return ""
    ours, theirs = identity.model, str(target.get("model", ""))
    if ours and theirs and not _alike(ours, theirs):
        return _another_device(ours, theirs)
    mine, childs = identity.uuid, str(fingerprint.get("uuid", ""))
    kind = mine.partition("-")[0].lower()
    comparable = kind in ("gpu", "mig") and childs.lower().startswith(f"{kind}-") and len(mine) == len(childs)
    if comparable and mine.lower() != childs.lower():
        return _another_device(mine, childs)
    return ""


def _another_device(ours: str, theirs: str) -> Message:
    text = (
        f"the host reads {ours}, but the child opened {theirs}: a mask variable makes the child use a different device"
    )
    return Message(text, id="node-device-masked")


def _alike(a: str, b: str) -> bool:
    """Whether two names can denote one part: they share the word with a number, or one of them has no such word."""
    numbered, others = _numbered(a), _numbered(b)
    if not numbered or not others:
        return True
    return any(same_part(w, b) for w in numbered) or any(same_part(w, a) for w in others)


def _numbered(name: str) -> list[str]:
    return [w for w in re.split(r"[^\w.]+", name) if any(c.isdigit() for c in w) and not _NOT_A_PART.fullmatch(w)]


def _plain(partition: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", partition.lower()).strip("-")


def _shown(key: str, value: str) -> str:
    if key == "partition" and _plain(value) in _WHOLE:
        return "no partition"
    return f"{key} {value}"


def _actually(key: str, has: str) -> str:
    if key in ("model", "backend"):
        return f"the device is {has}" if key == "model" else f"the child opened a {has} device"
    return f"{'the child' if key in _CHILDS else 'the device'} has {_shown(key, has)}"
