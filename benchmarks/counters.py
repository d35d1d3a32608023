"""Bytes that the device's memory really moves in one call, by Nsight Compute's counters, beside the model's bytes.

    python -m benchmarks.counters --out FOLDER [--seconds 300] [--cells TEXT]

One `ncu` process for each case and subject, around a child that calls once to compile, then once between
cudaProfilerStart and cudaProfilerStop.  Clocks are left alone; caches are flushed before each kernel (ncu's default),
so a reading kernel finds nothing in them; the last tens of MB written may still lie in the last-level cache when it
ends.  A backward is counted without its forward.  Where ncu is absent, or the driver does not let this user read
counters, it says so and ends 4.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, case_of
from farm.contracts.discovery import contract
from farm.errors import Unsupported
from farm.process.command import run

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SECONDS_EACH = 90.0
SHAPE = (8192, 8192)  # 128 MiB a matrix in 16 bit: more than the last-level cache of any part in the table
SUBJECTS = {
    "rms_norm": (
        "farm",
        "farm:multi_wave_cached",
        "farm:multi_wave_reload",
        "torch",
        "torch_compile",
        "liger",
        "quack",
    ),
    "fused_add_rms_norm": ("farm", "torch_compile", "liger", "quack"),
}
_PERMISSION = "ERR_NVGPUCTRPERM"


class Refused(Exception):
    """Counters cannot be read here; the message says why."""


def jobs() -> list[tuple[Case, str]]:
    """What is counted, what matters most first: forwards, then backwards of ours and the fastest peers."""
    cases = [(Case(op, "forward", "bfloat16", *SHAPE), s) for op, names in SUBJECTS.items() for s in names]
    return cases + [
        (Case(op, "backward", "bfloat16", *SHAPE), s) for op in SUBJECTS for s in ("farm", "quack", "liger")
    ]


def find_ncu() -> str | None:
    """Nsight Compute's command line: on the path, or where CUDA puts it."""
    places = (("/usr/local", "cuda*/bin/ncu"), ("/opt/nvidia/nsight-compute", "*/ncu"))
    newest_first = (str(p) for folder, pattern in places for p in sorted(Path(folder).glob(pattern), reverse=True))
    return shutil.which("ncu") or next(newest_first, None)


def parse(text: str) -> list[dict[str, Any]]:
    """`[{"kernel", "read", "written"}]`, in bytes, from `ncu --csv --page raw --print-units base`.

    Refused where the driver does not permit it, or where there is no table.
    """
    if _PERMISSION in text:
        raise Refused(f"the driver does not let this user read counters ({_PERMISSION})")
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        raise Refused(f"ncu gave no table: {last[:200]}")
    found = []
    for row in csv.DictReader(lines[start:]):
        if (row.get("ID") or "").isdigit():  # the second line holds units
            numbers = {
                key: float(str(row[name]).replace(",", "")) for key, name in (("read", READ), ("written", WRITTEN))
            }
            found.append({"kernel": row["Kernel Name"], **{key: round(value) for key, value in numbers.items()}})
    return found


def line(case: Case, subject: str, kernels: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table: counted bytes over the model's, read and written."""
    kernels = list(kernels)
    work = contract(case.op).work(case.cell(subject))
    read, written = (sum(k[key] for k in kernels) for key in ("read", "written"))
    return {
        "cell": case.id,
        "subject": subject,
        "kernels": kernels,
        "model_read": work.bytes_read,
        "model_written": work.bytes_written,
        "read": read,
        "written": written,
        "read_ratio": round(read / work.bytes_read, 3),
        "written_ratio": round(written / work.bytes_written, 3),
    }


def count(ncu: str, case: Case, subject: str, seconds: float) -> dict[str, Any]:
    """The line of one case and subject, from a process of its own; `reason` where there are no numbers."""
    child = [sys.executable, "-m", "benchmarks.counters", "--child", json.dumps({**case.to_dict(), "subject": subject})]
    table = ["--csv", "--page", "raw", "--print-units", "base", "--metrics", f"{READ},{WRITTEN}"]
    how = ["--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all"]
    command = [ncu, *table, *how, *child]
    text = said(command, seconds)
    if text is None:
        return {"cell": case.id, "subject": subject, "reason": f"took more than {seconds:.0f} s"}
    told = next((words for words in text.splitlines() if words.startswith("unsupported: ")), None)
    if told:
        return {"cell": case.id, "subject": subject, "reason": told}
    try:
        return line(case, subject, parse(text))
    except Refused as reason:
        if _PERMISSION in text:
            raise
        return {"cell": case.id, "subject": subject, "reason": str(reason)}


def said(command: list[str], seconds: float) -> str | None:
    """What a command printed; None where it did not end in time.  All of it is ended then: ncu, when it is killed,
    leaves the process that it watched behind, which would stay on the device."""
    done = run(command, seconds)
    return None if done.code is None else done.out + done.err


def child(data: dict[str, Any]) -> int:
    """One counted call, in the process that ncu watches."""
    import torch

    from benchmarks.work import Work
    from farm.child import provider_call
    from farm.contracts.call import call_for

    case, subject = case_of(data), str(data["subject"])
    provider = {"name": subject.partition(":")[0]}
    work = Work(case, torch.device("cuda"), check=False)
    try:
        call = call_for(case.cell(subject), contract(case.op), provider)
        function = provider_call.bind(provider_call.resolve(provider, case.op), call)
        work.make().run(function)
    except (Unsupported, NotImplementedError) as reason:
        print(f"unsupported: {reason}", flush=True)
        return 0
    problem = work.make()
    outputs: Any = problem.forward(function) if case.operation == "backward" else None
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    kept = problem.gradients(outputs) if case.operation == "backward" else problem.forward(function)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    del kept
    return 0


def shown(found: dict[str, Any]) -> str:
    """A line for people."""
    head = f"{found['cell']:44} {found['subject']:26}"
    if "reason" in found:
        return f"{head} {found['reason'][:120]}"
    return (
        f"{head} read {found['read'] / 2**20:9.1f} MiB, {found['read_ratio']:5.2f} of the model's; "
        f"written {found['written'] / 2**20:9.1f} MiB, {found['written_ratio']:5.2f}; {len(found['kernels'])} kernels"
    )


def main(argv: list[str] | None = None) -> int:
    """Count, print a line each, write `counters.json`; 0, or 4 where counters cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counters", description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for counters.json")
    parser.add_argument("--seconds", type=float, default=300.0, help="for everything; what is left over is not counted")
    parser.add_argument("--cells", default="", help="only cells whose id or subject holds this text")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child is not None:
        return child(args.child)
    ncu = find_ncu()
    if ncu is None:
        print("ncu is not on this host: install NVIDIA Nsight Compute, or put its folder on PATH")
        return 4
    begun, lines = time.monotonic(), []
    for case, subject in jobs():
        left = args.seconds - (time.monotonic() - begun)
        if args.cells not in f"{case.id} {subject}":
            continue
        if left < 5:
            print(f"{case.id:44} {subject:26} not counted: the time is up")
            continue
        try:
            lines.append(count(ncu, case, subject, min(SECONDS_EACH, left)))
        except Refused as reason:
            print(f"counters cannot be read here: {reason}")
            return 4
        print(shown(lines[-1]), flush=True)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "counters.json").write_text(json.dumps({"ncu": ncu, "lines": lines}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
