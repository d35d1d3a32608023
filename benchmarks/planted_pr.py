"""Does `farm pr` find what was planted, say so in its first line, and accuse nothing else?

    python -m benchmarks.planted_pr OUT [--backend cuda] [--only NAME,..] [--limit-s 290] [--jobs 2] [--scale 1.0]

Makes a small git repository of its own in a temporary folder: one Triton rms_norm with a farm.yaml and a matrix of 12
cells, and a branch for each plant.  Then it runs `farm pr` of base and each branch, without Ray, network or sandbox
(the code is its own).  OUT gets, as it comes, each comment (NAME.md), result (NAME.json) and log; table.md and
table.json, which say what was planted, the first line, the exit code, seconds by stage, which cells were accused and
what ratio was measured; and the page of one comparison.  Exit code 0: each plant that ran was found in its cells and
nowhere else, and the first line says so.

How a kernel gets slower: it reads a share of another row, far enough away to be in no cache, and drops it.  Base reads
250 thousandths of a row so (1.125 times the traffic that is needed); a branch reads what makes its traffic the planted
ratio times base's.  Caches make the measured ratio another one: it stands in the table, and --scale corrects the share.

--jobs plants are worked on at once: while one has the device, the next is compiled and interpreted; what it then waits
for the device is not in the table.  --backend none uses no device, and --backend cpu runs the rounds in the
interpreter: then only what the interpreter can see is expected.  Needs git.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.pr import memory

ROOT = Path(__file__).resolve().parents[1]
FAILS = ("inaccurate", "compile_error", "crashed", "timed_out", "out_of_memory")
BASE_SHARE = 250  # thousandths of a row
KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def _norm(X, W, Y, rows, eps, n: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(X + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    far = (row + rows // 2) % rows
    extra = tl.load(X + far * n + cols, mask=cols < n * 250 // 1000 // 64 * 64, other=0.0).to(tl.float32)
    total = tl.sum(x * x)
    total = tl.where(tl.sum(extra) == -1e30 * eps, 0.0, total)
    rstd = 1.0 / tl.sqrt(total / n + eps)
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    y = x * rstd * w
    tl.store(Y + row * n + cols, y.to(Y.dtype.element_ty), mask=mask)


def norm(x, weight, eps):
    y = torch.empty_like(x)
    rows, n = x.shape
    num_warps = 8 if n <= 4096 else 16
    _norm[(rows,)](x, weight, y, rows, eps, n, triton.next_power_of_2(n), num_warps=num_warps)
    return y
"""
FILES = {
    "src/planted/__init__.py": "",
    "src/planted/norm.py": KERNEL,
    "adapters.py": "import planted.norm as it\n\n\ndef rms_norm(x, weight, eps):\n    return it.norm(x, weight, eps)\n",
    "farm.yaml": """farm: 1
subject: planted
overlay: {path: src, modules: [planted]}
providers:
  planted:
    ops:
      rms_norm: {call: "adapters:rms_norm"}
matrices: [norms.yaml]
selection: {sentinel: 2}
""",
    "norms.yaml": """name: planted
op: rms_norm
axes:
  shape: [{rows: [6144, 8192], hidden: [4000, 4096, 8192]}]
  dtype: [float32, bfloat16]
  operation: no-grad-forward
providers: {planted: {}}
backends:
  cpu: {shape: [{rows: [4, 6], hidden: [4000, 4096, 8192]}]}
deadlines: {compile: 40, check: 15, timing: 30}
""",
}
Pair = Mapping[str, Any]


@dataclass(frozen=True)
class Plant:
    """One branch.

    change: (what stands in the kernel's file, what stands there instead); hit: whether a cell (its axes) has it; name:
    of the verdict; line: what the first line must say; timed: only a device can see it in a cell; compiled: it spills,
    which the compiler reports; select: the cells that run, if not all; reserve: seconds without which it is not begun;
    ratio: the planted ratio of times; accuses: whether its cells fail or are slower.
    """

    what: str
    change: tuple[tuple[str, str], ...]
    hit: Callable[[Mapping[str, str]], bool]
    exit_code: int
    line: str
    timed: bool = False
    compiled: bool = False
    select: str = ""
    reserve: float = 25.0
    ratio: float | None = None
    accuses: bool = True


