"""Expands a resolved matrix into cells: lazily, in a fixed order.

The order is backend, target, dimensions, dtype, parameters, family, seed, layout, operation, provider, mode, timing, so
that adjacent cells share inputs and references.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

from farm.cell import SHORT_DTYPES, Cell, canonical_json
from farm.errors import MatrixError

from . import ids
from .load import axis_entries
from .model import MAX_CELLS, Matrix, View
from .rules import Kind, Rule, lookup, merged_kinds, parse_select
from .timing_policy import default_timing


def cells(matrix: Matrix, backends: Sequence[str], *, named_targets: bool = True) -> Iterator[Cell]:
    """The cells of `matrix` on `backends`, in order; an excluded cell has a `skip_reason`.  If the matrix names
    targets, each cell of a backend is generated once per target, unless `named_targets` is false.

    `index` is -1: a plan numbers them.  MatrixError if a backend has no axes.
    """
    views = []
    for backend in backends:
        view = matrix.view(backend)
        if view is None:
            known = ", ".join(matrix.views)
            message = f"{matrix.name} has axes only for {known}, not for {backend}; add axes for {backend}"
            raise MatrixError(f"{matrix.path}: {message}", id="matrix-backend-without-axes")
        views.append((backend, view, matrix.patterns(backend) if named_targets else ("",)))
    total = sum(view.size(backend) * len(patterns) for backend, view, patterns in views)
    if total > MAX_CELLS:
        message = f"{matrix.name} expands to {total:,} cells; the limit is {MAX_CELLS:,}; split the matrix"
        raise MatrixError(f"{matrix.path}: {message}", id="matrix-expands-too-far")
    for backend, view, patterns in views:
        yield from _expand(matrix, view, backend, patterns)


def select(cells: Iterable[Cell], text: str, matrices: Iterable[Matrix]) -> Iterator[Cell]:
    """The cells that `text` (`hidden=>8192,dtype=bf16`) selects; UsageError if it fits none of the `matrices`."""
    rule = select_rule(text, matrices)
    return (cell for cell in cells if rule.holds(lookup(cell)))


def select_rule(text: str, matrices: Iterable[Matrix], *, of_run: bool = False) -> Rule:
    """`--select` as a rule over the keys of all `matrices`, known values narrowed to those that they contain.
    `of_run`: `status` is a key, too."""
    return parse_select(text, merged_kinds(_narrowed(m) for m in matrices), of_run=of_run)


def _narrowed(matrix: Matrix) -> dict[str, Kind]:
    out = dict(matrix.kinds)
    views = [v for v in (matrix.base, *matrix.views.values()) if v]
    out["provider"] = Kind("str", tuple(dict.fromkeys(p.name for v in views for p in v.providers)))
    out["mode"] = Kind("str", tuple(dict.fromkeys(m for v in views for p in v.providers for m in p.modes)))
    return out


def _masks(matrix: Matrix, view: View, backend: str, patterns: Sequence[str]) -> list[list[int]]:
    """Per axis and entry, which exclude rules the entry satisfies, as bits: the AND over a cell's entries leaves the
    rules that match it."""
    return [[_mask(matrix.exclude, entry) for entry in axis] for axis in axis_entries(matrix, view, backend, patterns)]


def _mask(rules: Sequence[Rule], entry: Mapping[str, Any]) -> int:
    mask = 0
    for bit, rule in enumerate(rules):
        if all(c.holds(entry[c.key]) for c in rule.conditions if c.key in entry):
            mask |= 1 << bit
    return mask


def _reason(matrix: Matrix, mask: int) -> str:
    """Of the first rule that matches."""
    if not mask:
        return ""
    rule = matrix.exclude[(mask & -mask).bit_length() - 1]
    return f"{rule.reason} (excluded: {rule})"


def _absent(matrix: Matrix, view: View) -> Callable[[Mapping[str, str], Mapping[str, Any], str], str]:
    """Says of a layout whether a tensor that it names is missing in cells of an operation (dy in a forward), and with
    parameters (an absent weight); "" if none is."""
    found: dict[tuple[str, str], frozenset[str]] = {}

    def reason(layout: Mapping[str, str], params: Mapping[str, Any], operation: str) -> str:
        nullified = [p.nullifies for p in matrix.contract.parameters if p.nullifies and params[p.name] is False]
        key = (operation, ",".join(nullified))
        if key not in found:
            dims, dtypes = view.shapes[0][0], view.dtypes[0]
            sample = Cell("cpu", matrix.op, "", "auto", operation, dtypes, dims, params, cell_key="-")
            found[key] = frozenset(t.name for t in matrix.contract.tensors(sample))
        missing = next((tensor for tensor in layout if tensor not in found[key]), None)
        return f"the layout is for {missing}, which this cell does not have" if missing else ""

    return reason


def _expand(matrix: Matrix, view: View, backend: str, patterns: Sequence[str]) -> Iterator[Cell]:
    """One backend's cells.  The key is canonical JSON in sorted order, assembled from parts made once per axis entry;
    `farm.cell.cell_key` gives the same for the finished cell (a test compares them)."""
    contract, op, version, name = matrix.contract, matrix.op, matrix.contract.version, matrix.name
    where, there, *masks = _masks(matrix, view, backend, patterns)
    sha256 = hashlib.sha256
    dims = [
        (MappingProxyType(d), tag, canonical_json(d), "x".join(map(str, d.values())), mask & where[0])
        for (d, tag), mask in zip(view.shapes, masks[0])
    ]
    dtypes = [
        (MappingProxyType(d), canonical_json(d), SHORT_DTYPES[next(iter(d.values()))], ids.dtypes_part(d), mask)
        for d, mask in zip(view.dtypes, masks[1])
    ]
    declared = [dict(d) for d in dict.fromkeys(tuple(p.declared.items()) for p in view.providers)]
    params = [  # one version for each set of declared parameters
        (
            [(MappingProxyType({**p, **d}), f'","params":{canonical_json({**p, **d})},"provider":"') for d in declared],
            ids.params_part(p, contract),
            mask,
        )
        for p, mask in zip(view.params, masks[2])
    ]
    sources = [  # family, seed and layout
        (
            f,
            s,
            MappingProxyType(dict(y)),
            canonical_json(f) + (f',"layout":{canonical_json(y)}' if y else ""),
            ids.family_part(f, contract) + ids.seed_part(s),
            ids.layout_part(y),
            fm & sm & ym,
        )
        for f, fm in zip(view.families, masks[3])
        for s, sm in zip(view.seeds, masks[4])
        for y, ym in zip(view.layouts, masks[5])
    ]
    default = default_timing(backend)
    ends = [
        (
            o,
            p.name,
            p.role,
            declared.index(dict(p.declared)),
            mode,
            t,
            canonical_json(t.to_dict()),
            ids.timing_part(t, default),
            om & pm & tm,
        )
        for o, om in zip(view.operations, masks[6])
        for (p, mode), pm in zip([(p, m) for p in view.providers for m in p.modes], masks[7])
        for t, tm in zip(view.timings_on(backend), masks[8])
    ]
    absent = _absent(matrix, view)
    content = f'"contract_content":{canonical_json(contract.content)},' if contract.content else ""
    head = f'{{"backend":{canonical_json(backend)},{content}"contract_version":{version},"dims":'
    places = [(f"{backend}:{p}" if p else "", f"@{p}" if p else "", mask) for p, mask in zip(patterns, there)]
    for (target, target_id, mask_t), (dim_map, tag, dim_json, shape, mask0) in product(places, dims):
        for dtype_map, dtype_json, short, dtype_id, mask1 in dtypes:
            for versions, param_id, mask2 in params:
                for family, seed, layout, family_json, source_id, layout_id, mask3 in sources:
                    before = f'{head}{dim_json},"dtypes":{dtype_json},"family":{family_json},"mode":"'
                    mask4 = mask_t & mask0 & mask1 & mask2 & mask3
                    for operation, provider, role, version_of, mode, timing, timing_json, timing_id, mask5 in ends:
                        param_map, middle = versions[version_of]
                        key = (
                            f'{before}{mode}","op":"{op}","operation":"{operation}{middle}{provider}'
                            f'","seed":{seed},"timing":{timing_json}}}'
                        )
                        reason = _reason(matrix, mask4 & mask5)
                        if layout and not reason:
                            reason = absent(layout, param_map, operation)
                        yield Cell(
                            backend,
                            op,
                            provider,
                            mode,
                            operation,
                            dtype_map,
                            dim_map,
                            param_map,
                            family,
                            seed,
                            timing,
                            version,
                            role,
                            tag,
                            f"{backend}/{op}/{provider}/{mode}/{operation}/{short}/{shape}"
                            f"{param_id}{timing_id}{source_id}{dtype_id}{layout_id}{target_id}",
                            sha256(key.encode()).hexdigest(),
                            reason,
                            -1,
                            name,
                            target,
                            layout,
                            contract.content,
                        )
