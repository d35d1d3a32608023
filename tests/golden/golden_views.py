"""What the golden tests hold: the farm seen from outside, through its command line and the files that it writes.

Nothing here imports a module of the farm but `farm.cli`, whose `main` is the command, so modules may move and be
renamed, and every sentence may be worded anew, without a change here.  Each function of `VIEWS` makes one file of data.

Left out is what differs from run to run or from host to host (times, process ids, host and device names, the revision,
file sizes) and all prose: descriptions, helps, reasons, warnings, the text of pages.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUNS = HERE / "runs"  # old runs, written by the farm of the commit that they name
MATRICES = ROOT / "matrices"
FINISHED, INTERRUPTED, COMPILED = "golden-finished", "golden-interrupted", "golden-compiled"
#: A share of both matrices: both norms, two ways to round, forward and backward, our kernels and two peers.  The other
#: ops are in the old runs.
SHARE = (
    "rows=<=8,hidden=<=1000,mode=auto,casting=llama|gemma,family=mixed,seed=0,dtype=bfloat16,"
    "provider=farm|torch|huggingface"
)
ON_CPU = ("--backend", "cpu", "--address", "inline", "--devices", "1")

#: Columns of cells.parquet that are exact on every host.
FACTS = """
    cell_key index matrix tag op provider role mode mode_resolved launch operation dtype shape family seed
    status fault_owner evidence attempt flags bitwise_repeatable gates timing_method timing_quality
    timing_cold samples bytes_moved bytes_counted bytes_requested operations kernels_per_call
"""
#: Those that only the same arithmetic gives again: the same versions on a processor with the same instructions.
VALUES = """
    output_hash input_hash worst_output worst_metric worst_ratio metrics max_ulp rel_l2 max_abs
"""
#: Those of a fake device that are times on a real one.
FAKE_TIMES = """
    target resources time_us_p20 time_us_p50 time_us_p80 time_rel_mad bandwidth_gbps tflops
"""
STATUSES = """
    passed built inaccurate compile_error crashed timed_out out_of_memory unsupported skipped infra_error lost
"""


# The command


def environ(folder: Path) -> dict[str, str]:
    """This environment without what would change how a command works, and with a cache of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "RAY_", "TRITON_", "SLURM"))}
    return {**kept, "FARM_CACHE": str(folder / "cache"), "FARM_LOCKS": str(folder / "locks")}


def farm(folder: Path, *words: str) -> tuple[int, str]:
    """(exit code, standard output) of a command, in this process: for what starts nothing."""
    sys.path.insert(0, str(ROOT))
    try:
        from farm.cli import main
    finally:
        sys.path.remove(str(ROOT))
    seen = Path(sys.modules["farm"].__file__ or "")
    assert seen.is_relative_to(ROOT), f"{seen} is imported, and the farm beside this test is {ROOT}"
    out = io.StringIO()
    with contextlib.ExitStack() as held:
        held.enter_context(mock.patch.dict(os.environ, environ(folder), clear=True))
        held.enter_context(contextlib.redirect_stdout(out))
        held.enter_context(contextlib.redirect_stderr(io.StringIO()))
        try:
            code = main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue()


