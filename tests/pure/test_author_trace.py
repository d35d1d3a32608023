"""A traceback as its author reads it: the whole chain, with no frame of the farm or the framework."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import farm  # noqa: E402
from farm.child import author_trace  # noqa: E402
from farm.field_checks import shortened  # noqa: E402

FARM = Path(farm.__file__).parent
SITE = Path(sysconfig.get_path("purelib"))


def caught(code: str, name: str = "/home/me/mine.py") -> str:
    try:
        exec(compile(code, name, "exec"), {"torch": torch})
    except Exception as error:
        return author_trace.written(error)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("file", "theirs"),
    [
        ("/home/me/mine.py", True),
        (str(SITE / "liger_kernel" / "ops.py"), True),
        (str(FARM / "providers" / "torch.py"), True),
        (str(FARM / "child" / "session.py"), False),
        (str(SITE / "torch" / "nn" / "functional.py"), False),
        (str(SITE / "triton" / "runtime" / "interpreter.py"), False),
        (sysconfig.get_path("stdlib") + "/importlib/__init__.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", True),
    ],
)
def test_whose_frames_are_kept(file: str, theirs: bool) -> None:
    assert author_trace.authors(file) == theirs


def test_the_cause_comes_first_and_the_frameworks_frames_are_counted() -> None:
    text = caught(
        """
def kernel(x):
    return x.no_such_thing

try:
    kernel(torch.zeros(2))
except AttributeError as error:
    raise RuntimeError("wrapped") from error
"""
    )
    first, _, second = text.partition("direct cause of the following exception")
    assert "AttributeError" in first and 'mine.py", line 3, in kernel' in first and "RuntimeError: wrapped" in second
    text = caught("torch.nn.functional.linear(torch.zeros(2, 3), torch.zeros(2, 4)).backward(None, 1, 2, 3, 4)")
    assert "mine.py" in text and "/torch/" not in text


def test_context_is_kept_and_suppressed_context_is_not() -> None:
    shown = caught("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('second')")
    assert "ZeroDivisionError" in shown and "another exception occurred" in shown
    assert "ZeroDivisionError" not in caught(
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError from None"
    )


def test_an_exception_without_a_frame_of_the_author_names_somebody_and_a_recursion_is_cut() -> None:
    try:
        torch.nn.functional.linear(torch.zeros(2), torch.nn.Linear)
    except TypeError as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        assert "TypeError" in author_trace.written(error)
    text = caught("def f():\n    f()\nf()")
    assert "RecursionError" in text and "left out" in text and len(text.splitlines()) < 80


@pytest.mark.parametrize("most", [100, 200, 1000])
def test_a_text_is_shortened_in_the_middle_and_says_how_much(most: int) -> None:
    text = "a" * 200 + "b" * 200
    found = shortened(text, most)
    assert (found == text) == (most >= 400)
    if found != text:
        assert (
            found.startswith("a")
            and found.endswith("b")
            and f"{480 - most} characters left out" in found
            and len(found) <= most
        )
