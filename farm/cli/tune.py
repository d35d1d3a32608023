"""`farm tune`: search the fastest launch of our kernels for shapes on a device, and write a table that they use."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm import atomic_files, backends, kernel_package
from farm.cell import DTYPE_ALIASES
from farm.cli import common, run_command
from farm.cli.phases import Phases
from farm.cli.text import counted, printable
from farm.compile import planning
from farm.errors import InfraError, StoreError, UsageError
from farm.matrix import drawn
from farm.process import supervisor
from farm.shipping import providers as shipping
from farm.shipping import revision
from farm.store import Run, Store
from farm.tuning import search, table
from farm.tuning.search import AUTO, Found, Task

FOLDER = "tunes"
OWN = "farm"
#: Of the kernels' package, pure modules that need neither torch nor triton.
GPU = "ops.rms_norm.gpu"
OPERATIONS = ("forward", "no-grad-forward", "backward")
MINUTES, MOST_MINUTES = 7.0, 7 * 24 * 60.0
WIDTH, MOST_WIDTH = 12, 1000
MOST_TASKS = 2000
_SHAPE = re.compile(r"([1-9]\d{0,9})x([1-9]\d{0,6})", re.ASCII)
#: A simulated device is none, so its launches are those of a device that the kernels know.
SIMULATED = ("cuda:90", 132)
INTERPRETED = ("interpreter", 4)
#: Seconds that the last round is given at least, and how many times as long as an earlier round's cells its own take.
LEAST_RESERVE_S, SLOWER = 15.0, 1.5


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "tune",
        help="search the fastest launches of our kernels for given shapes, and write a table that the kernels use",
        description="Measure launches of our kernels (which kernel, tile, warps, stages, programs) as ordinary cells: "
        "each is judged and timed as farm run does, so a launch that is wrong, or faster than the device can be, is "
        "refused. Start at what auto takes and at the nearest tuned shapes, and go on from the best. The same command "
        "continues a search that was interrupted, and shows one that is finished. The kernels use a table that the "
        "variable FARM_KERNELS_TABLE names. Exit codes: 0 tuned, 3 infrastructure failure or interrupt, 4 nothing was "
        "timed.",
        epilog="example: farm tune rms_norm --shapes 4096x2560,7x262144 --to table.json",
    )
    p.add_argument("ops", nargs="*", metavar="OP", help="op with the dimensions rows and hidden")
    p.add_argument("--shapes", metavar="ROWSxHIDDEN,..", help="tune these shapes, for example 4096x4096,32768x1000")
    p.add_argument("--sweep-of", metavar="RUN", help="tune the cells that lost to a peer in this run of farm sweep")
    p.add_argument("--count", type=int, metavar="N", help="draw N shapes of --seed, as farm sweep does")
    p.add_argument(
        "--seed", default="tune", metavar="TEXT", help="draw shapes and order the search by TEXT (default: tune)"
    )
    p.add_argument("--dtype", default="bfloat16", metavar="D,..", help="for --shapes: these dtypes (default: bfloat16)")
    p.add_argument(
        "--operation",
        metavar="O,..",
        help="tune these operations (default: forward,backward; of --sweep-of those that lost)",
    )
    p.add_argument("--width", type=int, default=WIDTH, metavar="N", help="try N launches of each shape in a round")
    p._actions[-1].help = f"measure N launches of each shape in a round, twice as many in the first (default: {WIDTH})"
    p.add_argument(
        "--limit-minutes",
        type=float,
        default=MINUTES,
        metavar="M",
        help=f"stop searching after M minutes, the last measurements included (default: {MINUTES:g})",
    )
    p.add_argument("--to", type=Path, metavar="FILE", help="write the table to FILE too, beside what it has already")
    p.add_argument(
        "--merge", nargs="+", type=Path, metavar="FILE", help="merge these tables into --to; measure nothing"
    )
    p.add_argument("--call", metavar="NAME=module:function", help="tune this function instead")
    p._actions[-1].help = "tune this function, which takes the same arguments and modes as ours (a fork of our kernels)"
    p.add_argument("--backend", metavar="B", help="use this backend (default: the accelerator that is here, else cpu)")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    p._actions[-1].help = "replace one value in the matrices, for example deadlines.compile=20"
    run_command.address_option(p)
    p.add_argument("--devices", type=int, metavar="N", help="use N devices per node, all of one model (default: all)")
    p.add_argument("--environment", metavar="NAME", help="start children in this environment of the nodes")
    p.add_argument("--wait", type=float, metavar="SECONDS", help="wait so long for devices that other runs use")
    p.add_argument("--wait-for-devices", type=float, metavar="SECONDS", help="wait so long for devices to join")
    p.add_argument("--run-id", metavar="ID", help="name the first run; ID-1, ID-2.. follow (default: by content)")
    p.add_argument("--json", action="store_true", help="print the table as JSON")
    p.add_argument("--pages", dest="no_page", action="store_false", help="build the runs' pages")
    p.set_defaults(provider=[])
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Search, and write the table; or merge tables."""
    begun = time.monotonic()
    if args.merge:
        return _merge(args)
    _check(args)
    store = common.store(args)
    tasks = _tasks(args, store)
    wanted = _backend(args)
    provider, call = shipping.parse(args.call) if args.call else (OWN, "")
    text = json.dumps([str(t) for t in tasks])
    what = "\0".join((text, args.seed, str(args.width), revision.content(), args.call or "", *args.overrides, wanted))
    phases = Phases("tune", FOLDER, args, store, what, begun)
    print(f"farm tune: {counted(len(tasks), 'task')}, {args.limit_minutes:g} minutes at most", file=sys.stderr)
    if wanted == "cpu":
        print("farm tune: on the CPU no speed is measured: this judges launches alone", file=sys.stderr)
    return _Search(args, phases, tasks, provider, call).run()


