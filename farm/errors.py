"""Every exception of the farm, as one tree.

    Exception
    ├── FarmError                  what the farm refuses; exit code 2 unless said otherwise
    │   ├── UsageError             the command line is wrong
    │   ├── MatrixError            a matrix file is wrong: where, what, what to do
    │   ├── StoreError             a store or a run in it cannot be read or written
    │   ├── BackendError           a backend is unknown, absent, or not usable here
    │   ├── ContractError          an op's contract breaks a rule of contracts
    │   └── InfraError             an infrastructure failure (exit code 3)
    │       └── _Unanswered        pr.github
    └── FarmSignal                 between parts of the farm; none reaches a user as an exception
        ├── EnvironmentUnusable    child, backends    this environment cannot open its device
        ├── Unsupported            child, compile     the provider cannot do this cell
        ├── WrongAnswer            child, compile     what came back is not what the contract says
        ├── CaptureFailed          child              a call cannot be captured in a graph
        ├── CannotMeasure          calibration, child what a device cannot be measured by
        ├── RecordsLost            timing, child      the profiler dropped records
        ├── DeviceUnfit            guard, actor       the device is not fit for another child
        ├── LockRefused            guard, actor       the device's lock cannot be had
        ├── JudgeFailed            judge, actor       no judge answered (it died, or had no time left), or it failed
        └── of one room, and there:
            ├── InputsUnreadable   child.fault_owner
            ├── NotTheSubject      child.subject_files
            ├── Stale              child.preloaded
            ├── TimingUnusable     child.timing.common       also a NotImplementedError
            ├── OutOfBounds        child.interpreter         also a RuntimeError
            ├── NotInterpreted     child.interpreter_libdevice    also a NotImplementedError
            ├── UnfitCallError     record.targets
            ├── ChildDied, ChildTimedOut, ChildLied, NoChild    actor.child_process
            ├── DeviceGone         actor.conversation
            ├── Hung               backends._amdsmi
            ├── BadField           field_checks              also a ValueError
            ├── BadRecord          compare.records           also a ValueError
            ├── NotAFile           judge.judge
            ├── NotInside          shipping.files            also a ValueError
            ├── BadCalibration     timing.roof               also a ValueError
            ├── PlanError          compile.ascend            also a RuntimeError
            ├── RunBusy, RunLockLost    store.lock
            ├── ProcessGone        process.proc_entries
            ├── _BoundError        matrix.yaml_reader
            └── _BadValueError     matrix.rules

A cell's failure is never an exception that crosses a process: it is a status in the data.  Standard library only:
children import this.
"""

from __future__ import annotations

from typing import Any


class Message(str):
    """A sentence for people with `id`, the name by which tests and programs know it: kebab-case, the room first
    (`store-run-exists`).  The wording may change; the identifier stays.  It is an ordinary string everywhere else, and
    what is stored or joined from it is only its text."""

    id: str

    def __new__(cls, text: str, *, id: str) -> Message:
        made = super().__new__(cls, text)
        made.id = id
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _message, (str(self), self.id)


def _message(text: str, id: str) -> Message:
    return Message(text, id=id)


def describe(error: BaseException) -> str:
    """An exception in a clause: its type and the first line of its text."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first:.300}"


#: Exceptions of code that computes.  What the world does to a process (files, memory, other processes) raises others.
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)


def fault_owner(error: BaseException) -> str:
    """Whose fault an exception of the farm's own code is: `harness` for a bug of ours, `infra` for anything else.  An
    exception with an `owner` says so itself."""
    return str(getattr(error, "owner", "") or ("harness" if isinstance(error, _BUGS) else "infra"))


def id_of(text: object) -> str:
    """The identifier of a message or of a refusal; "" for any other text."""
    return str(getattr(text, "id", ""))


class FarmError(Exception):
    """Something the farm refuses, reported in one sentence: where, what, and what to do.  The command line prints `id`
    behind it in brackets."""

    exit_code = 2
    last_line = ""  # printed behind it: how the run ended that it broke off

    def __init__(self, sentence: str = "", *, id: str = ""):
        super().__init__(Message(sentence, id=id) if id else sentence)

    @property
    def id(self) -> str:
        return id_of(self.args[0])


class UsageError(FarmError):
    """The command line asks for something that cannot be done."""


class MatrixError(FarmError):
    """A matrix file is wrong; the message begins with file and line."""


class StoreError(FarmError):
    """A store, or a run in it, cannot be read or written."""


class BackendError(FarmError):
    """A backend is unknown, absent from the cluster, or not usable here."""


class ContractError(FarmError):
    """An op's contract breaks a rule of contracts: which op, what it does, and what to write instead."""


class InfraError(FarmError):
    """The farm itself failed: a cluster that did not start, a coordinator that lost its ground."""

    exit_code = 3


class FarmSignal(Exception):
    """One part of the farm tells another that something did not happen.  A part that catches it turns it into a status,
    an event or a `FarmError`."""


class EnvironmentUnusable(FarmSignal):
    """This environment cannot open its device; `owner` says whose fault that is."""

    def __init__(self, reason: str, owner: str = "infra"):
        super().__init__(reason)
        self.owner = owner


class Unsupported(FarmSignal):
    """The provider cannot do this cell; the message is the reason."""


class WrongAnswer(FarmSignal):
    """What came back is not what the contract says, before any number is looked at."""


class CaptureFailed(FarmSignal):
    """The call cannot be captured in a graph; this process is spent (its generator state may be poisoned too)."""


class CannotMeasure(FarmSignal):
    """The device cannot do this one thing; the message is the reason."""


class RecordsLost(FarmSignal, ValueError):
    """There are not as many markers as were launched: the profiler dropped records, or they are not ours."""


class DeviceUnfit(FarmSignal):
    """The device is not fit for another child; the text says why."""


class LockRefused(FarmSignal):
    """The device cannot be had; the text is one sentence.  `busy`: another farm uses it, nothing is wrong with it."""

    def __init__(self, sentence: str, *, busy: bool = False):
        super().__init__(sentence)
        self.busy = busy


class JudgeFailed(FarmSignal):
    """A judge did not do what it was asked for.  `owner`: infra where none answered (it died, it had no time left, or
    none could be started), else whose fault its own exception is."""

    def __init__(self, reason: str, owner: str = "infra"):
        super().__init__(reason)
        self.owner = owner
