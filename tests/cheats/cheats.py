"""Providers of rms_norm that cheat, each in its own way.  They run on whatever device their inputs are on.

Every one but `honest` answers rightly as far as an ordinary test would look: it is called, its answer is compared, it
is called again to be timed.  The children import this file as a module of a user's; no test may import it.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time

import torch


def right(x, weight, eps):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def honest(x, weight, eps):
    """The control: no finding, whatever is watched."""
    return right(x, weight, eps)


_kept = {}


def cached_by_pointer(x, weight, eps):
    key = ("pointer", x.data_ptr(), x.shape, x.dtype)
    if key not in _kept:
        _kept[key] = right(x, weight, eps)
    return _kept[key]


def cached_by_pointer_and_copied(x, weight, eps):
    key = ("copied pointer", x.data_ptr(), x.shape, x.dtype)
    if key not in _kept:
        _kept[key] = right(x, weight, eps)
    return _kept[key].clone()


def _content(x):
    return float(x.detach()[0].float().sum()), x.shape, x.dtype


def cached_by_content(x, weight, eps):
    key = ("content", *_content(x))
    if key not in _kept:
        _kept[key] = right(x, weight, eps)
    return _kept[key]


def cached_by_content_and_copied(x, weight, eps):
    key = ("copied content", *_content(x))
    if key not in _kept:
        _kept[key] = right(x, weight, eps).detach()
    return _kept[key].clone()


def one_buffer_for_all(x, weight, eps):
    key = ("buffer", x.shape, x.dtype)
    if key not in _kept:
        _kept[key] = torch.zeros_like(x)
    return _kept[key].copy_(right(x, weight, eps))


def writes_nothing(x, weight, eps):
    return torch.empty_like(x)


def returns_a_view_of_its_input(x, weight, eps):
    return x.detach().view(-1).view(x.shape)


def mutates_its_input(x, weight, eps):
    x.data.copy_(right(x.detach(), weight.detach(), eps))
    return x.data.clone()


def replaces_its_input(x, weight, eps):
    y = right(x.detach(), weight.detach(), eps)
    x.data = x.data.clone()
    return y


def returns_fp32(x, weight, eps):
    return right(x, weight, eps).float()


def returns_one_row_for_all(x, weight, eps):
    return right(x[:1], weight, eps).expand(x.shape)


class Lazy(torch.Tensor):
    """Computes when somebody looks."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = tuple(right(*a.later) if isinstance(a, Lazy) else a for a in args)
        return func(*args, **(kwargs or {}))


def returns_a_lazy_tensor(x, weight, eps):
    out = torch.empty_like(x).as_subclass(Lazy)
    out.later = (x, weight, eps)
    return out


_calls = {}


def right_once(x, weight, eps):
    """Right in the first call of a process: the one that most harnesses check."""
    _calls["once"] = _calls.get("once", 0) + 1
    return right(x, weight, eps) if _calls["once"] == 1 else torch.zeros_like(x)


def right_every_other_time(x, weight, eps):
    _calls["other"] = _calls.get("other", 0) + 1
    return right(x, weight, eps) if _calls["other"] % 2 else torch.zeros_like(x)


def detects_the_timing_loop(x, weight, eps):
    """Right wherever no caller up the stack is a timer's."""
    frame = sys._getframe()
    while frame is not None:
        if ".timing." in frame.f_globals.get("__name__", ""):
            return torch.zeros_like(x)
        frame = frame.f_back
    return right(x, weight, eps)


def caches_in_the_timing_loop(x, weight, eps):
    """Remembers by pointer wherever a caller up the stack is a timer's; computes everywhere else."""
    frame = sys._getframe()
    while frame is not None:
        if ".timing." in frame.f_globals.get("__name__", ""):
            return cached_by_pointer_and_copied(x, weight, eps)
        frame = frame.f_back
    return right(x, weight, eps)


def patches_elapsed_time(x, weight, eps):
    torch.cuda.Event.elapsed_time = lambda self, end: 1e-3
    return right(x, weight, eps)


def patches_perf_counter(x, weight, eps):
    time.perf_counter = lambda: 0.0
    return right(x, weight, eps)


