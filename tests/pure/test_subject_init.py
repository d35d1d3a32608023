"""`farm init`: what it finds by looking around, what it writes, and that what it wrote is read again."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.contracts import discovery
from farm.subject import command_line, survey

NORMS = """import triton
import torch

@triton.jit
def rms_norm_kernel(x, y): ...

def torch_rms_norm(x, weight, eps): ...

def rms_norm(hidden_states, gamma, epsilon=1e-6, *, flavour="plain"):
    y = hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + epsilon)
    return y * gamma

class FastAddRMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, R, W, eps, offset=0.0, row_mode=None):
        return X
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rms_norm", ("rms_norm", 0)),
        ("rmsnorm", ("rms_norm", 0)),
        ("liger_rms_norm", ("rms_norm", 1)),
        ("LigerRMSNormFunction", ("rms_norm", 1)),
        ("rms_norm_fwd", ("rms_norm", 0)),
        ("LigerFusedAddRMSNormFunction", ("fused_add_rms_norm", 1)),
        ("add_rms_norm", ("fused_add_rms_norm", 0)),
        ("tuned_gemm", ("matmul", 1)),
        ("torch_rms_norm", ("", 0)),
        ("rms_norm_ref", ("", 0)),
        ("rms_norm_backward", ("", 0)),
        ("_rms_norm", ("", 0)),
        ("layer_norm", ("layer_norm", 0)),
        ("group_norm", ("", 0)),
        ("test_rms_norm", ("", 0)),
    ],
)
def test_a_name_means_an_op(name: str, expected: tuple[str, int]) -> None:
    assert survey._op_of(name, discovery.known_ops()) == expected


def test_what_is_called_takes_the_contracts_inputs_by_their_usual_names() -> None:
    found = {c.name: c for c in survey.candidates({"pack.norms": NORMS}, discovery.known_ops())}
    assert set(found) == {"rms_norm", "FastAddRMSNormFunction"}
    call = survey.call_of(found["rms_norm"], ["x", "weight"], ["eps"], {"offset": 0.0})
    assert isinstance(call, survey.Call)
    assert call.given == (("hidden_states", "x"), ("gamma", "weight"), ("epsilon", "eps")) and call.keywords == ()
    applied = survey.call_of(found["FastAddRMSNormFunction"], ["x", "residual", "weight"], ["eps"], {"offset": 0.0})
    assert isinstance(applied, survey.Call)
    assert [value for _, value in applied.given] == ["x", "residual", "weight", "eps", "offset", "None"]
    (odd,) = survey.candidates({"pack.mm_int8": "def matmul(a, b): ..."}, discovery.known_ops())
    assert survey.call_of(odd, ["a", "b"], [], {}) == "is int8 by its name, so another op"
    assert survey.call_of(found["rms_norm"], ["x", "bias"], ["eps"], {}) == "needs gamma, which the farm does not know"


