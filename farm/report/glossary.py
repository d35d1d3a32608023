"""The words that the farm uses in its own sense, for the glossary on every page.  Pure.

`docs/glossary.md` has the same entries; an installed farm may come without `docs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ENTRIES = """
op: What is computed: `rms_norm`, `matmul`.
contract: The definition of a correct result for an op: its tensors, parameters, inputs, float64 reference and
  tolerances.
provider: An implementation of an op: `farm` (our kernels), `torch`, `liger`, or any `module:function`.
subject: A provider that the run tests. Failures of a subject are findings. Also: somebody's kernels as a `farm.yaml`
  describes them, at one revision.
digest (of a subject): A hash over all files of a subject that are sent to children. Equal digests are the same code.
overlay: Files of a subject that come before an installed copy on a child's import path.
adapter: A function that translates the farm's call of an op into a call of somebody's kernel.
peer: A provider that is measured for comparison. Failures of a peer are reported, but are not findings unless
  `--strict-peers` is given.
mode: One of a provider's kernel strategies, for example `static_persistent`; `auto` lets the provider choose.
operation: Which part of an op is run: `forward`, `no-grad-forward`, `backward` or `full` (forward and backward).
casting: Where intermediate results are rounded: `llama`, `gemma` or `none`. The casting selects tolerances; the
  reference is the same for all castings.
matrix: A YAML file that describes what to run. A matrix expands into cells.
cell: One op, provider, mode, operation, set of dtypes, shape and parameters on one backend: the unit that is planned,
  run and reported.
backend: A hardware family: `cuda`, `rocm`, `ascend`; also `cpu` (Triton's interpreter) and `sim` (simulated devices).
target: A device's identity, as read from the device: backend, model, partition (MIG, SPX/CPX, NPS) and power limit.
  Only results of the same target are compared.
device, node: A device is one accelerator; a node is a host that contains devices.
actor: The process (a Ray actor) that supervises one device. An actor never opens the device.
sibling device: Another device in the same package, on the same board or of the same partitioned GPU. Sibling devices
  share power, memory or cooling.
environment: How a node starts the process that opens a device: a Python, a virtual environment or a container, and
  the environment variables to set.
child: The process that opens the device and runs the code under test. A crash or hang of a kernel ends the child, not
  the run.
run, store: A run is one execution of one or more matrices; a store is the folder in which runs are kept.
ledger: The account of a run: every planned cell with its status. The counts of all statuses add up to the number of
  planned cells.
journal: The append-only file of a run that records every event, so that an interrupted run can be resumed.
kit: One archive that runs a part of a plan at a site that has no farm: the farm, the kernels, the plan and a script.
  Its result comes back to `farm merge`.
place (of an error): Where an output is wrong: how many elements, the first, the pattern that they form, and what they
  hold.
never written: An element that still holds the bits with which the farm filled the memory before the call.
lease: A batch of cells that is assigned to one device until a deadline.
attempt: One try at a cell.
health: What the farm thinks of a device: `ready`, `busy`, `suspect` (must pass a probe first), `quarantined` (failed
  its probes) or `gone`.
probe: A known-good cell by which a suspect device proves itself. A probe is not a result.
reference: The float64 result that outputs are compared with. Code under test never sees the reference.
tolerance: How far an output may be from the reference, per metric: the largest error of a correct kernel of that
  dtype, plus a margin.
status: How a cell ended: exactly one of `passed`, `built`, `inaccurate`, `compile_error`, `crashed`, `timed_out`,
  `out_of_memory`, `unsupported`, `skipped`, `infra_error`, `lost`. On the page of a running run, a cell without a
  result is pending.
finding: A failure of a subject, which a reviewer has to examine.
infrastructure failure: A failure of the farm or of a device (`infra_error`, `lost`). Such a failure says nothing
  about a kernel.
doubt: A run is in doubt if a subject passes a cell in which every peer, `torch` among them, is inaccurate with the
  same inputs: the reference or the tolerances may be wrong.
evidence: What a result proves: `interpreted` (ran in Triton's interpreter on a CPU), `compiled` (built for the
  target), `simulated`, `executed` (ran on the device), or `imported` (published by others, nothing of it checked).
timing policy: How a time is measured, by name and version: `rotating_graph`, `events`, `profiler`, `mspti` or `host`.
  Times of different policies are never compared.
timing quality: Whether a time can be used: `ok`, `launch_bound`, `noisy`, `throttled`, `impossible` or `none`.
roof: The best speed that a device reaches for the same bytes and operations, as measured by `farm calibrate` with
  copy kernels and GEMMs.
cold, warm: Cold: inputs are not in the device's last-level cache when a kernel starts. Warm: inputs may be in that
  cache.
isolation: Keeping sibling devices idle while a cell is timed; requested by `quiet:` in a matrix.
night: The newest complete run of a store in a row of runs with the same plan, or at least the same matrices; also
  each earlier run of that row.
baseline: The run that a run is compared with: the newest older run of the same plan, else of the same matrices.
suspected, regression: A cell is suspected to be slower if one night, or one pair of runs that were not made in turn,
  shows it; a regression needs two nights. Neither is confirmed: that takes rounds of both sides in turn (`farm
  confirm`).
known failure: A failure that `known.yaml` explains, with an owner and a last day. It counts apart until it is fixed
  or expires.
crossover: Of two arms, the value of an axis on whose one side arm b is faster and on whose other side it is slower,
  from decided cells only.
regret (of `auto`): By how much a cell takes longer in mode `auto` than in the best mode that can be named.
index: Slim cells of all complete runs of a store, from which pages across runs are made. It may be deleted.
"""

#: Word -> meaning, with code between backticks.
TERMS: Mapping[str, str] = {
    word: " ".join(meaning.split())
    for word, _, meaning in (entry.partition(": ") for entry in re.split(r"\n(?! )", _ENTRIES.strip()))
}


def _forms(entry: str) -> tuple[str, ...]:
    """The words of an entry, in lower case: `device, node` has two, `digest (of a subject)` one."""
    return tuple(word.strip() for word in re.sub(r"\(.*?\)", "", entry).lower().split(","))


_FORMS: Mapping[str, tuple[str, ...]] = {entry: _forms(entry) for entry in TERMS}


def used(text: str) -> dict[str, str]:
    """The entries of which a text has a word, in the singular or the plural."""
    lower = " ".join(text.lower().split())
    single = set(re.findall(r"[a-z]+", lower))

    def has(word: str) -> bool:
        if " " in word:
            return re.search(rf"\b{word}s?\b", lower) is not None
        return not single.isdisjoint((word, f"{word}s", f"{word}es", f"{word[:-1]}ies", f"{word[:-2]}ices"))

    return {entry: meaning for entry, meaning in TERMS.items() if any(has(word) for word in _FORMS[entry])}
