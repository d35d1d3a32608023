"""An exception as the author of the code under test wants to read it: the whole chain, without the farm's and the
framework's own frames.

A Triton interpreter or torch's autograd raises its own exception from the author's: of forty lines of traceback the
line of the kernel is in the first, the cause.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import farm

_FARM = Path(farm.__file__).absolute().parent
#: Packages whose frames are how a call got to the author's code, and not what is wrong with it.
_FRAMEWORKS = ("torch", "triton", "torch_npu", "numpy")
_LIBRARY = Path(sysconfig.get_path("stdlib"))
#: Of each exception's frames; a recursion has a thousand.
_FRAMES = 30


def written(error: BaseException) -> str:
    """The chain of an exception as text, causes first, as Python words it.  An exception of whose frames none is the
    author's keeps its last two: somebody has to be named."""
    whole = traceback.TracebackException.from_exception(error, compact=False)
    return "".join(_told(whole)).rstrip("\n")


def _told(error: traceback.TracebackException) -> Iterator[str]:
    link = ""
    if error.__cause__ is not None:
        yield from _told(error.__cause__)
        link = "\nThe above exception was the direct cause of the following exception:\n\n"
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _told(error.__context__)
        link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    yield link
    frames = list(error.stack)
    own = [f for f in frames if authors(f.filename)]
    kept = own or frames[-2:]
    if len(kept) > _FRAMES:
        kept = kept[: _FRAMES // 2] + kept[-_FRAMES // 2 :]
    yield "Traceback (most recent call last):\n"
    yield from traceback.StackSummary.from_list(kept).format()
    left = len(frames) - len(kept)
    if left:
        what = "the farm and the framework" if len(own) <= _FRAMES else "a recursion, the farm and the framework"
        yield f"  ({left} frame{'' if left == 1 else 's'} of {what} left out)\n"
    yield from error.format_exception_only()


def authors(file: str) -> bool:
    """Whether a frame of this file is worth its line: not the farm's, torch's, triton's or Python's own."""
    if file.startswith("<frozen "):
        return False
    path = Path(file).absolute()
    if path.is_relative_to(_FARM):
        return path.relative_to(_FARM).parts[0] == "providers"
    for place, part in enumerate(path.parts):
        if part in ("site-packages", "dist-packages"):
            return path.parts[place + 1] not in _FRAMEWORKS
    return not path.is_relative_to(_LIBRARY)
