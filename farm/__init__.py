"""The farm: takes kernels through a matrix on every accelerator of a cluster, and says how right and how fast."""

from farm.ops import use_our_kernels

__version__ = "0.1.0"

use_our_kernels()  # another distribution is named `kernels` too; from here on the name is ours
