"""Loads and stores counted in PTX, SASS and AMD assembly."""

from __future__ import annotations

import pytest

from farm.compile import instructions

NOTHING: dict[str, dict[str, int]] = {kind: {} for kind in instructions.KINDS}

PTX = """
.visible .entry k(.param .u64 .ptr .global .align 1 k_param_0)
	ld.param.b64 	%rd1, [k_param_0];
	// begin inline asm
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	ld.global.L1::evict_first.v2.b32 { %r5, %r6 }, [ %rd2 + 0 ];
	@!%p2 ld.volatile.global.b16 %rs1, [ %rd3 + 0 ];
	ld.global.nc.L1::no_allocate.L2::128B.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd9];
	st.global.v4.b32 [ %rd4 + 0 ], { %r1, %r2, %r3, %r4 };
	st.shared.b32 	[%r9], %r8;
	ld.shared.v4.b32 	{%r130, %r131, %r132, %r133}, [%r40];
	cp.async.cg.shared.global [ %r40 + 0 ], [ %rd17 + 0 ], 0x10, %r60;
	cp.async.ca.shared.global [ %r40 + 0 ], [ %rd17 + 0 ], 4;
	cp.async.commit_group ;
	cp.async.wait_group 0;
	st.local.b32 	[%rd7], %r3;
"""

SASS = """
        /*0010*/                   LDC R1, c[0x0][0x28] ;
        /*0020*/              @!P2 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E.64.CONSTANT R8, desc[UR4][R2.64] ;
        /*0040*/                   LDG.E R9, desc[UR4][R2.64] ;
        /*0050*/                   LDG.E.U16 R9, desc[UR4][R2.64] ;
        /*0060*/                   LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64] ;
        /*0070*/                   STG.E.EF.128 desc[UR4][R2.64], R4 ;
        /*0080*/                   STL [R1+0x4], R9 ;
        /*0090*/                   LDL.LU R9, [R1+0x4] ;
        /*00a0*/                   LDL.64 R10, [R1+0x8] ;
        /*00b0*/                   LDGSTS.E.BYPASS.128 [R15], desc[UR4][R2.64] ;
        /*00c0*/                   LDS.128 R4, [R3] ;
        /*00d0*/                   ULDC UR4, c[0x0][0x20] ;
"""

AMD = """
	buffer_load_dwordx4 v[2:5], v1, s[8:11], 0 offen
	buffer_load_ushort v6, v1, s[8:11], 0 offen
	buffer_load_short_d16_hi v6, v1, s[8:11], 0 offen
	global_load_dwordx2 v[2:3], v[4:5], off
	buffer_load_dword v1, s[8:11], 0 offen lds
	global_load_lds_dwordx4 v[2:3], off
	global_store_dword v0, v1, s[0:1]
	buffer_store_byte v0, v1, s[0:3], 0 offen
	scratch_store_dwordx2 off, v[0:1], off offset:8         ; 8-byte Folded Spill
	scratch_load_dword v4, off, off offset:4 ; 4-byte Folded Reload lds
	ds_read_b128 v[0:3], v4
	s_load_dwordx4 s[8:11], s[0:1], 0x0
"""


def test_ptx_by_width() -> None:
    assert instructions.ptx(PTX) == {
        "counted_in": "ptx",
        "global_loads": {"256": 1, "128": 1, "64": 1, "16": 1},
        "global_stores": {"128": 1},
        "async_copies": {"128": 1, "32": 1},
        "local_loads": {},
        "local_stores": {"32": 1},
    }


def test_sass_by_width() -> None:
    found = instructions.sass(SASS)
    assert found == {
        "counted_in": "sass",
        "global_loads": {"256": 1, "128": 1, "64": 1, "32": 1, "16": 1},
        "global_stores": {"128": 1},
        "async_copies": {"128": 1},
        "local_loads": {"64": 1, "32": 1},
        "local_stores": {"32": 1},
    }
    assert instructions.local_bytes(found, "local_loads") == 12
    assert instructions.local_bytes(found, "local_stores") == 4


def test_amdgcn_by_width() -> None:
    assert instructions.amdgcn(AMD) == {
        "counted_in": "amdgcn",
        "global_loads": {"128": 1, "64": 1, "16": 2},
        "global_stores": {"32": 1, "8": 1},
        "async_copies": {"128": 1, "32": 1},
        "local_loads": {"32": 1},
        "local_stores": {"64": 1},
    }


@pytest.mark.parametrize("count", [instructions.ptx, instructions.sass, instructions.amdgcn])
def test_nothing_is_nothing(count) -> None:
    assert {k: v for k, v in count("").items() if k != "counted_in"} == NOTHING


def test_an_unknown_width_is_told_as_unknown_and_never_lost() -> None:
    found = instructions.ptx("\tcp.async.bulk.shared::cluster.global.mbarrier [ %r1 ], [ %rd1 ], %r2, [ %r3 ];\n")
    assert found["async_copies"] == {"?": 1}
    assert instructions.local_bytes({"local_loads": {"?": 3, "64": 2}}, "local_loads") == 16
