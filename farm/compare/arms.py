"""The two sides of a comparison, as values.  Pure: a revision, a file and a wheel are names here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from farm.errors import UsageError

#: Where an arm's files come from; at most one of them.  A patch comes on top of a revision.
SOURCES = ("revision", "version", "wheel")
KEYS = (*SOURCES, "patch", "environment", "provider", "mode", "tuning")
#: freeze: an autotuned kernel is tuned once per arm and node; each: in every fresh child; none: its first
#: configuration is taken, and nothing is timed.
TUNING = ("freeze", "each", "none")
VARIABLE = "env."
WORKING_TREE = "."
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?:\.\w*)?")
_NEXT = re.compile(r",(?=[A-Za-z][A-Za-z0-9_-]*(?:\.\w*)?=)")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,78}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*")


@dataclass(frozen=True)
class Arm:
    """`name`: a or b.  `kind`: one of SOURCES, or "" for what the command line's own options name, and `source` which
    one (a revision, WORKING_TREE, `name==version`, a file).  `patch`: a file with a diff, applied to the revision.

    `environment`, `provider`, `mode`: "" for what the run has anyway.  `variables`: of the children.  `tuning`: one of
    TUNING, "" for what the subject says, else freeze.
    """

    name: str
    kind: str = ""
    source: str = ""
    patch: str = ""
    environment: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    provider: str = ""
    mode: str = ""
    tuning: str = ""

    @property
    def called(self) -> str:
        """What people call it: all that was said of it."""
        told = [self.source and ("working tree" if self.source == WORKING_TREE else self.source)]
        told += [self.patch and f"with {self.patch}", self.environment and f"in {self.environment}"]
        told += [self.provider and f"provider {self.provider}", self.mode and f"mode {self.mode}"]
        told += [self.tuning and f"tuning {self.tuning}"]
        told += [f"{name}={value}" for name, value in self.variables.items()]
        return " ".join(t for t in told if t) or "as it is"

    @property
    def text(self) -> str:
        """What `--a` or `--b` is given for it; `parse_arm` reads it."""
        told = {self.kind: self.source, **{key: getattr(self, key) for key in KEYS if key not in SOURCES}}
        told |= {f"{VARIABLE}{name}": value for name, value in self.variables.items()}
        return ",".join(f"{key}={value}" for key, value in told.items() if key and value)

    def plain(self) -> dict[str, Any]:
        """As a run keeps it; what is empty is left out."""
        own = {name: getattr(self, name) for name in ("name", "kind", "source", "patch", "environment")}
        own |= {"provider": self.provider, "mode": self.mode, "tuning": self.tuning}
        own |= {"variables": dict(self.variables)}
        return {name: value for name, value in own.items() if value}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Arm:
        """What `plain` gave; other keys are left out."""
        return cls(**{f.name: plain[f.name] for f in fields(cls) if f.name in plain})


def parse_arm(text: str, name: str, *, refused: Sequence[str]) -> Arm:
    """The arm of `--a K=V,..`.  `refused`: beginnings of variables that no arm sets.  UsageError."""
    option = f"--{name}"
    found: dict[str, str] = {}
    variables: dict[str, str] = {}
    for part in _NEXT.split(text.strip()):
        key, equals, value = part.partition("=")
        if not (equals and value and _KEY.fullmatch(key)):
            example = f"{option} revision=main, or {option} version=my-kernels==1.2,mode=auto"
            raise UsageError(f'{option} "{text}": "{part}" is not KEY=VALUE; write {example}', id="arm-malformed")
        if "\0" in value:
            raise UsageError(f"{option}: {key} has a NUL character; write text", id="arm-value")
        if key in found or key in variables:
            raise UsageError(f'{option} "{text}": {key} is given twice; keep one', id="arm-key-twice")
        if key.startswith(VARIABLE):
            variables[key] = value
        elif key in KEYS:
            found[key] = value
        else:
            near = difflib.get_close_matches(key, [*KEYS, "env.NAME"], 1)
            hint = f'did you mean "{near[0]}"?' if near else f"available: {', '.join(KEYS)}, env.NAME"
            raise UsageError(f'{option} "{text}": "{key}" is not a key of an arm; {hint}', id="arm-key-unknown")
    return _arm(name, found, variables, refused)


def planned_arm(plain: Mapping[str, Any], name: str, *, refused: Sequence[str]) -> Arm:
    """The arm that a plan file or a run describes (`Arm.plain`, other keys apart): checked as one of a command line is,
    since the file may come from elsewhere.  UsageError."""
    found = {key: str(plain[key]) for key in KEYS if key not in SOURCES and plain.get(key)}
    if plain.get("kind"):
        found[str(plain["kind"])] = str(plain.get("source", ""))
    given = plain.get("variables") or {}
    variables = {f"{VARIABLE}{key}": str(value) for key, value in given.items()} if isinstance(given, Mapping) else {}
    unknown = next((key for key in found if key not in KEYS), "")
    nul = next((key for key, value in {**found, **variables}.items() if "\0" in value), "")
    if unknown or nul:
        why = f'"{unknown}" is not a key of an arm' if unknown else f"{nul} has a NUL character"
        raise UsageError(f"arm {name} of the plan: {why}; plan again", id="arm-planned")
    return _arm(name, found, variables, refused)


def _arm(name: str, found: Mapping[str, str], variables: Mapping[str, str], refused: Sequence[str]) -> Arm:
    option = f"--{name}"
    return Arm(
        name,
        *_source(found, option),
        patch=found.get("patch", ""),
        environment=_named(found, "environment", option),
        variables=_variables(variables, option, refused),
        provider=_named(found, "provider", option),
        mode=_named(found, "mode", option),
        tuning=_tuning(found, option),
    )


def _source(found: Mapping[str, str], option: str) -> tuple[str, str]:
    named = [key for key in SOURCES if key in found]
    if len(named) > 1:
        raise UsageError(
            f"{option}: {named[0]} and {named[1]} both say where the files come from; keep one", id="arm-two-sources"
        )
    if not named:
        return "", ""
    kind, source = named[0], found[named[0]]
    if "patch" in found and kind != "revision":
        raise UsageError(
            f"{option}: a patch is applied to a revision, not to a {kind}; write revision=REV,patch=FILE",
            id="arm-patch-without-revision",
        )
    if kind == "version" and not _VERSION.fullmatch(source):
        near = f"; did you mean {source.replace('=', '==', 1)}?" if re.fullmatch(r"[^=]+=[^=]+", source) else ""
        message = f"{option}: version={source} is not NAME==VERSION, as liger-kernel==0.8.5{near}"
        raise UsageError(message, id="arm-version")
    if kind == "revision" and (source.startswith("-") or not source.isprintable()):
        raise UsageError(
            f"{option}: revision={source!r} cannot be the name of a revision; write a commit, a branch, a tag, or "
            f"{WORKING_TREE} for the working tree",
            id="arm-revision",
        )
    return kind, source


def _named(found: Mapping[str, str], key: str, option: str) -> str:
    value = found.get(key, "")
    if value and not _NAME.fullmatch(value):
        raise UsageError(
            f"{option}: {key}={value} is no name; a name has letters, digits, '.', '_' and '-'", id="arm-name"
        )
    return value


def _tuning(found: Mapping[str, str], option: str) -> str:
    value = found.get("tuning", "")
    if value and value not in TUNING:
        near = difflib.get_close_matches(value, TUNING, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"available: {', '.join(TUNING)}"
        raise UsageError(f'{option}: "{value}" is no way of tuning; {hint}', id="arm-tuning")
    return value


def _variables(found: Mapping[str, str], option: str, refused: Sequence[str]) -> dict[str, str]:
    out = {}
    for key, value in found.items():
        name = key.removeprefix(VARIABLE)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            message = f'{option}: "{name}" is no name of a variable; write env.NAME=VALUE'
            raise UsageError(message, id="arm-variable-name")
        if name.upper().startswith(tuple(refused)):
            raise UsageError(
                f"{option}: {name} decides what runs on a node, or where, and is the node's to set; remove it, or name "
                "an environment of the nodes: environment=NAME",
                id="arm-variable-refused",
            )
        out[name] = value
    return out


def identical(a: str, *, refused: Sequence[str]) -> tuple[Arm, Arm]:
    """An arm, and the same once more as arm b; `a` "" for what the command line's own options name."""
    one = parse_arm(a, "a", refused=refused) if a else Arm("a")
    one = _patched(one, one)
    return one, replace(one, name="b")


