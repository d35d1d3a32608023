"""Options that several commands share, their checks, and the objects that they become."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import atomic_files, backends
from farm.cli.text import printable, sentence
from farm.contracts import discovery
from farm.errors import Message, StoreError, UsageError
from farm.matrix import Matrix
from farm.matrix.load import load_files
from farm.shipping import providers as shipping

if TYPE_CHECKING:
    from farm.matrix.known import KnownFailure
    from farm.store import Run, RunWriter, Store
    from farm.subject.command_line import LoadedSubject

MAX_DEVICES_RUN = 256  # per backend and node; a node may offer more (node.config.MAX_DEVICES)
TOO_MUCH = (RecursionError, MemoryError)  # what data from elsewhere may be made to cause
PAGE_CELLS = 10_000  # the page of a larger run takes seconds, and hundreds of megabytes
PAGE_SECONDS = 900.0  # 10^5 cells take some 10 s on a quiet host
#: A run that ends adds older runs to the index of its store for so long; 1,000 runs of 1,000 cells take 42 s.
INDEX_SECONDS = 5.0
FORMATS = ("junit", "markdown", "json", "csv", "table", "liger")  # the keys of farm.report.exports.FORMATS
STORE_HELP = "use this store (default: $FARM_STORE, else ./farm-results)"


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; give the path of a YAML file")
    return Path(text)


class Joined(argparse.Action):
    """An option that may be repeated: its values as one comma-separated list."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def matrix_options(parser: argparse.ArgumentParser, *, backend: bool = True, needed: bool = True) -> None:
    """Add MATRIX... and the options that narrow or change it; no --backend where another option names the backends."""
    parser.add_argument(
        "matrices", nargs="+" if needed else "*", type=_file, metavar="MATRIX", help="matrix files (YAML) to read"
    )
    if backend:
        parser.add_argument(
            "--backend", action=Joined, metavar="B,..", help="use only these backends (comma-separated); repeatable"
        )
    parser.add_argument(
        "--select",
        action=Joined,
        metavar="KEY=VALUE,..",
        help="keep only the cells that match every condition, for example dtype=bf16|fp16, 'rows>=5', 'hidden!=64', "
        "'id=*/forward/*', shape=16x1000; repeatable",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="replace one value in the matrix, for example deadlines.check=5",
    )
    parser.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="[OP:]NAME=module:function",
        help="add your own provider, for example mine=my_kernels:rms_norm",
    )
    contracts_option(parser)


def contracts_option(parser: argparse.ArgumentParser) -> None:
    """Add --contracts."""
    parser.add_argument(
        "--contracts",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="also find ops in this folder of contracts (DIR/OP/contract.py); may be given several times",
    )


def _torch_version() -> str:
    from farm.node import config, reference

    return reference.torch_version(config.load())


def use_contracts(args: argparse.Namespace) -> None:
    """Know the ops of every --contracts, and those that installed packages offer.  UsageError."""
    discovery.forget()
    discovery.ask_torch_version(_torch_version)
    for folder in args.contracts:
        discovery.add(folder)
    discovery.add_installed()


def use_kept_contracts(run: Run, place: str | Path) -> None:
    """Know the ops that a run was planned with, from what it has kept, unpacked under `place`."""
    from farm.shipping import contracts

    discovery.forget()
    discovery.ask_torch_version(_torch_version)
    kept = run.contracts()
    if kept:
        contracts.install(contracts.parse(kept, str(run.dir)), place)


def keep_contracts(writer: RunWriter) -> None:
    """Keep the outside contracts of this process with a run."""
    from farm.shipping import contracts

    packed = contracts.pack()
    if packed:
        writer.keep_contracts(contracts.text(packed))


def subject_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name somebody's kernels."""
    from farm.subject import command_line

    command_line.add_options(parser)


def subject(args: argparse.Namespace, contracts: bool = True) -> LoadedSubject | None:
    """The subject of the command line, or of the working folder's repository, printed as one line; None for none.

    With `contracts`, the ops that it defines are known from now on; a resumed run has kept its own.
    """
    from farm.subject import command_line

    found = command_line.load(args)
    if found:
        print(printable(found.line), file=sys.stderr)
        for folder in found.subject.contracts if contracts else ():
            discovery.add(Path(folder))
    return found


