"""What is read from the text of a compiled program, on short texts whose numbers can be counted by hand."""

import pytest

from fedjax_ssl.benchmarks import hlo

# Two rounds; in each, an unknown number of local steps of one product and one update, then one sum in three turns.
LOOPS = """\
HloModule jit_advance, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

FileNames
1 "engine.py"

%fused_product (p.0: f32[8,16], p.1: f32[16,4]) -> f32[8,4] {
  %p.0 = f32[8,16]{1,0} parameter(0)
  %p.1 = f32[16,4]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,4]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%step_body (s: (f32[8,16], f32[16,4])) -> (f32[8,16], f32[16,4]) {
  %s = (f32[8,16]{1,0}, /*index=1*/f32[16,4]{1,0}) parameter(0)
  %x = f32[8,16]{1,0} get-tuple-element(%s), index=0
  %w = f32[16,4]{1,0} get-tuple-element(%s), index=1
  %product = f32[8,4]{1,0} fusion(%x, %w), kind=kCustom, calls=%fused_product, metadata={op_name="a/rounds/while/body/while/body/vmap(local_step)/dot_general"}
  %made = f32[16,4]{1,0} copy(%w)
  ROOT %t = (f32[8,16]{1,0}, f32[16,4]{1,0}) tuple(%x, %made)
}

%step_condition (s.1: (f32[8,16], f32[16,4])) -> pred[] {
  %s.1 = (f32[8,16]{1,0}, f32[16,4]{1,0}) parameter(0)
  ROOT %more = pred[] custom-call(%s.1), custom_call_target="more"
}

%sum_body (c: f32[4]) -> f32[4] {
  %c = f32[4]{0} parameter(0)
  ROOT %added = f32[4]{0} add(%c, %c), metadata={op_name="a/rounds/while/body/add"}
}

%round_body (r: (f32[8,16], f32[16,4])) -> (f32[8,16], f32[16,4]) {
  %r = (f32[8,16]{1,0}, f32[16,4]{1,0}) parameter(0)
  %drawn = u32[2]{0} custom-call(), custom_call_target="draw", metadata={op_name="a/rounds/while/body/draw"}
  %steps = (f32[8,16]{1,0}, f32[16,4]{1,0}) while(%r), condition=%step_condition, body=%step_body, metadata={op_name="a/rounds/while/body/while"}
  %sums = f32[4]{0} while(%drawn), condition=%step_condition, body=%sum_body, metadata={op_name="a/rounds/while/body/while"}, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %rt = (f32[8,16]{1,0}, f32[16,4]{1,0}) tuple(%steps)
}

ENTRY %main (a: f32[8,16]) -> f32[8,16] {
  %a = f32[8,16]{1,0} parameter(0)
  %rounds = (f32[8,16]{1,0}, f32[16,4]{1,0}) while(%a), condition=%step_condition, body=%round_body, metadata={op_name="a/rounds/while"}, backend_config={"known_trip_count":{"n":"2"}}
  ROOT %score = f32[8,16]{1,0} negate(%a), metadata={op_name="a/evaluation/neg"}
}
"""  # noqa: E501


def entry(*lines: str, others: str = "") -> hlo.Program:
    """A program of these lines, of which the last one is the result."""
    body = "\n".join(f"  {'ROOT ' if line is lines[-1] else ''}{line}" for line in lines)
    return hlo.parse(f"{others}\nENTRY %main (x: f32[]) -> f32[] {{\n{body}\n}}\n")


def only_kernel(program: hlo.Program) -> hlo.Kernel:
    steps, rest = hlo.steps_and_rest(program, "local_step")
    assert not steps
    return rest.kernels[-1]


def test_a_loop_without_a_known_end_turns_once_or_as_often_as_is_said() -> None:
    program = hlo.parse(LOOPS)
    _, once = hlo.steps_and_rest(program, "nothing")
    assert once.num_kernels == 2 * (1 + 2 + 3) + 1 and once.host_round_trips == 2
    _, often = hlo.steps_and_rest(program, "nothing", turns_of=lambda loop: 5 if loop.name == "steps" else 0)
    assert often.num_kernels == 2 * (1 + 5 * 2 + 3) + 1 and often.host_round_trips == 2 * 5


