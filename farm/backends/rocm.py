"""AMD devices: the place is kept; this version does not run them and says so.

Nor does it read their telemetry (by amdsmi) or know by what name to lock one: both come with running them.
"""

NAME = "rocm"
ACCELERATOR = True
NOT_YET = "backend rocm is not in this version yet: run with --backend cuda or --backend cpu, or leave --backend out"
EVIDENCE = "executed"
DEFAULT_TIMING = "rotating_graph"