def store_option(parser: argparse.ArgumentParser) -> None:
    """Add --out."""
    parser.add_argument("--out", metavar="STORE", help=STORE_HELP)


def store(args: argparse.Namespace) -> Store:
    """The store that the command line or the environment names."""
    from farm.store import Store

    if args.out is not None and not args.out.strip():
        raise UsageError("--out is empty; name a folder, or omit the option", id="option-out-empty")
    return Store(args.out or os.environ.get("FARM_STORE") or "farm-results")


class PageAhead:
    """The page of a run that is complete, built beside what else is left to do: devices and Ray take a second to end.
    What it has to report, it reports when it is asked."""

    def __init__(self, store: Store, run_id: str):
        self._store, self._id = store, run_id
        self._lacks: list[int] = []
        self._found: Path | Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._build, name="page", daemon=True)
        self._thread.start()

    def _build(self) -> None:
        try:
            self._found = _page(self._store, self._id, self._lacks.append)
        except Exception as error:
            self._found = error

    def path(self) -> Path:
        """The page's, once it is written; what was raised meanwhile."""
        if self._thread is None:  # the run is not complete
            self._build()
        else:
            self._thread.join()
        for runs in self._lacks:
            tell_lacking(runs)
        if isinstance(self._found, Path):
            return self._found
        raise self._found or StoreError("the thread that builds it has ended", id="page-unwritable")


def tell_page(args: argparse.Namespace, store: Store, run_id: str, ahead: PageAhead | None = None) -> None:
    """Build the page of a stored run, unless that is under way, and print its path.  If it cannot be built, report that
    and the command that builds it later.  The results are already stored, and they alone determine the exit code."""
    try:
        print(f"page: {(ahead.path() if ahead else _page(store, run_id))}", file=sys.stderr)
    except Exception as error:
        cause = error.__cause__ or error
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        at = f" --out {shlex.quote(args.out)}" if args.out else ""
        warning = (
            f"{store.pages}: the page cannot be written ({why}), but every result is stored; solve this problem, "
            f"then build the page with farm dashboard build {run_id}{at}"
        )
        print(f"farm {args.command}: {sentence(Message(warning, id='page-unwritable'))}", file=sys.stderr)


def tell_lacking(runs: int) -> None:
    """Print that the index of a store lacks so many runs, for which the time did not suffice."""
    many = runs > 1
    left = (
        f"{runs:,} older run{'s are' if many else ' is'} not in the index of the store yet, so pages show fewer nights"
    )
    text = f"{left}; farm index adds {'them' if many else 'it'} now, later runs do so in time"
    print(sentence(Message(text, id="index-lacks-runs")), file=sys.stderr)


def _page(store: Store, run_id: str, lacking: Callable[[int], None] = tell_lacking) -> Path:
    """Build the page; that of a large run in a process of its own, beside which this one stays small."""
    if int(store.run(run_id).head.get("planned") or 0) <= PAGE_CELLS:
        from farm.dashboards.build import build

        return build(store, run_id, index_seconds=INDEX_SECONDS, lacking=lacking).resolve()
    from farm.process import command
    from farm.process.own_modules import module_words, own_variables

    words = [*module_words("farm"), "dashboard", "build", run_id, "--out", str(store.path)]
    done = command.run(words, PAGE_SECONDS, env=own_variables())
    if done.code != 0:
        last = (done.err.strip().splitlines() or [f"not built within {PAGE_SECONDS:g} s"])[-1]
        raise StoreError(last, id="page-unwritable")
    return Path(done.out.strip()).resolve()


def export(run: Run, kind: str, **table: Any) -> str:
    """A run in one of FORMATS.  `table`: the options of `farm.report.exports.as_table`."""
    from farm.report import exports

    refuse_newer(run, "exports")

    def log_of(row: Any) -> str:
        try:
            return run.log_text(str(row["log"]))
        except StoreError as error:
            return f"({error})"

    with readable(run):
        if kind == "liger" and (published := run.published()):
            return published
        return exports.as_table(run, **table) if table else exports.FORMATS[kind](run, log_of)


