"""The batch script for Slurm: its text, its limits, and that a shell takes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from farm.errors import UsageError
from farm.node import slurm
from farm.node.slurm import Script, SlurmJob, script, seconds

CALL = Script(
    ["/opt/farm bin/python", "-m", "farm"],
    ["--backend", "rocm", "--label", "rack=r 7"],
    "10.0.0.1:6379",
    {"FARM_NODE": "/etc/farm/it's.yaml", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": None},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 5400), ("90:30", 5430), ("4:00:00", 14400), ("2-0", 172800), ("1-12:30", 131400), ("1-1:1:1", 90061)],
)
def test_time_limits_as_slurm_writes_them(text: str, expected: int) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "-5", "4h", "1.5", "UNLIMITED", "4:00:00\n"])
def test_other_time_limits_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        seconds(text)
    assert refused.value.id == "slurm-time" and f'"{text}"' in str(refused.value)


def directives(text: str) -> list[str]:
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    found = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(lines.index(f"#SBATCH {d}") < first_command for d in found)  # Slurm reads no further
    return found


def test_what_is_asked_of_slurm() -> None:
    job = SlurmJob("4:00:00", 600, "amd", "kernels", "gpu:8", 2, more=("--exclusive", "--qos=low"))
    found = directives(script(job, CALL))
    assert set(found) >= {
        "--time=4:00:00",
        "--signal=B:USR1@600",
        "--requeue",
        "--partition=amd",
        "--account=kernels",
        "--gres=gpu:8",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--exclusive",
        "--qos=low",
    }
    assert not any(
        d.startswith(("--partition", "--account", "--gres")) for d in directives(script(SlurmJob("60"), CALL))
    )


def test_draining_leaves_time_to_end() -> None:
    text = script(SlurmJob("4:00:00", 600), CALL)
    assert "--once --wait 450 --address 10.0.0.1:6379" in text
    for notice in (20, 30, 60, 600):
        text = script(SlurmJob("4:00:00", notice), CALL)
        longest = int(re.findall(r"timeout --kill-after=1 (\d+) ", text)[0])
        patience = int(re.findall(r"--wait (\d+) ", text)[0])
        assert 0 < patience <= longest - 5 and longest + 1 + 5 < notice  # then Ray has 5 s, and the requeue the rest
    for job in (SlurmJob("4:00:00", 19), SlurmJob("10", 301)):
        with pytest.raises(UsageError) as refused:
            script(job, CALL)
        assert refused.value.id == "slurm-notice" and f"--notice {job.notice_s}" in str(refused.value)


@pytest.mark.parametrize("option", ["exclusive", "-x", "--a b", "--x=1\n--y", "; rm -rf /"])
def test_what_is_no_option_is_refused(option: str) -> None:
    with pytest.raises(UsageError) as refused:
        script(SlurmJob("60", more=(option,)), CALL)
    assert refused.value.id == "slurm-option" and option in str(refused.value)


@pytest.mark.parametrize("option", ["--signal=B:TERM@5", "--time=99:00:00", "--requeue", "--partition=other"])
def test_what_the_script_counts_on_cannot_be_changed_behind_it(option: str) -> None:
    with pytest.raises(UsageError) as refused:
        script(SlurmJob("60", partition="amd", more=(option,)), CALL)
    assert refused.value.id == "slurm-option-reserved" and option in str(refused.value)


@pytest.mark.parametrize("word", ["amd gpu", "gpu:8\nrm -rf x"])
def test_a_value_with_spaces_is_refused(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        script(SlurmJob("60", gres=word), CALL)
    assert refused.value.id == "slurm-spaces"


def test_words_are_quoted_and_a_token_is_not_in_it() -> None:
    text = script(SlurmJob("60"), CALL)
    assert "\nfarm=('/opt/farm bin/python' -m farm)\n" in text
    assert "\"${farm[@]}\" nodes join --backend rocm --label 'rack=r 7' &" in text
    assert """export FARM_NODE='/etc/farm/it'"'"'s.yaml'""" in text
    assert "unset RAY_AUTH_TOKEN\n" in text


@pytest.mark.parametrize("checker", [("bash", "-n"), ("shellcheck", "--shell=bash")], ids=lambda c: c[0])
def test_a_shell_takes_it(checker: tuple[str, ...], tmp_path: Path) -> None:
    if not shutil.which(checker[0]):
        pytest.skip(f"needs {checker[0]}")
    file = tmp_path / "node.sh"
    file.write_text(script(SlurmJob("4:00:00", 300, "a", "b", "gpu:1", 4), CALL))
    done = subprocess.run([*checker, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def run_script(
    tmp_path: Path, join: str, kill: str = "", *, drain: str = "", requeue: int = 0, notice: int = 30, early: str = ""
) -> tuple[int, str]:
    """(exit code, what the stubs were told): the script with a `farm` that does `join` and `drain`, a signal to the
    script (`early`: that it gets before it has kept its child's id), and the exit code of `scontrol requeue`."""
    log = tmp_path / "log"
    stubs = {
        "farm": f'echo "farm $*" >> {log}\ncase "$2" in join) {join} ;; drain) {drain} ;; esac\n',
        "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
        "scontrol": f'echo "scontrol $*" >> {log}\n[[ $1 == show ]] && printf "n1\\nn2\\n"\n'
        f"[[ $1 == requeue ]] && exit {requeue}\nexit 0\n",
    }
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}")
        (tmp_path / name).chmod(0o755)
    file = tmp_path / "node.sh"
    call = Script([str(tmp_path / "farm")], ["--backend", "rocm"], "h:1", {})
    text = script(SlurmJob("60", notice, nodes=2), call)
    assert text.count("\njoined=$!\n") == 1
    file.write_text(text.replace("\njoined=$!\n", f"\n{early}\njoined=$!\n"))
    after = f"{kill} $!; " if kill else ""
    wait = "for i in $(seq 100); do grep -q 'farm nodes join' log 2>/dev/null && break; sleep 0.02; done; "
    done = subprocess.run(
        ["bash", "-c", f"touch log; bash node.sh & {wait}{after}wait $!"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_NNODES": "2",
        },
    )
    return done.returncode, log.read_text()