def test_a_local_step_is_the_turn_of_its_loop_and_the_rest_is_multiplied_out() -> None:
    (steps,), rest = hlo.steps_and_rest(hlo.parse(LOOPS), "local_step")
    assert steps.trips is None and steps.part.host_round_trips == 1
    assert [(kernel.opcode, kernel.times) for kernel in steps.part.kernels] == [("fusion", 1), ("copy", 1)]
    assert steps.part.operations == 2 * 8 * 4 * 16
    assert steps.part.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4) + 2 * 4 * 16 * 4
    rounds = rest.within("rounds")
    assert rounds.num_kernels == 2 * (1 + 3) and rest.num_kernels == rounds.num_kernels + 1
    assert rest.within("evaluation").num_kernels == 1 and rest.host_round_trips == 0


def test_what_the_compiler_added_belongs_to_the_loop_around_it() -> None:
    (steps,), rest = hlo.steps_and_rest(hlo.parse(LOOPS), "local_step")
    assert steps.part.kernels[1].scope == "a/rounds/while/body/while"  # the copy has no name of its own
    without_name = LOOPS.replace(', metadata={op_name="a/rounds/while/body/draw"}', "")
    _, again = hlo.steps_and_rest(hlo.parse(without_name), "local_step")
    assert again.within("rounds").num_kernels == rest.within("rounds").num_kernels


def test_a_loop_of_known_length_and_no_conditional_asks_nothing_of_the_host() -> None:
    known = LOOPS.replace(
        'op_name="a/rounds/while/body/while"}\n  %sums',
        'op_name="a/rounds/while/body/while"}, backend_config={"known_trip_count":{"n":"6"}}\n  %sums',
    )
    (steps,), _ = hlo.steps_and_rest(hlo.parse(known), "local_step")
    assert steps.trips == 6 and steps.part.host_round_trips == 0


def test_a_device_that_runs_the_program_alone_asks_nobody_and_has_no_kernels_for_single_numbers() -> None:
    """As a TPU's compiler writes it: no note of the trips, but the condition compares the counter with a constant."""
    condition = """  %s.1 = (f32[8,16]{1,0}, f32[16,4]{1,0}) parameter(0)
  %end = s32[]{:T(128)} constant(6)
  %i = s32[] get-tuple-element(%s.1), index=0
  ROOT %more = pred[] compare(%i, %end), direction=LT"""
    lines = LOOPS.splitlines()
    lines[lines.index(next(line for line in lines if "ROOT %more" in line))] = condition
    text = "\n".join(lines).replace("%made = f32[16,4]{1,0} copy(%w)", "%made = s32[]{:T(128)} add(%w, %w)")
    program = hlo.parse(text.replace("  %s.1 = (f32[8,16]{1,0}, f32[16,4]{1,0}) parameter(0)\n", "", 1))
    (steps,), _ = hlo.steps_and_rest(program, "local_step", host_drives=False)
    assert steps.trips == 6 and steps.part.host_round_trips == 0
    assert [kernel.opcode for kernel in steps.part.kernels] == ["fusion"]
    (steps,), _ = hlo.steps_and_rest(hlo.parse(LOOPS), "local_step", host_drives=False)
    assert steps.trips is None and steps.part.host_round_trips == 0


def test_a_conditional_asks_the_host_and_counts_as_its_larger_branch() -> None:
    branches = """
%small (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%p)
}
%large (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  %m = f32[4]{0} negate(%q)
  ROOT %e = f32[4]{0} exponential(%m)
}
"""
    program = entry(
        "%x = f32[4]{0} parameter(0)",
        "%i = s32[] constant(1)",
        "%c = f32[4]{0} conditional(%i, %x, %x), branch_computations={%small, %large}",
        others=branches,
    )
    _, rest = hlo.steps_and_rest(program, "local_step")
    assert rest.num_kernels == 2 and rest.host_round_trips == 1
    by_truth = "%c = f32[4]{0} conditional(%i, %x, %x), true_computation=%large, false_computation=%small"
    program = entry("%x = f32[4]{0} parameter(0)", "%i = pred[] constant(true)", by_truth, others=branches)
    assert hlo.steps_and_rest(program, "local_step")[1].num_kernels == 2


def test_a_gather_in_a_fusion_reads_its_rows_and_not_the_dataset() -> None:
    fused = """
%fused (d: u8[60000,784], i: s32[10,1]) -> f32[10,784] {
  %d = u8[60000,784]{1,0} parameter(0)
  %i = s32[10,1]{1,0} parameter(1)
  %named = u8[60000,784]{1,0} bitcast(%d)
  %rows = u8[10,784]{1,0} gather(%named, %i), offset_dims={1}, slice_sizes={1,784}
  ROOT %cast = f32[10,784]{1,0} convert(%rows)
}
"""
    program = entry(
        "%data = u8[60000,784]{1,0} parameter(0)",
        "%index = s32[10,1]{1,0} parameter(1)",
        "%f = f32[10,784]{1,0} fusion(%data, %index), kind=kLoop, calls=%fused",
        others=fused,
    )
    assert only_kernel(program).bytes == 10 * 784 + 4 * 10 + 4 * 10 * 784