class _Search:
    """The rounds of one search."""

    def __init__(self, args: argparse.Namespace, phases: Phases, tasks: list[Task], provider: str, call: str):
        self.args, self.phases, self.tasks, self.provider, self.call = args, phases, tasks, provider, call
        self.rounds: list[Found] = []
        self.runs: list[Run] = []
        self.pace_s = 1.0  # of a cell, of the last round
        self.reserve_s = LEAST_RESERVE_S

    def run(self) -> int:
        code = self._round(0, search.next_round(0, self.tasks, (), _NoSpace(), self.args.width, self.args.seed))
        if code is not None:
            return code
        where = _device(self.runs[0])
        space = KernelSpace(where["target"], where["cores"])
        last_name = f"{self.phases.name}-last"
        while self.phases.known(last_name) is None and self.phases.left_s > self.reserve_s:
            number = len(self.rounds)
            asked = search.next_round(number, self.tasks, self.rounds, space, self.args.width, self.args.seed)
            if not asked:
                break
            code = self._round(number, asked)
            if code is not None:
                return code
            self._progress()
        for number in range(len(self.rounds), search.MOST_ROUNDS + 1):  # of a search that is in its last round
            if (done := self.phases.known(self._name(number))) is not None:
                self._learn(done)
        known = search.together(self.rounds)
        stated = {t: text for t in self.tasks if (text := space.stated(t))}
        asked = search.last_round(self.tasks, known, stated)
        if not asked:
            return self._untimed(known)
        kept = self.phases.file(last_name)
        again = self.phases.known(last_name) is not None and kept.is_file()
        text = kept.read_text("utf-8") if again else search.matrices(asked, self.provider, self.call, False)
        code, done = self.phases.phase(last_name, text)
        if done is None:
            return code if code in (2, 3) else InfraError.exit_code
        self.runs.append(done)
        return self._tell(done, known, stated, where)

    def _name(self, number: int) -> str:
        return self.phases.name if number == 0 else f"{self.phases.name}-{number}"

    def _round(self, number: int, asked: Mapping[Task, Sequence[str]]) -> int | None:
        """Measure one round; an exit code where the search cannot go on."""
        text = search.matrices(asked, self.provider, self.call, True)
        begun, count = time.monotonic(), sum(map(len, asked.values()))
        name = self._name(number)
        print(f"farm tune: round {number}: {_several(count, 'launch', 'launches')}", file=sys.stderr)
        code, done = self.phases.phase(name, text, self.reserve_s if number else 0.0)
        there = done or self.phases.known(name)
        if there is None or (done is None and (number == 0 or self.phases.left_s > self.reserve_s + 1.0)):
            return code if code in (2, 3) else InfraError.exit_code  # not our own limit
        self._learn(there)
        self.pace_s = max(0.05, (time.monotonic() - begun) / max(1, count)) if number else self.pace_s
        cells = len(self.tasks) * (search.FINALISTS + 2)
        self.reserve_s = max(LEAST_RESERVE_S, SLOWER * self.pace_s * cells) if self.phases.ends else 0.0
        if self.phases.ends:  # a search that has far too many tasks still tries seeds
            self.reserve_s = min(self.reserve_s, 30 * self.args.limit_minutes)
        return None

    def _learn(self, done: Run) -> None:
        with common.readable(done):
            self.rounds.append(search.found(done.rows))
        self.runs.append(done)

    def _progress(self) -> None:
        """One line for each task, as far as it is."""
        known = search.together(self.rounds)
        for task in self.tasks:
            best, auto = search.ranked(known.get(task, {})), known.get(task, {}).get(AUTO)
            refused = sum(t.us is None for t in known.get(task, {}).values())
            if best:
                beside = f", auto {auto.us:.2f}" if auto and auto.us else ""
                told = f"{task.name}: {best[0].us:.2f} us{beside}, {refused} refused: {best[0].launch}"
                print(f"  {printable(told)}", file=sys.stderr, flush=True)

    def _untimed(self, known: Found) -> int:
        """Nothing was timed: say what was judged."""
        for task in self.tasks:
            launches = [t for t in known.get(task, {}).values() if t.launch != AUTO]
            right = sum(t.judged for t in launches)
            told = f"{task.name}: {right} of {_several(len(launches), 'launch', 'launches')} right, none timed"
            print(printable(told))
            for one in [t for t in launches if not t.judged][:3]:
                print(printable(f"  refused: {one.launch}: {one.why}"))
        print("farm tune: no launch was timed, so there is no table", file=sys.stderr)
        supervisor.concluded(4, complete=True)
        return 4

    def _tell(self, done: Run, known: Found, stated: Mapping[Task, str], where: Mapping[str, Any]) -> int:
        """Write the table, and print it."""
        with common.readable(done):
            last = search.found(done.rows)
        facts = {
            **where,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "revision": str(done.rows[0].get("revision") or ""),
            "kernels": revision.content(),
            "provider": self.provider,
            "run": done.id,
        }
        entries = []
        for task in self.tasks:
            found = search.winner(task, last.get(task, {}), stated.get(task, ""))
            every = {**known.get(task, {}), **last.get(task, {})}
            counts = {"tried": len(every), "refused": sum(t.us is None for t in every.values())}
            if found is None:
                print(f"farm tune: {task.name}: no launch was accepted; auto stays", file=sys.stderr)
            else:
                entries.append(table.entry(found, facts, counts))
        if not entries:
            print("farm tune: auto stays everywhere, so no table was written", file=sys.stderr)
            supervisor.concluded(0, complete=True)
            return 0
        path = self.phases.store.path / FOLDER / f"{self.phases.name}.json"
        _write(path, table.text(entries), "--out")
        if self.args.to is not None:
            before = _carried(self.args.to) if self.args.to.exists() else []
            _write(self.args.to, table.text(table.merged([before, entries])[0]), "--to")
        if self.args.json:
            print(table.text(entries), end="")
        else:
            for one in entries:
                print(printable(table.line(one)))
            print(f"{_several(len(entries), 'entry', 'entries')} of {where['device']}: {self.args.to or path}")
        supervisor.concluded(0, complete=True)
        return 0


