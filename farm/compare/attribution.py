"""What may have made cells slower or faster between two nights: code, tool chain, driver, node, or none of them.  Pure.

A cause is named only for something that changed with the step.  A commit range is named only if the code that was
measured differs, or may differ: equal digests of its files, or the knowledge that no kernel of the op differs between
the two revisions, clear every commit of the range, and so do peers that step with ours.  What is left is the tool
chain or the host, even where no recorded fact changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Facts of a fingerprint that belong to the driver, and those that name a place or the farm's own settings.
DRIVER = frozenset(("driver", "firmware", "kernel", "rocm_kernel"))
PLACE = frozenset(("uuid", "node", "pid", "pci", "host", "arm"))
#: Facts of the way of measuring.
METHOD = frozenset(("timing", "timing_method", "timing_version", "sandbox", "unconfined"))
CODE, TOOLS, DRIVERS, NODE, MEASURING = "code", "tool chain", "driver", "node", "method"
NO_COMMIT = "tool chain or host, no commit"


@dataclass(frozen=True)
class Side:
    """What is known of the last night before a step, or of the first one after it.

    revision: as it is named; code: digest of the files that were measured, "" where it is not known; tools: a
    fingerprint's names and values; devices, nodes: those that the cells ran on in all nights of that side.
    """

    revision: str = ""
    code: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    devices: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Attribution:
    """`causes`: of CODE, TOOLS, DRIVERS, NODE, MEASURING, those that changed and may be it; `changed`: what did, in
    words; `commits`: the revisions before and after, where a commit may be it; `kernels`: those that are known to
    differ between them."""

    causes: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    commits: tuple[str, str] | None = None
    kernels: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """`code`, `code or driver`, `tool chain or host, no commit`."""
        return " or ".join(self.causes) or NO_COMMIT

    def without_code(self) -> Attribution:
        """The same once it is known that no commit is it."""
        changed = tuple(c for c in self.changed if not c.startswith("revision "))
        return Attribution(tuple(c for c in self.causes if c != CODE), changed)


def attribute(before: Side, after: Side, touched: Sequence[str] | None = None, peers_too: bool = False) -> Attribution:
    """The causes of a step between two nights.

    touched: kernels of the op that differ between the two revisions, None where that is not known; peers_too: whether
    cells of peers, whose code did not change with ours, stepped in the same night in the same direction.
    """
    causes, changed = [], []
    commits = None
    if may_be_code(before, after, touched, peers_too):
        causes.append(CODE)
        commits = (before.revision, after.revision)
        changed.append(f"revision {before.revision[:10]}..{after.revision[:10]}")
    differing = [n for n in sorted({*before.tools, *after.tools}) if _differs(n, before.tools, after.tools)]
    for kind, names in (
        (TOOLS, [n for n in differing if n not in DRIVER | METHOD]),
        (DRIVERS, [n for n in differing if n in DRIVER]),
        (MEASURING, [n for n in differing if n in METHOD]),
    ):
        if names:
            causes.append(kind)
            changed += [f"{n} {before.tools[n]} → {after.tools[n]}" for n in names]
    for one, other, word in ((before.nodes, after.nodes, "node"), (before.devices, after.devices, "device")):
        if one and other and not one & other:
            causes.append(NODE)
            changed.append(f"{word} {_named(one)} → {_named(other)}")
            break
    return Attribution(tuple(causes), tuple(changed), commits, tuple(touched or ()) if commits else ())


def may_be_code(before: Side, after: Side, touched: Sequence[str] | None, peers_too: bool) -> bool:
    """Whether a commit between the two may be it."""
    if peers_too or (touched is not None and not touched):
        return False
    if touched:
        return True
    if before.code and after.code:
        return before.code != after.code
    return bool(before.revision and after.revision and before.revision != after.revision)


def _differs(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether both name a fact differently; a fact that one does not know says nothing."""
    return name not in PLACE and name in before and name in after and before[name] != after[name]


def _named(names: frozenset[str], most: int = 3) -> str:
    found = sorted(names)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