def test_an_update_in_place_writes_what_it_changes() -> None:
    fused = """
%fused (t: f32[1000,8], u: f32[1,8], i: s32[]) -> f32[1000,8] {
  %t = f32[1000,8]{1,0} parameter(0)
  %u = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %new = f32[1000,8]{1,0} dynamic-update-slice(%t, %u, %i, %zero)
}
"""
    lines = ("%t = f32[1000,8]{1,0} parameter(0)", "%u = f32[1,8]{1,0} parameter(1)", "%i = s32[] parameter(2)")
    program = entry(*lines, "%f = f32[1000,8]{1,0} fusion(%t, %u, %i), kind=kLoop, calls=%fused", others=fused)
    assert only_kernel(program).bytes == 32 + 32 + 4  # the row read, the row written, its place
    program = entry(*lines, "%s = f32[1000,8]{1,0} scatter(%t, %i, %u), to_apply=%add")
    assert only_kernel(program).bytes == 32 + 32 + 4


@pytest.mark.parametrize(
    ("line", "operations"),
    [
        # cuBLAS, with a workspace beside its result
        (
            '%p = (f32[5,8,4]{2,1,0}, s8[1024]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", '
            'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"]}}}',
            2 * 5 * 8 * 4 * 16,
        ),
        # a batch of products as a TPU writes it: the batch is a dimension of the image, of which one place counts
        (
            "%p = f32[5,8,4]{2,1,0:T(8,128)} convolution(%a, %c), "
            "window={size=5 stride=4 pad=0_0 lhs_dilate=5}, dim_labels=0bf_0io->0bf",
            2 * 5 * 8 * 4 * 16,
        ),
        ("%p = f32[5,8,16]{2,1,0} add(%a, %a)", 0),
    ],
)
def test_operations_of_products(line: str, operations: float) -> None:
    program = entry(
        "%a = f32[5,8,16]{2,1,0} parameter(0)",
        "%b = f32[5,16,4]{2,1,0} parameter(1)",
        "%c = f32[5,16,4]{2,1,0} parameter(2)",
        line,
    )
    assert only_kernel(program).operations == operations


def test_a_convolution_leaves_out_the_padding() -> None:
    image, kernel = "%x = f32[2,4,4,3]{3,2,1,0} parameter(0)", "%k = f32[3,3,3,8]{3,2,1,0} parameter(1)"
    same = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    program = entry(image, kernel, f"%y = f32[2,4,4,8]{{3,2,1,0}} convolution(%x, %k), {same}")
    pairs = (3 * 4 - 2) ** 2  # of 3 offsets at 4 places, 2 lie outside
    assert only_kernel(program).operations == 2 * 2 * 8 * 3 * pairs
    # The same products, by cuDNN, for the gradient of the kernel.
    gradient = (
        "%y = (f32[3,3,3,8]{3,2,1,0}, u8[0]{0}) custom-call(%x, %g), " + same + ', custom_call_target="__cudnn$'
        'convBackwardFilter"'
    )
    program = entry(image, "%g = f32[2,4,4,8]{3,2,1,0} parameter(1)", gradient)
    assert only_kernel(program).operations == 2 * 2 * 8 * 3 * pairs


def test_bytes_of_shapes_whatever_their_layout() -> None:
    assert hlo.shape_bytes("(f32[10,784]{1,0:T(8,128)S(1)}, pred[3]{0}, bf16[], s4[8]{0}, u8[0]{0}, token[])") == (
        4 * 7840 + 3 + 2 + 4
    )


def test_asynchronous_work_starts_once_and_calls_are_followed() -> None:
    called = """
%graph (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %n = f32[4]{0} negate(%p)
  ROOT %e = f32[4]{0} exponential(%n)
}
"""
    program = entry(
        "%x = f32[4]{0} parameter(0)",
        "%c = f32[4]{0} call(%x), to_apply=%graph",
        "%s = ((f32[4]{0}), f32[16]{0}) all-gather-start(%c), dimensions={0}",
        "%d = f32[16]{0} all-gather-done(%s)",
        others=called,
    )
    assert [kernel.opcode for kernel in hlo.steps_and_rest(program, "local_step")[1].kernels] == [
        *("negate", "exponential", "all-gather-start"),
    ]


