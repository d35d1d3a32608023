"""Writes a first farm.yaml for a repository, with its adapters and a small matrix for each op that was found."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.contracts import discovery
from farm.contracts.base import Contract
from farm.errors import StoreError, UsageError
from farm.kernel_package import ROOT
from farm.matrix import builtin_providers, load_all
from farm.matrix.expand import cells
from farm.node.environment import Environment, child_variables
from farm.process import command
from farm.subject.model import FILE
from farm.subject.survey import Call, Layout, call_of, candidates, layout

ADAPTERS, MATRICES = "farm_adapters", "farm_matrices"
IMPORT_SECONDS = 120.0
#: Sizes of a first matrix: one that is a power of two, one that is not, and a single row.
FIRST, OTHERS = "[1, 37]", "[128, 1000]"
#: How an adapter loads a module, in the order in which they are tried.
PLAIN, BARE = "importlib.import_module", "bare"
#: Without bytecode: nothing but the files that are reported appears in the repository.
_TRY = "import importlib,sys;sys.dont_write_bytecode=True;from farm.subject import bare;{how}(sys.argv[1])"


@dataclass(frozen=True)
class Written:
    """`files`: what was written.  `calls`: what is called for each op.  `left`: what was found but not used."""

    files: tuple[Path, ...]
    calls: tuple[str, ...]
    left: tuple[str, ...]


def write(folder: Path, contracts: Sequence[Path] = ()) -> Written:
    """Look around and write.  `contracts`: folders of contracts, which the caller has added.  UsageError where nothing
    is found, or where a file is there already."""
    place = layout(folder)
    ops = discovery.known_ops()
    found, left = _calls(place, ops)
    chosen, imports, more = _importable(folder, place, found)
    left += more
    if not chosen:
        what = f"; what was found: {'; '.join(left[:5])}" if left else ""
        raise UsageError(
            f"{folder}: no function of an op that the farm knows was found ({', '.join(ops)}){what}; if your ops are "
            "others, write their contracts, in ten lines each, and name the folder: farm init --contracts DIR; else "
            f"write {FILE} by hand: docs/test-your-repository.md",
            id="init-nothing-found",
        )
    name = _name(folder)
    provider = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    provider = f"{provider}_" if provider == "farm" or provider in builtin_providers() else provider
    modules = sorted({c.candidate.module.split(".")[0] for c in chosen})
    texts = {
        FILE: _farm_yaml(name, place.path, modules, provider, chosen, _relative(contracts, folder)),
        f"{ADAPTERS}.py": _adapters(chosen, imports),
    }
    texts |= {f"{MATRICES}/{c.candidate.op}.yaml": _matrix(provider, c) for c in chosen}
    there = next((n for n in texts if (folder / n).exists()), None)
    if there:
        raise UsageError(f"{folder / there}: is there already; remove it, or edit it by hand", id="init-exists")
    written = []
    try:
        for file, text in texts.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot be written ({error.strerror}); check its permissions", id="init-unwritable"
        ) from None
    told = tuple(f"{c.candidate.op}: {c.candidate.module}.{c.candidate.name}" for c in chosen)
    return Written(tuple(written), told, tuple(left))


def _calls(place: Layout, ops: Sequence[str]) -> tuple[dict[str, list[Call]], list[str]]:
    """Op -> the ways to call it, best first; and what cannot be called."""
    found: dict[str, list[Call]] = {}
    left = []
    for candidate in candidates(place.files, ops):
        inputs, positional, keywords = _signature(discovery.contract(candidate.op))
        how = call_of(candidate, inputs, positional, keywords)
        if isinstance(how, Call):
            found.setdefault(candidate.op, []).append(how)
        else:
            left.append(f"{candidate.module}.{candidate.name} {how}")
    return found, left


def _signature(contract: Contract) -> tuple[list[str], list[str], dict[str, object]]:
    """(names of the inputs, of the positional parameters, the others with their defaults)."""
    with tempfile.TemporaryDirectory(prefix="farm-init-") as scratch:
        file = Path(scratch, "m.yaml")
        file.write_text(_matrix_text(contract, ["asked"]), encoding="utf-8")
        cell = next(iter(cells(load_all(file, extra_providers={"asked": "module:function"})[0], ["cpu"])))
    inputs = [t.name for t in contract.tensors(cell) if t.role in ("input", "mutated")]
    own = [p for p in contract.parameters if p.nullifies is None and not p.declared]
    return inputs, [p.name for p in own if p.positional], {p.name: p.default for p in own if not p.positional}


def _importable(
    folder: Path, place: Layout, found: dict[str, list[Call]]
) -> tuple[list[Call], dict[str, str], list[str]]:
    """Of each op the first call whose module can be imported here; how each module is; and what could not be."""
    chosen, imports, left = [], dict[str, str](), []
    for calls in found.values():
        for call in calls:
            module = call.candidate.module
            if module not in imports:
                imports[module], why = "", ""
                for how in (PLAIN, BARE):
                    why = _why_not(how, module, folder / place.path)
                    if not why:
                        imports[module] = how
                        break
                if why:
                    left.append(f"{module} cannot be imported here ({why})")
            if imports[module]:
                chosen.append(call)
                break
    return chosen, imports, left


def _why_not(how: str, module: str, path: Path) -> str:
    """Why a module cannot be loaded in that way, in a process of its own; "" if it can."""
    own = Environment.default()
    environment = Environment(path=(str(path.resolve()), str(ROOT), *own.path), variables={"TRITON_INTERPRET": "1"})
    with tempfile.TemporaryDirectory(prefix="farm-init-") as scratch:
        words = [sys.executable, "-c", _TRY.format(how=how), module]
        done = command.run(words, IMPORT_SECONDS, env=child_variables({}, environment), cwd=scratch)
    return "" if done.code == 0 else (done.err.strip().splitlines() or ["it did not end in time"])[-1][:200]


def _name(folder: Path) -> str:
    """What the project calls itself, else its folder's name."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    section = re.search(r"^\[project\]$(.*?)(?=^\[|\Z)", text, re.M | re.S)
    named = re.search(r"""^name *= *["']([^"']+)["']""", section[1] if section else "", re.M)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", named[1] if named else folder.resolve().name).strip("-._") or "subject"


