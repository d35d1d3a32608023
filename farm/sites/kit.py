"""A kit: one archive that runs a part of a plan where nothing of the farm is installed.  Pure: its files and checks.

    run.py, run.sh, README.txt      what a person starts and reads (farm.cli.kit_run)
    kit.json                        the manifest: what runs, and the SHA-256 of every other file
    plan.json                       the plan file (farm.sites.planfile)
    contracts.json                  contracts from outside the farm, if any (farm.shipping.contracts)
    subject.tar, arm-a.tar, ...     the files of the subject, or of each arm, if there are any (farm.shipping.subjects)
    providers/...                   the files of --provider, if any
    farm/..., kernels/...           the code, which has no part for one architecture

A kit is known by the SHA-256 of its manifest.  What comes back is one archive, too:

    result.json                     which kit, which run, and the SHA-256 of every other file
    run/journal.jsonl, run/plan.json, run/run.json, run/contracts.json, run/logs/...    the run, without its tables
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm import utilisation
from farm.errors import Message, UsageError

KIT, PLAN, CONTRACTS, SUBJECT, README = "kit.json", "plan.json", "contracts.json", "subject.tar", "README.txt"
SCRIPT, SHELL, RESULT = "run.py", "run.sh", "result.json"
PROVIDERS, RUN = "providers/", "run/"
VERSION = 1
MOST_MANIFEST = 16 << 20
#: What a result may contain below RUN.
_RUN_FILES = re.compile(r"journal\.jsonl|run\.json|plan\.json|contracts\.json|logs/[A-Za-z0-9._=-]{1,220}")
#: Files of a kit that hold code which runs there.
_CODE = re.compile(r"(farm|kernels|providers)/.*")
#: Compiled for one architecture, by their names' ends.
COMPILED = (".so", ".pyd", ".dylib", ".a", ".o", ".cubin", ".hsaco", ".fatbin", ".bin", ".exe", ".dll")
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Kit:
    """A manifest that was read.  `digest`: the SHA-256 of its text."""

    data: Mapping[str, Any]
    digest: str

    @property
    def target(self) -> str:
        """The part of the plan that the kit runs."""
        return str(self.data["target"])

    @property
    def arms(self) -> Sequence[Mapping[str, Any]]:
        """What it says of its two arms; none where it has no arms."""
        return self.data.get("arms") or ()

    @property
    def files(self) -> Mapping[str, str]:
        """File -> its SHA-256."""
        return dict(self.data["files"])

    @property
    def name(self) -> str:
        """What its archive and folder are called."""
        return f"kit-{re.sub(r'[^A-Za-z0-9]+', '-', self.target).strip('-')}-{self.digest[:8]}"


def sha(data: bytes) -> str:
    """The SHA-256 of some bytes, as manifests have it."""
    return hashlib.sha256(data).hexdigest()


def dumped(value: Mapping[str, Any]) -> bytes:
    """A manifest as it is written: the same value gives the same bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n").encode()


def manifest(told: Mapping[str, Any], content: Mapping[str, bytes]) -> bytes:
    """The manifest of a kit: what is `told` of it, and its files."""
    return dumped({"kit": VERSION, **told, "files": {name: sha(data) for name, data in sorted(content.items())}})


def read(data: bytes, where: str) -> Kit:
    """A manifest.  UsageError, beginning with `where`, for anything else."""
    try:
        found = json.loads(data.decode("utf-8"))
        if found["kit"] != VERSION:
            raise UsageError(
                f"{where}: this kit has format {found['kit']!r}, but this farm reads format {VERSION}; use the farm "
                "version that made the kit",
                id="kit-format",
            )
        for key, kind in (("target", str), ("plan", dict), ("revision", dict), ("providers", dict), ("files", dict)):
            if not isinstance(found[key], kind):
                raise TypeError(key)
        if not all(isinstance(v, str) for v in (*found["files"].values(), *found["plan"].values())):
            raise TypeError("files")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UsageError(
            f"{where}: {KIT} is not the manifest of a kit; unpack the kit again, or make it again with farm kit",
            id="kit-manifest",
        ) from None
    return Kit(found, sha(data))


