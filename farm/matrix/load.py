"""`load`: a YAML file to a resolved matrix, or one sentence that states where, what, and what to do."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm import backends as farm_backends
from farm import limits
from farm.accuracy.contract_check import declared
from farm.cell import QUIET, Cell
from farm.contracts import discovery as farm_ops
from farm.contracts.base import Contract
from farm.contracts.layouts import DENSE
from farm.device_pattern import malformed, pattern_of
from farm.errors import FarmError, MatrixError, UsageError, id_of

from . import axes as ax
from .declared import declared_providers
from .document import YamlNode, override, parse, read, show, suggest
from .model import DEFAULT_DEADLINES, MAX_CELLS, METHODS, Matrix, MatrixInfo, Tolerance, View
from .registry import ProviderInfo, builtin_providers, extras_for
from .rules import Kind, Rule, kinds, lookup, parse_rule
from .sim_script import read_script
from .timing_policy import untimed
from .tolerance_check import astray

KEYS = (
    "name",
    "op",
    "axes",
    "providers",
    "backends",
    "targets",
    "quiet",
    "exclude",
    "timing",
    "require",
    "deadlines",
    "sim",
    "tolerances",
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
Overrides = Sequence[tuple[str, str]]


def load(path: Path | str, **how: Any) -> Matrix:
    """The one matrix in `path`.  `how`: the keyword arguments of `load_text`."""
    found = load_all(path, **how)
    if len(found) != 1:
        message = f"contains {len(found)} matrices, but one is needed; put each into its own file"
        raise MatrixError(f"{path}: {message}", id="matrix-not-one")
    return found[0]


def load_files(paths: Sequence[Path | str], *, overrides: Overrides = (), **how: Any) -> list[Matrix]:
    """The matrices of several files.  UsageError for a `--set NAME:path` whose NAME is not one of them, and for a
    `--provider OP:NAME` whose op none of them has."""
    found = [matrix for path in paths for matrix in load_all(path, overrides=overrides, **how)]
    names = list(dict.fromkeys(m.name for m in found))
    for key, text in overrides:
        only, colon, _ = key.partition(":")
        if colon and only not in names:
            message = f'there is no matrix "{only}"; {suggest(only, names, "matrices")}'
            raise UsageError(f"--set {key}={text}: {message}", id="matrix-set-name")
    ops = dict.fromkeys(m.op for m in found)
    for key in how.get("extra_providers") or ():
        only, colon, _ = key.rpartition(":")
        if colon and only not in ops:  # it would silently run nowhere
            message = f"none of the matrices has the op {only} (available ops: {', '.join(ops)}); add a matrix for it"
            raise UsageError(f"--provider {key}: {message}", id="matrix-provider-op-absent")
    return found


def load_all(path: Path | str, **how: Any) -> list[Matrix]:
    """Every matrix in the YAML file `path`, one per document.  `how`: the keyword arguments of `load_text`."""
    text, sha256 = read(Path(path))
    return load_text(text, str(path), sha256, **how)


def load_text(
    text: str,
    where: str,
    sha256: str = "",
    *,
    overrides: Overrides = (),
    contracts: Callable[[str], Contract] = farm_ops.contract,
    ops: Sequence[str] | None = None,
    registry: Mapping[str, ProviderInfo] | None = None,
    extra_providers: Mapping[str, str] | None = None,
    subject: Mapping[str, ProviderInfo] | None = None,
    backends: Sequence[str] | None = None,
) -> list[Matrix]:
    """Every matrix in the YAML `text` of the file `where`, one per document.

    `overrides` are `--set` pairs: a dotted path (`timing.min_samples`), or `NAME:path` for the matrix of that name
    only.  `extra_providers` maps `[OP:]NAME` to `module:function`; `subject`: the providers of a farm.yaml, by name.
    Both are added to the matrix's providers.  The other arguments replace what the farm knows, for tests.
    Raises MatrixError, or UsageError for an invalid `--provider`.
    """
    reader = _Reader(
        contracts=contracts,
        ops=tuple(farm_ops.known_ops() if ops is None else ops),
        registry=builtin_providers() if registry is None else registry,
        extra=extra_providers or {},
        subject=subject or {},
        backends=tuple(farm_backends.known() if backends is None else backends),
    )
    return reader.matrices(parse(text, where), where, sha256, overrides)


class _Reader:
    """Reads documents with what the farm knows: ops, providers, backends."""

    def __init__(
        self,
        contracts: Callable[[str], Contract],
        ops: tuple[str, ...],
        registry: Mapping[str, ProviderInfo],
        extra: Mapping[str, str],
        subject: Mapping[str, ProviderInfo],
        backends: tuple[str, ...],
    ) -> None:
        self.contracts = contracts
        self.ops = ops
        self.builtin = registry
        self.extra = extra
        self.subject = subject
        self.backends = backends

    def matrices(self, roots: list[YamlNode], path: str, sha256: str, overrides: Overrides) -> list[Matrix]:
        if not roots or (len(roots) == 1 and roots[0].value is None):
            raise MatrixError(
                f"{path}: is empty; a matrix needs the keys name, op, axes and providers", id="matrix-empty-file"
            )
        found: list[Matrix] = []
        for root in roots:
            if not isinstance(root.value, dict):
                message = f"is {show(root.value)}, not a mapping; a matrix needs the keys name, op, axes and providers"
                raise root.error(message, id="matrix-not-a-mapping")
            matrix = self.matrix(_overridden(root, overrides), path, sha256)
            if matrix.name in {m.name for m in found}:
                message = f'is "{matrix.name}", which another matrix in this file already uses; rename one of the two'
                raise root.value["name"].error(message, id="matrix-name-twice")
            found.append(matrix)
        return found

    def matrix(self, root: YamlNode, path: str, sha256: str) -> Matrix:
        given = root.mapping()
        for key, node in given.items():
            if key not in KEYS:
                message = f"is not a key of a matrix; {suggest(key, KEYS, 'keys')}"
                if key in ("farm", "subject"):
                    message = "is a key of a farm.yaml, which is no matrix; give it with --subject, or name a matrix"
                raise node.key_error(message, id="matrix-unknown-key")
        for key in ("name", "op"):
            if key not in given:
                example = "rms_norm" if key == "op" else "my-matrix"
                raise root.error(f"has no {key}; add {key}: {example}", id=f"matrix-no-{key}")
        name = _name(given["name"])
        contract = self._contract(given["op"])
        extras = extras_for(contract.op, self.extra, self.builtin, self.ops, self.subject)
        given_calls = {name for name in extras if name not in self.subject}
        declared, calls = declared_providers(root, {**self.builtin, **extras}, given_calls)
        every = {**self.builtin, **self.subject, **extras, **declared}
        registry = {name: info.of(contract.op) for name, info in every.items()}
        extras = {name: registry[name] for name in extras}
        base, views = self._views(root, contract, registry, extras)
        asked = (p for v in (base, *views.values()) if v for p in v.providers)
        modes = dict.fromkeys(
            [*(m for info in registry.values() for m in info.modes), *(m for p in asked for m in p.modes)]
        )
        targets = self._targets(given.get("targets"), base, views)
        patterns = dict.fromkeys(p for found in targets.values() for p in found)
        known = kinds(contract, self.backends, sorted(registry), modes, METHODS, patterns)
        launches = "|".join(dict.fromkeys(i.mode_pattern for i in registry.values() if i.mode_pattern))
        known["mode"] = replace(known["mode"], pattern=launches)
        info = MatrixInfo(
            name=name,
            path=path,
            sha256=sha256,
            op=contract.op,
            require=self._require(given.get("require")),
            deadlines=_deadlines(given.get("deadlines")),
            sim=read_script(given.get("sim"), known),
            tolerances=_tolerances(given.get("tolerances"), known),
            targets=targets,
            quiet=_quiet(given.get("quiet")),
        )
        matrix = Matrix(info, contract, base, views, _exclude(given.get("exclude"), known), known, calls)
        _check_sizes(matrix, root)
        _check_timings(matrix, given)
        _check_matches(matrix, given)
        return matrix

    def _contract(self, node: YamlNode) -> Contract:
        op = ax.word(node)
        if op not in self.ops:
            raise node.unknown(self.ops, "ops", id="matrix-unknown-op")
        try:
            contract = self.contracts(op)
        except FarmError:
            raise
        except Exception as error:  # anything that its code raises
            why = f"{type(error).__name__}: {error}"[:200]
            message = f"names an op whose contract.py cannot be imported ({why}); correct that file"
            raise node.error(message, id="matrix-contract-import") from error
        declares = (*_listed(contract.dimensions), *_listed(contract.parameters))
        names = [getattr(one, "name", "") for one in declares]
        bad = next((n for n in names if n in ax.RESERVED or n.endswith(("_dtype", "_layout"))), None)
        if bad:
            message = f'names an op whose contract has a dimension or parameter "{bad}", a reserved name; rename it'
            raise node.error(message, id="matrix-contract-reserved-name")
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice:
            message = (
                f'names an op whose contract has two dimensions or parameters "{twice}"; rename one in the contract'
            )
            raise node.error(message, id="matrix-contract-name-twice")
        wrong = declared(contract, op)
        if wrong:
            raise node.error(f"names an op whose contract is wrong: {wrong}", id="matrix-contract-wrong")
        return contract

    def _views(
        self,
        root: YamlNode,
        contract: Contract,
        registry: Mapping[str, ProviderInfo],
        extras: Mapping[str, ProviderInfo],
    ) -> tuple[View | None, dict[str, View]]:
        """The view of every backend that `backends` does not mention, and the views of those that it does."""
        given = root.value
        axes = given["axes"].mapping("shape: [...]") if "axes" in given else {}
        section = given["backends"].mapping("cuda: {dtype: [float16]}") if "backends" in given else {}
        for backend, node in section.items():
            if backend not in self.backends:
                message = f"is not a backend; {suggest(backend, self.backends, 'backends')}"
                raise node.key_error(message, id="matrix-unknown-backend")

        def view(axes: Mapping[str, YamlNode], providers: YamlNode | None, timing: YamlNode | None) -> View:
            return ax.resolve(contract, root, axes, providers, timing, registry, extras)

        views = {}
        for backend in (b for b in self.backends if b in section):
            difference = dict(section[backend].mapping("dtype: [float16]"))
            providers = difference.pop("providers", given.get("providers"))
            timing = difference.pop("timing", None)
            if timing and untimed(backend):
                message = f"has no effect, because {backend} is never timed; remove it"
                raise timing.key_error(message, id="matrix-timing-untimed")
            views[backend] = view({**axes, **difference}, providers, timing or given.get("timing"))
        only_there = section and ("shape" not in axes or ("providers" not in given and not extras))
        base = None if only_there else view(axes, given.get("providers"), given.get("timing"))
        return base, views

    def _targets(
        self, node: YamlNode | None, base: View | None, views: Mapping[str, View]
    ) -> dict[str, tuple[str, ...]]:
        """Backend -> the patterns of the devices that each of its cells is planned for."""
        out = {}
        for backend, child in (node.mapping("cuda: [GB200]") if node else {}).items():
            if backend not in self.backends:
                message = f"is not a backend; {suggest(backend, self.backends, 'backends')}"
                raise child.key_error(message, id="matrix-target-backend")
            if base is None and backend not in views:
                message = f"names targets of a backend that has no axes in this matrix (with axes: {', '.join(views)})"
                raise child.key_error(f"{message}; add its axes or remove it", id="matrix-target-no-axes")
            entries = child.items() if isinstance(child.value, list) else [child]
            out[backend] = ax._unique([(self._pattern(entry, backend), entry) for entry in entries])
        return out

    def _pattern(self, node: YamlNode, backend: str) -> str:
        text = ax.word(node)
        first, colon, rest = text.partition(":")
        if colon and first in self.backends:
            message = f'is {show(text)}; write the target without the backend: "{rest}"'
            raise node.error(message, id="matrix-target-prefix")
        wrong = malformed(text)
        if wrong:
            raise node.error(f"is {show(text)}; {wrong}", id=id_of(wrong))
        return text

    def _require(self, node: YamlNode | None) -> tuple[str, ...]:
        if node is None:
            return ()
        for child in node.items():
            if not isinstance(child.value, str) or child.value not in self.backends:
                raise child.unknown(self.backends, "backends", id="matrix-require-backend")
        return ax._unique([(child.value, child) for child in node.items()])


def _overridden(root: YamlNode, overrides: Overrides) -> YamlNode:
    name = root.value.get("name")
    for key, text in overrides:
        only, colon, rest = key.partition(":")
        if colon and (name is None or only != name.value):
            continue
        root = override(root, rest if colon else key, text)
    return root


def _listed(found: Any) -> tuple[Any, ...]:
    """What a contract declares, which may be anything; `declared` says what is wrong with it."""
    return tuple(found) if isinstance(found, (tuple, list)) else ()


def _name(node: YamlNode) -> str:
    name = ax.word(node)
    if not _NAME.fullmatch(name):
        message = "a name has 1 to 80 letters, digits, '.', '_' or '-', and begins with a letter or digit"
        raise node.error(f"is {show(name)}; {message}", id="matrix-name")
    return name


def _deadlines(node: YamlNode | None) -> dict[str, float]:
    out = dict(DEFAULT_DEADLINES)
    for phase, child in (node.mapping("timing: 60") if node else {}).items():
        if phase not in limits.TABLE:
            what = f"is nothing that has a limit; {suggest(phase, limits.TABLE, 'limits')}"
            raise child.key_error(what, id="matrix-unknown-phase")
        out[phase] = ax.positive(child)
    return out


def _quiet(node: YamlNode | None) -> str:
    if node is not None and node.value not in QUIET:
        raise node.unknown(QUIET, "values", id="matrix-unknown-quiet")
    return str(node.value) if node else QUIET[0]


def _exclude(node: YamlNode | None, known: Mapping[str, Kind]) -> tuple[Rule, ...]:
    rules = []
    for entry in node.items() if node else ():
        given = dict(entry.mapping("provider: torch, reason: why"))
        if "reason" not in given:
            message = 'has no reason; add reason: "why these cells are not run"'
            raise entry.error(message, id="matrix-exclude-no-reason")
        reason = ax.word(given.pop("reason"))
        if not given:
            message = "excludes every cell; add a condition, for example provider: torch"
            raise entry.error(message, id="matrix-exclude-everything")
        rules.append(parse_rule(given, known, reason))
    return tuple(rules)


_TOLERANCE = ("match", "output", "metric", "limit", "reason", "date")


def _tolerances(node: YamlNode | None, known: Mapping[str, Kind]) -> tuple[Tolerance, ...]:
    return tuple(_tolerance(entry, known) for entry in (node.items() if node else ()))


def _tolerance(entry: YamlNode, known: Mapping[str, Kind]) -> Tolerance:
    given = entry.mapping("output: y, metric: rel_l2, limit: 1e-3, reason: why, date: 2026-01-31")
    for key, child in given.items():
        if key not in _TOLERANCE:
            message = f"is not a key of a tolerance; {suggest(key, _TOLERANCE, 'keys')}"
            raise child.key_error(message, id="matrix-tolerance-key")
    for key in ("output", "metric", "limit", "reason", "date"):
        if key not in given:
            message = f"has no {key}; a tolerance needs output, metric, limit, reason and date"
            raise entry.error(message, id=f"matrix-tolerance-no-{key}")
    limit = given["limit"].value
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 0:
        raise given["limit"].error(f"is {show(limit)}; it must be a number >= 0", id="matrix-tolerance-limit")
    date = ax.word(given["date"])
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):  # newer Pythons accept more forms
            raise ValueError
        datetime.date.fromisoformat(date)
    except ValueError:
        message = f"is {show(date)}; it must be a date like 2026-01-31"
        raise given["date"].error(message, id="matrix-tolerance-date") from None
    rule = parse_rule(given["match"].mapping("dtype: bfloat16"), known) if "match" in given else Rule(())
    output, metric, reason = (ax.word(given[key]) for key in ("output", "metric", "reason"))
    return Tolerance(rule, output, metric, float(limit), reason, date)


def load_tolerances(path: Path | str, cells: Sequence[Cell]) -> tuple[Tolerance, ...]:
    """The tolerances of a file that has no other key (`tolerances`, as in a matrix), for cells that were run.

    MatrixError for everything that a matrix is refused for, for an entry that matches none of the cells, and for an
    output or metric that none of the matched cells has.
    """
    text, _ = read(Path(path))
    roots = parse(text, str(path))
    if len(roots) != 1 or not isinstance(roots[0].value, dict):
        message = "is not a tolerance file; it must have one key, tolerances, with a list of tolerances"
        raise MatrixError(f"{path}: {message}", id="matrix-not-a-tolerance-file")
    given = roots[0].mapping()
    for key, node in given.items():
        if key != "tolerances":
            message = "is not a key of a tolerance file; its only key is tolerances"
            raise node.key_error(message, id="matrix-tolerance-file-key")
    known: dict[str, Kind] = {}
    providers, modes = (sorted({getattr(c, name) for c in cells}) for name in ("provider", "mode"))
    for op in dict.fromkeys(c.op for c in cells if c.op in farm_ops.known_ops()):
        patterns = dict.fromkeys(p for c in cells if (p := pattern_of(c.target)))
        every = kinds(farm_ops.contract(op), farm_backends.known(), providers, modes, METHODS, patterns)
        for key, kind in every.items():
            closed = tuple(dict.fromkeys((*known.get(key, kind).known, *kind.known)))
            known[key] = replace(kind, known=closed)
    found = _tolerances(given.get("tolerances"), known)
    for tolerance, node in zip(found, given["tolerances"].items()):
        if not any(tolerance.rule.holds(lookup(cell)) for cell in cells):
            message = f"matches no cell of the run ({tolerance.rule}); correct or remove this tolerance"
            raise node.error(message, id="matrix-tolerance-matches-nothing")
        wrong = astray(tolerance, cells, lambda op: farm_ops.contract(op) if op in farm_ops.known_ops() else None)
        if wrong:
            raise node.error(f"does not fit the cells matched by this tolerance: {wrong}", id=id_of(wrong))
    return found


# Checks of the complete matrix.  Cells are a product of independent axes, so a rule matches some cell exactly if each
# axis has an entry that meets the rule's conditions on it: no cell needs to be created.


def _check_sizes(matrix: Matrix, root: YamlNode) -> None:
    for backend in sorted(matrix.kinds["backend"].known, key=lambda b: b != "cpu"):  # every matrix can run there
        view = matrix.view(backend)
        size = view.size(backend) * len(matrix.patterns(backend)) if view else 0
        if size > MAX_CELLS:
            message = (
                f"expands to {size:,} cells on one backend (here {backend}); the limit is {MAX_CELLS:,}; split the "
                "matrix"
            )
            raise root.error(message, id="matrix-too-many-cells")


def _check_timings(matrix: Matrix, given: Mapping[str, YamlNode]) -> None:
    """Policies that are written differently may be the same once the backend's defaults are filled in."""
    for backend in matrix.kinds["backend"].known:
        view = matrix.view(backend)
        if view and not untimed(backend) and len(view.timings_on(backend)) < len(view.timings):
            own = given["backends"].value[backend].value.get("timing") if backend in matrix.views else None
            message = f"gives the same policy twice on {backend}; list each policy once"
            raise (own or given["timing"]).error(message, id="matrix-timing-twice")