def write_export(run: Run, kind: str, path: Path, option: str, **table: Any) -> None:
    """Write a run to a file, so that a reader sees the complete one or the one before."""
    made = export(run, kind, **table)
    try:
        atomic_files.write(path, made)
    except OSError as error:
        raise StoreError(
            f"{option} {path}: cannot be written ({error.strerror}); name another file", id="export-unwritable"
        ) from None


@contextmanager
def readable(run: Run) -> Iterator[None]:
    """Turn whatever a damaged run directory raises while it is read, also in pyarrow, into a StoreError."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, *TOO_MUCH) as error:
        cause = f"{type(error).__name__}: {error}"[:200]
        raise StoreError(
            f"{run.dir}: this run is damaged and cannot be read ({cause}); start a new run", id="run-unreadable"
        ) from error


def refuse_newer(run: Run, does: str) -> None:
    """StoreError for a run that a later farm wrote: its columns may have meanings that this one does not know, and its
    files other forms.  `does`: what this farm does with runs, for the sentence."""
    with readable(run):
        head = run.head if run.complete else {}
    if newer(head):
        raise StoreError(
            f"{run.dir}: the run has schema {head['schema']!r}, but this farm {does} schemas up to {newest_schema()}; "
            "use the farm version that wrote this run",
            id="run-schema-newer",
        )


def newer(head: Mapping[str, Any]) -> bool:
    """Whether a later farm wrote the run of this head, or none."""
    written = head.get("schema")
    return written is not None and (not isinstance(written, int) or written > newest_schema())


def newest_schema() -> int:
    """The newest schema of runs that this farm knows."""
    from farm.store.results import SCHEMA

    return SCHEMA


def named_backends(args: argparse.Namespace) -> list[str]:
    """The backends of --backend, each known and usable in this version; empty if none is named."""
    names = [b.strip() for b in (args.backend or "").split(",") if b.strip()]
    if args.backend is not None and not names:
        raise UsageError("--backend is empty; name at least one backend, or omit the option", id="option-backend-empty")
    for name in names:
        backends.usable(name)
    return list(dict.fromkeys(names))


def names_cells(argv: Sequence[str]) -> bool:
    """Whether a command line selects cells by their ids."""
    given = [word.partition("=")[2] for word in argv if word.startswith("--select=")]
    given += [after for word, after in pairwise(argv) if word == "--select"]
    return any(re.search(r"(^|,)\s*id\s*=", text) for text in given)


def check_range(option: str, value: int, least: int, most: int) -> None:
    """UsageError for a number out of its range."""
    if not least <= value <= most:
        raise UsageError(f"{option} {value}: must be between {least} and {most}", id="option-number-range")


def check_devices(count: int | None) -> None:
    """UsageError for a --devices that no run can have."""
    if count is not None and not 1 <= count <= MAX_DEVICES_RUN:
        raise UsageError(f"--devices {count}: must be between 1 and {MAX_DEVICES_RUN}", id="option-devices-range")


def check_run_id(run_id: str | None) -> None:
    """UsageError for a --run-id that cannot name a folder."""
    from farm.store import RUN_ID

    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"--run-id {run_id!r} is not valid as the name of a folder; use at most 100 letters, digits, '.', '_' "
            "and '-', and begin with a letter or a digit",
            id="option-run-id-invalid",
        )


def own_providers(args: argparse.Namespace) -> dict[str, str]:
    """`[OP:]NAME` -> `module:function` of every --provider."""
    found: dict[str, str] = {}
    for spec in args.provider:
        name, path = shipping.parse(spec)
        _check_module(spec, path)
        if name in found:
            raise UsageError(
                f"--provider {name} is given twice; give each provider a different name", id="option-provider-twice"
            )
        found[name] = path
    return found


def _check_module(spec: str, path: str) -> None:
    """UsageError, with the module's name, for the path of a file where a module is expected."""
    file, _, function = path.partition(":")
    if "/" in file or file.endswith(".py"):
        module = file.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(
            f'--provider "{spec}": {file} is a file, and a provider is named by its module; '
            f"did you mean {module}:{function}?",
            id="option-provider-file",
        )


