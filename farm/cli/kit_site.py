"""What `run.py` of a kit does: check what is there, run the kit's part of its plan, and write one file that goes back.

It runs in the Python of that site, which has NumPy, torch and Triton and perhaps nothing else, so it imports nothing
that reads YAML, writes Parquet or starts Ray.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import platform
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm import atomic_files, backends
from farm.cell import FINDINGS, Status
from farm.cli import kit_arms, progress
from farm.cli.kit_arms import packed_subject
from farm.cli.progress import Plain
from farm.cli.text import counted, duration, printable, sentence
from farm.cluster.base import NoCluster
from farm.cluster.inline import InlineCluster
from farm.cluster.local import local_devices
from farm.contracts import discovery
from farm.contracts.discovery import own_torch
from farm.coordinator import RunRequest, execute, rounds
from farm.errors import BackendError, FarmError, Message, StoreError, UsageError
from farm.matrix import Plan
from farm.node import config
from farm.process import command, host, supervisor
from farm.report import pairs_text
from farm.shipping import archives, bundle, contracts
from farm.sites import kit as kits
from farm.sites import planfile, scrubbing
from farm.sites.kit import Kit
from farm.sites.planfile import PlanFile
from farm.store import PLAN, RunWriter, Store, recovery
from farm.store.kit_runs import KitRunWriter
from farm.store.recovery import Recovery

ASK_SECONDS = 300.0
MOST_MINUTES = 7 * 24 * 60.0
#: What a kit needs of its Python, and what to do without it.
NEEDED = {"numpy": "NumPy", "torch": "torch", "triton": "Triton"}
_ASK = """
import json, sys
out = {}
for name in sys.argv[1:]:
    try:
        module = __import__(name)
        out[name] = str(getattr(module, "__version__", "?"))
        if name == "torch":
            out["builds"] = {k: str(getattr(module.version, k, None) or "") for k in ("cuda", "hip")}
    except BaseException as error:
        out[name] = None
        out[name + " why"] = "%s: %s" % (type(error).__name__, error)