class _NoSpace:
    """Before the device is known only `auto` is asked."""

    def first(self, task: Task) -> Sequence[str]:
        return ()

    def wide(self, task: Task) -> Sequence[str]:
        return ()

    def around(self, task: Task, launch: str) -> Sequence[str]:
        return ()


class KernelSpace:
    """What the kernels say there is to try on a target: their own pure modules, which launch nothing."""

    def __init__(self, target: str, cores: int):
        self._space = kernel_package.load(f"{GPU}.space")
        self._forced = kernel_package.load(f"{GPU}.forced")
        self._target, self._cores = target, cores

    def _task(self, task: Task) -> Any:
        operation = task.operation.rpartition("-")[2]
        return self._space.Task(task.op, operation, task.dtype, task.rows, task.hidden, self._target, self._cores)

    def _texts(self, task: Task, configs: Sequence[dict[str, Any]]) -> list[str]:
        """As launches, without those that the kernels refuse."""
        shape = (task.rows, task.hidden, task.dtype, task.op, self._cores)
        texts = dict.fromkeys(self._forced.text(c) for c in configs if self._forced.refusal(c, *shape) is None)
        if not self._target.startswith("cuda:"):  # rings and split rows are NVIDIA's
            special = (*self._space.RINGS, *self._space.SPLITS)
            return [t for t in texts if t.partition("+")[0] not in special]
        return list(texts)

    def stated(self, task: Task) -> str:
        """What `auto` takes, in full; "" where that cannot be stated."""
        return next(iter(self._texts(task, [self._space.whole(self._space.chosen(self._task(task)))])), "")

    def first(self, task: Task) -> Sequence[str]:
        own = self._task(task)
        near = self._space.near(own, WIDTH)
        return self._texts(task, [self._space.whole(self._space.chosen(own)), *self._space.by_rules(own), *near])

    def wide(self, task: Task) -> Sequence[str]:
        return self._texts(task, self._space.seeds(self._task(task)))

    def around(self, task: Task, launch: str) -> Sequence[str]:
        config = self._space.whole(self._forced.parse(launch))
        return self._texts(task, self._space.neighbours(self._task(task), config))