def unfit(kit: Kit, digests: Mapping[str, str]) -> str:
    """How the files of an unpacked kit, given by their SHA-256, are not those of its manifest: a clause; "" if they
    are.  Other code beside it would be imported, so there must be none."""
    for name, wanted in kit.files.items():
        if name not in digests:
            return f"{name} is missing"
        if digests[name] != wanted:
            return f"{name} has changed"
    more = sorted(name for name in digests if name not in kit.files and _CODE.fullmatch(name))
    return f"{more[0]} does not belong to it" if more else ""


def compiled(content: Mapping[str, bytes]) -> str:
    """The first of some files that was compiled for one architecture; "" for none."""
    return next((n for n, data in sorted(content.items()) if n.endswith(COMPILED) or data[:4] == _ELF), "")


def result_manifest(kit: str, run_id: str, content: Mapping[str, bytes]) -> bytes:
    """The manifest of a result: the digest of its kit, its run, and its files."""
    files = {name: sha(data) for name, data in sorted(content.items())}
    return dumped({"result": VERSION, "kit": kit, "run_id": run_id, "files": files})


@dataclass(frozen=True)
class Result:
    """A result whose files are those of its manifest, and have their places.  `run`: the files of the run."""

    kit: str
    run_id: str
    run: Mapping[str, bytes]


def read_result(content: Mapping[str, bytes], where: str, run_id: re.Pattern[str]) -> Result:
    """The result in the files of an archive.  UsageError, beginning with `where`, for anything else."""
    try:
        told = json.loads(content[RESULT].decode("utf-8"))
        form, kit, name, files = told["result"], told["kit"], told["run_id"], told["files"]
        if form != VERSION:
            raise UsageError(
                f"{where}: this result has format {form!r}, but this farm reads format {VERSION}; use the farm version "
                "that made the kit",
                id="kit-result-format",
            )
        if not (isinstance(kit, str) and isinstance(name, str) and run_id.fullmatch(name)):
            raise TypeError("kit")
        listed = {str(k): str(v) for k, v in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(
            f"{where}: this archive is not the result of a kit; give the file result-... that run.py has written",
            id="kit-result-invalid",
        ) from None
    there = {n: sha(data) for n, data in content.items() if n != RESULT}
    if there != listed:
        differs = sorted({*there.items()} ^ {*listed.items()})[0][0]
        raise UsageError(
            f"{where}: {differs:.200} differs from the manifest of this result, so the file was damaged or edited; "
            "copy it again",
            id="kit-result-damaged",
        )
    for n in there:
        if not (n.startswith(RUN) and _RUN_FILES.fullmatch(n[len(RUN) :])):
            raise UsageError(
                f"{where}: contains {n!r:.200}, which has no place in a result; ask for the file that run.py has "
                "written",
                id="kit-result-file",
            )
    for n in ("journal.jsonl", "plan.json"):
        if RUN + n not in there:
            raise UsageError(f"{where}: has no {n}; ask for the file that run.py has written", id="kit-result-file")
    return Result(kit, name, {n[len(RUN) :]: content[n] for n in there})


def wrong(kit: Kit, head: Mapping[str, Any], digests: Mapping[str, str]) -> Message | None:
    """Why a run is not one of this kit: a clause with what to do; None if it is.  `head`: the first line of its
    journal; `digests`: of its plan and contracts."""
    told = head.get("kit")
    if form := _form(head, _HEAD):
        return Message(f"the head of its journal {form}; ask for the file that run.py has written", id="kit-head")
    if not isinstance(told, Mapping) or told.get("digest") != kit.digest:
        return Message(
            "is not a run of the kit that it names; ask for the file that run.py has written", id="kit-other"
        )
    texts = [told.get(name, "") for name in ("by", "site", "node", "system")]
    versions = told.get("versions", {})
    texts += [*versions, *versions.values()] if isinstance(versions, Mapping) else [None]
    if not all(isinstance(text, str) and len(text) <= 300 for text in texts):
        return Message("does not say who ran it in words; ask for the file that run.py has written", id="kit-by")
    for name in (PLAN, CONTRACTS):
        if digests.get(name) != kit.files.get(name):
            return Message(f"has another {name} than its kit; ask for the file that run.py has written", id="kit-plan")
    pairs = (
        ("kernels", dict(head["revision"]), kit.data["revision"]),
        ("providers", head.get("providers") or {}, kit.data["providers"]),
        ("subject", (head.get("subject") or {}).get("digest"), (kit.data.get("subject") or {}).get("digest")),
        ("code", told.get("bundles"), kit.data.get("bundles")),
        ("kind", head.get("kind"), "ab" if kit.arms else None),
        ("arms", head.get("arms") or {}, {told["arm"]["name"]: told["described"] for told in kit.arms}),
        ("part of the plan", (head.get("plan") or {}).get("part"), kit.target),
    )
    for what, has, wanted in pairs:
        if has != wanted:
            return Message(
                f"ran another {what} than its kit contains; run the kit again as it is", id="kit-code-differs"
            )
    return None


#: What the first line of the journal of a kit's run has; what its run.json has more; and what that says of a device.
_HEAD: Mapping[str, type] = {
    **dict.fromkeys(("run_id", "created", "command", "plan_hash"), str),
    **dict.fromkeys(("schema", "planned"), int),
    **dict.fromkeys(("argv", "matrices"), list),
    **dict.fromkeys(("plan", "kit", "revision", "providers", "subject", "environments", "arms"), dict),
    "kind": str,
}
_FOOT: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("finished", "verdict"), str),
    "seconds": (int, float),
    "exit_code": int,
    **dict.fromkeys(("backends", "environments", "calibrations", "counts", "comparison", "utilisation"), dict),
    "resumed": list,
    "health": list,
}
_DEVICE: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("name", "device", "node", "target", "evidence", "environment"), str),
    **dict.fromkeys(("fingerprint", "versions", "subject"), dict),
    "calibration": type(None),  # a kit brings none
}
_LEFT_OUT = ("subject", "resumed", "kind", "arms", "comparison", "health", "utilisation")  # where there is none
_NOT_COMPARED = ("environments", "resumed")


