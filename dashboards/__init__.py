"""Pages of runs: HTML tables and inline SVG made in Python.  Reads the store; imports neither Ray nor devices.

layout    where each cell of a table stands             pure
contents  what a cell may show                          pure
heat      rows as tables                                pure
builds    compiled kernels as tables                    pure
roofs     calibrations as charts                        pure
charts    values -> HTML and SVG strings                pure, does not know the store
svg, trends  charts over nights                        pure
compare_page  two runs, or two arms, from plain values  pure
views     what pages across runs need, from the index
night_pages, parity_page  the newest night, a backend, a cell; an op on several vendors' devices
live_page  a run that is running
pages     one function per page
build     pages -> files
serve     pages -> HTTP;  kept: pages that it has made;  access: who may read them

What the pages state comes from `farm.report`.
"""
