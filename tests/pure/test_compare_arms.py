"""What --a and --b say: parsed, refused in one sentence, compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.compare.arms import Arm, differences, pair, parse_arm, planned_arm
from farm.errors import UsageError
from farm.subject.read import NODES


def parse(text: str, name: str = "a") -> Arm:
    return parse_arm(text, name, refused=NODES)


def test_an_arm_is_what_was_said_of_it() -> None:
    arm = parse("revision=main,patch=x.diff,environment=triton35,provider=liger,mode=auto,env.TRITON_X=1,env.B=a,b,c")
    assert (arm.kind, arm.source, arm.patch) == ("revision", "main", "x.diff")
    assert (arm.environment, arm.provider, arm.mode) == ("triton35", "liger", "auto")
    assert arm.variables == {"TRITON_X": "1", "B": "a,b,c"}
    assert arm.called == "main with x.diff in triton35 provider liger mode auto TRITON_X=1 B=a,b,c"
    assert parse("revision=.").called == "working tree" and parse("version=my-kernels==1.2").source == "my-kernels==1.2"


def test_an_arm_survives_json() -> None:
    both = "revision=main,patch=x,environment=e,env.B=a,b"
    for text in ("revision=main,env.X=1", "mode=auto", "tuning=each", "wheel=a/b.whl", both):
        arm = parse(text)
        kept = json.loads(json.dumps({**arm.plain(), "called": arm.called, "digest": "d", "revision": "r"}))
        assert Arm.of(kept) == arm and planned_arm(kept, "a", refused=NODES) == arm and arm.text == text


@pytest.mark.parametrize(
    ("plain", "id"),
    [
        ({"variables": {"LD_PRELOAD": "x"}}, "arm-variable-refused"),
        ({"kind": "wheels", "source": "x"}, "arm-planned"),
        ({"kind": "revision", "source": "--output=/x"}, "arm-revision"),
        ({"mode": "a\0b"}, "arm-planned"),
        ({"environment": "../x"}, "arm-name"),
    ],
)
def test_an_arm_of_a_file_is_checked_as_one_of_a_command_line(plain: dict[str, Any], id: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned_arm(plain, "a", refused=NODES)
    assert refused.value.id == id


@pytest.mark.parametrize(
    ("text", "id", "said"),
    [
        ("", "arm-malformed", "KEY=VALUE"),
        ("main", "arm-malformed", "--a revision=main"),
        ("revision=", "arm-malformed", '"revision="'),
        ("revison=main", "arm-key-unknown", 'did you mean "revision"?'),
        ("zzz=1", "arm-key-unknown", "available: revision, version"),
        ("revision=a,revision=b", "arm-key-twice", "twice"),
        ("revision=a,version=b==1", "arm-two-sources", "keep one"),
        ("wheel=a.whl,patch=x", "arm-patch-without-revision", "not to a wheel"),
        ("version=liger-kernel", "arm-version", "NAME==VERSION"),
        ("version=liger-kernel=0.8.5", "arm-version", "did you mean liger-kernel==0.8.5?"),
        ("version=-r,mode=auto", "arm-version", "NAME==VERSION"),
        ("revision=--output=/x", "arm-revision", "cannot be the name"),
        ("revision=a\nb", "arm-revision", "cannot be the name"),
        ("revision=a\0b", "arm-value", "NUL"),
        ("mode=../x", "arm-name", "is no name"),
        ("tuning=freze", "arm-tuning", 'did you mean "freeze"?'),
        ("environment=-x", "arm-name", "is no name"),
        ("env.=1", "arm-variable-name", "env.NAME=VALUE"),
        ("env.1A=1", "arm-variable-name", "no name of a variable"),
        *((f"env.{n}=1", "arm-variable-refused", n) for n in ("PATH", "path", "LD_PRELOAD", "PYTHONPATH", "HOME")),
        *(
            (f"env.{n}=1", "arm-variable-refused", n)
            for n in ("FARM_CACHE", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES")
        ),
    ],
)
def test_what_is_no_arm_is_refused_in_one_sentence(text: str, id: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.id == id and said in str(caught.value) and "\n" not in str(caught.value).replace("a\nb", "")


def test_a_patch_alone_is_what_if() -> None:
    a, b = pair("revision=main", "patch=x.diff", refused=NODES)
    assert (b.kind, b.source, b.patch) == ("revision", "main", "x.diff")
    assert differences(a, b) == {"files": ("revision=main", "revision=main +x.diff")}
    with pytest.raises(UsageError) as caught:
        pair("version=k==1", "patch=x.diff", refused=NODES)
    assert caught.value.id == "arm-patch-without-revision"


def test_one_arm_without_files_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        pair("revision=main", "mode=auto", refused=NODES)
    assert caught.value.id == "arm-no-source" and "add revision=main or revision=." in str(caught.value)


def test_the_same_arm_twice_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        pair("mode=auto", "mode=auto", refused=NODES)
    assert caught.value.id == "arm-no-difference"


def test_what_differs_is_named() -> None:
    a, b = pair("revision=main,env.X=1,mode=m", "revision=.,env.Y=2,environment=e", refused=NODES)
    assert differences(a, b) == {
        "files": ("revision=main", "revision=."),
        "environment": ("", "e"),
        "mode": ("m", ""),
        "env.X": ("1", ""),
        "env.Y": ("", "2"),
    }
