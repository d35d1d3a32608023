"""Stubs of Slurm's commands, for one host: `sbatch` really runs the script, in allocations that really end.

Written by us after Slurm's manual pages (sbatch, srun, scontrol).  What they hold to:

    sbatch FILE        reads `#SBATCH` lines up to the first line that is no comment; an allocation is a process group
                       that runs FILE with SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_NNODES; `--signal=B:USR1@N` sends
                       USR1 to the batch shell alone N seconds before the limit; at the limit everything in the
                       allocation is killed (SIGKILL at once: no grace).  A job that asked to be requeued, and may
                       (`--requeue`), runs again from the beginning of its script after a pause, until `scancel`
    srun [OPTIONS] CMD runs CMD with SLURMD_NODENAME, SLURM_PROCID
    scontrol show hostnames LIST | requeue JOB
"""

from __future__ import annotations

import sys
from pathlib import Path

SBATCH = r"""#!{python}
import json, os, re, signal, subprocess, sys, time
spool, script = {spool!r}, sys.argv[1]
options, text = {{}}, open(script).read()
assert text.startswith("#!/bin/bash\n")
for line in text.splitlines()[1:]:
    if line.startswith("#SBATCH "):
        key, _, value = line[len("#SBATCH "):].partition("=")
        assert key.startswith("--") and key not in options, line
        options[key] = value
    elif line.strip() and not line.startswith("#"):
        break
h, m, s = map(int, options["--time"].split(":"))
limit = h * 3600 + m * 60 + s
how, before = re.fullmatch(r"B:(\w+)@(\d+)", options["--signal"]).groups()
said = open(os.path.join(spool, "sbatch.jsonl"), "a", buffering=1)
def tell(event, **more): said.write(json.dumps({{"event": event, "at": time.time(), **more}}) + "\n")
tell("submitted", options=options)
requeued, cancelled = os.path.join(spool, "requeue"), os.path.join(spool, "cancel")
allocation = 0
while not os.path.exists(cancelled):
    allocation += 1
    env = dict(os.environ, SLURM_JOB_ID="42", SLURM_JOB_NODELIST="slurm1", SLURM_NNODES="1",
               SLURM_RESTART_COUNT=str(allocation - 1), FARM_TEST_ALLOCATION=str(allocation))
    out = open(os.path.join(spool, "job.txt"), "a")
    job = subprocess.Popen(["bash", script], env=env, stdout=out, stderr=out, start_new_session=True)
    tell("started", allocation=allocation)
    begun, told = time.monotonic(), False
    while job.poll() is None and time.monotonic() < begun + limit and not os.path.exists(cancelled):
        if not told and time.monotonic() >= begun + limit - int(before):
            os.kill(job.pid, getattr(signal, "SIG" + how))
            told = True
            tell("signalled", allocation=allocation)
        time.sleep(0.05)
    tell("ended", allocation=allocation, code=job.poll(), after=time.monotonic() - begun)
    needle = b"FARM_TEST_ALLOCATION=" + str(allocation).encode()
    for _ in range(3):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if needle in open(f"/proc/{{pid}}/environ", "rb").read().split(b"\0"):
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
    job.wait()
    if not os.path.exists(requeued) or "--requeue" not in options:
        break
    os.remove(requeued)
    time.sleep(float(os.environ.get("FARM_TEST_QUEUE_S", "1")))
tell("over")
"""

SRUN = r"""#!/bin/bash
while [[ $1 == --* ]]; do
    case $1 in --nodes=1|--ntasks-per-node=1|--kill-on-bad-exit=0) ;; *) echo "srun: unknown $1" >&2; exit 1 ;; esac
    shift
done
export SLURMD_NODENAME=slurm1 SLURM_PROCID=0
exec "$@"
"""

SCONTROL = r"""#!/bin/bash
case "$1 $2" in
    "show hostnames") [[ $3 == slurm1 ]] && echo slurm1 ;;
    "requeue 42") touch "{spool}/requeue" ;;
    *) echo "scontrol: unknown $*" >&2; exit 1 ;;
esac
"""


def install(folder: Path, spool: Path) -> None:
    """Put the three commands into a folder for PATH; what they do is written into `spool`."""
    spool.mkdir(parents=True, exist_ok=True)
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL)):
        file = folder / name
        filled = text if name == "srun" else text.replace("{spool!r}", repr(str(spool))).replace("{spool}", str(spool))
        if name == "sbatch":
            filled = filled.replace("{python}", sys.executable).replace("{{", "{").replace("}}", "}")
        file.write_text(filled, encoding="utf-8")
        file.chmod(0o755)
