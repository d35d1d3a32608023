"""What the tools say of a kernel, and how much of a core it takes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from farm.compile import amd, nvidia
from farm.compile.offline import code
from farm.compile.targets import TARGETS

USAGE = """
Resource usage:
 Common:
  GLOBAL:11 CONSTANT[4]:8
 Function forward_persistent:
  REG:128 STACK:80 SHARED:{shared} LOCAL:0 CONSTANT[0]:600 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function helper:
  REG:20 STACK:96 SHARED:0 LOCAL:0 CONSTANT[0]:600 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


@pytest.mark.parametrize(("told", "shared"), [(0, 0), (1024, 0), (1040, 16)])
def test_usage_without_the_memory_that_the_system_takes(told: int, shared: int) -> None:
    assert nvidia.parse_usage(USAGE.format(shared=told)) == {"reg": 128, "stack": 96, "shared": shared, "local": 0}


def test_a_tool_that_tells_nothing_is_not_taken_for_zero() -> None:
    with pytest.raises(ValueError, match="no resource usage"):
        nvidia.parse_usage("cuobjdump fatal: no such file")
    with pytest.raises(ValueError, match=r"no \.vgpr_count"):
        amd.parse_metadata("s_endpgm")


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "blocks", "limiter"),
    [
        # by hand, from the occupancy calculator's rules: 16,384 registers a scheduler, 256 at a time, 64 warps
        (90, 32, 0, 8, 8, ""),
        (90, 33, 0, 8, 6, "registers"),  # 40 a thread: 12 warps a scheduler
        (90, 64, 0, 8, 4, "registers"),
        (90, 255, 0, 4, 2, "registers"),
        (90, 255, 0, 8, 1, "registers"),
        (90, 32, 100_000, 4, 2, "shared memory"),
        (90, 32, 232_448, 8, 1, "shared memory"),
        (90, 32, 232_449, 8, 0, "shared memory"),
        (90, 16, 0, 1, 32, "blocks"),
        (90, 16, 0, 12, 5, "warps"),
        (90, 65, 0, 32, 0, "registers"),  # 72 a thread: 7 warps a scheduler, where 8 are needed
        (80, 32, 166_912, 8, 1, "shared memory"),
        (80, 32, 166_913, 8, 0, "shared memory"),
        (86, 32, 0, 8, 6, ""),  # 48 warps
        (86, 16, 0, 1, 16, "blocks"),
        (89, 16, 0, 1, 24, "blocks"),
        (120, 32, 101_376, 8, 1, "shared memory"),
        (120, 32, 101_377, 8, 0, "shared memory"),
    ],
)
def test_occupancy_of_a_multiprocessor(
    arch: int, registers: int, shared: int, warps: int, blocks: int, limiter: str
) -> None:
    found = nvidia.occupancy(arch, registers, shared, warps)
    assert (found["blocks_per_core"], found["limiter"]) == (blocks, limiter)
    assert found["occupancy"] == blocks * warps / (64 if arch in (80, 90) else 48)


def test_every_target_of_nvidia_has_its_limits() -> None:
    assert {t.arch for t in TARGETS.values() if t.triton == "cuda"} == set(nvidia.HOLDS)


@pytest.mark.parametrize(
    ("arch", "registers", "lds", "warps", "groups", "limiter"),
    [
        ("gfx942", 64, 0, 4, 8, ""),
        ("gfx942", 65, 0, 4, 7, "registers"),
        ("gfx942", 128, 0, 16, 1, "registers"),
        ("gfx942", 512, 0, 4, 1, "registers"),
        ("gfx942", 512, 0, 8, 0, "registers"),
        ("gfx942", 32, 16_385, 4, 3, "LDS"),
        ("gfx950", 32, 16_385, 4, 8, ""),  # 14 units of 1,280 bytes
        ("gfx950", 32, 33_000, 4, 4, "LDS"),
        ("gfx942", 24, 0, 1, 32, ""),
        ("gfx942", 24, 0, 12, 2, "waves"),
        ("gfx942", 24, 65_537, 4, 0, "LDS"),
    ],
)
def test_occupancy_of_a_compute_unit(
    arch: str, registers: int, lds: int, warps: int, groups: int, limiter: str
) -> None:
    found = amd.occupancy(arch, registers, lds, warps)
    assert (found["blocks_per_core"], found["limiter"]) == (groups, limiter)
    assert found["occupancy"] == groups * warps / 32


def test_the_metadata_of_an_amd_kernel() -> None:
    text = """
; Occupancy: 4
amdhsa.kernels:
  - .agpr_count:     12
    .args:
      - .address_space:  global
    .group_segment_fixed_size: 64
    .private_segment_fixed_size: 584
    .sgpr_count:     53
    .sgpr_spill_count: 2
    .vgpr_count:     128
    .vgpr_spill_count: 185
"""
    assert amd.parse_metadata(text) == {
        "agpr_count": 12,
        "group_segment_fixed_size": 64,
        "private_segment_fixed_size": 584,
        "sgpr_count": 53,
        "sgpr_spill_count": 2,
        "vgpr_count": 128,
        "vgpr_spill_count": 185,
        "occupancy": 4,
    }
    assert amd.parse_metadata(text.replace("; Occupancy: 4", ""))["occupancy"] is None


def elf(*sections: tuple[str, bytes]) -> bytes:
    """A file of the ELF format of 64 bits with these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in sections) + b".shstrtab\0"
    body, headers, at, name_at = b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)], 64, 1
    for name, content in [*sections, (".shstrtab", names)]:
        headers.append(struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, at + len(body), len(content), 0, 0, 1, 0))
        body += content
        name_at += len(name) + 1
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,
        190,
        1,
        0,
        0,
        at + len(body),
        0,
        64,
        0,
        0,
        64,
        len(headers),
        len(headers) - 1,
    )
    return head + body + b"".join(headers)


def test_the_size_and_digest_of_code_say_nothing_of_debug_lines() -> None:
    def of(*sections: tuple[str, bytes]) -> Any:
        return code(elf(*sections))

    base = of((".text.norm", b"abcd" * 8), (".debug_line", b"/tmp/one"))
    assert base[0] == 32
    assert of((".text.norm", b"abcd" * 8), (".debug_line", b"/home/elsewhere/two")) == base
    assert of((".text.norm", b"abce" * 8), (".debug_line", b"/tmp/one"))[1] != base[1]
    assert of((".text.norm", b"abcd" * 4), (".text.helper", b"abcd" * 4))[0] == 32
    with pytest.raises(ValueError, match="ELF"):
        code(b"#!/bin/sh")
