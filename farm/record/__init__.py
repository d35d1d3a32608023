"""`farm record`: watches one run of a program, and writes the matrix of the ops that it called.

`targets` has the functions that are watched, `hook/` what the watched processes load, `watch` runs the command and
reads what they wrote down, `calls` makes of each call the sizes, dtypes, layouts and parameters of its op, and
`matrix_text` writes the matrix.
"""
