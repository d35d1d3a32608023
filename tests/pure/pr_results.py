"""A result.json as a measuring job leaves it, made of plain values."""

from __future__ import annotations

from typing import Any

BASE, HEAD, TREE_A, TREE_B = "a" * 40, "b" * 40, "c" * 40, "d" * 40
TREES = {BASE: TREE_A, HEAD: TREE_B}


def pair(cell: str = "cuda/rms_norm/liger/auto/forward/bf16/8192x4096/llama", **given: Any) -> dict[str, Any]:
    backend, op, *_ = cell.split("/")
    made: dict[str, Any] = {
        "cell": cell,
        "backend": backend,
        "target": {"cuda": "NVIDIA H200"}.get(backend, ""),
        "op": op,
        "evidence": {"cuda": "executed", "rocm": "executed", "sim": "simulated"}.get(backend, "interpreted"),
        "axes": {"dtype": "bfloat16", "operation": "forward", "rows": "8192", "hidden": "4096"},
        "kernels": ["ops/rms_norm.py:_forward"],
        "status_a": "passed",
        "status_b": "passed",
        "reason": "",
        "place": "",
        "same_bits": True,
        "worst_a": 0.3,
        "worst_b": 0.3,
        "speed": "same" if backend in ("cuda", "rocm", "sim") else "none",
        "ratio": 1.001,
        "low": 0.998,
        "high": 1.004,
        "threshold": 0.02,
        "rounds": 3,
        "us_a": 32.0,
        "us_b": 32.0,
        "gbps_a": 4211.0,
        "gbps_b": 4210.0,
        "memory_a": 1 << 26,
        "memory_b": 1 << 26,
        "bytes_a": None,
        "bytes_b": None,
        "launch_a": "_forward grid 132 warps 8",
        "launch_b": "_forward grid 132 warps 8",
        "repeat": "farm ab bench/rms_norm.yaml --a revision=aaaa --b revision=bbbb --select rows=8192",
    }
    return {**made, **given}


def slower(cell: str, ratio: float = 1.18, **given: Any) -> dict[str, Any]:
    more = {"low": ratio - 0.01, "high": ratio + 0.01, "gbps_b": 4211.0 / ratio, "us_b": 32.0 * ratio, "rounds": 15}
    return pair(cell, speed="regressed", ratio=ratio, **{**more, **given})


def static(**given: Any) -> dict[str, Any]:
    made = {
        "kernels": 40, "changed": ["ops/rms_norm.py:_forward"], "unknown": [], "unreached": [], "host": [],
        "harness": [], "targets": [target()], "tools": ["triton 3.7.1"],
    }  # fmt: skip
    return {**made, **given}


def target(**given: Any) -> dict[str, Any]:
    made = {
        "target": "sm_90",
        "backend": "cuda",
        "compiled": 12,
        "same_code": 2,
        "unknown": 0,
        "why": "",
        "failed": [],
        "moves": [],
    }
    return {**made, **given}


def move(**given: Any) -> dict[str, Any]:
    made = {
        "kernel": "_forward", "cell": "rms_norm/liger/auto/forward/bf16/8192x4096/llama", "cells": 8,
        "measure": "registers", "a": 64.0, "b": 80.0, "worse": True,
    }  # fmt: skip
    return {**made, **given}


def own_test(**given: Any) -> dict[str, Any]:
    made = {"id": "tests/test_norms.py::test_a", "kind": "test", "status_a": "passed", "status_b": "passed",
            "owner": "", "reason": "", "us_a": None, "us_b": None}  # fmt: skip
    return {**made, **given}


def result(*pairs: dict[str, Any], **given: Any) -> dict[str, Any]:
    made = {
        "schema": 1,
        "farm": "0.1.0",
        "repository": "someone/kernels",
        "number": 7,
        "run": "2026-11-23T10-00-00Z-abc123",
        "created": "2026-11-23T10:00:00Z",
        "config": "e" * 64,
        "base": {"sha": BASE, "tree": TREE_A, "digest": "1" * 64, "name": "kernels aaaaaaaaaaaa"},
        "head": {"sha": HEAD, "tree": TREE_B, "digest": "2" * 64, "name": "kernels bbbbbbbbbbbb"},
        "behind": 0,
        "static": None,
        "pairs": list(pairs),
        "tests": [],
        "not_run": [],
        "faults": [],
        "stages": [{"stage": "stage 0", "seconds": 40.0}],
        "repeat": "farm pr --repo . --base aaaa --head bbbb",
    }
    return {**made, **given}
