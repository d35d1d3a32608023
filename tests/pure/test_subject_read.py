"""A farm.yaml that is wrong: one sentence with file, line, path, what is wrong, and the near miss; exit code 2."""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from subject_repositories import SUBJECT, write

from farm import backends
from farm.contracts import discovery
from farm.errors import FarmError
from farm.matrix.document import parse
from farm.subject import command_line, schema
from farm.subject.read import SubjectReader

OVERLAY = "overlay: {path: src, modules: [mylib]}"
ENTRY = '{call: "my_adapters:rms_norm"}'


def swap(old: str, new: str) -> str:
    assert old in SUBJECT
    return SUBJECT.replace(old, new)


def entry(text: str) -> str:
    return swap(ENTRY, text)


def provider(more: str) -> str:
    return swap("matrices:", f"    {more}\nmatrices:")


def on_cuda(text: str) -> str:
    return provider(f"backends: {{cuda: {text}}}")


#: name -> (text, id, what the sentence begins with, further facts)
WRONG: dict[str, tuple[str, ...]] = {
    "empty": ("", "subject-not-a-mapping", "farm.yaml: is empty"),
    "list": ("- a\n", "subject-not-a-mapping", "farm.yaml: "),
    "two documents": (SUBJECT + "---\n" + SUBJECT, "subject-not-a-mapping", "farm.yaml: "),
    "not YAML": ("farm: [1\n", "matrix-not-yaml", "farm.yaml:2: "),
    "tab": ("farm: 1\n\tsubject: x\n", "matrix-not-yaml", "farm.yaml:2: ", "tab"),
    "key twice": (SUBJECT + "subject: again\n", "matrix-key-twice", "farm.yaml:9: subject ", "line 2"),
    "code": (SUBJECT + "tuning: !!python/name:os.system x\n", "matrix-scalar-tag", "farm.yaml:9: tuning "),
    "unknown key": (SUBJECT + "provider: {}\n", "subject-unknown-key", "farm.yaml:9: provider ", '"providers"'),
    "no version": (swap("farm: 1\n", ""), "subject-no-farm", "farm.yaml:1: ", "farm: 1"),
    "no name": (swap("subject: mylib\n", ""), "subject-no-subject", "farm.yaml:1: "),
    "no providers": ("farm: 1\nsubject: a\n" + OVERLAY, "subject-no-providers", "farm.yaml:1: "),
    "other version": (swap("farm: 1", "farm: 2"), "subject-version", "farm.yaml:1: farm ", "is 2", "farm: 1"),
    "version true": (swap("farm: 1", "farm: true"), "subject-version", "farm.yaml:1: farm "),
    "name with a space": (
        swap("subject: mylib", "subject: my lib"),
        "subject-name",
        "farm.yaml:2: subject ",
        '"my lib"',
    ),
    "name a number": (swap("subject: mylib", "subject: 3"), "matrix-not-text", "farm.yaml:2: subject "),
    "no source": (swap(OVERLAY + "\n", ""), "subject-no-source", "farm.yaml:1: ", "overlay:"),
    "two sources": (SUBJECT + "release: a==1\n", "subject-two-sources", "farm.yaml:9: release ", "overlay"),
    "overlay key": (swap("path: src", "pth: src"), "subject-overlay-key", "farm.yaml:3: overlay.pth ", '"path"'),
    "overlay text": (swap(OVERLAY, "overlay: src"), "matrix-wrong-kind", "farm.yaml:3: overlay ", "mapping"),
    "no path": (swap("path: src, ", ""), "subject-no-path", "farm.yaml:3: overlay "),
    "no modules": (swap(", modules: [mylib]", ""), "subject-no-modules", "farm.yaml:3: overlay "),
    "path outside": (swap("path: src", "path: ../src"), "subject-path-outside", "farm.yaml:3: overlay.path ", "../src"),
    "path absolute": (swap("path: src", "path: /src"), "subject-path-outside", "farm.yaml:3: overlay.path "),
    "over what": (swap("path: src", "over: instaled"), "subject-over", "farm.yaml:3: overlay.over ", "over: installed"),
    "module a path": (
        swap("[mylib]", "[mylib.ops]"),
        "subject-module",
        "farm.yaml:3: overlay.modules[0] ",
        "top-level",
    ),
    "module reserved": (
        swap("[mylib]", "[torch]"),
        "subject-module-reserved",
        "farm.yaml:3: overlay.modules[0] ",
        "torch",
    ),
    "module of Python": (swap("[mylib]", "[json]"), "subject-module-reserved", "farm.yaml:3: overlay.modules[0] "),
    "module twice": (swap("[mylib]", "[mylib, mylib]"), "matrix-value-twice", "farm.yaml:3: overlay.modules[1] "),
    "build key": (swap(OVERLAY, "build: {comand: x}"), "subject-build-key", "farm.yaml:3: build.comand ", '"command"'),
    "build gives nothing": (swap(OVERLAY, "build: {command: x}"), "subject-build-no-gives", "farm.yaml:3: build "),
    "build time": (
        swap(OVERLAY, "build: {command: x, gives: d, minutes: 1e6}"),
        "subject-build-minutes",
        "farm.yaml:3: build.minutes ",
    ),
    "build over installed": (
        swap(OVERLAY, "overlay: {over: installed, modules: [a]}\nbuild: {command: x, gives: d}"),
        "subject-build-over-installed",
        "farm.yaml:3: overlay ",
    ),
    "release": (swap(OVERLAY, "release: liger-kernel"), "subject-release", "farm.yaml:3: release ", "name==version"),
    "release an option": (swap(OVERLAY, 'release: "--index==x"'), "subject-release", "farm.yaml:3: release "),
    "provider's name": (swap("  liger:", '  "li ger":'), "subject-provider-name", "farm.yaml:5: providers.li ger "),
    "provider farm": (swap("  liger:", "  farm:"), "subject-provider-farm", "farm.yaml:5: providers.farm "),
    "provider's key": (provider("rol: peer"), "subject-provider-key", "farm.yaml:8: providers.liger.rol ", '"role"'),
    "role": (provider("role: pear"), "subject-role", "farm.yaml:8: providers.liger.role ", '"peer"'),
    "no ops": (swap("ops:\n      rms_norm: " + ENTRY, "role: peer"), "subject-provider-no-ops", "farm.yaml:6: "),
    "unknown op": (swap("      rms_norm:", "      rms_nrm:"), "subject-unknown-op", "farm.yaml:7: ", '"rms_norm"'),
    "no call": (entry("{modes: [auto]}"), "subject-op-no-call", "farm.yaml:7: providers.liger.ops.rms_norm "),
    "call no path": (entry("{call: my_adapters}"), "subject-path", "farm.yaml:7: ", "module:function"),
    "op's key": (entry('{call: "a:b", mode: [x]}'), "subject-op-key", "farm.yaml:7: ", '"modes"'),
    "modes a word": (entry('{call: "a:b", modes: fast}'), "subject-modes", "farm.yaml:7: ", "list of modes"),
    "modes twice": (entry('{call: "a:b", modes: [x, x]}'), "matrix-value-twice", "farm.yaml:7: "),
    "mode with a slash": (entry('{call: "a:b", modes: [x/y]}'), "subject-mode", "farm.yaml:7: ", '"x/y"'),
    "backward": (entry('{call: "a:b", backward: autogrd}'), "subject-backward", "farm.yaml:7: ", "autograd"),
    "declares": (
        swap("rms_norm: " + ENTRY, 'fused_add_rms_norm: {call: "a:b", declares: {smu: unrounded}}'),
        "subject-declares",
        "farm.yaml:7: ",
        '"sum"',
    ),
    "declares what": (
        swap("rms_norm: " + ENTRY, 'fused_add_rms_norm: {call: "a:b", declares: {sum: unronded}}'),
        "matrix-parameter-value",
        "farm.yaml:7: ",
        '"unrounded"',
    ),
    "declares none": (
        entry('{call: "a:b", declares: {sum: rounded}}'),
        "subject-declares",
        "farm.yaml:7: ",
        "has none",
    ),
    "backend": (provider("backends: {cude: {}}"), "subject-unknown-backend", "farm.yaml:8: ", '"cuda"'),
    "backend's key": (on_cuda("{variabels: {}}"), "subject-backend-key", "farm.yaml:8: ", '"variables"'),
    "backend's op": (on_cuda("{ops: {rms_nor: {}}}"), "subject-backend-op", "farm.yaml:8: ", '"rms_norm"'),
    "backend's mode": (on_cuda("{ops: {rms_norm: {mode: [a]}}}"), "subject-backend-op-key", "farm.yaml:8: ", '"modes"'),
    "backend's modes": (on_cuda('{ops: {rms_norm: {modes: "a:b"}}}'), "subject-modes", "farm.yaml:8: ", "write a list"),
    "variable PATH": (on_cuda('{variables: {PATH: "/x"}}'), "subject-variable-forbidden", "farm.yaml:8: ", "node's"),
    "variable mask": (on_cuda("{variables: {CUDA_VISIBLE_DEVICES: 0}}"), "subject-variable-forbidden", "farm.yaml:8: "),
    "variable of Python": (on_cuda("{variables: {PYTHONPATH: a}}"), "subject-variable-forbidden", "farm.yaml:8: "),
    "variable's name": (on_cuda('{variables: {"A B": a}}'), "subject-variable-name", "farm.yaml:8: "),
    "variable a list": (on_cuda("{variables: {A: [1]}}"), "subject-variable-value", "farm.yaml:8: ", "a list"),
    "variable twice": (
        on_cuda("{variables: {A: 1}}").replace(
            "matrices:", "  other: {ops: {rms_norm: " + ENTRY + "}, backends: {cuda: {variables: {A: 2}}}}\nmatrices:"
        ),
        "subject-variable-twice",
        "farm.yaml:9: ",
        "liger",
    ),
    "matrix missing": (
        swap("bench/norm.yaml", "bench/nrm.yaml"),
        "subject-file-missing",
        "farm.yaml:8: ",
        '"norm.yaml"',
    ),
    "contracts missing": (
        SUBJECT + "contracts: [bench/contract]\n",
        "subject-file-missing",
        "farm.yaml:9: ",
        '"contracts"',
    ),
    "selection": (SUBJECT + "selection: {kernel: all}\n", "subject-selection-key", "farm.yaml:9: ", '"kernels"'),
    "selection kernels": (
        SUBJECT + "selection: {kernels: cache_keys}\n",
        "subject-selection-kernels",
        "farm.yaml:9: ",
        '"cache_key"',
    ),
    "sentinel": (SUBJECT + "selection: {sentinel: -1}\n", "matrix-out-of-range", "farm.yaml:9: "),
    "tuning": (SUBJECT + "tuning: {triton: frezee}\n", "subject-tuning", "farm.yaml:9: ", '"freeze"'),
    "tuning's key": (SUBJECT + "tuning: {tritn: freeze}\n", "subject-tuning-key", "farm.yaml:9: ", '"triton"'),
}
#: The same of what it names in files: known once the subject is packed.
ABSENT: dict[str, tuple[str, ...]] = {
    "adapter's module": (
        entry('{call: "my_adapter:rms_norm"}'),
        "subject-adapter-module",
        "farm.yaml:7: ",
        '"my_adapters"',
    ),
    "adapter's function": (
        entry('{call: "my_adapters:rms_nrm"}'),
        "subject-adapter-function",
        "farm.yaml:7: ",
        '"rms_norm"',
    ),
    "own module": (
        entry('{call: "mylib.ops.nrom:norm"}'),
        "subject-adapter-module",
        "farm.yaml:7: ",
        '"mylib.ops.norm"',
    ),
    "own function": (entry('{call: "mylib.ops.norm:nrom"}'), "subject-adapter-function", "farm.yaml:7: ", '"norm"'),
    "adapter before torch": (entry('{call: "torch:rms_norm"}'), "subject-adapter-reserved", "farm.yaml:7: "),
    "backward's function": (
        entry('{call: "my_adapters:rms_norm", backward: "my_adapters:backwards"}'),
        "subject-adapter-function",
        "farm.yaml:7: ",
        '"backward"',
    ),
    "overlay's folder": (swap("path: src", "path: source"), "subject-overlay-folder", "farm.yaml:3: "),
    "overlay's module": (swap("[mylib]", "[mylob]"), "subject-overlay-module", "farm.yaml:3: ", '"mylib"'),
    "modes' function": (
        entry('{call: "my_adapters:with_modes", modes: "my_adapters:mods"}'),
        "subject-adapter-function",
        "farm.yaml:7: ",
        '"modes"',
    ),
}