def pair(a: str, b: str, *, refused: Sequence[str]) -> tuple[Arm, Arm]:
    """Both arms of a command line.  An arm that is only a patch is the other one's revision with it: *what if*.

    UsageError where only one says where its files come from: the other would silently be something else.
    """
    left, right = parse_arm(a, "a", refused=refused), parse_arm(b, "b", refused=refused)
    left, right = _patched(left, right), _patched(right, left)
    if bool(left.kind) != bool(right.kind):
        with_files, without = (left, right) if left.kind else (right, left)
        same = f"{with_files.kind}={with_files.source}"
        other = "revision=. for the working tree" if with_files.kind == "revision" else "revision=REV"
        raise UsageError(
            f"--{without.name} does not say where its files come from, but --{with_files.name} does ({same}); add "
            f"{same} or {other}",
            id="arm-no-source",
        )
    if not differences(left, right):
        raise UsageError(
            f"--a and --b are the same ({left.called}), so there is nothing to compare; change one of them, "
            "or measure how much one arm differs from itself: --a with --same",
            id="arm-no-difference",
        )
    return left, right


def _patched(arm: Arm, other: Arm) -> Arm:
    if arm.kind or not arm.patch:
        return arm
    if other.kind not in ("", "revision"):
        raise UsageError(
            f"--{arm.name}: a patch is applied to a revision, but --{other.name} is a {other.kind}; write "
            "revision=REV,patch=FILE",
            id="arm-patch-without-revision",
        )
    return replace(arm, kind="revision", source=other.source or WORKING_TREE)


def differences(a: Arm, b: Arm) -> dict[str, tuple[str, str]]:
    """What two arms say differently: `files`, `environment`, `provider`, `mode`, `env.NAME` -> (of a, of b).

    Files that are named differently can still be the same: their digests say."""
    told = {"files": (_files(a), _files(b))}
    told |= {key: (getattr(a, key), getattr(b, key)) for key in ("environment", "provider", "mode", "tuning")}
    for name in dict.fromkeys([*a.variables, *b.variables]):
        told[VARIABLE + name] = (a.variables.get(name, ""), b.variables.get(name, ""))
    return {key: (left, right) for key, (left, right) in told.items() if left != right}


def _files(arm: Arm) -> str:
    return " ".join(t for t in (f"{arm.kind}={arm.source}" if arm.kind else "", arm.patch and f"+{arm.patch}") if t)
