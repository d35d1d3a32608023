"""Runs in other people's formats: `junit` for CI systems, `markdown` for comments and summaries."""