def reader() -> SubjectReader:
    return SubjectReader(discovery.known_ops(), discovery.find, backends.known())


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{**dict.fromkeys(command_line.OPTIONS), **given})


def judged(error: FarmError, folder: Path, id: str, place: str, *facts: str) -> None:
    message = str(error).replace(f"{folder}/", "")
    assert error.exit_code == 2 and "\n" not in message
    assert error.id == id and message.startswith(place), message
    assert [fact for fact in facts if fact not in message] == [], message


@pytest.mark.parametrize("name", WRONG)
def test_a_malformed_file_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    text, id, place, *facts = WRONG[name]
    write(tmp_path, farm_yaml=text)
    with pytest.raises(FarmError) as caught:
        reader().file(tmp_path / "farm.yaml")
    judged(caught.value, tmp_path, id, place, *facts)


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_there_is_refused_before_anything_runs(name: str, tmp_path: Path) -> None:
    text, id, place, *facts = ABSENT[name]
    write(tmp_path, farm_yaml=text)
    with pytest.raises(FarmError) as caught:
        command_line.load(options(repo=str(tmp_path)))
    judged(caught.value, tmp_path, id, place, *facts)


def test_the_file_of_these_tests_is_right_and_says_what_it_says(tmp_path: Path) -> None:
    found = reader().file(write(tmp_path) / "farm.yaml")
    assert (found.name, found.source.path, found.source.modules) == ("mylib", "src", ("mylib",))
    assert found.providers["liger"].role == "subject" and found.matrices == (str(tmp_path / "bench/norm.yaml"),)


