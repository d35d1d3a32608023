"""`python -m farm.child BACKEND DEVICE [OPTIONS-JSON]`: opens the device, says `ready`, then serves one cell a line.

The protocol runs over the descriptors that were standard input and output at the start; the code under test gets
/dev/null to read and the log to print to, so that nothing it prints can be taken for a message.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IOLBF = 1


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends, whatever ends it.  Not where something
    else stands between (a container's client): its threads come and go; see `_end_with_pipe`."""
    if os.environ.get("FARM_WRAPPED") == "1":
        os.environ.pop("FARM_PARENT", "")
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = os.environ.pop("FARM_PARENT", "")
    if parent and os.getppid() != int(parent):
        os._exit(1)  # the parent died before we asked


def _adopt_orphans() -> None:
    """Ask the kernel for the processes that code under test leaves behind, also those that cut themselves loose, so
    that they are seen, and ended with this one."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _private_pipes() -> tuple[Any, Any]:
    """The protocol's two ends, moved away from descriptors 0 and 1."""
    source = os.fdopen(os.dup(0), "r", encoding="utf-8")
    sink = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return source, sink


def _print_at_once() -> Callable[[], None]:
    """Have what is printed reach the log in the order in which it is printed, and before the process dies of whatever
    comes next; returns what writes out all that somebody still holds back."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(write_through=True, errors="backslashreplace")  # type: ignore[union-attr]
    library: Any = None
    with contextlib.suppress(OSError, AttributeError, ValueError):
        library = ctypes.CDLL(None)
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, _IOLBF, 0)  # of native code

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(Exception):  # code under test may have put anything there
                stream.flush()  # type: ignore[union-attr]
        if library is not None:
            library.fflush(None)

    return flush


def _end_with_pipe(descriptor: int) -> None:
    """Leave, whatever else this process does, once nobody holds the other end of the protocol: the supervisor died, or
    killed the client that stands between, which in a container ends nothing here."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only that it was hung up; what is said is the main thread's to read
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll()):
        time.sleep(0.1)
    if os.getpgrp() == os.getpid():  # what it started goes with it
        with contextlib.suppress(OSError):
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _versions() -> dict[str, str]:
    """Built-in provider -> version of the distribution that it calls, of those that this Python has."""
    import pkgutil
    from importlib import import_module, metadata

    from farm import providers

    found = {}
    for info in pkgutil.iter_modules(providers.__path__):
        module = import_module(f"farm.providers.{info.name}")
        with contextlib.suppress(metadata.PackageNotFoundError):
            if getattr(module, "DISTRIBUTION", None):
                found[module.NAME] = metadata.version(module.DISTRIBUTION)
    return found


def _compile_ahead(options: dict[str, Any], source: Any, sink: Any) -> int:
    """Be what compiles for a child of the same arm.  Where its files are not those that were sent, be nothing."""
    from farm.child import compile_ahead, subject_files, warming
    from farm.kernel_package import use_our_kernels

    gc.enable()

    warming.settle()
    use_our_kernels()
    subject = options.get("subject")
    if subject:
        proven = subject_files.place(subject)
        if proven["wrong"] or proven["digest"] != subject["digest"]:
            return 1
    warming.compiler(str(options.get("backend", "")))
    return compile_ahead.main(options, source, sink)


def main(argv: list[str]) -> int:
    gc.disable()  # until all is imported: the collector would look at some 100,000 objects that stay, again and again
    _die_with_parent()
    _adopt_orphans()
    source, sink = _private_pipes()
    flush = _print_at_once()
    from farm.child import confinement

    confinement.limit(os.environ.pop("FARM_LIMITS", ""))
    unconfined = confinement.confine()  # before there are threads
    if os.environ.get("FARM_WRAPPED") == "1":
        threading.Thread(target=_end_with_pipe, args=(source.fileno(),), name="pipe", daemon=True).start()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by a Ray worker and inherited: ptxas must be able to fail
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to handle
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the supervisor asks where it hangs
    from farm.child import preloaded, protocol

    nonce = ""

    def say(message: protocol.Message) -> None:
        sink.write(protocol.encode(message, nonce))
        sink.flush()

    if argv == [preloaded.WAITS]:
        try:
            argv = preloaded.wait(source)
        except preloaded.Stale as error:
            say(protocol.Unusable(f"the waiting child is stale: {error}", "infra"))
            return 1
    if argv[0] == preloaded.COMPILES:
        return _compile_ahead(json.loads(argv[1]), source, sink)
    backend, device = argv[0], argv[1]
    options = json.loads(argv[2]) if len(argv) > 2 else {}
    subject = options.pop("subject", None)
    try:
        from farm import backends
        from farm.child import subject_files
        from farm.kernel_package import use_our_kernels

        use_our_kernels()
        proven = subject_files.place(subject) if subject else {}
        session = backends.get(backend).open_session(device, options)
    except Exception as error:
        traceback.print_exc()
        owner = getattr(error, "owner", "infra")
        say(protocol.Unusable(f"{type(error).__name__}: {error}" if not hasattr(error, "owner") else str(error), owner))
        return 1
    if hasattr(session, "pipe"):  # the fake that may lie needs the means to
        session.pipe = sink.fileno()
    evidence = backends.get(backend).EVIDENCE
    fingerprint = {**session.fingerprint, **({"unconfined": unconfined} if unconfined else {})}
    ready = (protocol.VERSION, os.getpid(), session.target, session.device_name, fingerprint, evidence)
    versions = _versions()
    gc.freeze()
    gc.enable()
    say(protocol.Ready(*ready, subject=proven, versions=versions))
    if "torch" in sys.modules:
        from farm.child import warming

        warming.settle()
        if backend in ("cuda", "rocm") and os.environ.get("FARM_UNDER_TOOL") != "1":
            warming.checks(session)
    for line in source:
        message, nonce = protocol.decode_stamped(line)
        if isinstance(message, protocol.Exit):
            break
        if isinstance(message, protocol.Run):  # a trial too
            reply = session.run(message, say)
            flush()  # what a cell printed is in the log before its end is told
            say(reply)
            if (isinstance(reply, protocol.Failed) and reply.fatal) or (
                isinstance(reply, (protocol.Measured, protocol.Tried)) and reply.spent
            ):
                break
        if isinstance(message, protocol.Calibrate):
            from farm.child.calibration.run import calibrate

            say(calibrate(session, message, say))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    if os.environ.get("FARM_UNDER_TOOL") == "1":
        sys.exit(code)  # a profiler in this process writes its file at the end
    os._exit(code)  # no atexit handler of the code under test runs, and no thread of it is waited for