def _check(args: argparse.Namespace) -> None:
    if not args.ops:
        raise UsageError("name an op, for example: farm tune rms_norm --shapes 4096x4096", id="tune-no-op")
    for op in args.ops:
        known = kernel_package.load(f"{GPU}.forced").OPS
        if op not in known:
            message = f"there is no search for {op}; our kernels of {' and '.join(known)} take launches"
            raise UsageError(message, id="tune-op")
    if len(set(args.ops)) < len(args.ops):
        raise UsageError("an op is named twice; name each op once", id="tune-op-twice")
    if sum(v is not None for v in (args.shapes, args.sweep_of, args.count)) != 1:
        message = "say what to tune by one of --shapes ROWSxHIDDEN,.., --sweep-of RUN and --count N"
        raise UsageError(message, id="tune-shapes")
    if not (math.isfinite(args.limit_minutes) and 0 < args.limit_minutes <= MOST_MINUTES):
        message = f"--limit-minutes {args.limit_minutes:g}: must be more than 0 and at most {MOST_MINUTES:g}"
        raise UsageError(message, id="tune-range")
    common.check_range("--width", args.width, 1, MOST_WIDTH)
    if args.count is not None:
        common.check_range("--count", args.count, 1, drawn.MOST_COUNT)
    common.check_run_id(args.run_id)
    _check_to(args)


def _check_to(args: argparse.Namespace) -> None:
    if args.to is None:
        return
    if args.to.is_dir() or not args.to.absolute().parent.is_dir():
        raise UsageError(f"--to {args.to}: name a file in a folder that exists", id="tune-to")
    if args.to.exists():
        _carried(args.to)  # before minutes of work


def _tasks(args: argparse.Namespace, store: Store) -> list[Task]:
    """What to tune, in the order in which it was named.  UsageError."""
    operations = tuple(o.strip() for o in args.operation.split(",")) if args.operation else ("forward", "backward")
    for name in operations:
        if name not in OPERATIONS:
            known = ", ".join(OPERATIONS)
            raise UsageError(f"--operation: there is no {name!r}; operations are {known}", id="tune-operation")
    if args.sweep_of is not None:
        return _lost(args, store, operations)
    if args.count is not None:
        shapes = [(d.rows, d.hidden, d.dtype) for d in drawn.draws(args.seed, args.count)]
    else:
        found = [(s, _SHAPE.fullmatch(s.strip())) for s in args.shapes.split(",")]
        for written, match in found:
            if match is None:
                message = f"--shapes: {written!r} is not like 4096x4096; write ROWSxHIDDEN,.."
                raise UsageError(message, id="tune-shape")
        dtypes = [DTYPE_ALIASES.get(d.strip(), d.strip()) for d in args.dtype.split(",")]
        for dtype in dtypes:
            if dtype not in drawn.BYTES:
                message = f"--dtype: our kernels take no {dtype!r}; they take {', '.join(drawn.BYTES)}"
                raise UsageError(message, id="tune-dtype")
        shapes = [(int(m[1]), int(m[2]), dtype) for _, m in found if m for dtype in dtypes]
    tasks = [Task(op, o, dtype, r, h) for op in args.ops for o in operations for r, h, dtype in dict.fromkeys(shapes)]
    if len(tasks) > MOST_TASKS:
        raise UsageError(f"that is {len(tasks)} tasks; tune at most {MOST_TASKS} at a time", id="tune-many")
    return tasks


