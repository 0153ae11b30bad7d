"""What a round does, read from the text of its program: turns, bounds, collectives."""

import re

import pytest

from fedjax_ssl.benchmarks import TARGETS, hlo
from fedjax_ssl.benchmarks.reading import least_turns, read
from tests.benchmarks.test_hlo import LOOPS, entry

KNOWN = LOOPS.replace(
    'while/body/while"}\n  %sums', 'while/body/while"}, backend_config={"known_trip_count":{"n":"5"}}\n  %sums'
)
SHARED = LOOPS.replace(
    "  %drawn =",
    "  %mine = f32[4]{0} copy(%r)\n"
    '  %all = f32[16]{0} all-gather(%mine), dimensions={0}, metadata={op_name="a/rounds/while/body/all_gather"}\n'
    "  %drawn =",
)


def test_a_round_takes_its_steps_and_what_it_does_beside_them() -> None:
    target = TARGETS["h100"]
    reading = read(KNOWN, 2, host_drives=True)
    assert reading.turns == 5
    beside, step = target.seconds(reading.round), target.seconds(reading.step)
    assert beside == pytest.approx(4 * target.launch) and step == pytest.approx(2 * target.launch)
    assert reading.seconds_per_round(target) == pytest.approx(beside + 5 * step)


def test_a_loop_without_a_known_end_needs_to_be_told_its_turns() -> None:
    target = TARGETS["h100"]
    reading = read(LOOPS, 2, host_drives=True)
    assert reading.turns is None and reading.seconds_per_round(target) is None
    known = read(KNOWN, 2, host_drives=True).seconds_per_round(target)
    assert reading.seconds_per_round(target, least_turns=5.0) == pytest.approx(known)


CONDITIONAL = """\
%round_body (q: (f32[8,16], f32[16,4])) -> (f32[8,16], f32[16,4]) {
  %q = (f32[8,16]{1,0}, f32[16,4]{1,0}) parameter(0)
  %before = f32[4]{0} custom-call(), custom_call_target="draw", metadata={op_name="a/rounds/while/body/draw"}
  ROOT %one = (f32[8,16]{1,0}, f32[16,4]{1,0}) conditional(%q, %q), branch_computations={%first, %second}
}

ENTRY"""


def with_two_kinds_of_rounds(*scopes: str) -> str:
    """A program whose round is that of `KNOWN`, or its local steps alone; each traced in a scope."""
    head, rest = KNOWN.split("%round_body (", 1)
    body, end = rest.split("}\n\nENTRY", 1)
    branches = [body, re.sub(r"  %(drawn|sums) .*\n", "", body)]
    texts = [
        f"%{name} ({text.replace('rounds/while/body', f'rounds/while/body/{scope}')}}}\n\n"
        for name, scope, text in zip(("first", "second"), scopes, branches, strict=True)
    ]
    return head + "".join(texts) + CONDITIONAL + end


def test_a_program_with_rounds_of_several_kinds_has_no_bound_of_a_round() -> None:
    reading = read(with_two_kinds_of_rounds("one", "other"), 2, host_drives=True)
    assert len(reading.loops) == 2 and reading.turns is None and not reading.stages
    assert reading.seconds_per_round(TARGETS["h100"], least_turns=5.0) is None


@pytest.mark.parametrize("host_drives", [True, False])
def test_rounds_of_every_stage_are_read_apart(host_drives: bool) -> None:
    target = TARGETS["h100"]
    reading = read(with_two_kinds_of_rounds("stage_0", "stage_1"), 2, host_drives)
    alone = read(KNOWN, 2, host_drives)
    first, second = reading.stages
    assert reading.seconds_per_round(target) is None
    # Beside what both do, the first is a round of the program with one kind.
    assert first.seconds_per_round(target) == pytest.approx((alone.seconds_per_round(target) or 0) + target.launch)
    assert second.turns == 5 and second.seconds_per_round(target) == pytest.approx((1 + 5 * 2) * target.launch)
    assert not alone.stages


def test_turns_follow_from_the_steps_of_all_clients() -> None:
    assert least_turns(local_steps=60, runs=1, clients_at_once=10) == 6
    assert least_turns(local_steps=64 * 60, runs=64, clients_at_once=10) == 6
    assert least_turns(local_steps=61, runs=1, clients_at_once=10) == 7


def test_the_collectives_of_a_round_are_counted_with_the_bytes_of_their_results() -> None:
    (found,) = read(SHARED, 2, host_drives=False).collectives()
    assert found.kind == "all-gather" and found.times == 1 and found.bytes == 16 * 4


@pytest.mark.parametrize(
    ("line", "kind", "exchanged"),
    [
        ("(f32[4]{0}, f32[16]{0}) all-gather-start(%mine), dimensions={0}", "all-gather", 64),
        ("f32[4]{0} all-reduce-start(%mine), to_apply=%add", "all-reduce", 16),
        ("(f32[4]{0}, f32[8]{0}) all-reduce(%mine, %other), to_apply=%add", "all-reduce", 48),
        ("f32[1]{0} reduce-scatter(%mine), to_apply=%add", "reduce-scatter", 4),
        ("f32[4]{0} collective-permute(%mine), source_target_pairs={{0,1}}", "collective-permute", 16),
        ("f32[4]{0} negate(%mine)", "", 0),
    ],
)
def test_one_collective(line: str, kind: str, exchanged: float) -> None:
    program = entry("%mine = f32[4]{0} copy()", "%other = f32[8]{0} copy()", f"%all = {line}")
    kernel = hlo.steps_and_rest(program, "local_step")[1].kernels[-1]
    assert (kernel.collective, kernel.exchanged) == (kind, exchanged)


def test_a_collective_within_a_fusion_counts() -> None:
    fused = """\
%sum_all (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %all = f32[4]{0} all-reduce(%p), to_apply=%add
}
"""
    program = entry(
        "%mine = f32[4]{0} copy()", "%f = f32[4]{0} fusion(%mine), kind=kCustom, calls=%sum_all", others=fused
    )
    kernel = hlo.steps_and_rest(program, "local_step")[1].kernels[-1]
    assert (kernel.opcode, kernel.collective, kernel.exchanged) == ("fusion", "all-reduce", 16)
