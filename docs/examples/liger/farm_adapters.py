"""From the farm's calls to Liger-Kernel's: inputs in the contract's order, then eps, then keywords that differ.

They fit the versions from 0.3.0 to 0.8.5, so that one description serves all.  The modules are loaded bare: the
package's own `__init__` imports every op and every backend that it has.

Where Liger writes gradients into its inputs (swiglu, geglu, rope, cross_entropy), it gets a copy: the farm's contracts
give up no input, and a copy is what whoever needs the input afterwards has to make.
"""

import importlib
import inspect
import types

from farm.subject import bare

MOST_COLUMNS = 65536  # a row is one block


def rms_norm(x, weight, eps, *, offset=0.0, casting="llama", in_place=False):
    """x: [rows, hidden]; weight: [hidden] or None.  Returns [rows, hidden].

    Liger's own default is in_place=True: its backward then writes dx into the upstream gradient's memory.  Before 0.4.1
    there was nothing else.
    """
    _refuse(x)
    _count_cores()
    importlib.import_module("torch.distributed.tensor")  # 0.7.0 asks whether x is a DTensor, and does not import it

    function = bare("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    given = [in_place] if "in_place" in _parameters(function) else []
    return function.apply(x, weight, eps, offset, casting, *given)


def fused_add_rms_norm(x, residual, weight, eps, *, offset=0.0, casting="llama"):
    """x, residual: [rows, hidden]; weight: [hidden].  Returns the norm of the sum, and the sum."""
    _refuse(x)
    if weight is None:
        raise NotImplementedError("Liger's fused add-and-norm always has a weight")
    function = bare("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction
    return function.apply(x, residual, weight, eps, offset, casting, False)


def layer_norm(x, weight, bias, eps):
    """x: [rows, hidden]; weight, bias: [hidden].  Returns [rows, hidden]."""
    _refuse(x)
    _count_cores()
    return bare("liger_kernel.ops.layer_norm").LigerLayerNormFunction.apply(x, weight, bias, eps)


def group_norm(x, weight, bias, *, groups=2, eps=1e-5):
    """x: [batch, channels, length].  Returns the same shape."""
    function = bare("liger_kernel.ops.group_norm").LigerGroupNormFunction
    return function.apply(x, weight, bias, x.shape[1], groups, eps)


def poly_norm(x, weight, bias, *, eps=1e-6):
    """x: [rows, hidden]; weight: [3]; bias: [1], a number to Liger.  Returns [rows, hidden]."""
    _refuse(x)
    return bare("liger_kernel.ops.poly_norm").LigerPolyNormFunction.apply(x, weight, bias.reshape(()), eps, False)


def dyt(x, alpha, gamma, beta):
    """x: [rows, hidden]; alpha: [1]; gamma, beta: [hidden].  Returns [rows, hidden].

    Liger asks its device for the number of cores and has no answer for a CPU, so it is told that of another.
    """
    module = bare("liger_kernel.ops.dyt")
    if x.device.type == "cpu":
        module.infer_device = lambda: "npu"
        module.get_npu_core_count = lambda default=4: default
    return module.LigerDyTFunction.apply(x, alpha, gamma, beta)


def softmax(x):
    """x: [rows, columns].  Returns the same shape."""
    return bare("liger_kernel.ops.softmax").LigerSoftmaxFunction.apply(x)


def sparsemax(x):
    """x: [rows, columns].  Returns the same shape."""
    return bare("liger_kernel.ops.sparsemax").LigerSparsemaxFunction.apply(x, -1)


def swiglu(gate, up):
    """gate, up: [rows, hidden].  Returns the same shape; backward writes into the copies."""
    return bare("liger_kernel.ops.swiglu").LigerSiLUMulFunction.apply(gate.clone(), up.clone())


def geglu(gate, up):
    """gate, up: [rows, hidden].  Returns the same shape; backward writes into the copies."""
    return bare("liger_kernel.ops.geglu").LigerGELUMulFunction.apply(gate.clone(), up.clone())


def relu_squared(x):
    """x: [rows, hidden].  Returns the same shape."""
    return bare("liger_kernel.ops.relu_squared").LigerReLUSquaredFunction.apply(x)


def rope(x, cos, sin):
    """x: [batch, heads, positions, width]; cos, sin: [positions, width / 2].  Returns the same shape as x.

    Liger rotates queries and keys at once, and takes cos and sin twice as wide.
    """
    return _rotated(x, x[:, :1], _twice(cos.unsqueeze(0)), _twice(sin.unsqueeze(0)))[0]


def rope_of_batch(q, k, cos, sin):
    """q, k: [batch, heads, positions, width]; cos, sin: [batch, positions, width / 2].  Returns both, rotated."""
    return _rotated(q, k, _twice(cos), _twice(sin))


def qwen2vl_mrope(q, k, cos, sin, *, first=4, second=6):
    """q, k as above; cos, sin: [3, batch, positions, width / 2].  Returns both, rotated."""
    function = bare("liger_kernel.ops.qwen2vl_mrope").LigerQwen2VLMRopeFunction
    sections = [first, second, cos.shape[-1] - first - second]
    return function.apply(*_positions_first(q, k), _twice(cos), _twice(sin), sections)


def attn_res(blocks, query, weight, *, eps=1e-6):
    """blocks: [depth, rows, hidden]; query, weight: [hidden].  Returns [rows, hidden]."""
    return bare("liger_kernel.ops.attn_res").LigerAttnResFunction.apply(blocks, query, weight, eps)


def cross_entropy(x, target, *, ignore=-100, smoothing=0.0):
    """x: [rows, classes]; target: [rows].  Returns each row's loss."""
    return _cross_entropy(x, target, "none", ignore=ignore, smoothing=smoothing)


def cross_entropy_mean(x, target, *, softcap=0.0, smoothing=0.0):
    """x: [rows, classes]; target: [rows].  Returns the mean loss, [1]."""
    return _cross_entropy(x, target, "mean", smoothing=smoothing, softcap=softcap or None).reshape(1)


def fused_linear_cross_entropy(x, weight, bias, target):
    """x: [rows, hidden]; weight: [classes, hidden]; bias: [classes].  Returns the mean loss, [1] float32."""
    return _linear_cross_entropy(x, weight, target, bias=bias, reduction="mean").reshape(1)


def fused_linear_cross_entropy_rows(x, weight, target):
    """The same without bias; returns each row's loss, float32."""
    return _linear_cross_entropy(x, weight, target, reduction="none")


def kl_div(x, target):
    """x: log-probabilities, softmax of target: the distribution.  Returns the loss divided by the rows, [1]."""
    function = bare("liger_kernel.ops.kl_div").LigerKLDivLossFunction
    return function.apply(x, target.softmax(-1), "batchmean", False).reshape(1).to(x.dtype)


def jsd(x, target, *, beta=0.5, tail=0):
    """x, target: log-probabilities, the last `tail` smaller by 200.  Returns the loss divided by the rows, [1]."""
    function = bare("liger_kernel.ops.jsd").LigerJSDFunction
    if tail:
        import torch

        cold = 200.0 * (torch.arange(x.shape[-1], device=x.device) >= x.shape[-1] - tail)
        x, target = (x - cold).to(x.dtype), (target - cold).to(target.dtype)
    return function.apply(x, target, None, beta).reshape(1)


def fused_linear_jsd(student, student_weight, teacher, teacher_weight, label):
    """The divergence of two linear heads; rows with label 0 are ignored.  Returns the loss, [1] float32."""
    function = bare("liger_kernel.ops.fused_linear_jsd").LigerFusedLinearJSDFunction
    return function.apply(student, student_weight, teacher, teacher_weight, label, 0.5, 0, 1.0).reshape(1)


def tvd(p, q):
    """p, q: [rows, classes].  Returns half of the sum of |p - q| divided by the rows, [1] float32."""
    return bare("liger_kernel.ops.tvd").LigerTVDLossFunction.apply(p, q).reshape(1)


def _cross_entropy(x, target, reduction, **values):
    function = bare("liger_kernel.ops.cross_entropy").LigerCrossEntropyFunction
    values = {"reduction": reduction, "ignore_index": values.pop("ignore", -100), **values}
    return _first(function, (x.clone(), target), values)


def _linear_cross_entropy(x, weight, target, **values):
    module = bare("liger_kernel.ops.fused_linear_cross_entropy")
    return _first(module.LigerFusedLinearCrossEntropyFunction, (x, weight, target), values)


def _first(function, tensors, values):
    """The first result of an autograd function whose parameters, by version, stand in different places."""
    values = {("label_smoothing" if name == "smoothing" else name): value for name, value in values.items()}
    given = list(tensors)
    for name, parameter in list(_parameters(function).items())[len(tensors) + 1 :]:
        default = None if parameter.default is parameter.empty else parameter.default
        given.append(values.pop(name, default))
    missing = [name for name, value in values.items() if value]
    if missing:
        raise NotImplementedError(f"this version of Liger has no {missing[0]}")
    out = function.apply(*given)
    return out[0] if isinstance(out, tuple) else out


def _parameters(function):
    return inspect.signature(function.forward).parameters


def _rotated(q, k, cos, sin):
    function = bare("liger_kernel.ops.rope").LigerRopeFunction
    return function.apply(*_positions_first(q, k), cos, sin)


def _positions_first(*tensors):
    """Copies, for Liger to overwrite, that lie as a model's projections do: [batch, positions, heads, width]."""
    return [t.transpose(1, 2).contiguous().clone().transpose(1, 2) for t in tensors]


def _twice(angles):
    import torch

    return torch.cat((angles, angles), dim=-1)


def _count_cores():
    """Up to 0.5.2 the norms' backward asks CUDA for its cores wherever it runs; without CUDA it is told of 4."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(multi_processor_count=4)


def _refuse(x):
    if x.shape[-1] > MOST_COLUMNS:
        raise NotImplementedError(f"Liger keeps a row in one block of at most {MOST_COLUMNS} elements")
