"""The farm: takes kernels through a matrix on every accelerator of a cluster, and says how right and how fast."""

import time as _time

__version__ = "0.1.0"

#: When this process began to import the farm, in nanoseconds: a source changed since may not be what it has loaded.
STARTED_NS = _time.time_ns()
#: The same on the monotonic clock, in seconds.
STARTED = _time.monotonic()

#: What a coordinator and the supervising code of a node must share: the calls, configurations and events between them,
#: and how bundles are unpacked.  Raised when one side would misunderstand the other; nodes of another one are refused.
#: 2: a device reports its progress within a lease, may have to pass a probe, and its judges may be
#: replaced; a cell may have a layout.
#: 3: a device may have two arms, each with its own code and environment.
PROTOCOL = 3