def malformed(told: Any, head: Mapping[str, Any]) -> Message | None:
    """Why this is not the run.json of a kit's run whose journal begins with `head`: a clause; None if it is."""
    wrong = _form(told, {**_HEAD, **_FOOT})
    if not wrong and (differs := [k for k, v in head.items() if k not in _NOT_COMPARED and told.get(k) != v]):
        wrong = f"differs from the journal in {differs[0]}"
    wrong = wrong or _backends(told)
    if not wrong:
        return None
    return Message(f"its run.json {wrong}; ask for the file that run.py has written", id="kit-run-json")


def _form(told: Any, kinds: Mapping[str, type | tuple[type, ...]]) -> str:
    """How `told` is no object of these keys and kinds: a clause; "" if it is."""
    if not isinstance(told, Mapping):
        return "is not an object"
    if more := sorted(set(map(str, told)) - set(kinds)):
        return f"has the unknown key {more[0]!r:.80}"
    bad = [k for k, kind in kinds.items() if not (isinstance(told.get(k), kind) or (k in _LEFT_OUT and k not in told))]
    return f"has no valid {bad[0]}" if bad else ""


def _backends(told: Mapping[str, Any]) -> str:
    """How what it says of devices and environments has not the form of a run's: a clause; "" if it has."""
    if told["calibrations"]:
        return "has calibrations, which a kit does not make"
    if (told.get("utilisation") or {}).get("devices") and not utilisation.read(told):
        return "has no valid utilisation"
    for of in told["backends"].values():
        if not (isinstance(of, Mapping) and isinstance(of.get("devices"), list) and isinstance(of.get("counts"), dict)):
            return "has no valid backends"
        for device in of["devices"]:
            if wrong := _form(device, _DEVICE):
                return f"has a device that {wrong}"
            if not all(isinstance(v, str | int | float | None) for v in device["fingerprint"].values()):
                return "has a device that has no valid fingerprint"
    for commands in told["environments"].values():
        names = list(commands.values()) if isinstance(commands, Mapping) else [None]
        if not all(isinstance(n, list) and all(isinstance(name, str) for name in n) for n in names):
            return "has no valid environments"
    return ""


def called(told: Mapping[str, Any]) -> str:
    """`alice at Site A`: who ran a kit, and where, as far as they said."""
    who, where = str(told.get("by") or ""), str(told.get("site") or told.get("node") or "")
    return " at ".join(word for word in (who, where) if word)
