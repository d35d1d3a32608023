"""What an op's contract imports: `from farm.contracts import Contract, Dimension, Parameter, Tensor, Work`.

base        the class that a contract subclasses, and its parts
gates       limits for outputs that were rounded once or twice
ops/        the built-in contracts, a folder each: `ops/<op>/contract.py`
discovery   which ops there are
call        how a cell becomes a call of a provider
"""

from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes

__all__ = ["Array", "CellLike", "Contract", "Dimension", "FamilyLike", "Parameter", "Tensor", "Work", "nbytes"]
