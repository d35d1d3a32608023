"""The JSON Schema of `result.json`: what an untrusted job leaves, and a trusted one reads.  Published by `farm schema
pr`, and enforced: the reader has no other rules of form.  Every text and list has a bound.  `$` alone would let a
pattern end before a line break."""

from __future__ import annotations

from typing import Any

VERSION = 1
MAX_BYTES = 8_000_000
STATUSES = (
    "passed", "inaccurate", "compile_error", "crashed", "timed_out", "out_of_memory", "unsupported", "skipped", "built",
    "infra_error", "lost", "absent",
)  # fmt: skip
EVIDENCE = ("executed", "interpreted", "simulated", "compiled", "none")
SPEEDS = ("regressed", "improved", "same", "inconclusive", "unfit", "none")


def _text(most: int, pattern: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, **({"pattern": pattern} if pattern else {}), **more}


def _list(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    needed = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _or_null(inner: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [inner, {"type": "null"}]}


_NAME, _LINE, _SHA = _text(300), _text(1000), _text(40, "^[0-9a-f]{40}$(?!\\n)")
_COUNT = {"type": "integer", "minimum": 0, "maximum": 10_000_000}
_SIZE = {"type": "integer", "minimum": 0, "maximum": 2**53}
_NUMBER = {"type": "number", "minimum": 0, "maximum": 1e18}
_STATUS = {"enum": [*STATUSES]}
_FLAG = {"type": "boolean"}
_VALUE = _or_null(_NUMBER)
_AMOUNT = {"anyOf": [_NUMBER, _text(100), {"type": "null"}]}  # text: instructions by width, a grid

_ARM = _object({"sha": _SHA, "tree": _SHA, "digest": _text(64, "^[0-9a-f]{0,64}$(?!\\n)"), "name": _NAME})
_MOVE = _object(
    {
        "kernel": _NAME,
        "cell": _NAME,  # the first of the cells in which it moved so
        "cells": _COUNT,
        "measure": _text(60),
        "a": _AMOUNT,
        "b": _AMOUNT,
        "worse": _FLAG,
    }
)  # of one measure of a kernel's machine code
_FAILED = _object(
    {"cell": _NAME, "status_a": _STATUS, "status_b": _STATUS, "reason": _LINE, "known": _NAME}, optional=("known",)
)
_TARGET = _object(
    {
        "target": _text(100),
        "backend": _text(20),
        "compiled": _COUNT,
        "same_code": _COUNT,
        "unknown": _COUNT,
        "why": _LINE,  # of most of the unknown cells
        "failed": _list(_FAILED, 1000),
        "moves": _list(_MOVE, 1000),
        "sizes": _LINE,  # of the compiled cells: they may be others than the ones that ran
        "changed_cells": _COUNT,  # that compile a kernel whose source differs
        "rewritten": _COUNT,  # whose code differs, but none of its counts
    },
    optional=("sizes", "changed_cells", "rewritten"),  # older results have none
)
_STATIC = _object(
    {
        "kernels": _COUNT,
        "changed": _list(_NAME, 1000),
        "unknown": _list(_object({"kernel": _NAME, "why": _LINE}), 1000),
        "unreached": _list(_NAME, 1000),
        "host": _list(_NAME, 1000),  # files beside the kernels that differ
        "harness": _list(_NAME, 1000),  # contracts, matrices and adapters that differ; neither arm is judged by head's
        "targets": _list(_TARGET, 50),
        "tools": _list(_NAME, 50),
    }
)
_PAIR = _object(
    {
        "cell": _NAME,
        "backend": _text(20),
        "target": _text(100),
        "op": _text(100),
        "evidence": {"enum": [*EVIDENCE]},
        "axes": {"type": "object", "maxProperties": 40, "additionalProperties": _text(100)},
        "kernels": _list(_NAME, 50),  # the changed ones that it launches
        "status_a": _STATUS,
        "status_b": _STATUS,
        "reason": _LINE,
        "place": _LINE,
        "same_bits": _or_null(_FLAG),
        "worst_a": _VALUE,
        "worst_b": _VALUE,
        "speed": {"enum": [*SPEEDS]},
        "ratio": _VALUE,  # time of b over time of a, with its 99 % interval
        "low": _VALUE,
        "high": _VALUE,
        "threshold": _VALUE,
        "rounds": _COUNT,
        "us_a": _VALUE,
        "us_b": _VALUE,
        "gbps_a": _VALUE,
        "gbps_b": _VALUE,
        "memory_a": _or_null(_SIZE),  # bytes that one call allocates at most on the device
        "memory_b": _or_null(_SIZE),
        "bytes_a": _or_null(_SIZE),  # of global memory read and written, counted by the interpreter
        "bytes_b": _or_null(_SIZE),
        "launch_a": _LINE,
        "launch_b": _LINE,
        "repeat": _LINE,
        "known": _NAME,  # file and line of base's known failure that explains the one in head
    },
    optional=("known",),
)
#: What became of one of base's known failures; cells: that fail in head, or that head fixes.
_KNOWN = _object(
    {
        **dict.fromkeys(("match", "owner", "where"), _NAME),
        "reason": _LINE,
        "until": _text(10, r"^\d{4}-\d{2}-\d{2}$(?!\n)"),
        "state": {"enum": ["expired", "covers", "fixed", "removed", "idle"]},
        "cells": _COUNT,
    }
)
_TEST = _object({"id": _NAME, "kind": {"enum": ["test", "benchmark"]}, "status_a": _STATUS, "status_b": _STATUS,
                 "owner": _text(20), "reason": _LINE, "us_a": _VALUE, "us_b": _VALUE})  # fmt: skip

#: What a comment asked for, where it was not all that a pull request brings.  head: of the pull request; patch: its
#: SHA-256, on top of the commit that both arms then have.
_ASKED = _object(
    {
        "kind": {"enum": ["ok", "run", "rerun", "what-if"]},
        "head": _SHA,
        "matrix": _text(200),
        "backends": _list(_text(20), 4),
        "cell": _NAME,
        "on": {"enum": ["", "head", "base"]},
        "patch": _text(64, "^([0-9a-f]{64})?$(?!\\n)"),
        "files": _list(_NAME, 20),
    }
)

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "What a pull request does to kernels (result.json of the kernel farm)",
    **_object(
        {
            "schema": {"const": VERSION},
            "farm": _text(100),
            "repository": _text(201, r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9._-]{1,100}$(?!\n)"),
            "number": _COUNT,
            "run": _text(120),
            "created": _text(40),
            "config": _text(64, "^[0-9a-f]{64}$(?!\\n)"),
            "asked": _ASKED,
            "base": _ARM,
            "head": _ARM,
            "behind": _COUNT,  # commits of the base branch that head has not
            "static": _or_null(_STATIC),
            "pairs": _list(_PAIR, 20_000),
            "tests": _list(_TEST, 20_000),
            "not_run": _list(_object({"what": _NAME, "why": _LINE}), 200),
            "faults": _list(_LINE, 200),
            "stages": _list(_object({"stage": _text(60), "seconds": _NUMBER}), 50),
            "repeat": _LINE,
            "python": _text(40),
            "inputs": _list(_object({"path": _NAME, "sha256": _text(64, "^[0-9a-f]{64}$(?!\\n)")}), 200),
            # files of the repository that were read as they lay there, not as base has them
            "working_tree": _list(_NAME, 100),
            "known": _list(_KNOWN, 1000),
            "selection": _object({"planned": _COUNT, "reached": _COUNT, "chosen": _COUNT}),  # of cells for devices
            "counts_simulated": _FLAG,  # what simulated devices find fails the check: for tests of the farm itself
            "counts_memory": _FLAG,  # a cell that needs more device memory fails the check
        },
        optional=(
            "asked",
            "python",
            "inputs",
            "working_tree",
            "known",
            "selection",
            "counts_simulated",
            "counts_memory",
        ),
    ),
}
