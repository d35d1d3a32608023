"""Pull requests: what people write to the farm, what the farm writes back, and the forge between them.

    config_block, commands    what a body and a comment ask for                           pure
    patches                   which files a patch in a comment changes                    pure
    events                    an event file of the forge -> what to do, or why not        pure
    decision                  that, as a file from the job with a token to the one without  pure
    result, result_schema     the published result.json, read as a hostile claim          pure
    comment, ledger           one comment: its text, and what it remembers                pure
    asides, queue             what it says beside the verdict; what a run waits for        pure
    publishing                which comments and checks to write                          pure
    github                    GitHub's REST API

An untrusted job measures and leaves result.json; a trusted one publishes it and never runs that code.
"""
