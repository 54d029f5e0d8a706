"""Groups of devices in the text of HLO modules."""

from __future__ import annotations

import pytest

from slipstream.faces.mpi_trampoline.groups import groups_in

DEVICES = [20, 10, 30, 40]


@pytest.mark.parametrize(
    ("operation", "numbers"),
    [
        ("all-reduce(%a), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%sum", [[0, 1], [2, 3]]),
        ("all-reduce(%a), replica_groups={}, to_apply=%sum", [[0, 1, 2, 3]]),
        ("all-gather-start(%a), replica_groups=[2,2]<=[4], dimensions={0}", [[0, 1], [2, 3]]),
        ("reduce-scatter(%a), replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}", [[0, 2], [1, 3]]),
        ("all-gather(%a), replica_groups=mesh['axis_0'=4] {'axis_0'}, dimensions={0}", [[0, 1, 2, 3]]),
        ("all-to-all(%a), replica_groups=mesh['x'=2,'y'=2] {'x'}, dimensions={0}", [[0, 2], [1, 3]]),
        ("all-reduce(%a), replica_groups=mesh['x'=2,'y'=2] {'y','x'}, to_apply=%s", [[0, 2, 1, 3]]),
        ("collective-permute(%a), source_target_pairs={{0,1},{1,0}}", [[0, 1, 2, 3]]),
    ],
)
def test_all_forms(operation: str, numbers: list[list[int]]) -> None:
    hlo = f"HloModule jit_f\n  %p = f32[2]{{0}} parameter(0)\n  ROOT %x = f32[2]{{0}} {operation}\n"
    assert groups_in(hlo, DEVICES) == [[DEVICES[one] for one in group] for group in numbers]


def test_a_form_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="form that is not known"):
        groups_in("  %x = f32[2] all-reduce(%a), replica_groups=<<2 by 2>>, to_apply=%s", DEVICES)
    assert groups_in("  %x = f32[2] add(%a, %b)", DEVICES) == []