WHOLE = """farm: 1
subject: everything
overlay: {path: src, modules: [mylib]}
build: {command: "make", inputs: [src], gives: "dist/*.whl", minutes: 3, modules: [mylib]}
providers:
  mine:
    role: peer
    ops:
      rms_norm: {call: "my_adapters:rms_norm", modes: "my_adapters:modes", backward: "my_adapters:backward"}
      fused_add_rms_norm: {call: "my_adapters:fused", declares: {sum: unrounded}, modes: [auto, b]}
      own_op: "my_adapters:own"
    backends:
      cuda: {ops: {rms_norm: {call: "a:b", backward: autograd, modes: [b]}}, variables: {A: 1, B: true, C: text}}
contracts: [bench/contracts]
matrices: [bench/norm.yaml]
selection: {kernels: cache_key, sentinel: 12}
tuning: {triton: freeze}
"""


def test_the_schema_accepts_what_the_reader_accepts(tmp_path: Path) -> None:
    found = reader().file(write(tmp_path, farm_yaml=WHOLE) / "farm.yaml")
    assert found.variables("cuda") == {"A": "1", "B": "true", "C": "text"}
    published = schema.json_schema(discovery.known_ops(), backends.known())
    jsonschema.Draft202012Validator.check_schema(published)
    check = jsonschema.Draft202012Validator(json.loads(json.dumps(published)))
    for text in (WHOLE, SUBJECT, SUBJECT.replace(OVERLAY, "release: a==1")):
        assert [e.message for e in check.iter_errors(yaml.safe_load(text))] == []