def of(**wanted: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda axes: all(axes.get(name) == value for name, value in wanted.items())


def again(ratio: float, scale: float) -> tuple[tuple[str, str], ...]:
    """The change that multiplies the kernel's traffic by a ratio: each row is read and written once, and a share of it
    read once more."""
    traffic = 2 + BASE_SHARE / 1000
    share = BASE_SHARE + scale * 1000 * traffic * (ratio - 1)
    if not 0 <= share <= 1000:
        raise SystemExit(f"a ratio of {ratio:g} needs {share:.0f} thousandths of a row read again, not 0 to 1000")
    return (("n * 250 //", f"n * {round(share)} //"),)


def timed(percent: float, scale: float) -> Plant:
    """A kernel that takes so many per cent more of the time."""
    slow, ratio = percent > 0, 1 + percent / 100
    word = "slower" if slow else "faster"
    return Plant(
        f"{abs(percent):g} % {word}",
        again(ratio, scale),
        of(hidden="4096"),
        1 if slow else 0,
        rf"cells? {word}",
        timed=True,
        select="hidden=4096",
        reserve=60.0,
        ratio=ratio,
        accuses=slow,
    )


def plants(scale: float) -> dict[str, Plant]:
    """Name of the branch -> what it holds; what takes least time first."""
    return {
        "comments": Plant(
            "comments alone",
            (("    row = tl", "    # which row this program computes\n    row = tl"),),
            lambda axes: False,
            0,
            r"No kernel changed",
        ),
        "tail": Plant(
            "a tail mask that loses the last columns of a width of 4000",
            (("mask = cols < n\n", "mask = cols < n // 128 * 128\n"),),
            of(hidden="4000"),
            1,
            r"cells broken",
        ),
        "dtype": Plant(
            "does not compile for bfloat16",
            (("    row = tl", '    tl.static_assert(X.dtype.element_ty == tl.float32, "float32 only")\n    row = tl'),),
            of(dtype="bfloat16"),
            1,
            r"broken|do not compile",
        ),
        "illegal": Plant(
            "a read 16 TiB beyond the tensor, in float32 at a width of 8192",
            (
                (
                    "    total = tl.sum(x * x)\n",
                    "    if n == 8192 and X.dtype.element_ty == tl.float32:\n"
                    "        x += tl.load(X + (1 << 42) + cols)\n"
                    "    total = tl.sum(x * x)\n",
                ),
            ),
            of(hidden="8192", dtype="float32"),
            1,
            r"cells? broken",
        ),
        "accuracy": Plant(
            "2 units in the last place less accurate, in float32",
            (
                (
                    "    w = tl.load(W",
                    "    if X.dtype.element_ty == tl.float32:\n        rstd = rstd * 1.00000024\n    w = tl.load(W",
                ),
            ),
            of(dtype="float32"),
            0,
            r"[Bb]its identical in [0-9]+ of [0-9]+ cells.*within tolerance",
            reserve=40.0,
            accuses=False,
        ),
        "memory": Plant(
            "a scratch tensor of 4 bytes an element, alive in the call and never used",
            (
                (
                    "    y = torch.empty_like(x)\n",
                    "    y = torch.empty_like(x)\n"
                    "    scratch = torch.empty(x.shape, dtype=torch.float32, device=x.device)  # noqa: F841\n",
                ),
            ),
            of(hidden="4096"),
            0,
            r"4 of 4 cells need more device memory",
            timed=True,
            select="hidden=4096",
            reserve=40.0,
            accuses=False,
        ),
        "slower-10": timed(10, scale),
        "slower-5": timed(5, scale),
        "faster-10": timed(-10, scale),
        "heuristic": Plant(
            "a heuristic that takes one warp for widths from 8192 on",
            (("else 16\n", "else 1\n"),),
            of(hidden="8192"),
            1,
            r"cells? slower|do not compile|spill",
            timed=True,
            compiled=True,
            reserve=70.0,
        ),
        "hang": Plant(
            "a loop without an end, in bfloat16 at a width of 4000",
            (
                (
                    "    total = tl.sum(x * x)\n",
                    "    if n == 4000 and X.dtype.element_ty == tl.bfloat16:\n"
                    "        while tl.load(W, volatile=True).to(tl.float32) < 1e30:\n"
                    "            x += 1.0\n"
                    "    total = tl.sum(x * x)\n",
                ),
            ),
            of(hidden="4000", dtype="bfloat16"),
            1,
            r"cells? broken",
            select="dtype=bfloat16",
            reserve=110.0,
        ),
    }


def planted(kernel: str, plant: Plant) -> str:
    for old, new in plant.change:
        if kernel.count(old) != 1:
            raise SystemExit(f"{plant.what}: {old!r} stands {kernel.count(old)} times in the kernel, not once")
        kernel = kernel.replace(old, new)
    return kernel


def git(folder: Path, *words: str) -> None:
    who = {f"GIT_{role}_{key}": "planted@example.org" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    subprocess.run(["git", "-C", str(folder), *words], check=True, timeout=60, env={**os.environ, **who})


def repository(folder: Path, found: Mapping[str, Plant]) -> None:
    """The base, and a branch for each plant."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "init", "-q", "-b", "base")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "An rms_norm")
    for name, plant in found.items():
        git(folder, "checkout", "-q", "-b", name, "base")
        (folder / "src/planted/norm.py").write_text(planted(KERNEL, plant), encoding="utf-8")
        git(folder, "commit", "-qam", plant.what)
    git(folder, "checkout", "-q", "base")


LIVE: set[subprocess.Popen[bytes]] = set()


def ended(words: list[str], folder: Path, log: Path, seconds: float) -> int | None:
    """Run a command; its exit code, None where the time was over.  What it started ends with it."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "FARM_ADDRESS": "inline", "PYTHONUNBUFFERED": "1"}
    env["FARM_CACHE"] = str(folder.parent / "cache")
    env.pop("GITHUB_TOKEN", None)
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            words, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        LIVE.add(process)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)
            LIVE.discard(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a command with all that it started: first so that it can put things in order."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)


@dataclass
class Seen:
    """What came of a plant; `why` it did not run, or what is not as planted."""

    name: str
    plant: Plant
    why: list[str]
    line: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    stages: dict[str, float] | None = None
    accused: tuple[int, int, int] = (0, 0, 0)  # of the planted cells, those planted, others
    ratios: tuple[float, float] | None = None
    ran: bool = True

    def row(self) -> list[str]:
        stages = self.stages or {}
        measured = f"{self.ratios[0]:.3f} to {self.ratios[1]:.3f}" if self.ratios else ""
        return [
            self.name,
            self.plant.what,
            "not run" if not self.ran else "yes" if not self.why else "NO",
            "" if self.exit_code is None else str(self.exit_code),
            f"{self.accused[0]} of {self.accused[1]}; others {self.accused[2]}" if self.ran else "",
            f"{self.plant.ratio:g}" if self.plant.ratio else "",
            measured,
            *(f"{stages[s]:.1f}" if s in stages else "" for s in ("stage 0", "devices")),
            f"{self.seconds:.1f}" if self.ran else "",
            "; ".join(self.why) if self.why else self.line,
        ]


HEAD = (
    "plant", "what", "right", "exit", "planted cells accused", "planted ratio", "measured ratios", "stage 0, s",
    "devices, s", "all, s", "first line, or what is wrong",
)  # fmt: skip


def judged(seen: Seen, result: Mapping[str, Any], device: bool) -> None:
    """Note what is not as planted."""
    plant, pairs = seen.plant, result["pairs"]
    seen.stages = {s["stage"]: s["seconds"] for s in result["stages"]}
    executed = any(p["evidence"] == "executed" for p in pairs)
    evidence = "executed" if device and executed else "interpreted"
    hit = [p for p in pairs if p["evidence"] == evidence and plant.hit(p["axes"])]
    bad = [p for p in pairs if accused(p)]
    can = {id(p) for p in pairs if plant.hit(p["axes"]) and (p["evidence"] == "executed" or not plant.timed)}
    seen.accused = (sum(accused(p) for p in hit), len(hit), sum(id(p) not in can for p in bad))
    ratios = [p["ratio"] for p in hit if p["ratio"] and p["speed"] != "none"]
    seen.ratios = (min(ratios), max(ratios)) if ratios else None
    visible = device or not plant.timed
    if device and not executed and seen.name != "comments":
        seen.why.append("nothing ran on a device")
    if seen.accused[2]:
        seen.why.append(f"{seen.accused[2]} other cells accused")
    if visible and plant.accuses and seen.accused[0] < len(hit):
        seen.why.append(f"{len(hit) - seen.accused[0]} planted cells not found")
    if (not plant.accuses or not visible) and bad:
        seen.why.append(f"{len(bad)} cells accused, none expected")
    if plant.ratio and plant.ratio < 1 and device and sum(p["speed"] == "improved" for p in hit) < len(hit):
        seen.why.append("not all planted cells are faster")
    if seen.name == "memory" and device:
        needs = sum(plant.hit(p["axes"]) for p in memory.more(pairs))
        seen.why += ["not all planted cells need more memory"] * (needs < len(hit))
    if seen.name == "accuracy" and not any(p["same_bits"] is False for p in hit):
        seen.why.append("no planted cell has other bits")
    spills = plant.compiled and bool(result["static"]["targets"])
    if (visible or spills) and not re.search(plant.line, seen.line):
        seen.why.append(f"the first line does not say {plant.line!r}: {seen.line}")
    expected = (plant.exit_code,) if device else (plant.exit_code, 4) if visible and not plant.exit_code else (0, 4)
    expected = (1,) if (visible or spills) and plant.exit_code == 1 else expected
    if seen.exit_code not in expected:
        seen.why.append(f"exit code {seen.exit_code}, not {' or '.join(map(str, expected))}")


def accused(pair: Pair) -> bool:
    broken = pair["status_b"] in FAILS and pair["status_a"] not in FAILS
    return broken or pair["speed"] == "regressed"


def first_line(comment: str) -> str:
    """The answer: the first line that readers see."""
    return next((line for line in comment.splitlines() if line and not line.startswith("<!--")), "")


def one(name: str, plant: Plant, repo: Path, out: Path, args: argparse.Namespace, left: float) -> Seen:
    """Run `farm pr` of a branch."""
    device = args.backend == "cuda"
    words = [sys.executable, "-m", "farm", "pr", "--base", "base", "--head", name, "--repo", str(repo)]
    words += ["--result", str(out / f"{name}.json"), "--comment", str(out / f"{name}.md"), "--target", args.target]
    words += ["--out", str(repo.parent / "store" / name), "--no-sandbox"]
    words += ["--backend", args.backend] if args.backend != "none" else ["--no-device"]
    words += ["--select", plant.select] if plant.select else []
    begun = time.monotonic()
    code = ended(words, repo, out / f"{name}.log", left)
    seen = Seen(name, plant, [], exit_code=code, seconds=time.monotonic() - begun)
    if code is None:
        seen.why.append(f"ended by --limit-s after {seen.seconds:.0f} s")
        seen.ran = False
    elif not (out / f"{name}.json").exists():
        last = (out / f"{name}.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
        seen.why.append(f"no result: {' '.join(last)[:300]}")
    else:
        seen.line = first_line((out / f"{name}.md").read_text(encoding="utf-8"))
        judged(seen, json.loads((out / f"{name}.json").read_text(encoding="utf-8")), device)
    return seen


def table(rows: list[Seen]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *(seen.row() for seen in rows)]
    return "".join(f"| {' | '.join(word.replace('|', '/') for word in line)} |\n" for line in lines)


def short(rows: list[Seen]) -> str:
    """A line for each plant, for a terminal."""
    lines = [("plant", "right", "exit", "ratios", "devices, s", "all, s", "wrong")]
    for seen in rows:
        row = dict(zip(HEAD, seen.row()))
        names = ("plant", "right", "exit", "measured ratios", "devices, s", "all, s")
        lines.append((*(row[name] for name in names), "; ".join(seen.why)[:100]))
    return "".join(f"{'  '.join(f'{word:<14}' for word in line).rstrip()}\n" for line in lines)


def keep_page(repo: Path, store: Path, run: str, out: Path, seconds: float) -> None:
    """The page of a comparison, as an example."""
    words = [sys.executable, "-m", "farm", "dashboard", "build", "--out", str(store), run]
    if ended(words, repo, out / "page.log", seconds) == 0:
        for page in sorted((store / "pages").rglob("*.html")):
            if run in page.as_posix():
                shutil.copyfile(page, out / "page.html")


class Work:
    """All plants of a call, until `end` (monotonic seconds)."""

    def __init__(self, args: argparse.Namespace, repo: Path, out: Path, end: float, known: Mapping[str, Plant]):
        self._args, self._repo, self._out, self._end, self._known = args, repo, out, end, known
        self._guard = threading.Lock()
        self._device_ended = 0.0
        self.rows: list[Seen] = []

    def one(self, name: str) -> None:
        """Run a plant, if there is time for it, and note what came of it."""
        plant, left = self._known[name], self._left()
        if left < plant.reserve:
            seen = Seen(name, plant, [f"{max(0.0, left):.0f} s were left of --limit-s"], ran=False)
        else:
            seen = one(name, plant, self._repo, self._out, self._args, left)
        with self._guard:
            now = time.monotonic()
            if seen.stages and "devices" in seen.stages:  # without what another plant had the device for
                seen.stages["devices"] = min(seen.stages["devices"], now - self._device_ended)
                self._device_ended = now
            self.rows.append(seen)
            print(f"{seen.row()[2]:8} {name}: {seen.seconds:.1f} s: {'; '.join(seen.why) or seen.line}", flush=True)
            (self._out / "table.md").write_text(table(self.rows), encoding="utf-8")
            kept = [dict(zip(HEAD, row.row())) for row in self.rows]
            (self._out / "table.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")

    def page(self) -> None:
        """Keep the page of the first comparison of times that there is, if there is time."""
        for seen in self.rows:
            place = self._out / f"{seen.name}.json"
            if seen.ran and seen.plant.timed and place.exists() and self._left() > 5:
                run = json.loads(place.read_text(encoding="utf-8"))["run"]
                keep_page(self._repo, self._repo.parent / "store" / seen.name, run, self._out, self._left())
                return

    def _left(self) -> float:
        return self._end - 10 - time.monotonic()  # 10 s to end what must end


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("out", type=Path, help="where comments, results, logs and the table go")
    p.add_argument("--backend", choices=("cuda", "cpu", "none"), default="cuda", help="none: use no device")
    p.add_argument("--target", default="sm_90", help="what both arms are compiled for, or none (default: sm_90)")
    p.add_argument("--only", default="", metavar="NAME,..", help="these plants, in this order")
    p.add_argument("--limit-s", type=float, default=290.0, metavar="S", help="end by itself then (default: 290)")
    p.add_argument("--jobs", type=int, default=2, metavar="N", help="plants that are worked on at once (default: 2)")
    p.add_argument("--scale", type=float, default=1.0, help="correct the share that a slower kernel reads again")
    p.add_argument(
        "--work", type=Path, help="an empty folder for the repository and the store (default: a temporary one)"
    )
    args = p.parse_args(argv)
    if shutil.which("git") is None:
        print("planted_pr: git is not installed, and the planted branches are those of a git repository; install git")
        return 2
    known = plants(args.scale)
    names = [n for n in args.only.split(",") if n] or list(known)
    if wrong := [n for n in names if n not in known]:
        print(f"planted_pr: {wrong[0]!r} is no plant; there are {', '.join(known)}")
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    out = args.out.resolve()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as made:
        repo = (args.work or Path(made)).resolve() / "repository"
        repo.mkdir(parents=True)
        repository(repo, {n: known[n] for n in names})
        work = Work(args, repo, out, begun + args.limit_s, known)
        with ThreadPoolExecutor(max(1, args.jobs)) as pool:
            try:
                list(pool.map(work.one, names))
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in [*LIVE]:
                    end(process)
                raise
        rows = work.rows
        if args.backend != "none":
            work.page()
    print(f"\n{time.monotonic() - begun:.0f} s in all; {out / 'table.md'} has all of it\n\n{short(rows)}", end="")
    return 0 if all(not seen.why for seen in rows if seen.ran) else 1


if __name__ == "__main__":
    sys.exit(main())
