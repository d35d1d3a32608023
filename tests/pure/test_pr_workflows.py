"""The workflows that a repository copies: the farm has each command, and is told what the event does not say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from farm.cli import pr_measure
from farm.cli.main import parser
from farm.errors import UsageError

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "github"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}
ON = True  # `on` is a boolean to YAML 1.1


ACTION = yaml.safe_load((FOLDER.parents[2] / "action" / "action.yml").read_text())
VARIABLES = {"$VOICE": "block", "$HOURS": "6", "$GITHUB_RUN_ID": "7"}


def commands(workflow: Any) -> Iterator[Any]:
    """The options of its farm commands."""
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            run = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", str(step.get("run", "")))
            assert "${{" not in run  # its text would become a part of the script
            words = [VARIABLES.get(word, word) for word in shlex.split(run, comments=True)]
            if words[:1] == ["farm"]:
                yield parser(words[1]).parse_args(words[1:])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_commands_of_a_workflow_are_the_farms(name: str) -> None:
    workflow = WORKFLOWS[name]
    found = list(commands(workflow))
    assert found
    if "GITHUB_TOKEN" in (FOLDER / name).read_text() and "--sweep" not in (FOLDER / name).read_text():
        assert "--voice" in (FOLDER / name).read_text()  # what is written needs a voice
    if "push" in workflow[ON]:  # whose event has no base
        assert all(args.base for args in found)
    for args in found:
        if measures(args):  # a checkout's files may be links to anywhere
            assert all(str(path).startswith("$RUNNER_TEMP/") for path in (args.out, args.result, args.comment))
        for path in getattr(args, "publish", None) or ():  # what an untrusted job left does not lie where Python looks
            assert path.parent != Path()


def test_what_is_written_replaces_a_link_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("kept")
    (tmp_path / "result.json").symlink_to(tmp_path / "theirs")
    pr_measure.write(tmp_path / "result.json", "new")
    assert (tmp_path / "theirs").read_text() == "kept" and (tmp_path / "result.json").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UsageError):
        pr_measure.write(tmp_path / "none" / "result.json", "new")


def measures(args: Any) -> bool:
    """Whether a command runs both arms of a pull request."""
    other = ("decide", "publish", "waiting", "sweep", "remeasure")
    return args.command == "pr" and not any(getattr(args, name) for name in other)


def test_each_word_of_the_action_does_one_thing_and_only_who_writes_has_the_token() -> None:
    steps = ACTION["runs"]["steps"]
    named = re.findall(r"\w+", ACTION["inputs"]["do"]["description"].replace(" or", ""))
    assert named == ["measure", "decide", "wait", "publish", "sweep"]
    for word in named:
        own = [s for s in steps if f"inputs.do == '{word}'" in s.get("if", "")]
        (made,) = commands({"jobs": {"x": {"steps": own}}})
        writes = [s for s in own if "github.token" in str(s)]
        assert measures(made) == (word == "measure") and bool(writes) == (word != "measure")
        if word == "measure":
            assert all(str(path).startswith("$RUNNER_TEMP/") for path in (made.out, made.result, made.comment))
    assert not [s for s in steps if "github.token" in str(s) and "inputs.do" not in s.get("if", "")]
    assert all(re.search(r"@[0-9a-f]{40}$", s["uses"]) for s in steps if "uses" in s)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_short_pinned_and_may_little(name: str) -> None:
    text, workflow = (FOLDER / name).read_text(), WORKFLOWS[name]
    assert len(text.splitlines()) < 40
    for used in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used)
    assert workflow["permissions"] and "write-all" not in text
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())


def test_a_device_job_compares_with_the_base_of_its_own_pull_request() -> None:
    (step,) = [s for s in WORKFLOWS["farm-device.yml"]["jobs"]["device"]["steps"] if "env" in s]
    push, dispatch = (step["env"]["BASE"].split(word)[1] for word in ("&&", "||"))
    assert "default_branch" in push and dispatch.strip(" }") == "''"  # then the decision's base counts


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_job_has_a_token_and_the_pull_requests_code(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not ("actions/checkout" in text and ("github.token" in text or ": write" in text))
    assert text.count("actions/checkout") == text.count("persist-credentials: false")
