"""What the supervisor believes of a child: lines that answer its order, samples that its own clock allows; and that
nothing which a child started outlives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from farm_process import is_dead, wait_for

from farm.actor import child_process
from farm.actor.conversation import believed
from farm.child import protocol
from farm.deadline import Deadline
from farm.node.environment import Environment, child_variables

PHASE = protocol.Phase("r", 0, 1, "import")
RUN = protocol.Run("r", 0, 1, {}, [], {}, "/nowhere")
#: A child that answers an order with one line: its own nonce, another's, or none.
ANSWERS = """
import json, sys
order = json.loads(sys.stdin.readline())
line = {"kind": "phase", "revision": "r", "round": 0, "attempt": 1, "phase": "import"}
line.update(%s)
print(json.dumps(line), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def started() -> Iterator[Any]:
    children = []

    def start(source: str) -> child_process.Child:
        words = source.replace("{", "{{").replace("}", "}}")  # a command is a template
        environment = Environment(command=("{python}", "-c", words))
        children.append(child_process.Child("sim", "0", {}, child_variables({}, environment), environment))
        return children[-1]

    yield start
    for child in children:
        child.kill(grace=0)


@pytest.mark.parametrize(
    ("stamp", "believed"), [('{"nonce": order["nonce"]}', True), ('{"nonce": "0123"}', False), ("{}", False)]
)
def test_only_a_line_that_answers_the_order_is_believed(started: Any, stamp: str, believed: bool) -> None:
    child = started(ANSWERS % stamp)
    child.send(RUN)
    if believed:
        assert child.receive(Deadline(20)) == PHASE
    else:
        with pytest.raises(child_process.ChildLied, match="an unexpected message"):
            child.receive(Deadline(20))


def test_no_two_orders_have_the_same_nonce(started: Any) -> None:
    child = started("import sys\nfor line in sys.stdin: sys.stderr.write(line); sys.stderr.flush()")
    for _ in range(3):
        child.send(RUN)
    lines = wait_for("three orders", lambda: found if len(found := child.log_tail().splitlines()) == 3 else None, 20)
    assert len({json.loads(line)["nonce"] for line in lines}) == 3


def test_what_was_written_between_two_orders_is_noticed_before_the_next(started: Any) -> None:
    quiet = started("import time; time.sleep(60)")
    assert not quiet.has_spoken
    loud = started("import time; print('junk', flush=True); time.sleep(60)")
    assert wait_for("the junk", lambda: loud.has_spoken, 20)


#: Sleeps longer than any wait here, and not much longer, should nothing end it.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sys.stderr.write(f"{os.getpid()} ")
        sys.stderr.flush()
        os.closerange(0, 3)
        time.sleep(60)
    os._exit(0)
time.sleep(0.3)
"""


def test_a_daemon_ends_with_the_child_that_started_it_also_one_that_is_gone(started: Any) -> None:
    child = started(DAEMON)
    wait_for("its end", lambda: not child.alive, 20)
    daemon = int(child.log_tail().split()[0])
    assert not is_dead(daemon)
    child.kill(grace=0.2)
    assert wait_for("the daemon's end", lambda: is_dead(daemon), 10)


def test_samples_that_the_supervisors_clock_contradicts_are_dropped_and_told() -> None:
    def told(evidence: str) -> protocol.Measured:
        timing = {"method": "host", "samples_us": [1e6] * 20, "launches": 1}
        return believed(protocol.Measured("r", 0, 1, [], {"flags": ["a"]}, timing), 0.5, evidence)

    refused = told("executed")
    assert refused.timing["samples_us"] == []
    assert refused.facts["flags"][0] == "a"
    assert "sum to 20 s in a phase that took 0.5 s" in refused.facts["flags"][1]
    assert told("simulated").timing["samples_us"]  # whose clock is a script's