@pytest.mark.parametrize(
    ("files", "path", "modules"),
    [
        (["src/a/__init__.py", "b/__init__.py"], "src", ("a",)),
        (["a/__init__.py", "tests/__init__.py", "docs/conf.py"], ".", ("a",)),
        (["ops.py", "setup.py", "conftest.py"], ".", ("ops",)),
        (["README.md"], ".", ()),
    ],
)
def test_a_layout_is_found(files: list[str], path: str, modules: tuple[str, ...], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = survey.layout(tmp_path)
    assert (found.path, found.modules) == (path, modules)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "fast.norms"
    (folder / "src/pack").mkdir(parents=True)
    (folder / "src/pack/__init__.py").write_text("import what_is_not_there\n")
    light = NORMS.replace(
        "import triton\nimport torch\n", "class torch:\n    class autograd:\n        class Function: ...\n"
    )
    (folder / "src/pack/norms.py").write_text(light.replace("@triton.jit\n", ""))
    return folder


def test_what_it_writes_is_a_subject_that_loads(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert main(["init", str(repository)]) == 0
    said = capsys.readouterr()
    assert not [*repository.rglob("__pycache__")], "it writes only what it reports"
    assert "rms_norm: pack.norms.rms_norm" in said.out and f"next: farm run --repo {repository}" in said.out
    assert main(["plan", "--repo", str(repository), "--backend", "cpu"]) == 0
    planned = capsys.readouterr()
    assert "cpu/rms_norm/fast_norms/auto/backward/bf16/37x1000/llama" in planned.out
    assert "cpu/fused_add_rms_norm/fast_norms/auto/forward/fp32/1x128/llama" in planned.out
    assert "subject: fast.norms" in planned.err
    adapters = (repository / "farm_adapters.py").read_text()
    assert "bare(" in adapters and "importlib" not in adapters  # its package's __init__ cannot be run
    names = {n.name: [a.arg for a in n.args.args] for n in ast.parse(adapters).body if isinstance(n, ast.FunctionDef)}
    assert names["rms_norm"] == ["x", "weight", "eps"]


def test_it_overwrites_nothing(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "farm_adapters.py").write_text("mine = 1\n")
    assert main(["init", str(repository)]) == 2
    assert "[init-exists]" in capsys.readouterr().err
    assert not (repository / "farm.yaml").exists() and (repository / "farm_adapters.py").read_text() == "mine = 1\n"


def test_where_nothing_is_found_it_says_what_was_left_out(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "src/pack/norms.py").write_text("def rms_norm(x, table, weight, eps): ...\n")
    assert main(["init", str(repository)]) == 2
    told = capsys.readouterr().err
    assert "[init-nothing-found]" in told and "pack.norms.rms_norm needs table" in told
    (repository / "src/pack/norms.py").write_text("import no_such_module\ndef rms_norm(x, weight, eps): ...\n")
    assert main(["init", str(repository)]) == 2
    assert "no_such_module" in capsys.readouterr().err
    assert main(["init", str(repository / "nowhere")]) == 2


def test_an_adapter_for_an_autograd_function_calls_apply(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(repository)]) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "path", [str(repository), str(repository / "src"), *sys.path])
    adapters = importlib.import_module("farm_adapters")
    try:
        function = sys.modules["pack.norms"] if "pack.norms" in sys.modules else adapters.bare("pack.norms")
        seen: list[object] = []
        function.FastAddRMSNormFunction.apply = lambda *given: seen.append(given)  # type: ignore[attr-defined]
        adapters.fused_add_rms_norm("x", "r", "w", 1e-6, offset=1.0)
        assert seen == [("x", "r", "w", 1e-6, 1.0, None)]
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] in ("pack", "farm_adapters")]:
            del sys.modules[name]


def test_ops_of_ones_own_are_found_by_their_contracts(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "src/pack/norms.py").write_text("def damp(x, factor=2.0): ...\n")
    (repository / "own/damp").mkdir(parents=True)
    (repository / "own/damp/contract.py").write_text(
        "from farm.contracts import from_torch\n\n\ndef damp(x, factor=2.0):\n    return x / factor\n\n\n"
        "CONTRACT = from_torch(damp, inputs={'x': 'rows columns'}, outputs={'y': 'rows columns'}, rows='rows')\n"
    )
    try:
        assert main(["init", str(repository)]) == 2
        assert "farm init --contracts DIR" in capsys.readouterr().err
        assert main(["init", str(repository), "--contracts", str(repository.parent)]) == 2
        assert main(["init", str(repository / "src"), "--contracts", str(repository / "own")]) == 2
        assert "[init-contracts-outside]" in capsys.readouterr().err
        assert main(["init", str(repository), "--contracts", str(repository / "own")]) == 0
        assert "damp: pack.norms.damp" in capsys.readouterr().out
        assert 'contracts: ["own"]' in (repository / "farm.yaml").read_text()
        assert main(["plan", "--repo", str(repository), "--backend", "cpu"]) == 0
        assert "cpu/damp/fast_norms/auto/backward/bf16/37x1000" in capsys.readouterr().out
        # commands that read no subject know the op in its repository, too
        discovery.forget()
        monkeypatch.setattr("farm.subject.repository.top", lambda folder: repository)
        command_line.know(["rms_norm"])
        assert "damp" not in discovery.known_ops(), "the file is read only where an op is unknown"
        command_line.know(["damp"])
        assert "damp" in discovery.known_ops()
        command_line.know(["dampen"], [repository / "own"])  # which are added already: no clash
        file = repository / "farm.yaml"
        file.write_text(file.read_text().replace('contracts: ["own"]\n', ""))
        assert main(["plan", "--repo", str(repository)]) == 2
        assert "as contracts: [DIR]" in capsys.readouterr().err
        assert main(["plan", "--repo", f"file://{repository}-of-others"]) == 2  # what git says, not its advice
        assert "does not appear to be a git repository" in capsys.readouterr().err
    finally:
        discovery.forget()