def _relative(contracts: Sequence[Path], folder: Path) -> list[str]:
    """Folders of contracts as the file names them: relative to it.  UsageError for one that others would not have."""
    home = folder.resolve()
    for place in contracts:
        if not place.resolve().is_relative_to(home):
            raise UsageError(
                f"--contracts {place}: lies outside of {folder}, and {FILE} would name it; move it there",
                id="init-contracts-outside",
            )
    return [p.resolve().relative_to(home).as_posix() for p in contracts]


def _farm_yaml(
    name: str, path: str, modules: Sequence[str], provider: str, calls: Sequence[Call], contracts: Sequence[str]
) -> str:
    lines = [
        "# What the kernel farm tests in this repository; `farm schema subject` has every key.",
        "#   farm run             in this repository: the matrices below, on this host's accelerators, else on its CPU",
        "farm: 1",
        f"subject: {json.dumps(name)}",
        f"overlay: {{path: {json.dumps(path)}, modules: [{', '.join(modules)}]}}",
        "providers:",
        f"  {provider}:",
        "    ops:",
        *(f'      {c.candidate.op}: {{call: "{ADAPTERS}:{c.candidate.op}"}}' for c in calls),
        *([f"contracts: {json.dumps(contracts)}"] if contracts else []),
        f"matrices: [{', '.join(f'{MATRICES}/{c.candidate.op}.yaml' for c in calls)}]",
    ]
    return "\n".join(lines) + "\n"


def _adapters(calls: Sequence[Call], imports: dict[str, str]) -> str:
    bare = any(imports[c.candidate.module] == BARE for c in calls)
    plain = any(imports[c.candidate.module] == PLAIN for c in calls)
    head = [
        '"""What the farm calls, for the functions of this repository: inputs in the order of the contract, then its',
        'positional parameters, then keywords that differ from the defaults of the op."""',
        "",
        *(["import importlib", ""] if plain else []),
        *(["from farm.subject import bare  # loads one module without its package's __init__", ""] if bare else []),
    ]
    return "\n".join(head) + "".join(_adapter(c, imports[c.candidate.module]) for c in calls)


def _adapter(call: Call, how: str) -> str:
    c = call.candidate
    inputs, positional, defaults = _signature(discovery.contract(c.op))
    keywords = [f"{name}={defaults[name]!r}" for name in call.keywords]
    signature = ", ".join([*inputs, *positional, *(["*", *keywords] if keywords else [])])
    function = f'{how}("{c.module}").{c.name}'
    given = ", ".join(value if c.applied else f"{name}={value}" for name, value in call.given)
    called = f"function.apply({given})" if c.applied else f"function({given})"
    return f"\n\ndef {c.op}({signature}):\n    function = {function}\n    return {called}\n"


def _matrix(provider: str, call: Call) -> str:
    op = call.candidate.op
    torch = ["torch"] if builtin_providers()["torch"].does(op) else []
    return _matrix_text(discovery.contract(op), [provider, *torch])


def _matrix_text(contract: Contract, providers: Sequence[str]) -> str:
    sizes = [f"{d.name}: {OTHERS if i else FIRST}" for i, d in enumerate(contract.dimensions)]
    dtypes = [d for d in contract.dtypes if d in ("float32", "bfloat16")] or list(contract.dtypes[:1])
    operations = [o for o in ("forward", "backward") if o in contract.operations]
    return (
        f"# A first matrix of small shapes, odd ones among them; docs/matrix.md has every axis.\n"
        f"name: {contract.op}-first\nop: {contract.op}\naxes:\n  shape:\n    - {{{', '.join(sizes)}}}\n"
        f"  dtype: [{', '.join(dtypes)}]\n  operation: [{', '.join(operations)}]\n"
        f"providers: {{{', '.join(f'{p}: {{}}' for p in providers)}}}\n"
    )