ODD = (
    "null",
    "[]",
    "{}",
    "true",
    "-1",
    "1e400",
    '""',
    "a:b",
    "[[a]]",
    "{a: {b: c}}",
    "*x",
    "!!set {a}",
    "\u00e9",
    "../x",
)


@pytest.mark.parametrize("batch", range(10))
def test_no_change_of_a_file_is_read_as_anything_but_a_subject_or_a_refusal(batch: int, tmp_path: Path) -> None:
    folder = write(tmp_path)
    published = jsonschema.Draft202012Validator(schema.json_schema(discovery.known_ops(), backends.known()))
    for seed in range(40):
        dice = random.Random(40 * batch + seed)
        text = dice.choice([WHOLE, SUBJECT])
        for _ in range(dice.randint(1, 3)):
            text = changed(text, dice)
        try:
            found = reader().text(text, "farm.yaml", folder)
        except FarmError as error:
            assert error.exit_code == 2 and error.id and str(error).startswith("farm.yaml"), text
            assert "\n" not in str(error), text
        else:
            assert found.providers and all(e.call for _, _, e in found.entries()), text
            assert [e.message for e in published.iter_errors(parse(text, "")[0].plain())] == [], text


def changed(text: str, dice: random.Random) -> str:
    """The text without some of it, with something odd in it, with another value for a key, or with a line twice."""
    at, kind = dice.randrange(len(text)), dice.randrange(4)
    values = list(re.finditer(r"(?<=: )[^,{}\n]+", text))
    if kind == 0:
        return text[:at] + text[at + dice.randint(1, 12) :] or "x"
    if kind == 1 and values:
        found = dice.choice(values)
        return text[: found.start()] + dice.choice(ODD) + text[found.end() :]
    if kind == 2:
        lines = text.splitlines(keepends=True)
        lines.insert(dice.randrange(len(lines)), dice.choice(lines))
        return "".join(lines)
    return text[:at] + dice.choice(ODD) + text[at:]


@pytest.mark.parametrize(
    "name", ["unknown key", "no modules", "unknown op", "role", "backend", "tuning", "call no path"]
)
def test_the_schema_sees_what_an_editor_should_show(name: str) -> None:
    published = schema.json_schema(discovery.known_ops(), backends.known())
    errors = list(jsonschema.Draft202012Validator(published).iter_errors(yaml.safe_load(WRONG[name][0])))
    assert bool(errors) != (name == "unknown op")  # a folder of contracts may have it
