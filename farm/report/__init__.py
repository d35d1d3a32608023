"""Reports of a run: verdicts, findings, evidence and provenance, as data for the dashboards, as `junit` for CI systems,
and as `markdown` for comments and summaries."""
