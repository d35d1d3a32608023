"""How a reader repeats one cell, step by step, and where a result comes from.  Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.pr import accuracy, memory
from farm.pr import result as results
from farm.report.format import clip, count, duration, label, sig
from farm.report.markdown import code, plain

LOCAL = "local/repository"
ARTIFACT, INPUTS, FILES = "farm-result", "farm-inputs", 8
TORCH_CPU = "https://download.pytorch.org/whl/cpu"
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/#?=&%+-]*)?(?!\n)")
_TOOL = re.compile(r"(torch|triton|triton-ascend) (\d[0-9A-Za-z.]{0,30})(\+[0-9A-Za-z.]{1,30})?(?!\n)")
_A_DEVICE = {"cuda": "an NVIDIA GPU", "rocm": "an AMD GPU", "ascend": "an Ascend NPU with CANN and torch_npu"}
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Links:
    """Where things are, as the publishing job knows it; a result has no say in it.

    server: the forge's address; run: the number of the workflow run; docs: the farm's page; package: the address that
    pip installs the farm from, shown only if it is a plain one, without a login; digest: SHA-256 of the file
    result.json.  "" for what is not known.
    """

    server: str = "https://github.com"
    run: str = ""
    docs: str = ""
    package: str = ""
    digest: str = ""


def package(text: str) -> str:
    """What pip installs the farm from, as a word of a command; "" where it is no plain address."""
    plain_address, at, revision = text.removeprefix("git+").partition("@")
    known = address(plain_address) and (not at or re.fullmatch(r"[\w.-]+", revision))
    return shlex.quote(text) if known else ""


def address(text: str) -> bool:
    """Whether a text is an address that a comment may show."""
    return _URL.fullmatch(text) is not None


def one_cell(result: Json, one: Json | None, links: Links) -> list[str]:
    """The list item and the commands."""
    ask = "- **How to repeat one cell?**"
    if one is None:
        return [f"{ask} No cell was compared."]
    again = results.repeat(one["repeat"])
    if not again:
        return [f"{ask} The result has no command for it."]
    words = shlex.split(again)
    needs = [_A_DEVICE.get(one["backend"], "no GPU"), f"Python {plain(result.get('python') or '3.10 or later')}"]
    needs += ["bubblewrap for --sandbox (on a machine to be thrown away, omit --sandbox instead)"] * (
        "--sandbox" in words
    )
    return [
        f"{ask} Here {plain(one['cell'])}, on Linux with {', '.join(needs)}. {_sources(result, links)}",
        "",
        *code("\n".join([*_steps(result, links), *_install(result, links, one["backend"]), again])),
        "",
        f"Expected: {_expected(one)}. {_took(result)}",
    ]


def _sources(result: Json, links: Links) -> str:
    """What is fetched from where, in words."""
    told = []
    if not package(links.package):
        whom = f"who maintains {plain(result['repository'])}" if result["repository"] != LOCAL else "who ran this"
        told.append(
            f"The kernel farm was version {plain(result['farm'])}; this comment knows no address from which others can "
            f"install it: ask {whom}, and set FARM_PACKAGE to it (a git address, a wheel or a folder)"
        )
    files = _inputs(result)
    if files:
        names = ", ".join(f"{plain(f['path'])} (SHA-256 {f['sha256'][:12]})" for f in files[:FILES])
        more = f" and {count(len(files) - FILES)} more" if len(files) > FILES else ""
        told.append(f"Files that are not in the repository: {names}{more}, {_where_files(result, links)}")
    if result["repository"] == LOCAL:
        told.append("The repository is a local one, without a name: only who has its commits can repeat this")
    return " ".join(f"{one}." for one in told)


def _where_files(result: Json, links: Links) -> str:
    if links.run:
        return f"in {INPUTS} of the artifact {ARTIFACT} of workflow run {links.run}"
    return f"in {INPUTS} beside the result.json of run {plain(result['run'])}"


def _inputs(result: Json) -> list[Json]:
    """Files given to the job that are safe to name: relative, and inside."""
    found = result.get("inputs") or []
    return [f for f in found if re.fullmatch(r"[\w][\w./-]*", f["path"]) and ".." not in f["path"].split("/")]


def _steps(result: Json, links: Links) -> list[str]:
    """Commands that bring the commits, and the files beside them."""
    out = []
    name = result["repository"]
    if name != LOCAL:
        out += [f"git clone {links.server}/{name} repeated && cd repeated"]
    if result["number"]:
        out += [f"git fetch origin pull/{result['number']}/head"]
    if _inputs(result):
        if links.run and name != LOCAL:
            out += [f"gh run download {links.run} --repo {name} --name {ARTIFACT} --dir ../{ARTIFACT}"]
            out += [f"cp -r ../{ARTIFACT}/{INPUTS}/. ."]
        else:
            out += [f"cp -r THE_FOLDER_OF_RESULT_JSON/{INPUTS}/. ."]
    return out


def _install(result: Json, links: Links, backend: str) -> list[str]:
    """`pip install` with the versions that were used."""
    tools = _tools(result)
    # the two install the same package, and each compiles for its own devices only
    tools.pop("triton" if backend == "ascend" and "triton-ascend" in tools else "triton-ascend", None)
    onto = backend in _A_DEVICE
    pins = [f"{n}=={f[2]}{'' if onto else f[3] or ''}" for n, f in tools.items()]
    more = [f"--extra-index-url {TORCH_CPU}"] if not onto and any("+cpu" in p for p in pins) else []
    source = package(links.package) or '"${FARM_PACKAGE:?is not set}"'
    return [" ".join(["python -m pip install", source, *pins, *more])]


def _tools(result: Json) -> dict[str, re.Match[str]]:
    found = (_TOOL.fullmatch(t) for t in (result["static"] or {"tools": ()})["tools"])
    return {f[1]: f for f in found if f}


def setup(result: Json) -> list[str]:
    """What must be set up once before all of it can be repeated: the compiler for Ascend has an environment of its own,
    which `farm compile` makes."""
    targets = (result["static"] or {"targets": ()})["targets"]
    version = _tools(result).get("triton-ascend")
    if not any(t["backend"] == "ascend" and t["compiled"] for t in targets):
        return []
    return [f"farm compile --setup ascend{f'  # once; here triton-ascend was {version[2]}' if version else ''}"]


def _expected(one: Json) -> str:
    told = [f"{label(one['status_a'])} in base, {label(one['status_b'])} in head"]
    if one["evidence"] == "simulated":
        told.append("no hardware")
    elif one["same_bits"] is not None:
        told.append(f"it prints bits equal: {1 if one['same_bits'] else 0} of 1")
    if one["ratio"] and one["speed"] != "none":
        told.append(f"head takes about {sig(one['ratio'])} times base's time")
    elif one["worst_b"] is not None and one["evidence"] != "simulated":
        told.append(f"on its page the largest error is {accuracy.error(one)} of the tolerance")
    if memory.more([one]) or memory.less([one]):
        told.append(f"it prints a peak memory of {memory.peaks(one)} MiB")
    return "; ".join(told)


def _took(result: Json) -> str:
    seconds = sum(s["seconds"] for s in result["stages"])
    return (
        f"Allow two minutes for one cell, after installing; the job took {duration(seconds)} for all that it ran."
        if seconds
        else ""
    )


def where_from(result: Json, links: Links) -> list[str]:
    """One line: the farm's page, the workflow run, the raw result."""
    told = [f"about the kernel farm: {links.docs}"] if address(links.docs) else []
    run = f"{links.server}/{result['repository']}/actions/runs/{links.run}" if links.run.isdecimal() else ""
    if run and address(run):
        told.append(f"workflow run: {run}")
    digest = f" (SHA-256 {links.digest[:16]})" if links.digest else ""
    place = f"in its artifact {ARTIFACT}" if run else f"of run {plain(clip(result['run'], 120))}"
    return [f"Where this is from: {' · '.join([*told, f'raw result: result.json {place}{digest}'])}", ""]