print(json.dumps(out))
"""
#: Settings under which no library of a provider asks a network for files.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def main(folder: str, argv: Sequence[str]) -> int:
    """The exit code of `run.py`.  `folder`: that of the unpacked kit, whose files are those of its manifest."""
    args = _options(argv)
    os.environ.setdefault(config.VARIABLE, config.NONE)  # the kit decides what runs, not the host's farm
    os.environ.update({k: v for k, v in OFFLINE.items() if k not in os.environ})
    here = Path(folder)
    try:
        site = _Site(here, args, list(argv))
        if args.check:
            return 0
        if site.complete:
            return site.tell_complete()
    except FarmError as error:
        print(f"run.py: {sentence(error)}", file=sys.stderr)
        return error.exit_code
    return supervisor.run(lambda: _guarded(site), lambda outcome: _explain(outcome, site))


def _options(argv: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="run.py",
        description="Check this host, run the kit's cells, and write one file result-....tar.gz to send back. Run it "
        "again after an interruption: it continues.",
        epilog="exit codes: 0 passed, 1 findings, 2 something is missing here, 3 not all cells ran, 4 inconclusive",
    )
    p.add_argument("--out", metavar="DIR", help="write below this folder (default: the folder result beside run.py)")
    p.add_argument("--limit-minutes", type=float, metavar="N", help="stop after N minutes; run.py again continues")
    p.add_argument("--devices", type=int, default=1, metavar="N", help="use N devices (default: 1)")
    p.add_argument("--by", metavar="NAME", help="who runs this, for the result (default: your login name)")
    p.add_argument("--site", metavar="NAME", default="", help="where this runs, for the result")
    p.add_argument(
        "--anonymous", action="store_true", help="leave login name, host name and home folder out of the result"
    )
    p.add_argument("--check", action="store_true", help="only check what is here")
    p.add_argument("--again", action="store_true", help="start a new run, although one is complete here")
    args = p.parse_args(list(argv))
    for option, text in (("--by", args.by or ""), ("--site", args.site)):
        if len(text) > 100 or not text.isprintable():
            p.error(f"{option}: at most 100 printable characters")
    if args.limit_minutes is not None and not 0 < args.limit_minutes <= MOST_MINUTES:
        p.error(f"--limit-minutes {args.limit_minutes:g}: must be more than 0 and at most {MOST_MINUTES:g}")
    if not 1 <= args.devices <= 256:
        p.error(f"--devices {args.devices}: must be between 1 and 256")
    return args


class _Site:
    """What was found at the site.  UsageError, BackendError or StoreError, in one sentence, for what is missing."""

    def __init__(self, here: Path, args: argparse.Namespace, argv: list[str]):
        self.here, self.args, self.argv = here, args, argv
        self.kit: Kit = kits.read((here / kits.KIT).read_bytes(), str(here))
        self.out = Path(args.out).absolute() if args.out else here / "result"
        if args.anonymous:
            os.environ[host.NAME_VARIABLE] = "host"
        os.environ.setdefault("FARM_CACHE", str(self.out / "cache"))
        self.store = Store(self.out)
        self.store.probe()
        discovery.forget()
        discovery.ask_torch_version(own_torch)
        kept = here / kits.CONTRACTS
        if kept.is_file():
            contracts.install(contracts.parse(kept.read_text(encoding="utf-8"), str(kept)), self.out)
        self.file: PlanFile = planfile.read((here / kits.PLAN).read_text(encoding="utf-8"), str(here / kits.PLAN))
        self.part: Plan = planfile.part(self.file.plan, self.kit.target)
        unfit = planfile.unfit(self.part.cells, _version, _content)
        if unfit:
            raise UsageError(f"{here}: {unfit}; unpack the kit again", id="kit-unfit")
        (self.backend,) = self.part.backends
        told = f"{counted(len(self.part.cells), 'cell')} on {self.kit.target}"
        print(f"{self.kit.name}: {told}, about {duration(self.part.backends[self.backend].seconds)} on one device")
        self.versions = _packages(self.backend)
        self._devices()
        self.earlier = self._earlier()

    def _devices(self) -> None:
        backends.usable(self.backend)
        found = local_devices(self.backend, None)
        if not found:
            raise BackendError(
                f"no {self.backend} device was found on this host; run the kit where one is, and inside the container "
                "that sees it",
                id="kit-no-device",
            )
        use = min(self.args.devices, len(found))
        print(f"device: {counted(len(found), f'{self.backend} device')} found, {use} to be used")
        if self.backend != "cpu" and not any(shutil.which(c) for c in (os.environ.get("CC") or "cc", "gcc", "clang")):
            print("compiler: no C compiler was found; Triton needs one to start kernels, so they may fail to compile")
        free = shutil.disk_usage(self.out).free
        print(f"folder: {self.out} is writable and has {free / 2**30:.1f} GiB free")

    def _earlier(self) -> str:
        """The last run of this kit here; "" for none, and for one whose plan was not written."""
        found = [run for run in self.store.runs() if run.begun and (run.head.get("kit") or {}).get("digest")]
        mine = [run for run in found if run.head["kit"]["digest"] == self.kit.digest]
        return mine[-1].id if mine and not (self.args.again and mine[-1].complete) else ""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to run."""
        return bool(self.earlier) and self.store.run(self.earlier).complete

    def tell_complete(self) -> int:
        """Say where the result of the complete run is; its exit code."""
        print(f"this kit has been run here; to run it once more: --again\nresult: {self.pack(self.earlier)}")
        return int(self.store.run(self.earlier).head["exit_code"])

    def pack(self, run_id: str) -> Path:
        """Write the one file that goes back."""
        folder = self.store.run(run_id).dir
        wanted = [p for p in sorted(folder.glob("*")) if p.name in ("journal.jsonl", "run.json", PLAN, kits.CONTRACTS)]
        found = {kits.RUN + p.relative_to(folder).as_posix(): p for p in [*wanted, *sorted(folder.glob("logs/*"))]}
        content = {name: path.read_bytes() for name, path in found.items()}
        if self.args.anonymous:
            content = scrubbing.scrubbed(content, _private(self.here))
        content[kits.RESULT] = kits.result_manifest(self.kit.digest, run_id, content)
        name = f"result-{self.kit.name.removeprefix('kit-')}-{run_id[-4:]}"
        path = self.out / f"{name}.tar.gz"
        try:
            atomic_files.write(path, archives.pack(content, name))
        except OSError as error:
            raise StoreError(
                f"{path}: the result cannot be written ({error.strerror or error}); make room, and start run.py again: "
                "what has run is kept",
                id="kit-result-unwritable",
            ) from None
        return path

    def facts(self) -> dict[str, Any]:
        """What the result says of the kit, of who ran it, and where."""
        by = "" if self.args.anonymous and self.args.by is None else self.args.by
        return {
            "digest": self.kit.digest,
            "bundles": {b.name: b.sha for b in bundle.pack_all()},
            "target": self.kit.target,
            "by": _login() if by is None else by,
            "site": self.args.site,
            "node": host.name(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "versions": {"python": platform.python_version(), **self.versions},
        }


def _version(op: str) -> int | None:
    found = discovery.find(op)
    return found.version if found else None


def _content(op: str) -> str:
    found = discovery.find(op)
    return found.content if found else ""


def _packages(backend: str) -> dict[str, str]:
    """The versions of what the kit needs of its Python; one sentence for each is printed."""
    names = [*NEEDED, *(["torch_npu"] if backend == "ascend" else [])]
    env = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = command.run([sys.executable, "-c", _ASK, *names], ASK_SECONDS, env=env, cwd="/")
    try:
        answers: dict[str, Any] = json.loads((done.out.strip().splitlines() or [""])[-1])
    except ValueError:
        how = "did not answer in time" if done.code is None else (done.err.strip().splitlines() or ["it ended"])[-1]
        raise UsageError(
            f"{sys.executable} cannot import what the kit needs ({printable(how)[:200]}); use the Python that "
            "has your torch",
            id="kit-python",
        ) from None
    print(f"Python: {platform.python_version()} at {sys.executable}")
    for name in names:
        shown = NEEDED.get(name, name)
        if answers[name] is None:
            why = printable(answers[f"{name} why"])[:200]
            raise UsageError(
                f"{shown} cannot be imported by {sys.executable} ({why}); start run.py with the Python that has your "
                "torch: /path/to/python run.py",
                id="kit-package-missing",
            )
        print(f"{shown}: {answers[name]}")
    builds = answers.get("builds") or {}
    wanted = {"cuda": "cuda", "rocm": "hip"}.get(backend)
    if wanted and not builds.get(wanted) and config.load().simulate == {}:
        raise UsageError(
            f"torch {answers['torch']} was not built for {backend}; start run.py with the Python that has your torch",
            id="kit-torch-build",
        )
    return {name: str(answers[name]) for name in names}


def _login() -> str:
    with suppress(Exception):  # no login name in this container
        return getpass.getuser()
    return f"uid {os.getuid()}"


def _private(here: Path) -> dict[str, str]:
    """What an anonymous result does not show -> what stands in its place."""
    import socket

    out = {str(here): "KIT", str(Path.home()): "HOME"} if str(Path.home()) != "/" else {str(here): "KIT"}
    out |= {f"/home/{_login()}": "HOME", socket.gethostname(): "host", socket.getfqdn(): "host"}
    return {k: v for k, v in out.items() if len(k) > 3}


def _guarded(site: _Site) -> int:
    try:
        return _run(site)
    except FarmError as error:
        print(f"run.py: {sentence(error)}", file=sys.stderr)
        print("run.py: here, farm resume is: start run.py again; what has run is kept", file=sys.stderr)
        return error.exit_code


def _run(site: _Site) -> int:
    """Run what has no result yet, and pack; the exit code."""
    begun = time.monotonic()
    known, writer = _opened(site)
    try:
        if known and site.kit.arms:
            known = rounds.whole(known, kit_arms.of_kit(site.kit, None))
        cells = known.open if known else site.part.cells
        cluster: Any = InlineCluster(site.args.devices, writer.id) if cells or site.kit.arms else NoCluster()
    except BaseException:
        writer.close()
        raise
    try:
        slots = cluster.slots([site.backend])
        request = _request(site, slots, known)
    except BaseException:
        cluster.close()
        writer.close()
        raise
    supervisor.running(run=writer.id)
    with Plain(cells, sys.stdout) as telling:
        kept = f", {len(known.rows)} of {len(known.cells)} are done already" if known else ""
        telling.line(f"run {writer.id}: {counted(len(cells), 'cell')} to run{kept}")
        outcome = execute(request, cluster, writer, telling)
    return _tell(site, writer.id, outcome, time.monotonic() - begun)


def _opened(site: _Site) -> tuple[Recovery | None, RunWriter]:
    """(what an earlier run has, None for a new one; the run's locked folder)."""
    if not site.earlier:
        run_id = f"kit-{site.kit.digest[:8]}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        writer = site.store.create(run_id, KitRunWriter)
        try:
            writer.keep_plan(site.file.text)
            if (site.here / kits.CONTRACTS).is_file():
                writer.keep_contracts((site.here / kits.CONTRACTS).read_text(encoding="utf-8"))
        except BaseException:
            writer.close()
            raise
        return None, writer
    writer = site.store.reopen(site.earlier, lambda text: print(f"run.py: {text}", flush=True), KitRunWriter)
    try:
        known = recovery.read_located(writer.journal.located())
        if known.head.get("plan_hash") != site.part.plan_hash or len(known.cells) != len(site.part.cells):
            raise StoreError(
                f"{writer.dir}: the journal of this run is damaged, so it cannot be continued; move the folder away, "
                "and start run.py again",
                id="kit-run-damaged",
            )
        return known, writer
    except BaseException:
        writer.close()
        raise


def _request(site: _Site, slots: list[Any], known: Recovery | None) -> RunRequest:
    data, here = site.kit.data, site.here
    return RunRequest(
        site.part,
        slots,
        "run.py " + shlex.join(site.argv) if site.argv else "run.py",
        ["run.py", *site.argv],
        dict(data["revision"]),
        data["providers"],
        shipped=_shipped(here, data),
        subject=packed_subject(told, (here / kits.SUBJECT).read_bytes()) if (told := data.get("subject")) else None,
        arms=kit_arms.of_kit(site.kit, here),
        **kit_arms.differences(site.kit),
        finished=known,
        part=site.file.described(site.kit.target),
        wait_s=60.0,
        limit_s=(site.args.limit_minutes or 0.0) * 60,
        kit=site.facts(),
    )


def _shipped(here: Path, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The files of --provider, as a run sends them."""
    if not data.get("shipped"):
        return None
    names = [name for name in data["files"] if name.startswith(kits.PROVIDERS)]
    content = {name[len(kits.PROVIDERS) :]: (here / name).read_bytes() for name in names}
    return {"sha": data["shipped"], "files": content, "origins": {}}


def _tell(site: _Site, run_id: str, outcome: Any, seconds: float) -> int:
    """Pack the result and print the verdict; the exit code."""
    print()
    for line in progress.summary(outcome.rows, seconds):
        print(line)
    for line in progress.unsupported(outcome.rows):
        print(f"  {printable(line)}"[:300])
    bad = [r for r in outcome.rows if Status(r["status"]) in FINDINGS and r["role"] == "subject"]
    for line in progress.finding_lines(bad, None):
        print(line)
    whole = not outcome.interrupted
    if outcome.summary:
        arms = {one.arm.name: one.described() for one in kit_arms.of_kit(site.kit, None)}
        for line in pairs_text.lines(arms, outcome.pairs, outcome.summary, complete=whole, kernels=[]):
            print(printable(line))
    path, size = site.pack(run_id), 0
    with suppress(OSError):
        size = path.stat().st_size
    if outcome.interrupted:
        lost = sum(r["status"] == Status.LOST.value for r in outcome.rows)
        why = f"{outcome.stopped}; " if outcome.stopped else ""
        note = Message(f"{why}{counted(lost, 'cell')} did not run; start run.py again to run them", id="kit-not-done")
        print(sentence(note))
    print(f"result: {path} ({size / 1024:.0f} KiB); send this file back, complete or not")
    code = int(outcome.final_code)
    print(f"compared: exit {code}" if outcome.summary and whole else progress.ending(outcome, code, False))
    return code


def _explain(outcome: supervisor.Outcome, site: _Site) -> None:
    """The end of a run that its own process did not tell."""
    how = "interrupted" if outcome.kind == "interrupted" else f"the process of the run ended with {outcome.how}"
    note = Message(f"{how}; what has run is kept: start run.py again to continue", id="kit-ended-early")
    print(f"run.py: {sentence(note)}", file=sys.stderr)