def test_a_bound_takes_the_slowest_of_launch_memory_and_arithmetic_for_every_kernel() -> None:
    kernels = (
        hlo.Kernel("launch", "fusion", 2, 10, 10, ""),
        hlo.Kernel("memory", "fusion", 1, 5e3, 10, ""),
        hlo.Kernel("arithmetic", "fusion", 1, 10, 7e4, ""),
    )
    assert hlo.Part(kernels).seconds(launch=3, bandwidth=1e3, peak=1e4) == 2 * 3 + 5 + 7
    assert hlo.Part(kernels).seconds(launch=0, bandwidth=1e3, peak=1e4) == pytest.approx(2 * 0.01 + 5 + 7)


def test_a_scope_is_found_below_transformations_and_not_inside_other_names() -> None:
    assert hlo.in_scope("jit(f)/vmap(local_step)/dot", "local_step")
    assert hlo.in_scope("jit(f)/transpose(jvp(local_step))/dot", "local_step")
    assert not hlo.in_scope("jit(f)/not_local_step/dot", "local_step")
    assert not hlo.in_scope("jit(f)/local_steps/dot", "local_step")


def test_another_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="no text of a compiled program"):
        hlo.parse("module @jit_f {\n}\n")


ADDING = """
%add.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%last (c: f32[], d: f32[]) -> f32[] {
  %c = f32[] parameter(0)
  ROOT %d = f32[] parameter(1)
}
"""


@pytest.mark.parametrize(
    ("line", "unordered"),
    [
        ("%s = f32[8]{0} scatter(%x, %i, %u), update_window_dims={}, to_apply=%add.1", True),
        ("%s = bf16[8]{0} scatter(%x, %i, %u), update_window_dims={}, to_apply=%add.1", True),
        ("%s = f32[8]{0} scatter(%x, %i, %u), unique_indices=true, to_apply=%add.1", False),
        ("%s = f32[8]{0} scatter(%x, %i, %u), update_window_dims={}, to_apply=%last", False),
        ("%s = s32[8]{0} scatter(%x, %i, %u), update_window_dims={}, to_apply=%add.1", False),
        ("%s = f32[8]{0} select-and-scatter(%x, %u, %x), select=%last, scatter=%add.1", True),
        ('%s = f32[8]{0} custom-call(%x), custom_call_target="__cudnn$convBackwardFilter"', True),
        ('%s = f32[8]{0} custom-call(%x), custom_call_target="__cudnn$convForward"', False),
    ],
)
def test_sums_whose_order_a_gpu_does_not_keep(line: str, unordered: bool) -> None:
    assert hlo.unordered_sums(entry("%x = f32[] parameter(0)", line, others=ADDING)) == ["main/s"] * unordered


def test_a_kernel_of_ours_says_how_many_operations_it_has() -> None:
    metadata = r'serialized_metadata = "{\22operations\22: \2212288\22}"'
    config = r'backend_config={grid_x = 1 : i32, ir = "ML\\EFR {22}", ' + metadata + "}"
    program = entry(
        "%a = f32[8,16]{1,0} parameter(0)",
        f'%k = f32[8,4]{{1,0}} custom-call(%a), custom_call_target="__gpu$xla.gpu.triton", {config}',
        '%other = f32[8,4]{1,0} custom-call(%a), custom_call_target="__gpu$xla.gpu.triton", backend_config={ir = "ML"}',
    )
    _, rest = hlo.steps_and_rest(program, "local_step")
    assert [kernel.operations for kernel in rest.kernels] == [12288, 0]
    assert [kernel.bytes for kernel in rest.kernels] == [640, 640]


def test_room_that_a_library_works_in_is_not_moved() -> None:
    call = "(f32[8,4]{1,0}, s8[4194304]{0}) custom-call(%a, %b), custom_call_target="
    program = entry(
        "%a = f32[8,16]{1,0} parameter(0)",
        "%b = f32[16,4]{1,0} parameter(1)",
        f'%product = {call}"__cublas$lt$matmul"',
        f'%other = {call}"something"',
    )
    _, rest = hlo.steps_and_rest(program, "local_step")
    moved = 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert [kernel.bytes for kernel in rest.kernels] == [moved, moved + 4194304]
