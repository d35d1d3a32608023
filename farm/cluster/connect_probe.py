"""`python -m farm.cluster.connect_probe ADDRESS`: joins a cluster as a run does and leaves at once; says how that went.

In a process of its own, since Ray ends the process that it cannot join with (exit code 1, which would mean findings),
prints its own lines, and cannot be interrupted while it waits.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from importlib import import_module

from farm.cluster import address as addresses
from farm.process.group import die_with_parent

#: Ray's own waits, in seconds: for the head, for its answers, for a node of the cluster on this host.
PATIENCE = {
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_gcs_server_request_timeout_seconds": "5",
    "RAY_gcs_server_port_wait_time_s": "3",
    "RAY_GCS_SERVER_REQUEST_TIMEOUT_SECONDS": "15",
}
LONGEST_SECONDS = 120  # whoever asks ends it before; this is for where nobody does any more


def attempt(address: str) -> dict[str, str]:
    """Ask the head, which refuses a wrong token in one answer (`ray.init` asks 20 times), then join."""
    try:
        import ray

        head = addresses.resolved(address)
        if head != "auto":
            import_module("ray._raylet").GcsClient(address=head).internal_kv_get(
                b"CLUSTER_METADATA", namespace=b"cluster", timeout=5
            )
        ray.init(address=head, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        cause = error.__cause__
        told = f"{type(error).__name__}: {error}" + (f" (from {type(cause).__name__}: {cause})" if cause else "")
        return {"ended": "failed", "text": told[:600]}
    return {"ended": "ok", "text": str(ray.__version__)}


def main(address: str) -> None:
    """Lines as those of `farm.doctor.probes`, on a pipe that Ray does not print to."""
    signal.alarm(LONGEST_SECONDS)  # no handler: the kernel ends this process, whatever it waits in
    die_with_parent()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    out.write(json.dumps({"step": address, "ended": "begun"}) + "\n")
    out.flush()
    out.write(json.dumps({"step": address, **attempt(address)}) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # leaving in order takes longer than being gone