def _lost(args: argparse.Namespace, store: Store, operations: Sequence[str]) -> list[Task]:
    """The cells of a sweep that are less than 2 % ahead of a peer."""
    from farm.report import sweep

    first = store.run(args.sweep_of)
    second = next((r for r in store.runs() if r.id == f"{first.id}-modes" and r.complete), None)
    with common.readable(first):
        cells = sweep.ask_again(sweep.sweep(first, second))
    wanted = operations if args.operation else OPERATIONS
    tasks = [Task(c.op, c.operation, c.dtype, c.rows, c.hidden) for c in cells]
    found = [t for t in dict.fromkeys(tasks) if t.op in args.ops and t.operation in wanted]
    if not found:
        message = f"--sweep-of {args.sweep_of}: {' and '.join(args.ops)} lost no cell there; name shapes with --shapes"
        raise UsageError(message, id="tune-no-loss")
    return found[:MOST_TASKS]


def _backend(args: argparse.Namespace) -> str:
    """The one backend of the search; `args.backend` is set to it."""
    run_command.resolve_address(args)
    named = common.named_backends(args)
    if not named and args.address in ("local", "inline"):
        named = [b for b in backends.accelerators() if run_command.host_has(b)] or ["cpu"]
    if len(named) != 1 or named[0] == "ascend":
        message = "a search is for one kind of GPU; name it with --backend cuda, rocm, cpu or sim"
        raise UsageError(message, id="tune-backend")
    args.backend = named[0]
    return str(named[0])


def _device(first: Run) -> dict[str, Any]:
    """Where the first round ran: the kernels' target and cores, the device, its tools.  UsageError where its cells ran
    on unlike devices."""
    with common.readable(first):
        rows = [r for r in first.rows if r.get("fingerprint") or r.get("device")]
    if not rows:
        raise InfraError("no cell of the first round ran; see its run with farm show", id="tune-nothing-ran")
    targets = sorted({str(r.get("target") or "") for r in rows})
    if len(targets) > 1:
        message = f"the cells ran on unlike devices ({', '.join(targets)}); choose those of one model with --devices"
        raise UsageError(message, id="tune-devices")
    row, backend = rows[0], str(rows[0].get("backend"))
    known = json.loads(str(row.get("fingerprint") or "{}"))
    ahead = planning.ahead_target(backend, known)
    if ahead is not None:
        target, cores = f"{ahead['triton']}:{ahead['arch']}", int(ahead["cores"])
    elif backend in ("cpu", "sim") or row.get("evidence") == "simulated":
        target, cores = INTERPRETED if backend == "cpu" else SIMULATED
    else:
        raise InfraError(f"{row.get('device')} does not say what it is; see farm doctor", id="tune-device-unknown")
    tools = {name: str(known.get(name) or "") for name in ("torch", "triton", "driver")}
    return {"target": target, "cores": cores, "device": targets[0] or str(row.get("device") or ""), **tools}


def _several(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _merge(args: argparse.Namespace) -> int:
    """Merge tables into one."""
    if args.ops or args.to is None:
        message = "--merge takes tables, and --to the file that they are merged into: farm tune --merge A B --to C"
        raise UsageError(message, id="tune-merge")
    if args.to.is_dir() or not args.to.absolute().parent.is_dir():
        raise UsageError(f"--to {args.to}: name a file in a folder that exists", id="tune-to")
    entries, replaced = table.merged([_carried(path) for path in args.merge])
    _write(args.to, table.text(entries), "--to")
    newer = f", {replaced} replaced by newer ones" if replaced else ""
    print(f"{_several(len(entries), 'entry', 'entries')} of {counted(len(args.merge), 'table')}{newer}: {args.to}")
    return 0


def _carried(path: Path) -> list[dict[str, Any]]:
    """The entries of a table, as the kernels read it.  UsageError in one sentence."""
    try:
        found: list[dict[str, Any]] = kernel_package.load(f"{GPU}.carried").read(path)
        return found
    except ValueError as error:
        raise UsageError(printable(str(error)), id="tune-table") from None


def _write(path: Path, text: str, option: str) -> None:
    with _writable(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, text)


@contextmanager
def _writable(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{option} {path}: cannot be written ({error.strerror}); name another file"
        raise StoreError(message, id="tune-unwritable") from None
