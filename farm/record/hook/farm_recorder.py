"""Wraps the functions to watch as their modules are imported, and writes down how they are called.

FARM_RECORD names a folder with `settings.json`: `targets`, each with `path` (`module:attribute.attribute`), `after`
(the module whose import must be complete), `names` (of positional arguments, where the function cannot be asked for
them) and `attributes` (what to read of `self`).  Each process writes there

    PID.calls    a JSON object a line: `hello`, `wrapped`, `missing`, and `new` for each call unlike all before it
    PID.counts   {number of `new`: [calls, calls whose result got a gradient]}, replaced at most every half second

A call inside a watched call is the watched function's own business and is not written down.  Nothing here may change
what the program computes, and nothing that goes wrong here may stop it.
"""

import atexit
import contextlib
import functools
import importlib
import inspect
import json
import os
import sys
import threading
import time
from typing import Any

#: Different calls that one process writes down; what comes beyond is counted in `dropped`.
MOST = 5000
WRITE_SECONDS = 0.5

_local = threading.local()
_lock = threading.RLock()


class _Record:
    """The files of this process."""

    def __init__(self, folder):
        self.folder, self.numbers, self.counts, self.dropped, self.written = folder, {}, {}, 0, 0.0
        self.line({"hello": sys.argv[:1] or [sys.executable]})

    def path(self, ending):
        return os.path.join(self.folder, "%d.%s" % (os.getpid(), ending))  # noqa: PTH118, UP031

    def line(self, data):
        with open(self.path("calls"), "a", encoding="utf-8") as file:
            file.write(json.dumps(data) + "\n")

    def call(self, data):
        """The number of a call, or None if there are too many kinds of them."""
        key = json.dumps(data, sort_keys=True)
        with _lock:
            number = self.numbers.get(key)
            if number is None:
                if len(self.numbers) >= MOST:
                    self.dropped += 1
                    return None
                number = self.numbers[key] = len(self.numbers)
                self.line({"new": number, **data})
            self.count(number, 0)
            return number

    def count(self, number, place):
        with _lock:
            self.counts.setdefault(number, [0, 0])[place] += 1
            if time.monotonic() - self.written > WRITE_SECONDS:
                self.write()

    def write(self):
        with _lock:
            self.written = time.monotonic()
            beside = self.path("counts-new")
            with open(beside, "w", encoding="utf-8") as file:
                json.dump({"counts": self.counts, "dropped": self.dropped}, file)
            os.replace(beside, self.path("counts"))  # noqa: PTH105


_record: Any = None


def start():
    """Watch from now on, if this process is to be watched."""
    folder = os.environ.get("FARM_RECORD")
    if not folder:
        return
    with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:  # noqa: PTH118
        targets = json.load(file)["targets"]
    _begin(folder)
    atexit.register(_end)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _begin(folder))
    pending: dict[str, list[Any]] = {}
    for target in targets:
        pending.setdefault(target["after"], []).append(target)
    sys.meta_path.insert(0, _Finder(pending))


def _begin(folder):
    global _record, _lock
    _lock = threading.RLock()  # after a fork another thread's may be held for ever
    _record = _Record(folder)


def _end():
    with contextlib.suppress(OSError):
        _record.write()


class _Finder:
    """Finds modules as the others do, and wraps their functions once they are imported."""

    def __init__(self, pending):
        self.pending = pending

    def find_spec(self, name, path=None, target=None):
        if name not in self.pending:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name, loader):
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module):
            run(module)
            for target in self.pending.pop(name, []):
                try:
                    _wrap(target)
                    _record.line({"wrapped": target["path"]})
                except Exception as error:
                    _record.line({"missing": target["path"], "why": "%s: %s" % (type(error).__name__, error)})  # noqa: UP031

        with contextlib.suppress(AttributeError):
            loader.exec_module = exec_module


def _wrap(target):
    module, _, attributes = target["path"].partition(":")
    owner = sys.modules.get(module) or importlib.import_module(module)
    *outer, last = attributes.split(".")
    for name in outer:
        owner = getattr(owner, name)
    if not hasattr(owner, last):  # Python's own message speaks of an import that is not over yet
        raise AttributeError("there is no %s in %s" % (last, module))  # noqa: UP031
    function = getattr(owner, last)
    names = target.get("names")
    signature = None if names else _signature(owner, last, function)
    watched = _watched(function, target, names, signature)
    kept = inspect.getattr_static(owner, last) if inspect.isclass(owner) else None
    bound = isinstance(kept, (classmethod, staticmethod)) or inspect.ismethod(function)
    setattr(owner, last, staticmethod(watched) if bound else watched)


def _signature(owner, last, function):
    """The parameters of a call: of `forward`, without its context, for the `apply` of an autograd function."""
    if last == "apply" and inspect.isclass(owner) and hasattr(owner, "forward"):
        found = inspect.signature(owner.forward)
        return found.replace(parameters=list(found.parameters.values())[1:])
    return inspect.signature(function)


def _watched(function, target, names, signature):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if getattr(_local, "inside", False) or _record is None:
            return function(*args, **kwargs)
        _local.inside = True
        number = None
        try:
            try:
                number = _record.call(_described(target, names, signature, args, kwargs))
            except Exception as error:
                _note(target, error)
            result = function(*args, **kwargs)
        finally:
            _local.inside = False
        if number is not None:
            _see_gradient(result, number)
        return result

    return call


def _note(target, error):
    with contextlib.suppress(Exception):
        _record.call({"target": target["path"], "unread": "%s: %s" % (type(error).__name__, str(error)[:200])})  # noqa: UP031


def _described(target, names, signature, args, kwargs):
    if names:
        given = dict(zip(names, args), **kwargs)
    else:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
    found: dict[str, Any] = {}
    tensors: list[Any] = []
    for name, value in given.items():
        if name == "self" and _tensor(value) is None:
            for attribute in target.get("attributes", ()):
                if hasattr(value, attribute) and attribute not in given:
                    found[attribute] = _value(getattr(value, attribute), tensors)
        else:
            found[name] = _value(value, tensors)
    torch = sys.modules.get("torch")
    graded = torch is not None and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return {"target": target["path"], "arguments": found, "graded": bool(graded)}


def _tensor(value):
    torch = sys.modules.get("torch")
    return value if torch is not None and isinstance(value, torch.Tensor) else None


def _value(value, tensors):
    if _tensor(value) is not None:
        tensors.append(value)
        return {
            "shape": list(map(int, value.shape)),
            "strides": list(map(int, value.stride())),
            "offset": int(value.storage_offset()),
            "dtype": str(value.dtype).replace("torch.", ""),
        }
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if not isinstance(value, str) or len(value) < 200 else {"type": "str"}
    if isinstance(value, (tuple, list)) and len(value) < 10 and all(isinstance(v, int) for v in value):
        return list(map(int, value))
    text = str(value)
    return text[6:] if text.startswith("torch.") and len(text) < 40 else {"type": type(value).__name__}


def _see_gradient(result, number):
    """Count the call as one with a backward once any of its results gets a gradient."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    record = _record
    seen: list[bool] = []

    def arrived(_gradient):
        if not seen and record is _record:
            seen.append(True)
            record.count(number, 1)

    for one in results:
        try:
            if _tensor(one) is not None and one.requires_grad and one.grad_fn is not None:
                one.register_hook(arrived)
        except Exception:
            pass
