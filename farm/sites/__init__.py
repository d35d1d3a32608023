"""One plan on several sites that share no network: its file, its parts, and the one ledger that their runs become.

    farm plan M.yaml --backend cuda,rocm --out PLAN       anywhere: every cell, numbered, hashed
    farm run --plan PLAN --target cuda                    at each site: one part
    farm merge RUN RUN ...                                anywhere: the whole plan again

planfile   what travels to a site, and which part of it a target is      pure
merging    runs of parts to one ledger                                    pure
"""
