"""The JSON Schema of a `farm.yaml`, for editors.  The reader is stricter: the schema accepts all that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farm.subject.model import AUTOGRAD
from farm.subject.read import MAX_MINUTES, ROLES, SELECTION, TUNING, VERSIONS

_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


def json_schema(ops: Sequence[str], backends: Sequence[str]) -> dict[str, Any]:
    """JSON Schema, draft 2020-12.  `ops` only serve completion: a folder of `contracts` may have more."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A subject of the kernel farm (farm.yaml)",
        "type": "object",
        "required": ["farm", "subject"],
        "anyOf": [{"required": [key]} for key in ("providers", "tests", "benchmarks")],
        "additionalProperties": False,
        "properties": {
            "farm": _told("The version of this format.", enum=[*VERSIONS]),
            "subject": _told(
                "What rows and pages call it.", type="string", pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
            ),
            "overlay": _object(
                "A folder of the repository that is put first on the import path, or laid over what is installed.",
                {
                    "path": _told(
                        "The folder that holds the modules, relative to the repository's root.", type="string"
                    ),
                    "over": _told("Lay only the .py files over the installed package.", const="installed"),
                    "modules": _names("The top-level packages and modules that are the subject."),
                },
                ["modules"],
            ),
            "build": _object(
                "A command that makes a wheel or a folder, run once per content of its inputs.",
                {
                    "command": _told("A shell command, run in a copy of the repository.", type="string"),
                    "inputs": _names("The files and folders that decide whether it runs again (default: all)."),
                    "gives": _told(
                        "A pattern of the one wheel or folder that it makes, like dist/*.whl.", type="string"
                    ),
                    "minutes": _told("Its deadline.", type="number", exclusiveMinimum=0, maximum=MAX_MINUTES),
                    "modules": _names("Of the result, only these modules (default: all)."),
                },
                ["command", "gives"],
            ),
            "release": _told("A published version, as name==version.", type="string"),
            "providers": _told(
                "Who implements which ops; the name of a built-in peer makes it the subject.",
                type="object",
                minProperties=1,
                additionalProperties=_provider(ops, backends),
            ),
            "contracts": _names("Folders of contracts, for ops that the farm does not know."),
            "matrices": _names("What farm run runs where no matrix is named."),
            "tests": _names("The repository's own pytest files and folders, which farm pr runs in both arms."),
            "benchmarks": _names("Its files with triton.testing.perf_report, which farm pr runs in both arms."),
            "selection": _object(
                "For farm pr: which cells a change selects.",
                {
                    "kernels": _told("How changed kernels are found.", enum=["cache_key", "all"]),
                    "simulated": _told(
                        "Whether what simulated devices find may fail a check (default: ignored).",
                        enum=["ignored", "counts"],
                    ),
                    "memory": _told(
                        "Whether a cell that needs more device memory fails a check (default: reported).",
                        enum=["reported", "counts"],
                    ),
                    "sentinel": _told(
                        "How many other cells run too.", type="integer", minimum=0, maximum=SELECTION["sentinel"]
                    ),
                },
            ),
            "tuning": _object(
                "For farm ab and farm pr: how autotuned kernels are tuned where an arm does not say it.",
                {name: _told("As the key tuning of an arm.", enum=[*values]) for name, values in TUNING.items()},
            ),
        },
    }


def _told(description: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, **schema}


def _object(description: str, properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    return _told(
        description,
        type="object",
        minProperties=1,
        additionalProperties=False,
        properties=properties,
        **({"required": [*required]} if required else {}),
    )


def _names(description: str) -> dict[str, Any]:
    return _told(description, type="array", minItems=1, items={"type": "string", "minLength": 1})


def _provider(ops: Sequence[str], backends: Sequence[str]) -> dict[str, Any]:
    path = _told("module:function of an adapter beside this file, or of the subject.", type="string", pattern=_PATH)
    backward = _told(
        f"{AUTOGRAD}, or module:function called with (upstream, inputs, outputs, *parameters).",
        anyOf=[{"const": AUTOGRAD}, {"type": "string", "pattern": _PATH}],
    )
    entry = {
        "anyOf": [
            path,
            _object(
                "How the provider does the op.",
                {
                    "call": path,
                    "modes": _told(
                        "Its modes, or module:function of a function that returns them.",
                        anyOf=[
                            {"type": "string", "pattern": _PATH},
                            {"type": "array", "minItems": 1, "items": {"type": "string"}},
                        ],
                    ),
                    "backward": backward,
                    "declares": _told("What the contract lets providers declare, like sum: unrounded.", type="object"),
                },
                ["call"],
            ),
        ]
    }
    there = _told("The modes that there are there.", type="array", minItems=1, items={"type": "string"})
    override = _object("Instead of the general entry.", {"call": path, "backward": backward, "modes": there})
    scalar = {"type": ["string", "number", "boolean"]}
    on_backend = _object(
        "What differs on one backend.",
        {
            "ops": _told("Other calls.", type="object", minProperties=1, additionalProperties=override),
            "variables": _told("Variables of the child.", type="object", minProperties=1, additionalProperties=scalar),
        },
    )
    return _object(
        "A provider.",
        {
            "ops": _told(
                "Op to entry.",
                type="object",
                minProperties=1,
                properties=dict.fromkeys(ops, entry),
                additionalProperties=entry,
            ),
            "role": _told("Whether its failures are findings.", enum=[*ROLES]),
            "backends": _told(
                "Per backend.",
                type="object",
                minProperties=1,
                additionalProperties=False,
                properties=dict.fromkeys(backends, on_backend),
            ),
        },
        ["ops"],
    )
