"""What becomes of each provider of `cheats.py`: its status, and words of the sentence or of the flag that names it."""

from __future__ import annotations

#: name -> (status, words of the reason)
NAMED: dict[str, tuple[str, str]] = {
    "cached_by_pointer": ("inaccurate", "returned memory of an earlier call's output"),
    "cached_by_pointer_and_copied": ("inaccurate", "called again at the same addresses with other values"),
    "cached_by_content": ("inaccurate", "returned memory of an earlier call's output"),
    "cached_by_content_and_copied": ("inaccurate", "takes another path on values from an earlier call"),
    "one_buffer_for_all": ("inaccurate", "returned memory of an earlier call's output"),
    "writes_nothing": ("inaccurate", "finite"),
    "returns_a_view_of_its_input": ("inaccurate", "returned memory of input x as y"),
    "mutates_its_input": ("inaccurate", "changed its inputs"),
    "replaces_its_input": ("inaccurate", "changed its inputs"),
    "returns_fp32": ("inaccurate", "float32"),
    "returns_one_row_for_all": ("inaccurate", "several elements share one address"),
    "returns_a_lazy_tensor": ("inaccurate", "a Lazy, not a torch.Tensor"),
    "right_once": ("inaccurate", ""),
    "right_every_other_time": ("inaccurate", ""),
    "patches_elapsed_time": ("inaccurate", "patched torch.cuda.Event.elapsed_time"),
    "patches_perf_counter": ("inaccurate", "patched time.perf_counter"),
    "patches_allclose": ("inaccurate", "patched torch.allclose"),
    "patches_the_farm": ("inaccurate", "patched farm.child.tensor_files.checksum"),
    "allocates_gigabytes": ("inaccurate", "keeps "),
    "sets_the_default_dtype": ("inaccurate", "changed torch's default dtype from torch.float32 to torch.float64"),
    "sets_tf32": ("inaccurate", "changed torch's TF32 from highest to high"),
    "reseeds": ("inaccurate", "reseeded torch's random generator"),
    "changes_the_grad_mode": ("inaccurate", "changed torch's grad mode"),
    "turns_determinism_on": ("inaccurate", "changed torch's deterministic algorithms"),
    "leaves_a_thread_running": ("inaccurate", "left a thread running"),
    "answers_from_a_thread": ("inaccurate", ""),
    "forks_a_child": ("inaccurate", "left a process running"),
    "forks_a_daemon": ("inaccurate", "left a process running"),
    "leaves_a_daemon_and_exits": ("crashed", "ended with exit code 3 in phase"),
    "exits_after_a_fake_result": ("crashed", "ended with exit code 0 in phase"),
    "writes_a_fake_result_everywhere": ("crashed", "an unexpected message"),
}
#: Wrong in what only a timed cell shows, and so on an accelerator only.
NAMED_WHERE_TIMED: dict[str, tuple[str, str]] = {"detects_the_timing_loop": ("inaccurate", "timed launch")}
NAMED_ON_GPU: dict[str, tuple[str, str]] = {
    **NAMED_WHERE_TIMED,
    "works_on_a_side_stream": ("inaccurate", "left work on another stream"),
    "sets_the_stream": ("inaccurate", "changed torch's current stream"),
    "detects_the_capture": ("inaccurate", "timed launch"),
    "one_launch_for_many": ("inaccurate", "returned memory of an earlier call's output"),
}