def packed(providers: Mapping[str, str]) -> tuple[dict[str, dict[str, str]], dict[str, Any] | None]:
    """(`[OP:]NAME` -> {"path", "sha256" of its files, "" if installed}, the files that are sent to the devices)."""
    found = {}
    for name, path in providers.items():
        try:
            alone = shipping.pack([path])
        except OSError as error:
            raise UsageError(
                f"--provider {name}={path}: {error.filename or 'its file'} cannot be read "
                f"({error.strerror or error}); make it readable, or name another module",
                id="option-provider-unreadable",
            ) from None
        found[name] = {"path": path, "sha256": alone["sha"] if alone else ""}
    return found, shipping.pack(providers.values())


def matrices(args: argparse.Namespace, own: LoadedSubject | None = None) -> list[Matrix]:
    """Every matrix in the files, or else those that the subject names, with --set, --provider and the subject's
    providers applied."""
    paths = list(args.matrices) or [Path(p) for p in (own.subject.matrices if own else ())]
    if not paths:
        raise UsageError(
            "no MATRIX is given, and there is no subject that names matrices; give one (--help shows an example)",
            id="run-nothing-named",
        )
    if args.select is not None and not args.select.strip():
        raise UsageError("--select is empty; write key=value, or omit the option", id="option-select-empty")
    overrides = []
    for item in args.overrides:
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise UsageError(
                f'--set "{item}" is not KEY=VALUE; write for example --set deadlines.check=5', id="option-set-malformed"
            )
        overrides.append((key, value))
    extra: dict[str, Any] = own_providers(args)
    found = load_files(paths, overrides=overrides, extra_providers=extra, subject=own.providers if own else {})
    declared_calls(found)
    return found


def known_option(parser: argparse.ArgumentParser) -> None:
    """Add --known."""
    parser.add_argument(
        "--known",
        type=Path,
        metavar="FILE",
        help="failures that do not count for the verdict and the exit code until they are fixed or expire (default: "
        "known.yaml beside the matrix, if there is one)",
    )


def known_failures(args: argparse.Namespace, found: Sequence[Matrix]) -> tuple[KnownFailure, ...]:
    """Those of --known, else of the known.yaml beside each matrix.  MatrixError for a mistake in one."""
    from farm.matrix import known

    if (given := getattr(args, "known_entries", None)) is not None:  # of a pull request: base's
        return tuple(given)
    named = getattr(args, "known", None)
    beside = dict.fromkeys(Path(m.path).parent / known.FILE for m in found)
    paths = [named] if named is not None else [path for path in beside if path.exists()]
    return tuple(entry for path in paths for entry in known.load_known(path, found))


def tell_known(command: str, told: Sequence[Mapping[str, Any]]) -> None:
    """Print what became of a run's known failures: how many cells they cover, and what is to be done."""
    from farm.store import known

    if covers := known.covered(told):
        whose = ", ".join(dict.fromkeys(str(e["owner"]) for e in told if e["state"] == "covers"))
        print(
            f"{len(covers)} known failure{'s' if len(covers) > 1 else ''} (owner: {printable(whose)})", file=sys.stderr
        )
    for entry in told:
        if text := known.note(entry):
            print(f"farm {command}: {sentence(Message(text, id='known-' + str(entry['state'])))}", file=sys.stderr)


def whole(argv: Sequence[str]) -> bool:
    """Whether a command line asks for all cells of its matrices."""
    return not any(word.partition("=")[0] in ("--select", "--cells", "--failed", "--plan", "--target") for word in argv)


def declared_calls(found: Sequence[Matrix]) -> dict[str, str]:
    """`OP:NAME` -> `module:function` of the providers that matrices declare.  UsageError where two disagree."""
    out: dict[str, str] = {}
    for matrix in found:
        for name, path in matrix.calls.items():
            if out.setdefault(f"{matrix.op}:{name}", path) != path:
                raise UsageError(
                    f"{matrix.path}: provider {name} calls {path}, but another matrix of {matrix.op} gives it the call "
                    f"{out[f'{matrix.op}:{name}']}; rename one of the two",
                    id="matrix-declared-differs",
                )
    for matrix in found:  # by op and name a run knows what to call: there it must be the same for all
        used = {p.name for view in (matrix.base, *matrix.views.values()) if view for p in view.providers}
        for name in used - set(matrix.calls):
            if f"{matrix.op}:{name}" in out:
                raise UsageError(
                    f"{matrix.path}: provider {name} is not the one that another matrix of {matrix.op} declares; "
                    "rename one of the two",
                    id="matrix-declared-differs",
                )
    return out
