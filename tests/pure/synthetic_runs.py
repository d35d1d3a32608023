"""A made-up run of about 4,000 cells with planted findings, for the tests of pages and exports.

Real-looking noise, three backends with three kinds of evidence, and at least one cell of every status.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.store.results import COLUMNS

HOSTILE = 'kernel said <script>alert("x")</script> & \'quit\' | "a"'
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed")
PEERS = ("torch", "torch_compile", "liger", "huggingface")
HIDDEN = (128, 896, 1024, 2048, 4096, 5120, 8192, 11008, 14336, 16384, 32768)
ROWS = (1, 512, 4096, 32768)
ROOF = {"cuda": 4400.0, "sim": 1500.0}
TARGET = {
    "cpu": "cpu:cpu-x86_64",
    "cuda": "cuda:NVIDIA-H200:700W",
    "sim": "sim:fake-1",
    "rocm": "rocm:AMD-Instinct-MI300X:750W",
    "ascend": "ascend:Ascend910B3",
}
EVIDENCE = {"cpu": "interpreted", "cuda": "executed", "sim": "simulated"}


@dataclass
class FakeRun:
    """What `farm.store.Run` gives a reader."""

    id: str
    head: dict[str, Any]
    complete: bool
    rows: list[dict[str, Any]]
    dir: Path = field(default=Path("/nonexistent"))


@dataclass
class FakeStore:
    """What `farm.store.Store` gives a reader."""

    path: Path
    fakes: list[FakeRun]

    def runs(self) -> list[FakeRun]:
        return self.fakes

    def run(self, run_id: str) -> FakeRun:
        for fake in self.fakes:
            if fake.id == run_id:
                return fake
        from farm.errors import StoreError

        raise StoreError(f"no run {run_id}")


def row(index: int, **given: Any) -> dict[str, Any]:
    """One row with every column; `given` says what matters."""
    base: dict[str, Any] = dict.fromkeys(COLUMNS)
    base.update(
        index=index,
        matrix="rms_norm",
        tag="",
        backend="cpu",
        op="rms_norm",
        provider="farm",
        role="subject",
        mode="auto",
        mode_resolved="",
        launch="{}",
        operation="forward",
        dtype="float32",
        rows=0,
        family="mixed",
        seed=0,
        status="passed",
        reason="",
        fault_owner="",
        evidence="",
        attempt=1,
        flags="[]",
        metrics="{}",
        gates="{}",
        timing_method="none",
        timing_quality="none",
        target="",
        device="",
        node="",
        fingerprint="{}",
        revision="abc1234",
        log="",
        casting="llama",
    )
    base.update(given)
    hidden, rows, casting = base.pop("hidden", 4096), base.pop("rows") or 4096, base.pop("casting")
    base["dims"] = json.dumps({"rows": rows, "hidden": hidden})
    base["shape"] = f"{rows}x{hidden}"
    base["dtypes"] = json.dumps({"x": base["dtype"], "weight": base["dtype"]})
    base["params"] = json.dumps({"eps": 1e-6, "offset": 0.0, "casting": casting})
    base["cell_id"] = base["cell_id"] or "/".join(
        [
            base["backend"],
            base["op"],
            base["provider"],
            base["mode"],
            base["operation"],
            SHORT[base["dtype"]],
            base["shape"],
            casting,
        ]
    )
    base["cell_key"] = f"{index:064x}"
    if base["evidence"]:
        base.update(target=TARGET[base["backend"]], device=f"{base['backend']}:0", node="node-a")
        base["fingerprint"] = json.dumps({"triton": "3.7.1", "driver": "575.57", "torch": "2.13.0"})
    return base


def _plan() -> Iterator[dict[str, Any]]:
    for backend in ("cuda", "cpu", "sim"):
        shapes = [(r, h) for r in ROWS for h in HIDDEN]
        columns = [("farm", m) for m in MODES] + [(p, "auto") for p in PEERS]
        if backend == "cpu":
            shapes = [(r, h) for r, h in shapes if r <= 512]
            columns = [("farm", m) for m in MODES] + [("torch", "auto"), ("huggingface", "auto")]
        if backend == "sim":
            columns = [("farm", m) for m in MODES[:4]]
        for rows, hidden in shapes:
            for operation in ("forward", "backward"):
                for dtype in SHORT:
                    for provider, mode in columns:
                        yield {
                            "backend": backend,
                            "rows": rows,
                            "hidden": hidden,
                            "operation": operation,
                            "dtype": dtype,
                            "provider": provider,
                            "mode": mode,
                            "role": "subject" if provider == "farm" else "peer",
                            "tag": "qwen3-qk" if hidden == 128 else "tilegym",
                        }


def _accuracy(rng: random.Random, got: dict[str, Any]) -> None:
    ratio = min(0.95, 10 ** rng.gauss(-0.7, 0.35))
    got.update(worst_output="y", worst_metric="rel_l2", worst_ratio=ratio, max_ulp=2.0, rel_l2=ratio * 4e-3)
    got.update(max_abs=1e-3, metrics=json.dumps({"y": {"rel_l2": ratio * 4e-3}}), check_s=0.2)
    got.update(gates=json.dumps({"y": {"rel_l2": 4e-3}}), output_hash=f"{rng.getrandbits(64):016x}")


def _timing(rng: random.Random, got: dict[str, Any]) -> None:
    size = 4 if got["dtype"] == "float32" else 2
    moved = 2 * got["rows"] * got["hidden"] * size * (2 if got["operation"] == "backward" else 1)
    speed = {"farm": 0.82, "liger": 0.74, "torch_compile": 0.7, "torch": 0.45, "huggingface": 0.2}[got["provider"]]
    gbps = ROOF[got["backend"]] * speed * rng.uniform(0.85, 1.05) * moved / (moved + 6e6)
    p50 = moved / gbps / 1e3
    got.update(time_us_p50=p50, time_us_p20=p50 * 0.99, time_us_p80=p50 * rng.uniform(1.005, 1.05), samples=60)
    got.update(bandwidth_gbps=gbps, bytes_moved=moved, operations=moved, host_us_p50=p50 + 9, time_rel_mad=0.004)
    got.update(tflops=gbps / 1e3, timing_method="rotating_graph", timing_quality="ok", share_of_roof=None)
    if got["backend"] == "cuda":
        got["share_of_roof"] = gbps / ROOF["cuda"]
        got["timing_quality"] = "launch_bound" if got["rows"] == 1 else "ok"


def _plant(index: int, got: dict[str, Any]) -> None:
    """The findings that the tests look for."""
    farm, mode, backend = got["provider"] == "farm", got["mode"], got["backend"]
    wide, half = got["hidden"] >= 16384, got["dtype"] == "float16"
    fail: dict[str, Any] = {}
    if farm and mode == "row_packed" and backend == "cuda" and half and got["operation"] == "backward" and wide:
        fail = {"status": "inaccurate", "reason": "dw.rel_l2 is 0.021, tolerance 0.004", "fault_owner": "kernel"}
        got.update(worst_output="dw", worst_metric="rel_l2", worst_ratio=5.3, log=f"logs/{index}.log")
    elif farm and mode == "multi_wave_cached" and wide and got["dtype"] == "float32":
        fail = {"status": "skipped", "reason": "does not fit in registers (rms_norm.yaml:21)", "evidence": ""}
    elif farm and mode == "static_persistent" and backend == "cuda" and got["rows"] == 32768 and wide and half:
        fail = {"status": "timed_out", "reason": "no answer in 20 s", "fault_owner": "kernel"}
    elif farm and mode == "multi_wave_reload" and backend == "cpu" and got["hidden"] == 896 and got["rows"] == 1:
        fail = {"status": "crashed", "reason": HOSTILE, "fault_owner": "kernel", "log": f"logs/{index}.log"}
    elif farm and mode == "row_packed" and got["hidden"] == 32768 and not half and backend == "cuda":
        fail = {"status": "compile_error", "reason": "OutOfResources: shared memory", "fault_owner": "kernel"}
    elif got["provider"] == "liger" and got["hidden"] == 32768:
        fail = {"status": "unsupported", "reason": "liger takes hidden up to 16384"}
    elif got["provider"] == "huggingface" and got["hidden"] == 32768 and got["rows"] == 32768:
        fail = {"status": "out_of_memory", "reason": "CUDA out of memory", "fault_owner": "kernel"}
    elif got["provider"] == "torch_compile" and half and got["rows"] == 512 and got["hidden"] == 128:
        fail = {"status": "inaccurate", "reason": "y.max_ulp is 9, tolerance 4", "fault_owner": "kernel"}
        got.update(worst_output="y", worst_metric="max_ulp", worst_ratio=2.25)
    elif backend == "sim" and mode == "multi_wave_cached" and got["hidden"] == 128 and got["rows"] == 1:
        fail = {"status": "infra_error", "reason": "actor lost twice (node-b, node-c)", "fault_owner": "infra"}
    if fail:
        for name in [n for n in got if n.startswith(("time_us", "bandwidth", "tflops", "share"))]:
            got[name] = None
        got["timing_quality"] = "none"
    got.update(fail)


def rows_of_run(cells: int = 4000, seed: int = 7) -> list[dict[str, Any]]:
    """At most `cells` planned cells, with findings planted; the same seed gives the same rows."""
    rng, out = random.Random(seed), []
    for index, got in enumerate(_plan()):
        if index >= cells:
            break
        got = {**got, "evidence": EVIDENCE[got["backend"]], "seconds": 0.4}
        if got["provider"] == "farm":
            got["mode_resolved"] = "multi_wave_cached" if got["mode"] == "auto" else got["mode"]
        _accuracy(rng, got)
        if got["backend"] in ROOF:
            _timing(rng, got)
        _plant(index, got)
        out.append(row(index, **got))
    for spot in (40, 41):  # a clock that lied: device time far below what the bytes allow
        out[spot].update(time_us_p50=987.6543, bandwidth_gbps=987654.0, timing_quality="impossible", status="passed")
    return out


def wide_rows(cells: int = 4000, seed: int = 7) -> list[dict[str, Any]]:
    """Cells of three vendors, each with modes and peers, times, shares of the roof, registers: as a real night has."""
    rng, out = random.Random(seed), []
    plan = [got for got in _plan() if got["backend"] == "cuda"][: -(-cells // 3)]
    for index, (backend, planned) in enumerate(itertools.product(("cuda", "rocm", "ascend"), plan)):
        got = {**planned, "evidence": "executed", "seconds": 0.4}
        _accuracy(rng, got)
        _timing(rng, got)
        _plant(index, got)
        got |= {"backend": backend, "mode_resolved": rng.choice(MODES[1:]) if got["mode"] == "auto" else ""}
        got["resources"] = json.dumps([{"hash": str(index), "registers": rng.randrange(24, 256, 2)}])
        if rng.random() < 0.1:
            got["flags"] = json.dumps(["the output's rows are not aligned to 16 bytes"])
        if got["timing_quality"] == "ok" and rng.random() < 0.05:
            got["timing_quality"] = "noisy"
        out.append(row(index, **got))
    return out[:cells]


def again(rows: list[dict[str, Any]], seed: int, noise: float = 0.004) -> list[dict[str, Any]]:
    """The same cells in another run: other times, of which each is off by `noise` (standard deviation of its log)."""
    rng, out = random.Random(seed), []
    for old in rows:
        by, new = rng.lognormvariate(0, noise), dict(old)
        for name in ("time_us_p20", "time_us_p50", "time_us_p80"):
            new[name] = old[name] * by if old[name] else old[name]
        for name in ("bandwidth_gbps", "tflops", "share_of_roof"):
            new[name] = old[name] / by if old[name] else old[name]
        out.append(new)
    return out


def counts_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for r in rows:
        counts[r["status"]] = counts.get(r["status"], 0) + 1
    return counts


def fake_run(rows: list[dict[str, Any]] | None = None, run_id: str = "20260801-021500-a1b2", **head: Any) -> FakeRun:
    """A finished run over `rows` (default: the 4,000 planted ones)."""
    rows = rows_of_run() if rows is None else rows
    backends = {
        b: {
            "devices": [
                {
                    "name": TARGET[b].split(":")[1],
                    "node": "node-a",
                    "target": TARGET[b],
                    "fingerprint": {"triton": "3.7.1", "torch": "2.13.0", "driver": "575.57"},
                }
            ],
            "counts": counts_of([r for r in rows if r["backend"] == b]),
        }
        for b in dict.fromkeys(r["backend"] for r in rows)
    }
    counts = counts_of(rows)
    bad = {"inaccurate", "crashed", "timed_out", "compile_error", "out_of_memory"}
    verdict = "findings" if any(r["status"] in bad and r["role"] == "subject" for r in rows) else "passed"
    if counts.get("infra_error") or counts.get("lost"):
        verdict = "farm_fault"
    full = {
        "schema": 1,
        "run_id": run_id,
        "created": "2026-08-01T02:15:00Z",
        "finished": "2026-08-01T02:39:41Z",
        "seconds": 1481.0,
        "argv": ["run", "matrices/rms_norm.yaml"],
        "command": "farm run matrices/rms_norm.yaml --backend cuda,cpu,sim",
        "matrices": [{"name": "rms_norm", "path": "matrices/rms_norm.yaml", "sha256": "9f" * 32}],
        "plan_hash": "3c" * 32,
        "revision": {"commit": "abc1234def5678", "dirty": True, "version": "0.1.0"},
        "backends": backends,
        "counts": counts,
        "planned": len(rows),
        "verdict": verdict,
        "exit_code": {"passed": 0, "findings": 1, "farm_fault": 3}[verdict],
        "environments": {"default": {"command": "python", "python": "3.11.9"}},
    }
    return FakeRun(run_id, {**full, **head}, True, rows)


def interrupted_run(cells: int = 120, done: int = 70) -> FakeRun:
    """A run that was killed: only the plan's header, and the rest of the cells are `lost`."""
    rows = rows_of_run(cells)
    for r in rows[done:]:
        r.update(status="lost", reason="planned, no result", evidence="", worst_ratio=None, timing_quality="none")
        r.update(time_us_p50=None, bandwidth_gbps=None, share_of_roof=None, log="", target="", device="")
    run_id = "20260802-030000-dead"
    head = {"run_id": run_id, "created": "2026-08-02T03:00:00Z", "command": "farm run matrices/rms_norm.yaml"}
    head |= {"matrices": [{"name": "rms_norm", "path": "matrices/rms_norm.yaml", "sha256": "9f" * 32}]}  # type: ignore[dict-item]
    return FakeRun(run_id, {**head, "complete": False}, False, rows)
