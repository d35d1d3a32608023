"""RMS norm on NVIDIA and AMD GPUs: kernels, which of them for which shape, and their launches.

For a row of `hidden` elements, with w' = weight + offset (no weight: w' = 1), and for the fused op x = x + residual,
rounded to x's dtype:

    rstd = 1 / sqrt(mean(x^2) + eps)        xhat = x * rstd        y = xhat * w'
    m    = dy * w'                          dx   = rstd * (m - xhat * mean(m * xhat)) [+ dsum]
    dw   = sum over rows of dy * xhat

Everything is float32 from the load to the one cast at the store.  `ROUND` adds the rounding that the castings `llama`
and `none` declare: xhat becomes x's dtype before it meets the weight, and so does each row's product in dw.

What every kernel relies on (`tiles.py` tells what a tile is; `unaligned.py`, `ring.py` and `split.py` tell what they
need beyond):

* tensors are `rows` x `hidden` and their last dimension is contiguous; X, R, DY and DS come with their row stride in
  elements, all others are dense.  Rows are addressed in int64, what lies inside a tile in int32: the caller sees to it
  that ROWS strides fit.
* hidden and row strides arrive divided by ALIGN, a power of two: the compiler then knows how wide loads may be also
  where they are not multiples of 16, the only thing that it would find out by itself.
* pointers that are None compile their code away.
* DX may be DY, but in split.py: what a program overwrites, it alone reads, and has read before.
* nothing is added up by atomics: sums over rows are one float32 row of partial sums a program (of split.py, a group of
  programs), added up in a fixed order by `sum_partials`.
"""
