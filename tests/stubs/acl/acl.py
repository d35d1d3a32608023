"""A stub of pyACL, CANN's Python interface: as much of it as a farm's child and Ray's detection ask for.

Written from the vendor's "pyACL API reference" (hiascend.com, CANN 8.0 to 9.1):
`acl.rt.set_op_execute_time_out(timeout) -> ret`, `acl.rt.get_device_count() -> (count, ret)` and
`acl.get_soc_name() -> str`; ret is 0 for success.  The host is
FARM_STUB_ACL='{"soc": "Ascend910B3", "count": 8, "refuses": 0}'.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

_HOST = json.loads(os.environ.get("FARM_STUB_ACL", "{}"))
#: Timeouts that were set, in seconds.
timeouts: list[int] = []


def get_soc_name() -> str:
    return str(_HOST.get("soc", "Ascend910B3"))


def _set_op_execute_time_out(timeout: int) -> int:
    timeouts.append(timeout)
    return int(_HOST.get("refuses", 0))


rt = SimpleNamespace(
    get_device_count=lambda: (int(_HOST.get("count", 8)), 0), set_op_execute_time_out=_set_op_execute_time_out
)