def _check_matches(matrix: Matrix, given: Mapping[str, YamlNode]) -> None:
    for key, rules in (("exclude", matrix.exclude), ("tolerances", [t.rule for t in matrix.tolerances])):
        for i, rule in enumerate(rules):
            if not matches_something(matrix, rule):
                message = f"matches no cell ({rule}); correct or remove this entry"
                raise given[key].value[i].error(message, id="matrix-rule-matches-nothing")


def matches_something(matrix: Matrix, rule: Rule) -> bool:
    """Whether `rule` matches a cell of the complete matrix, on any backend."""
    return any(
        all(
            any(_meets(rule, entry) for entry in axis)
            for axis in axis_entries(matrix, view, backend, matrix.patterns(backend))
        )
        for backend in matrix.kinds["backend"].known
        if (view := matrix.view(backend))
    )


def _meets(rule: Rule, entry: Mapping[str, Any]) -> bool:
    return all(c.holds(entry[c.key]) for c in rule.conditions if c.key in entry)


def axis_entries(matrix: Matrix, view: View, backend: str, patterns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """Per axis, each entry as the keys of the rule language whose values it fixes."""
    yield [{"backend": backend, "op": matrix.op}]
    yield [{"target": pattern} for pattern in patterns]
    yield [{**dims, "tag": tag} for dims, tag in view.shapes]
    yield [
        {"dtype": next(iter(d.values()), None), **{f"{tensor}_dtype": v for tensor, v in d.items()}}
        for d in view.dtypes
    ]
    declared = [p.name for p in matrix.contract.parameters if p.declared]
    yield [{name: value for name, value in params.items() if name not in declared} for params in view.params]
    yield [{"family": family} for family in view.families]
    yield [{"seed": seed} for seed in view.seeds]
    yield [{f"{t}_layout": layout.get(t, DENSE) for t in matrix.contract.layouts} for layout in view.layouts]
    yield [{"operation": operation} for operation in view.operations]
    yield [{"provider": p.name, "mode": mode, **p.declared} for p in view.providers for mode in p.modes]
    yield [{"timing": timing.method} for timing in view.timings_on(backend)]
