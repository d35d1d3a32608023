"""What the numbers of docs/facts.md were measured by.  Nothing of it runs in the tests, but its pure parts are tested.

On a GPU host (each says so, exit code 2, where there is none):

    kernels      our kernels against every peer that is importable, with the roof
    confirm      cells in doubt: rounds of fresh processes, an interval of the ratio
    tune         searches the configurations of `kernels/ops/rms_norm/gpu/tuned.py`
    bitwise      the same bits on every run
    ring_check, split_check     are these kernels right; how fast
    timers       timing policies against the profiler; medians from process to process
    telemetry    whether watching a device moves its times
    counters     bytes really moved
    mutants      wrong kernels, judged on the device
    upstream     others' results that are called inaccurate, by hand
    compile_ahead     what a child compiles by itself, with kernels compiled ahead and without; a cold cache each
    author_loop  twenty cells of an edited kernel, by a command and after a save: --backend cuda
    parts        matrices in which nothing is timed, many processes a GPU
    gpu_all.sh   all that is to be proven on NVIDIA GPUs, in three calls

Anywhere: author_loop (six cells, and after a save), plan (100,000 cells), throughput, compare_simulation, wheels,
calibrate_gates, page_picture.sh.

The others are what these are made of: cases, work, check, child and processes (measuring processes), roof, bars,
tables, agreement, and the `_cases`, `_space`, `_table`, `_child` of a command.
"""