def test_before_the_walltime_every_node_is_drained_ended_and_the_job_requeued(tmp_path: Path) -> None:
    code, log = run_script(
        tmp_path, "trap 'echo ended >> log; exit 0' TERM; while :; do sleep 0.05; done", "kill -USR1"
    )
    assert code == 0
    assert log.splitlines() == [
        "farm nodes join --backend rocm",
        "scontrol show hostnames n[1-2]",
        "farm nodes drain n1 n2 --once --wait 17 --address h:1 --reason walltime of Slurm job 42",
        "ended",
        "scontrol requeue 42",
    ]


def test_a_node_that_cannot_join_is_not_requeued(tmp_path: Path) -> None:
    code, log = run_script(tmp_path, "exit 2")
    assert code == 2 and "requeue" not in log


def test_a_cancelled_job_ends_its_node_and_is_not_requeued(tmp_path: Path) -> None:
    code, log = run_script(
        tmp_path, "trap 'echo ended >> log; exit 0' TERM; while :; do sleep 0.05; done", "kill -TERM"
    )
    assert code == 143 and "requeue" not in log and "ended" in log


@pytest.mark.parametrize("signal, code", [("TERM", 143), ("USR1", 0)])
def test_a_signal_at_the_first_moment_ends_the_node_too(tmp_path: Path, signal: str, code: int) -> None:
    early = f"until grep -q join log; do sleep 0.02; done; kill -{signal} $$"
    assert run_script(tmp_path, STAYS, early=early)[0] == code
    assert "ended" in (tmp_path / "log").read_text()


STAYS = "trap 'echo ended >> log; exit 0' TERM; while :; do sleep 0.05; done"


def test_a_cluster_that_does_not_answer_does_not_cost_the_requeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ENDING_SECONDS", 19)  # what is left of the shortest notice is a second
    monkeypatch.setattr(slurm, "STARTING_SECONDS", 0)
    code, log = run_script(tmp_path, STAYS, "kill -USR1", drain="sleep 60", notice=20)
    assert (code, log.splitlines()[-2:]) == (0, ["ended", "scontrol requeue 42"])


def test_a_job_that_cannot_be_requeued_does_not_end_well(tmp_path: Path) -> None:
    code, log = run_script(tmp_path, STAYS, "kill -USR1", requeue=1)
    assert code == 1 and "scontrol requeue 42" in log
