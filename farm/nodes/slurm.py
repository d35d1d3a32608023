"""The batch script by which a Slurm allocation is a node of a cluster for as long as it lasts, and again in the next.

Pure text.  The head stands outside of the allocation.  Some time before the walltime (`--signal=B:USR1@SECONDS`, which
Slurm sends to the batch shell alone, up to 60 s early) the nodes are drained, so that devices finish what they have
begun and runs go on elsewhere or wait; then Ray is ended and the job requeued.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm.errors import UsageError

EARLIEST_SECONDS = 20  # to drain, to end Ray, to requeue
ENDING_SECONDS = 8  # of them to end Ray (it is given 5) and to requeue, whatever draining does
#: Of the notice before the walltime, how long devices are waited for; reaching the cluster takes some seconds more.
SHARE_FOR_DRAINING = 0.75
STARTING_SECONDS = 5
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_OPTION = re.compile(r"--[a-z][a-z-]*(=\S.*)?")


@dataclass(frozen=True)
class Job:
    """What the script asks Slurm for.  `time` as Slurm writes it: minutes, H:M:S, D-H, ..."""

    time: str
    notice_s: int = 300
    partition: str = ""
    account: str = ""
    gres: str = ""
    nodes: int = 1
    name: str = "farm-node"
    more: Sequence[str] = ()  # further options of sbatch, whole


def seconds(text: str) -> int:
    """Seconds of a time limit as sbatch takes it.  UsageError for anything else."""
    found = _TIME.fullmatch(text)
    if not found:
        raise UsageError(f'--time "{text}" is no time limit of Slurm\'s; write minutes, H:M:S or D-H:M:S, like 4:00:00')
    days, *parts = found.groups()
    given = [int(p) for p in parts if p is not None]
    if days is not None:  # D-H[:M[:S]]
        hours, minutes, secs = (given + [0, 0])[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + secs
    if len(given) == 1:
        return given[0] * 60
    if len(given) == 2:
        return given[0] * 60 + given[1]
    return (given[0] * 60 + given[1]) * 60 + given[2]


@dataclass(frozen=True)
class Script:
    """How the script calls the farm."""

    farm: Sequence[str]  # the words that run it
    join: Sequence[str]  # what follows `farm nodes join`
    head: str  # HOST:PORT
    variables: Mapping[str, str | None] = field(default_factory=dict)


def script(job: Job, call: Script) -> str:
    """The batch script.  UsageError where its times leave no room, or an option is none."""
    limit = seconds(job.time)
    if not EARLIEST_SECONDS <= job.notice_s <= limit // 2:
        raise UsageError(
            f"--notice {job.notice_s}: between {EARLIEST_SECONDS} s and half of the time limit ({limit // 2} s) can be "
            "kept for draining"
        )
    farm = " ".join(map(shlex.quote, call.farm))
    join = " ".join(map(shlex.quote, call.join))
    head = shlex.quote(call.head)
    exports = [f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in call.variables.items()]
    longest = job.notice_s - ENDING_SECONDS
    patience = min(int(job.notice_s * SHARE_FOR_DRAINING), longest - STARTING_SECONDS)
    return "\n".join(
        [
            "#!/bin/bash",
            *_directives(job),
            "# Submit it once: it requeues itself before the walltime, until scancel.",
            "set -u",
            *exports,
            "",
            "# shellcheck disable=SC2317  # it is called by trap",
            "leave() {",
            "    trap '' USR1",
            "    joined=${joined:-${!:-}}  # the signal may come between the start and the line that keeps its id",
            '    mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "    # A head that does not answer must not cost the requeue.",
            f"    timeout --kill-after=1 {longest} \\",
            f'        {farm} nodes drain "${{names[@]}}" --once --wait {patience} --address {head} \\',
            '        --reason "walltime of Slurm job $SLURM_JOB_ID" || echo "farm: draining failed; going on" >&2',
            '    kill -TERM "$joined" 2>/dev/null',
            "    for _ in 1 2 3 4 5 6 7 8 9 10; do",
            '        kill -0 "$joined" 2>/dev/null || break',
            "        sleep 0.5",
            "    done",
            '    scontrol requeue "$SLURM_JOB_ID" && exit 0',
            '    echo "farm: the job could not be requeued; submit it again" >&2',
            "    exit 1",
            "}",
            "# shellcheck disable=SC2317",
            "end() {",
            "    trap '' TERM INT",
            "    joined=${joined:-${!:-}}",
            '    kill -TERM "$joined" 2>/dev/null && wait "$joined"',
            "    exit 143",
            "}",
            'joined=""',
            "# A signal ends `wait`, then its handler runs.",
            "trap leave USR1",
            "trap end TERM INT",
            "",
            f'srun --nodes="${{SLURM_NNODES:-{job.nodes}}}" --ntasks-per-node=1 --kill-on-bad-exit=0 \\',
            f"    {farm} nodes join {join} &",
            "joined=$!",
            'wait "$joined"',
            "code=$?",
            'echo "farm: the node left the cluster by itself (exit code $code); the job is not requeued" >&2',
            'exit "$code"',
            "",
        ]
    )


def _directives(job: Job) -> list[str]:
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--time={job.time}",
        f"--signal=B:USR1@{job.notice_s}",
        "--requeue",
        "--open-mode=append",
        "--output=farm-node-%j.txt",
    ]
    options += [f"--{k}={v}" for k in ("partition", "account", "gres") if (v := getattr(job, k))]
    for option in options:
        if len(option.split()) != 1:  # Slurm would read its end as something else
            raise UsageError(f"{option!r}: Slurm takes no spaces there; write it without")
    ours = {option.partition("=")[0] for option in options}
    for option in job.more:
        if option.partition("=")[0] in ours:
            raise UsageError(
                f"--sbatch={option}: the script says {option.partition('=')[0]} itself; farm nodes join has an "
                "option for what may be another"
            )
        if not _OPTION.fullmatch(option) or "\n" in option:
            raise UsageError(f'--sbatch "{option}" is no option of sbatch; write it whole, like --sbatch=--exclusive')
    return [f"#SBATCH {option}" for option in [*options, *job.more]]
