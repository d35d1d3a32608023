"""`python -m farm.judge.worker SPOOL THREADS LOCK_SECONDS DIGEST SINCE SHARERS`: a judge in a process of its own,
answering a call a line.  It has the DIGEST of who starts it, unless something was changed since then (in nanoseconds).

    {"call": "prepare", "given": {...}}    ->    {"found": {...}}, or {"failed": "ValueError: ...", "owner": "infra"}

Who starts it is `farm.judge.processes`: it kills one that does not answer, and one that dies costs it a call.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from farm.errors import fault_owner
from farm.judge.allocator import keep_freed_memory
from farm.judge.digest import unchanged
from farm.judge.judge import Judge
from farm.process import group
from farm.shipping import contracts

CALLS = ("prepare", "warm", "judge")


def main(argv: list[str]) -> None:
    group.die_with_parent()
    group.be_killed_first()
    keep_freed_memory()
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a contract prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to handle
    same = unchanged(int(argv[4]))
    contracts.take(argv[0])
    digest = argv[3] if same else ""
    judge = Judge(argv[0], int(argv[1]), lock_s=float(argv[2]), digest=digest, sharers=int(argv[5]))
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"found": getattr(judge, CALLS[CALLS.index(order["call"])])(order["given"])}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}", "owner": fault_owner(error)}
        sys.stdout.flush()
        sys.stderr.flush()
        sink.write(json.dumps(answer, separators=(",", ":"), default=_plain) + "\n")
        sink.flush()


def _plain(value: Any) -> Any:
    return value.item()  # of NumPy


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # nobody waits for its threads