def process(folder: Path, *words: str) -> tuple[int, str]:
    """(exit code, what it said) of a command as a process of its own: for what starts devices."""
    here = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from farm.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", here, *words]  # an environment may have another clone before PYTHONPATH
    done = subprocess.run(
        command, cwd=folder, env=environ(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


# Words that several views use


def digest(of: Any) -> str:
    """Twelve digits that stand for a value."""
    text = of if isinstance(of, str) else json.dumps(of, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def rounded(value: Any) -> Any:
    """A value with every float to 6 digits; no float is an int, and text that is JSON is what it says."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        return rounded(json.loads(value))
    return value


def key_paths(value: Any, at: str = "") -> Iterator[str]:
    """`matrices[].deadlines.spawn` for every key of nested objects."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"{at}{key}"
            if key != "versions":  # its names are of what the host happens to have installed
                yield from key_paths(part, f"{at}{key}.")
    elif isinstance(value, list):
        for part in value:
            yield from key_paths(part, f"{at[:-1]}[].")


def differences(held: Any, found: Any, at: str = "") -> list[str]:
    """A line for each place in which two values differ."""
    if isinstance(held, dict) and isinstance(found, dict):
        lines = []
        for key in dict.fromkeys([*held, *found]):
            where = f"{at} > {key}" if at else str(key)
            if key not in found:
                lines.append(f"{where}: gone, it was {_short(held[key])}")
            elif key not in held:
                lines.append(f"{where}: new, it is {_short(found[key])}")
            else:
                lines += differences(held[key], found[key], where)
        return lines
    if isinstance(held, list) and isinstance(found, list) and held != found:
        if all(isinstance(x, str) for x in [*held, *found]):
            changed = [x for x in difflib.ndiff(held, found) if x[0] in "+-"]
            return [f"{at}: {'; '.join(changed[:12])}"]
        if len(held) == len(found):
            return [line for i, pair in enumerate(zip(held, found)) for line in differences(*pair, f"{at}[{i}]")]
    if held == found and type(held) is type(found):
        return []
    return [f"{at}: it was {_short(held)}, it is {_short(found)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 160 else f"{text[:150]} ... ({digest(value)})"


# Views


def plans(folder: Path) -> dict[str, Any]:
    """Every matrix's plan: counts, hash, what its matrices say; of the cells a digest per op and provider."""
    cases: dict[str, tuple[str, ...]] = {f.stem: ("plan", "--json", str(f)) for f in sorted(MATRICES.glob("*.yaml"))}
    cases["smoke on cuda and rocm"] = (*cases["smoke"], "--backend", "cuda,rocm")
    cases["scripted"] = ("plan", "--json", str(HERE / "scripted.yaml"), "--backend", "sim")
    out = {}
    for name, words in cases.items():
        code, text = farm(folder, *words)
        assert code == 0, (name, code)
        out[name] = _plan(json.loads(text))
    return out


def _plan(plan: dict[str, Any]) -> dict[str, Any]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in plan["cells"]:
        groups.setdefault(f"{cell['op']}/{cell['provider']}", []).append(cell)
    named = ("cell_id", "cell_key", "skip_reason")
    return {
        "keys": sorted(plan),
        "cell keys": sorted({key for cell in plan["cells"] for key in cell}),
        "schema": plan["schema"],
        "backends": plan["backends"],
        "targets": plan["targets"],
        "matrices": [{k: v for k, v in m.items() if k not in ("path", "sha256")} for m in plan["matrices"]],
        "groups": {
            name: {
                "cells": len(cells),
                "skipped": sum(bool(c["skip_reason"]) for c in cells),
                "ids": digest([c["cell_id"] for c in cells]),
                "keys": digest([c["cell_key"] for c in cells]),
                "rest": digest([{k: v for k, v in c.items() if k not in named} for c in cells]),
            }
            for name, cells in groups.items()
        },
        "ids in order": digest([c["cell_id"] for c in plan["cells"]]),
        "keys in order": digest([c["cell_key"] for c in plan["cells"]]),
        "plan_hash (of ids, keys and the reasons of what is skipped)": plan["plan_hash"],
    }


def schema(folder: Path) -> dict[str, Any]:
    """The JSON Schema of a matrix without its descriptions."""
    code, text = farm(folder, "schema")
    assert code == 0
    found: dict[str, Any] = _undescribed(json.loads(text))
    return found


def _undescribed(value: Any) -> Any:
    if isinstance(value, dict):
        prose = ("title", "description", "$comment")
        return {k: _undescribed(v) for k, v in value.items() if not (k in prose and isinstance(v, str))}
    return [_undescribed(v) for v in value] if isinstance(value, list) else value


def commands(folder: Path) -> dict[str, Any]:
    """Every command's options and arguments in order, without their helps and metavars."""

    def parser(word: str) -> argparse.ArgumentParser:
        """The command line as it is when this command is given: the options of the others are not known then."""
        found: list[argparse.ArgumentParser] = []

        def seen(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
            found.append(parser)
            raise SystemExit(0)

        with mock.patch.object(argparse.ArgumentParser, "parse_known_args", seen):
            farm(folder, word)
        return found[0]

    out = dict(_commands(parser("schema"), "farm"))
    for word in [name.removeprefix("farm ") for name in out if name.count(" ") == 1]:
        whole = dict(_commands(parser(word), "farm"))
        out |= {name: said for name, said in whole.items() if f"{name} ".startswith(f"farm {word} ")}
    return out


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, Any]]:
    said = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        choices = list(action.choices) if action.choices is not None else None
        if isinstance(action, argparse._SubParsersAction):
            below = list(action.choices.items())
        kind = getattr(action.type, "__name__", "") if isinstance(action.type, type) else action.type and "function"
        told = {
            "options": " ".join(action.option_strings),
            "does": type(action).__name__.strip("_"),
            "type": kind,
            "nargs": action.nargs,
            "choices": choices,
            "default": action.default,
            "const": action.const,
            "required": action.required,
        }
        said.append({k: v for k, v in told.items() if v is not None})
    yield name, said
    for word, parser_below in below:
        yield from _commands(parser_below, f"{name} {word}")


def exit_codes(folder: Path) -> dict[str, int]:
    """What each situation that needs no device ends with; `run` and `old_runs` hold those of runs."""
    smoke = str(MATRICES / "smoke.yaml")
    store = _old_store(folder)
    (folder / "bad.yaml").write_text("name: a\nop: rms_norm\nshapes: []\n")
    (folder / "no.yaml").write_text("name: [\n")
    (folder / "plan.json").write_text(farm(folder, "plan", "--json", smoke)[1].replace("8x4096", "9x4096"))
    shutil.copytree(store / "runs" / FINISHED, store / "runs" / "damaged")
    (store / "runs" / "damaged" / "cells.parquet").write_bytes(b"PAR1")
    at = ("--out", str(store))
    cases: dict[str, tuple[str, ...]] = {
        "no command": (),
        "--help": ("--help",),
        "--version": ("--version",),
        "an unknown command": ("walk",),
        "an unknown option": ("plan", smoke, "--fast"),
        "a matrix that is not there": ("plan", str(folder / "none.yaml")),
        "a matrix that is no YAML": ("plan", str(folder / "no.yaml")),
        "a matrix with an unknown key": ("plan", str(folder / "bad.yaml")),
        "an unknown backend": ("plan", smoke, "--backend", "tpu"),
        "no backend named": ("plan", smoke, "--backend", ","),
        "an unknown key to select": ("plan", smoke, "--select", "hiden=1"),
        "a select of nothing": ("plan", smoke, "--select", "hidden=7"),
        "a bad --set": ("plan", smoke, "--set", "deadlines.check"),
        "a provider that is not there": ("plan", smoke, "--provider", "mine=no_such_module:norm", "--json"),
        "a plan that cannot be written": ("plan", smoke, "--out", str(folder / "none" / "plan.json")),
        "a run of nothing": ("run",),
        "a run of matrices and a plan": ("run", smoke, "--plan", str(folder / "plan.json")),
        "a run of an edited plan": ("run", "--plan", str(folder / "plan.json"), "--target", "cpu"),
        "a run's bad id": ("run", smoke, "--run-id", "../a"),
        "an unknown target to compile for": ("compile", smoke, "--target", "sm_1", *at),
        "resume of a complete run": ("resume", FINISHED, *at),
        "resume of a compiled run": ("resume", COMPILED, *at),
        "resume of no run": ("resume", "none", *at),
        "resume with other kernels": ("resume", INTERRUPTED, "--address", "inline", *at),
        "judge of no run": ("judge", "none", *at),
        "judge of a compiled run": ("judge", COMPILED, "--no-page", *at),
        "judge of a damaged run": ("judge", "damaged", "--no-page", *at),
        "judge with bad tolerances": ("judge", FINISHED, "--tolerances", smoke, "--no-page", *at),
        "judge": ("judge", FINISHED, "--run-id", "judged", "--no-page", *at),
        "judge to an id that is there": ("judge", FINISHED, "--run-id", "judged", "--no-page", *at),
        "judge with tight tolerances": ("judge", FINISHED, "--tolerances", str(HERE / "tight.yaml"), "--no-page", *at),
        "merge of what is no part of a plan": ("merge", FINISHED, COMPILED, *at),
        "export of a damaged run": ("export", "junit", "damaged", *at),
        "export to an unknown format": ("export", "pdf", FINISHED, *at),
        "export of no run": ("export", "junit", "none", *at),
        "pages with a damaged run": ("dashboard", "build", *at),
        "a page of no run": ("dashboard", "build", "none", *at),
        "a server on no port": ("dashboard", "serve", "--port", "0", *at),
    }
    return {name: farm(folder, *words)[0] for name, words in cases.items()}


def run(folder: Path) -> dict[str, Any]:
    """A share of the two matrices, run here: in the interpreter, inline."""
    matrices = [str(MATRICES / f"{name}.yaml") for name in ("smoke", "no_false_accusation")]
    store = folder / "store"
    words = ("run", *matrices, "--select", SHARE, *ON_CPU, "--no-page", "--out", str(store), "--run-id", "golden-share")
    code, said = process(folder, *words)
    assert (store / "runs" / "golden-share" / "run.json").is_file(), said
    found = {"exit code": code, "arithmetic": _arithmetic(store / "runs" / "golden-share")}
    return {**found, **_run(store / "runs" / "golden-share")}


def _arithmetic(run_dir: Path) -> dict[str, str]:
    """What the values of a run on the CPU depend on: where it is another, its values may be."""
    device = json.loads((run_dir / "run.json").read_text())["backends"]["cpu"]["devices"][0]
    versions = {k: device["fingerprint"].get(k, "") for k in ("torch", "triton", "machine")}
    flags = re.search(r"(?m)^(?:flags|Features)\s*:(.*)$", _read(Path("/proc/cpuinfo")))
    wide = sorted(w for w in (flags[1] if flags else "").split() if re.match(r"avx|fma|sse|amx|asimd|sve|f16c", w))
    return {**versions, "numpy": version("numpy"), "instructions": digest([platform.machine(), *wide])}


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _run(run_dir: Path, from_line: int = 0) -> dict[str, Any]:
    """A finished run's files: columns and keys exactly, rows without times."""
    import pyarrow.parquet as parquet

    head = json.loads((run_dir / "run.json").read_text())
    tables = {name: parquet.read_table(run_dir / f"{name}.parquet") for name in ("cells", "samples")}
    rows = tables["cells"].to_pylist()
    return {
        "files": sorted(p.name for p in run_dir.iterdir() if p.name != "logs"),
        **{f"columns of {name}": [f"{f.name} {f.type}" for f in table.schema] for name, table in tables.items()},
        "metadata": {k.decode(): v.decode() for k, v in (tables["cells"].schema.metadata or {}).items()},
        "run.json": sorted(set(key_paths(head))),
        "run.json says": {k: head.get(k) for k in ("schema", "kind", "planned", "counts", "verdict", "exit_code")},
        "plan_hash": head["plan_hash"],
        "journal": _journal(run_dir, from_line),
        "samples": sorted(
            f"{s['cell_id']} {s['method']} x{len(json.loads(s['samples_us']))}" for s in tables["samples"].to_pylist()
        ),
        "cells": {row["cell_id"]: _picked(row, FACTS) for row in rows},
        "values": {row["cell_id"]: _picked(row, VALUES) for row in rows},
        "fake": {row["cell_id"]: _picked(row, FAKE_TIMES) for row in rows if row["backend"] != "cpu"},
    }


def _picked(row: dict[str, Any], names: str) -> dict[str, Any]:
    """Some of a row's columns; what is empty is left out, for the file's size: a value of its own is then `new`."""
    picked = {n: rounded(row[n]) if n in row else "no such column" for n in names.split()}
    return {n: v for n, v in picked.items() if v not in (None, "", [], {})}


def _journal(run_dir: Path, from_line: int) -> dict[str, list[str]]:
    kinds: dict[str, set[str]] = {}
    for line in (run_dir / "journal.jsonl").read_text().splitlines()[from_line:]:
        event = json.loads(line)
        event.pop("crc", None)  # of every line that this farm adds
        kinds.setdefault(event["event"], set()).update(key_paths(event))
    return {kind: sorted(keys) for kind, keys in sorted(kinds.items())}


def _old_store(folder: Path) -> Path:
    """A store with copies of the old runs."""
    store = folder / "old"
    shutil.copytree(RUNS, store / "runs")
    for one in (store / "runs").iterdir():
        (one / "logs").mkdir(exist_ok=True)  # git keeps no empty folder
    return store


def old_runs(folder: Path) -> dict[str, Any]:
    """Runs of an older farm: exported, shown, resumed and judged by this one."""
    store = _old_store(folder)
    at = ("--out", str(store))
    found: dict[str, Any] = {"pages before": _pages(folder, store)}
    exports = {n: _exports(folder, store, n) for n in (FINISHED, INTERRUPTED, COMPILED)}
    found["exports before"] = exports

    begun = len((store / "runs" / INTERRUPTED / "journal.jsonl").read_text().splitlines())
    words = ("resume", INTERRUPTED, "--other-revision", "--address", "inline", "--no-page", *at)
    code, said = process(folder, *words)
    assert (store / "runs" / INTERRUPTED / "run.json").is_file(), said
    found["resumed"] = {"exit code": code, **_run(store / "runs" / INTERRUPTED, begun)}

    tight = ("--tolerances", str(HERE / "tight.yaml"))
    judged: dict[str, tuple[str, ...]] = {
        "judged": (FINISHED,),
        "judged-tight": (FINISHED, *tight),
        "judged-tight-strict": (FINISHED, *tight, "--strict-peers"),
        "judged-resumed": (INTERRUPTED,),
    }
    for name, more in judged.items():
        code, _ = farm(folder, "judge", *more, "--run-id", name, "--no-page", *at)
        found[name] = {"exit code": code, **_judged(_run(store / "runs" / name), whole=more == (FINISHED,))}
    found["exports after"] = {n: _exports(folder, store, n) for n in (INTERRUPTED, "judged-tight")}
    after = _pages(folder, store, ordered=("run-",))  # two runs of one second are listed in either order
    found["pages after"] = {k: v for k, v in after.items() if v != found["pages before"].get(k)}
    return found


def _judged(view: dict[str, Any], whole: bool) -> dict[str, Any]:
    """What judging changes; keys and columns are the same of every judged run and are held of one."""
    kept = ("status", "fault_owner", "gates", "timing_quality")
    cells = {i: {k: v for k, v in cell.items() if k in kept} for i, cell in view["cells"].items()}
    worst = {i: {k: v for k, v in values.items() if k.startswith("worst")} for i, values in view["values"].items()}
    rest = {k: v for k, v in view.items() if whole or k in ("run.json says", "samples")}
    return {**rest, "cells": cells, "values": worst, "fake": {}}


def _pages(folder: Path, store: Path, ordered: tuple[str, ...] = ("",)) -> dict[str, Any]:
    shutil.rmtree(store / "pages", ignore_errors=True)
    code, _ = farm(folder, "dashboard", "build", "--out", str(store))
    files = sorted((store / "pages").glob("*.html"))
    made = {p.name: page(p.read_text(encoding="utf-8"), p.name.startswith(ordered)) for p in files}
    return {"exit code": code, "files": sorted(p.name for p in (store / "pages").iterdir()), **made}


def _exports(folder: Path, store: Path, run_id: str) -> dict[str, Any]:
    code, text = farm(folder, "export", "junit", run_id, "--out", str(store))
    words, told = farm(folder, "export", "markdown", run_id, "--out", str(store))
    return {"exit codes": [code, words], "junit": junit(text), "markdown": markdown(told)}


def junit(text: str) -> list[str]:
    """Suites and cases with their names and counts, and which element each case has."""
    lines = []
    for element in ElementTree.fromstring(text).iter():
        said = {k: v for k, v in element.attrib.items() if k not in ("message", "time", "timestamp")}
        missing = [k for k in ("message", "time", "timestamp") if k in element.attrib]
        lines.append(" ".join([element.tag, *(f"{k}={v}" for k, v in said.items()), *missing]))
    return lines


def markdown(text: str) -> list[str]:
    """Every line's kind; of a row of a table how many fields it has, and those that are numbers or names."""
    lines = []
    for line in text.splitlines():
        if line.startswith("|"):
            fields = [f.strip() for f in re.split(r"(?<!\\)\|", line)[1:-1]]
            said = [f for f in fields if re.fullmatch(r"[\d.,]+( / [\d.,]+)?|[a-z]\w*(\\_\w+)*(:[\w.-]+)?", f)]
            lines.append(f"| {len(fields)}: {' '.join(said)}" if any(re.search(r"\d", f) for f in said) else "|")
        elif line.strip():
            lines.append(re.match(r"#+|>|```|\*\*|-|", line)[0] or "text")  # type: ignore[index]
    return lines


class _Page(HTMLParser):
    """Tags in order with their classes and what a script finds them by, in parts: one for each element with an id."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[str]] = {"top": []}
        self.part = "top"
        self.silent = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {k: v or "" for k, v in attrs}
        if tag in ("section", "footer", "main", "header") or (tag == "article" and "id" in said):
            self.part = said.get("id", tag)
            self.parts.setdefault(self.part, [])
        name = ".".join([tag, *sorted(said.get("class", "").split())])
        name += "".join(f"[{k}={said[k]}]" for k in ("id", "data-n") if k in said)
        self.parts[self.part].append(name)
        self.silent = tag in ("style", "script")
        for key in ("title", "data-t", "aria-label"):
            self._names(said.get(key, ""))

    def handle_endtag(self, tag: str) -> None:
        self.silent = False

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self._names(data)
            if re.fullmatch(r"\s*[a-z_]+\s*", data) and data.strip() in STATUSES.split():
                self.parts[self.part].append(f"'{data.strip()}'")

    def _names(self, text: str) -> None:
        """The cells that a text names."""
        self.parts[self.part] += [f"'{name}'" for name in re.findall(r"\b(?:cpu|sim|cuda)/\w+/\w+/[^\s,;]+", text)]


def page(text: str, ordered: bool = True) -> dict[str, Any]:
    """A page's parts as text: tags with classes, equal neighbours counted; and how many rows each table has."""
    parser = _Page()
    parser.feed(text)
    tables = [len(re.findall(r"<tr\b", table)) for table in re.findall(r"(?s)<table\b.*?</table>", text)]
    named = {name: names if ordered else sorted(names) for name, names in parser.parts.items() if names}
    parts = {name: " ".join(_counted(names)) for name, names in named.items()}
    return {"rows of tables": tables, **{name: _lines(part) for name, part in parts.items()}}


def _counted(names: list[str]) -> Iterator[str]:
    last, times = "", 0
    for name in [*names, ""]:
        if name == last:
            times += 1
            continue
        if last:
            yield last if times == 1 else f"{last}*{times}"
        last, times = name, 1


def _lines(text: str) -> list[str]:
    """In lines that begin with what a reader looks for."""
    return re.split(r" (?=(?:table|tr|h[1-4]|div|p|svg|article|details|li)\b)", text)


VIEWS: dict[str, Callable[[Path], Any]] = {
    "plans": plans,
    "schema": schema,
    "commands": commands,
    "exit_codes": exit_codes,
    "run": run,
    "old_runs": old_runs,
}


def held(name: str) -> Any:
    """The data of a view as it was captured."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def as_text(view: Any) -> str:
    """A view as its file has it: a line for each entry of the outer two levels."""
    return _pretty(view, 0) + "\n"


def _pretty(value: Any, depth: int) -> str:
    plain = json.dumps(value)
    if not isinstance(value, (dict, list)) or not value or len(plain) < 100 or depth > 3:
        return plain
    pad = " " * (depth + 1)
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    if isinstance(value, dict):
        parts = [f"{json.dumps(k)}: {_pretty(v, depth + 1)}" for k, v in value.items()]
    else:
        parts = [_pretty(v, depth + 1) for v in value]
    return f"{opening}\n{pad}" + f",\n{pad}".join(parts) + f"\n{' ' * depth}{closing}"
