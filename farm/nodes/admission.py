"""Whether a device is what its node says it is, and what of its target only the host can read.  Pure.

Two speak for a node: its labels (what the cluster's scheduler goes by) and the `expect` of its configuration (what its
operator holds it to).  Two speak for the device: the vendor's tool on the host (`Identity`) and the child that opened
it.  A device of which any two disagree is refused with both values: a wrong label would put numbers of one part under
the name of another.  Before a child is there (`farm nodes join`, `farm doctor`) what only a child can tell is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from farm.backends import Identity
from farm.targets import same_part, serves

__all__ = ["EXPECTED", "LABELS", "complete", "refusal", "serves"]

#: What a label may say of a device; a node's other labels are its operator's own.
LABELS = ("backend", "model", "partition", "driver", "stack")
#: What `expect` may say.
EXPECTED = ("model", "partition", "driver", "stack", "torch", "triton", "python")
#: Told by the child alone.
_CHILDS = ("backend", "torch", "triton", "python")
#: A device that is not divided; SPX with NPS1 is the undivided mode of AMD's parts.
_WHOLE = frozenset({"", "whole", "none", "spx", "spx-nps1"})
#: Words with a digit that name no part: memory, its kind, the socket, a MIG profile.
_NOT_A_PART = re.compile(r"\d+G(i?B)?|(HBM|SXM|GDDR|NVL)\w*|\d+g\.\d+gb.*", re.IGNORECASE)


def refusal(
    expect: Mapping[str, str],
    labels: Mapping[str, str],
    identity: Identity | None,
    ready_target: Mapping[str, Any] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> str:
    """Why the device may not serve, as one sentence with both values; "" where it may.

    expect: `expect` of the node's configuration.  labels: the node's `farm/...` labels without that prefix.
    ready_target, fingerprint: the child's, None before there is one.  A version fits by its beginning ("2.11" fits
    "2.11.0+cu130", never "2.110"), a model as `farm.targets.same_part` has it.
    """
    child = ready_target is not None
    found = _found(identity, ready_target or {}, fingerprint or {})
    for who, verb, cure, key, wanted in _claims(expect, labels):
        if key in _CHILDS and not child:
            continue
        has = found.get(key)
        if has is None:
            if child:
                unread = f"{who} {verb} {_shown(key, wanted)}, and the device's {key} cannot be read here"
                return f"{unread}: install the vendor's tool, or correct {cure}"
        elif not _fits(key, wanted, has):
            return f"{who} {verb} {_shown(key, wanted)}, {_actually(key, has)}: correct {cure} or the node"
    return _two_devices(identity, ready_target or {}, fingerprint or {})


def complete(target: Mapping[str, Any], identity: Identity | None) -> dict[str, Any]:
    """The child's target with what only the host can read: partition, power limit, clocks policy, and the part's name
    where the child's runtime has only a family's ("AMD Radeon Graphics", where a ROCm lacks its list of names)."""
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
            yield "the node's label", "says", "the label", key, str(labels[key])
    for key in EXPECTED:
        if key in expect and (str(expect[key]) or key == "partition"):
            yield "the node's configuration", "expects", "the configuration", key, str(expect[key])


def _found(identity: Identity | None, target: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """What the device and its child are said to be, by key; a key is missing where nobody can read it."""
    host = identity or Identity()
    told = {k: str(v) for k, v in fingerprint.items() if isinstance(v, (str, int, float))}
    childs = str(target.get("model", ""))
    found = {
        "backend": str(target.get("backend", "")),
        "model": host.model or childs,
        "driver": host.driver or told.get("driver", ""),
        # the child's first: in a container it computes with another ROCm or CANN than its host has
        "stack": told.get("stack", "") or told.get("rocm", "") or told.get("cann", "") or host.stack,
        **{k: told.get(k, "") for k in ("torch", "triton", "python")},
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
    """Component by component, so that 7.1 fits 7.1.2 and never 7.10; a local part ("+cu130") counts where it is
    asked for."""
    (want, _, local), (have, _, actual) = wanted.strip().partition("+"), has.strip().partition("+")
    parts = want.lower().split(".")
    return parts == have.lower().split(".")[: len(parts)] and (not local or local.lower() == actual.lower())


def _two_devices(identity: Identity | None, target: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """What to say where the host read one device and the child opened another: a mask that does not mean what it was
    taken to mean."""
    if identity is None:
        return ""
    ours, theirs = identity.model, str(target.get("model", ""))
    if ours and theirs and not _alike(ours, theirs):
        return f"the host reads {ours} where its child opened {theirs}: a mask variable shows the child another device"
    mine, childs = identity.uuid, str(fingerprint.get("uuid", ""))
    kind = mine.partition("-")[0].lower()
    comparable = kind in ("gpu", "mig") and childs.lower().startswith(f"{kind}-") and len(mine) == len(childs)
    if comparable and mine.lower() != childs.lower():
        return f"the host reads {mine} where its child opened {childs}: a mask variable shows the child another device"
    return ""


def _alike(a: str, b: str) -> bool:
    """Whether two names can be of one part: they share the word with its number, or one of them has none."""
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
        return f"the device is {has}" if key == "model" else f"its child opened a device of {has}"
    return f"{'its child' if key in _CHILDS else 'the device'} has {_shown(key, has)}"