def patches_allclose(x, weight, eps):
    torch.allclose = lambda *args, **kwargs: True
    return torch.zeros_like(x)


def patches_the_farm(x, weight, eps):
    from farm.child import tensor_files

    tensor_files.checksum = lambda tensor: 0
    x.data.add_(1)
    return right(x.detach() - 1, weight.detach(), eps)


def allocates_gigabytes(x, weight, eps):
    if "gigabytes" not in _kept:
        _kept["gigabytes"] = torch.empty(2 << 30, dtype=torch.uint8, device=x.device)
    return right(x, weight, eps)


def sets_the_default_dtype(x, weight, eps):
    torch.set_default_dtype(torch.float64)
    return right(x, weight, eps)


def switches_and_raises(x, weight, eps):
    torch.set_default_dtype(torch.float64)
    raise ValueError("and leaves it so")


def sets_tf32(x, weight, eps):
    torch.set_float32_matmul_precision("high")
    return right(x, weight, eps)


def reseeds(x, weight, eps):
    torch.manual_seed(7)
    return right(x, weight, eps)


def changes_the_grad_mode(x, weight, eps):
    torch.set_grad_enabled(False)
    return right(x, weight, eps)


def turns_determinism_on(x, weight, eps):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return right(x, weight, eps)


def leaves_a_thread_running(x, weight, eps):
    def spin():
        while True:
            time.sleep(0.05)

    threading.Thread(target=spin, daemon=True).start()
    return right(x, weight, eps)


def answers_from_a_thread(x, weight, eps):
    """The call is over before its work begins."""
    y = torch.empty_like(x)

    def later():
        time.sleep(0.2)
        y.copy_(right(x.detach(), weight.detach(), eps))

    threading.Thread(target=later).start()
    return y


def forks_a_child(x, weight, eps):
    if os.fork() == 0:
        time.sleep(60)  # longer than a call may take, and not much longer, should nothing end it
        os._exit(0)
    return right(x, weight, eps)


def forks_a_daemon(x, weight, eps):
    """Twice, in a session of its own: no process group holds it and its parent is dead."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(1024):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            time.sleep(60)
        os._exit(0)
    time.sleep(0.2)
    return right(x, weight, eps)


def leaves_a_daemon_and_exits(x, weight, eps):
    forks_a_daemon(x, weight, eps)
    os._exit(3)


RESULT = (
    '{"kind":"measured","revision":"%s","round":0,"attempt":1,"outputs":[],"facts":{"flags":[]},'
    '"timing":{"method":"host","samples_us":[0.001,0.001,0.001],"cold":false}}'
)


def exits_after_a_fake_result(x, weight, eps):
    print(RESULT % "r", flush=True)
    os._exit(0)


def writes_a_fake_result_everywhere(x, weight, eps):
    """On every descriptor that it finds, in the words of the farm's own protocol."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, (RESULT % "r").encode() + b"\n")
    time.sleep(0.5)
    return right(x, weight, eps)


def sets_a_variable(x, weight, eps):
    os.environ["TRITON_DEBUG"] = str(random.random())
    return right(x, weight, eps)


# On a GPU only.


def works_on_a_side_stream(x, weight, eps):
    """The caller's stream goes on at once; nobody waits for the answer but a synchronisation of the whole device."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return right(x, weight, eps)


def works_on_a_side_stream_and_waits(x, weight, eps):
    """Slow, and honest."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = right(x, weight, eps)
    torch.cuda.current_stream().wait_stream(side)
    return y


def sets_the_stream(x, weight, eps):
    torch.cuda.set_stream(torch.cuda.Stream())
    return right(x, weight, eps)


def detects_the_capture(x, weight, eps):
    """Nothing in a graph, all of it elsewhere."""
    return torch.empty_like(x) if torch.cuda.is_current_stream_capturing() else right(x, weight, eps)


def one_launch_for_many(x, weight, eps):
    """In a graph the first call over some memory computes, and the others hand out its answer again."""
    if not torch.cuda.is_current_stream_capturing():
        return right(x, weight, eps)
    return cached_by_pointer(x, weight, eps)
