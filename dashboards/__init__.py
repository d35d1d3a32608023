"""Pages of runs: HTML tables and inline SVG made in Python.  Reads the store; knows neither Ray nor devices.

words     statuses as glyphs, numbers with units        pure
queries   rows of a run -> what a page says             pure, but for log tails and the list of files
findings  failed cells in groups that failed alike      pure
heat      rows laid out as tables                       pure
builds    compiled kernels laid out as tables           pure
charts    values -> HTML and SVG strings                pure, knows nothing of the store
pages     one function per page
build     pages -> files
serve     pages -> live
"""
