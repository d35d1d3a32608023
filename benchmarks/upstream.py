"""What others' norms do that the farm calls `inaccurate`, made again by hand, in torch and nothing of ours.

    python -m benchmarks.upstream

*torch*: a row with one infinite element.  By definition its root mean square is infinite, so that 1/rms is 0, every
finite element becomes 0 and the infinite one NaN (0 * inf).  How many of the row are NaN, for rows that are and are not
16-byte aligned.

*Liger, casting `none`*, in 16 bit: the result against float64, and against float64 with the reciprocal root rounded to
x's dtype, as that casting computes it; and in float16 what becomes of a row whose squares overflow there.

Exit codes: 0 told, 2 no GPU here.
"""

from __future__ import annotations

import sys
from typing import Any


def infinite_rows() -> None:
    import torch

    print("torch.nn.functional.rms_norm, a row with one inf: NaN among its elements (1 by definition)")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for hidden in (4096, 4097):
            x = torch.randn(3, hidden, device="cuda").to(dtype)
            x[1, 17] = float("inf")
            y = torch.nn.functional.rms_norm(x, (hidden,), torch.ones(hidden, device="cuda", dtype=dtype), 1e-6)
            of_cpu = torch.nn.functional.rms_norm(x.cpu(), (hidden,), torch.ones(hidden, dtype=dtype), 1e-6)
            told = f"{int(y[1].isnan().sum())} of {hidden} on the device, {int(of_cpu[1].isnan().sum())} on the CPU"
            print(f"  {str(dtype)[6:]:9} {told}")


def gain(got: Any, want: Any) -> float:
    """By how much a row is too long or too short, at worst: |<got, want> / <want, want> - 1|."""
    got, want = got.double(), want.double()
    return float(((got * want).sum(-1) / (want * want).sum(-1) - 1).abs().max())


def rounded_roots() -> None:
    import torch
    from liger_kernel.ops import LigerRMSNormFunction

    torch.manual_seed(0)
    print("Liger, casting none, 64x256: the worst row is too long or too short by")
    for dtype in (torch.bfloat16, torch.float16):
        x, dy = (torch.randn(64, 256, device="cuda").to(dtype) for _ in range(2))
        w = (1 + 0.1 * torch.randn(256, device="cuda")).to(dtype)
        x.requires_grad_()
        y = LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "none", False)
        (dx,) = torch.autograd.grad(y, x, dy)
        x64, m = x.detach().double(), dy.double() * w.double()
        rstd = torch.rsqrt(x64.pow(2).mean(-1, keepdim=True) + 1e-6)
        for name, r in (("float64", rstd), (f"its rstd in {str(dtype)[6:]}", rstd.to(dtype).double())):
            want_dx = r * (m - x64 * r * r * (m * x64).mean(-1, keepdim=True))
            of_y = gain(y, x64 * r * w.double())
            print(f"  {str(dtype)[6:]:9} against {name:20} y {of_y:.5f}  dx {gain(dx, want_dx):.5f}")
    x = torch.full((1, 256), 300.0, device="cuda", dtype=torch.float16)
    y = LigerRMSNormFunction.apply(x, torch.ones(256, device="cuda", dtype=torch.float16), 1e-6, 0.0, "none", False)
    print(f"  float16, a row of 300s becomes {y[0, 0].item()} (1 by definition; 300 * 300 is inf in float16)")


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print(f"benchmarks.upstream: torch {torch.__version__} sees no GPU; this needs one", file=sys.stderr)
        return 2
    infinite_rows()
    try:
        rounded_roots()
    except ImportError as error:
        print(f"Liger: not here ({error})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
