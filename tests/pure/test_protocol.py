"""Messages between supervisor and child: what goes in comes out, and nothing else is taken for a message."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.child import protocol

MESSAGES: list[protocol.Message] = [
    protocol.Run("abc", 0, 1, {"op": "x"}, [{"name": "x"}], {"positional": [1e-6]}, "/tmp/out", {"bytes_moved": 3}),
    protocol.Trial("abc", 0, 1, {"op": "x"}, [{"name": "x"}], {"positional": [1e-6]}, "", {"bytes_moved": 3}),
    protocol.Tried("abc", 0, 1, "", 2.5, True),
    protocol.Calibrate("abc", 0, 1, {"method": "rotating_graph"}, 40.0),
    protocol.Calibrated("abc", 0, 1, {"curve": [{"bytes": 1048576, "us": 1.5}]}),
    protocol.Exit(),
    protocol.Ready(1, 42, {"backend": "sim"}, "sim-1 #0", {"python": "3.11"}),
    protocol.Unusable("no driver", "infra"),
    protocol.Phase("abc", 2, 1, "check"),
    protocol.Measured("abc", 0, 2, [{"name": "y"}], {"flags": []}, {"samples_us": [1.5]}),
    protocol.Failed("abc", 0, 2, "crashed", "kernel", 'é \n \u2028 "quoted"', "trace", True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_a_message_survives_its_line(message: protocol.Message) -> None:
    line = protocol.encode(message)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert len(line.splitlines()) == 1  # no separator that another reader takes for a line's end
    assert protocol.decode_stamped(line) == (message, "")
    assert protocol.decode_stamped(line.encode()) == (message, "")


@given(st.text(), st.text())
def test_no_text_of_the_code_under_test_breaks_a_line(reason: str, trace: str) -> None:
    message = protocol.Failed("r", 0, 1, "crashed", "kernel", reason, trace)
    try:
        line = protocol.encode(message)
    except UnicodeEncodeError:
        pytest.fail("surrogates must be escaped")
    assert line.encode("ascii").count(b"\n") == 1
    assert protocol.decode_stamped(line) == (message, "")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"all cells passed",
        b"{}",
        b"[]",
        b"3",
        b"null",
        b'"measured"',
        b'{"kind":"measured"}',
        b'{"kind":"nothing"}',
        b'{"kind":["exit"]}',
        b'{"kind":"exit","extra":1}',
        b"\xff\xfe\x00",
        b'{"kind":"exit"',
        b'{"kind":"phase","revision":"a","round":0,"attempt":1}',
    ],
)
def test_what_is_no_message_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a protocol line"):
        protocol.decode_stamped(line)


@given(st.binary(max_size=80))
def test_no_bytes_do_worse_than_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a protocol line"):
        protocol.decode_stamped(line)


def test_every_message_of_an_attempt_says_which() -> None:
    for message in MESSAGES:
        if message.kind in ("run", "phase", "measured", "failed"):
            data: dict[str, Any] = json.loads(protocol.encode(message))
            assert {"revision", "round", "attempt"} <= set(data)


def test_the_protocol_needs_only_the_standard_library() -> None:
    tree = ast.parse(Path(str(protocol.__file__)).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert str(node.module).split(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.Import):
            assert all(a.name.split(".")[0] in sys.stdlib_module_names for a in node.names)
