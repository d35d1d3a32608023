"""What an op's contract imports: `from farm.contracts import Contract, Dimension, Parameter, Tensor, Work`.

base        the class that a contract subclasses, and its parts
gates       limits for outputs that were rounded once or twice
dtypes      the registry of dtypes
from_torch  a contract made from a PyTorch function
rounding    helpers for references that round on the way
ops/        the built-in contracts, a folder each: `ops/<op>/contract.py`
discovery   which ops there are; folders: those outside the farm
call        how a cell becomes a call of a provider
"""

from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes
from farm.contracts.from_torch import bits, from_torch, integers
from farm.contracts.rounding import round_to, wide
from farm.contracts.torch_contract import Spec

__all__ = [
    "Array",
    "CellLike",
    "Contract",
    "Dimension",
    "FamilyLike",
    "Parameter",
    "Spec",
    "Tensor",
    "Work",
    "bits",
    "from_torch",
    "integers",
    "nbytes",
    "round_to",
    "wide",
]
