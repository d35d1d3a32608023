"""RMS norm and quantisation on NVIDIA and AMD GPUs: kernels, which of them for which shape, and their launches.

For a row of `hidden` elements, with x = x + residual rounded to x's dtype where there is a residual, t = x * weight:

    rstd = 1 / sqrt(mean(x^2) + eps)        y = t * rstd, never stored

    dynamic, of a row or of 128 columns     scale = max|t| * rstd / L        q = t * (L / max|t|)
    given                                   q = t * (rstd / scale), saturated

rstd cancels in a dynamic q, so max|t| is found in the sweep that adds up the squares, and of a row too wide for
registers x is read twice, not three times.  Everything is float32 from the load to q.

* q is rounded half to even: of int8 by adding 1.5 * 2^23, whose unit in the last place is 1, of floats by the target's
  conversion or by integer arithmetic on the bits (`formats.code`).
* a scale that is 0, infinite or NaN has q 0: a group of zeros, or a row that is not finite.  Maxima are of the bits of
  |t| as integers, so that a NaN is the largest.  With a given scale a NaN stays one; in int8 it is 0.
* max|t| below 2^-60 is multiplied by 2^64 before L is divided by it, and so is t: L / max|t| would not be finite.

What the kernels rely on besides is told in rms_norm/gpu/__init__.py, tiles in rms_norm/gpu/tiles.py; with groups of 128
columns a tile's SPAN is 128, so a group never leaves a warp.  Q and S are dense; SCALE is float32 [rows, groups].
"""
