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


def commands(workflow: Any) -> Iterator[Any]:
    """The options of its farm commands."""
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            run = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", str(step.get("run", "")))
            words = shlex.split(run, comments=True)
            words = words[: words.index("|")] if "|" in words else words
            if words[:1] == ["farm"]:
                assert "github.event" not in run  # its text would become a part of the script
                yield parser(words[1]).parse_args(words[1:])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_commands_of_a_workflow_are_the_farms(name: str) -> None:
    workflow = WORKFLOWS[name]
    found = list(commands(workflow))
    assert found
    if "GITHUB_TOKEN" in (FOLDER / name).read_text():  # what is written needs a voice
        assert "--voice" in (FOLDER / name).read_text()
    if "push" in workflow[ON]:  # whose event has no base
        assert all(args.base for args in found)
    for args in found:
        if args.command == "pr" and not (args.decide or args.publish):  # a checkout's files may be links to anywhere
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


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_job_has_a_token_and_the_pull_requests_code(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not ("actions/checkout" in text and ("github.token" in text or ": write" in text))
    assert text.count("actions/checkout") == text.count("persist-credentials: false")
