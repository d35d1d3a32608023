"""The batch script with which a Slurm allocation joins a cluster for its duration, and joins again after a requeue.

Pure text.  The head is outside of the allocation.  Some time before the walltime (`--signal=B:USR1@SECONDS`, which
Slurm sends only to the batch shell, up to 60 s early) the nodes are drained: devices finish what they have begun, and
runs continue elsewhere or wait.  Then Ray is ended and the job requeued.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm.errors import UsageError

EARLIEST_SECONDS = 20  # to drain, to end Ray, to requeue
ENDING_SECONDS = 8  # of these, to end Ray (which gets 5) and to requeue, whatever draining does
#: The share of the notice that is spent waiting for devices; reaching the cluster takes some seconds more.
SHARE_FOR_DRAINING = 0.75
STARTING_SECONDS = 5
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_OPTION = re.compile(r"--[a-z][a-z-]*(=\S.*)?")


@dataclass(frozen=True)
class SlurmJob:
    """What the script asks Slurm for.  `time` as Slurm writes it: minutes, H:M:S, D-H, ..."""

    time: str
    notice_s: int = 300
    partition: str = ""
    account: str = ""
    gres: str = ""
    nodes: int = 1
    name: str = "farm-node"
    more: Sequence[str] = ()  # further complete options of sbatch


def seconds(text: str) -> int:
    """Seconds of a time limit as sbatch accepts it.  Raises UsageError for anything else."""
    found = _TIME.fullmatch(text)
    if not found:
        what = f'--time "{text}" is not a Slurm time limit; write minutes, H:M:S or D-H:M:S, for example 4:00:00'
        raise UsageError(what, id="slurm-time")
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


def script(job: SlurmJob, call: Script) -> str:
    """The batch script.  Raises UsageError if its times leave too little room, or an option is wrong."""
    limit = seconds(job.time)
    if not EARLIEST_SECONDS <= job.notice_s <= limit // 2:
        raise UsageError(
            f"--notice {job.notice_s}: the notice must be between {EARLIEST_SECONDS} s and half of the time limit "
            f"({limit // 2} s)",
            id="slurm-notice",
        )
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
            f"farm=({' '.join(map(shlex.quote, call.farm))})",
            "",
            "# shellcheck disable=SC2317  # called by trap",
            "leave() {",
            "    trap '' USR1",
            "    joined=${joined:-${!:-}}  # the signal may come between the start and the line that keeps its id",
            '    mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "    # A head that does not answer must not cost the requeue.",
            f"    timeout --kill-after=1 {longest} \\",
            f'        "${{farm[@]}}" nodes drain "${{names[@]}}" --once --wait {patience} --address {head} \\',
            '        --reason "walltime of Slurm job $SLURM_JOB_ID" || echo "farm: draining failed; continuing" >&2',
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
            f'    "${{farm[@]}}" nodes join {join} &',
            "joined=$!",
            'wait "$joined"',
            "code=$?",
            'echo "farm: the node left the cluster unexpectedly (exit code $code); the job is not requeued" >&2',
            'exit "$code"',
            "",
        ]
    )


def _directives(job: SlurmJob) -> list[str]:
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
        if len(option.split()) != 1:  # Slurm would misread the rest
            raise UsageError(
                f"{option!r}: Slurm does not accept spaces in this option; remove the spaces", id="slurm-spaces"
            )
    ours = {option.partition("=")[0] for option in options}
    for option in job.more:
        if option.partition("=")[0] in ours:
            raise UsageError(
                f"--sbatch={option}: the script already sets {option.partition('=')[0]}; use the corresponding "
                "option of farm nodes join, if one exists",
                id="slurm-option-reserved",
            )
        if not _OPTION.fullmatch(option) or "\n" in option:
            what = f'--sbatch "{option}" is not a complete sbatch option; write for example --sbatch=--exclusive'
            raise UsageError(what, id="slurm-option")
    return [f"#SBATCH {option}" for option in [*options, *job.more]]
