"""Pages of runs: HTML tables and inline SVG made in Python.  Reads the store; imports neither Ray nor devices.

layout    where each cell of a table stands             pure
contents  what a cell may show                          pure
heat      rows as tables                                pure
builds    compiled kernels as tables                    pure
roofs     calibrations as charts                        pure
charts    values -> HTML and SVG strings                pure, does not know the store
pages     one function per page
build     pages -> files
serve     pages -> HTTP

What the pages state comes from `farm.report`.
"""
