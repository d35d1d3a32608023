"""The implementations of ops: one file per provider, shipped with the child, never taken from the revision under test.

A provider module imports nothing heavy at its top, so that a matrix can be read without torch.  It defines

    NAME, ROLE ("subject" or "peer"), MODES, OPS, DISTRIBUTION (its pip name, for the version report, or None)
    load(op) -> callable        in the child; ImportError or NotImplementedError(reason) mean `unsupported`

The callable is called as `f(*inputs, *positional parameters, **parameters that differ from the op's defaults)`.
"""
