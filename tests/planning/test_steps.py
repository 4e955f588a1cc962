"""Seconds of a step on paper, and corrected by what was measured."""

from dataclasses import replace

import pytest

from lanewise.planning.machines import Kernels, Machine, Team
from lanewise.planning.measured import Point, calibrated, host_machine, points_of
from lanewise.planning.steps import (
    StepSize,
    decode_size,
    interpolate,
    prompt_size,
    rate,
    step_time,
)
from lanewise.planning.work import WHOLE, ModelWork, Weights, step_bytes

MANY = 1e30  # a second: as good as free
WORK = ModelWork(
    matrices=(Weights("q4_0", 8e8, 4e8), Weights("q8_0", 2e8, 2e8, of_head=True)),
    expert_share=1.0,
    attention_weights=1e5,
    values=1e6,
    n_layers=10,
    windows=WHOLE,
    kv_token_bytes=1e5,
    held_bytes=600_000_000,
)
KERNELS = Kernels((1.0, 16.0), (1e10, 4e10), {"others": (0.5, 0.5)}, MANY, MANY)
MACHINE = Machine("paper", "neon", 4, 1e11, KERNELS, Team(0.0, 0, 0.0))


def test_one_sequence_waits_for_the_bandwidth_or_for_the_arithmetic():
    size = StepSize(rows=1, logits=1, attended=0, cached=0)
    # 0.8 G at 10 G/s and 0.2 G at half of that, by 4 cores: 30 ms; 0.6 GB at 100 GB/s: 6 ms.
    assert step_time(MACHINE, WORK, size).seconds == pytest.approx(0.030)
    assert step_time(MACHINE, WORK, size).limit == "arithmetic"
    slow = replace(MACHINE, read_s=1e10)
    assert step_time(slow, WORK, size).seconds == pytest.approx(0.060)
    assert step_time(slow, WORK, size).limit == "bandwidth"


def test_the_head_is_multiplied_only_where_logits_are_wanted():
    size = StepSize(rows=16, logits=0, attended=0, cached=0)
    seconds = step_time(MACHINE, WORK, size).seconds
    assert seconds == pytest.approx(16 * 8e8 / 4e10 / 4)
    assert step_time(MACHINE, WORK, replace(size, logits=16)).seconds > 1.4 * seconds


def test_attention_reads_the_cache_and_multiplies_pairs():
    size = StepSize(rows=1, logits=0, attended=1000, cached=1000)
    without = step_time(MACHINE, WORK, replace(size, attended=0, cached=0))
    reading = step_time(MACHINE, WORK, size)
    assert reading.bandwidth == pytest.approx(without.bandwidth + 1e8 / 1e11)
    slow = replace(MACHINE, kernels=replace(KERNELS, attention_s=1e9))
    computing = step_time(slow, WORK, size)
    assert computing.arithmetic == pytest.approx(without.arithmetic + 1e8 / 1e9 / 4)


def test_attention_of_few_heads_has_work_for_few_threads():
    few = replace(WORK, attention_heads=2)
    slow = replace(MACHINE, threads=64, kernels=replace(KERNELS, attention_s=1e9))
    size = decode_size(1, 999)

    def attention_s(machine, work, size):
        without = replace(size, attended=0.0)
        return step_time(machine, work, size).seconds - step_time(machine, work, without).seconds

    assert attention_s(slow, few, size) == pytest.approx(1000 * 1e5 / 1e9 / 2 - 1e-3)
    # The cache takes 1 ms; eight rows have as many heads each, and parts of a context are jobs too.
    assert attention_s(slow, few, decode_size(8, 999)) == pytest.approx(8e8 / 1e9 / 16 - 8e-3)
    shared = replace(slow, team=replace(slow.team, attention_tokens=100))
    assert attention_s(shared, few, size) == pytest.approx(1e8 / 1e9 / 20 - 1e-3)
    assert attention_s(slow, WORK, size) == pytest.approx(1e8 / 1e9 / 64 - 1e-3)


def test_reading_and_multiplying_hide_each_other_as_far_as_the_core_can():
    size = StepSize(rows=1, logits=1, attended=0, cached=0)
    both = replace(MACHINE, read_s=2e10, kernels=replace(KERNELS, overlap=2))  # 30 ms and 30 ms
    assert step_time(both, WORK, size).seconds == pytest.approx(0.030 * 2**0.5)
    neither = replace(both, kernels=replace(KERNELS, overlap=1))
    assert step_time(neither, WORK, size).seconds == pytest.approx(0.060)


def test_states_of_each_sequence_are_moved():
    work = replace(WORK, moved_state_bytes=1e8)
    for size, n in ((decode_size(3, 100), 3), (prompt_size(40, 100), 1)):
        without, moving = (step_time(MACHINE, one, size) for one in (WORK, work))
        assert moving.bandwidth == pytest.approx(without.bandwidth + n * 1e8 / 1e11)
        assert moving.arithmetic == without.arithmetic


def test_threads_wait_for_each_other_and_for_what_one_does_alone():
    team = Team(serial=0.2, phases=5, wait_s=1e-4)
    size = StepSize(rows=1, logits=1, attended=0, cached=0)
    time = step_time(replace(MACHINE, team=team), WORK, size)
    assert time.overhead == pytest.approx(10 * 5 * 1e-4)
    assert time.arithmetic == pytest.approx(0.120 * (0.2 + 0.8 / 4))


def test_layers_with_a_window_see_no_more_than_that():
    half = ((100, 0.5), (None, 0.5))
    size = decode_size(2, 999, half)
    assert (size.attended, size.cached) == (2 * (50 + 500), 2 * (50 + 500))
    assert decode_size(2, 49, half) == decode_size(2, 49)
    # The first hundred tokens of a prompt see what is before them, the others a hundred.
    assert prompt_size(300, 0, ((100, 1.0),)).attended == 100 * 101 / 2 + 200 * 100


def test_values_of_every_row_take_time():
    slow = replace(MACHINE, kernels=replace(KERNELS, values_s=1e9))
    size = StepSize(rows=16, logits=0, attended=0, cached=0)
    more = step_time(slow, WORK, size).seconds - step_time(MACHINE, WORK, size).seconds
    assert more == pytest.approx(16 * 1e6 / 1e9 / 4)


def test_more_rows_read_more_experts_and_each_expert_has_few():
    part = Weights("q4_0", 1e9, 5e8, of_experts=True)
    work = replace(WORK, matrices=(part,), expert_share=1 / 8)
    assert work.bytes_read(1) == 5e8
    assert work.bytes_read(2) == pytest.approx(step_bytes(5e8, 5e8, 1 / 8, 2))
    few, many = (
        step_time(MACHINE, work, StepSize(rows, 0, 0, 0)).seconds / rows for rows in (8, 128)
    )
    assert few == pytest.approx(1e9 / 1e10 / 4)
    assert many == pytest.approx(1e9 / 4e10 / 4)


def test_rates_lie_between_those_that_are_known():
    assert [interpolate((1.0, 16.0), (1.0, 5.0), at) for at in (0, 1, 4, 16, 99)] == [1, 1, 3, 5, 5]
    kernels = replace(KERNELS, types={"q6_k": (0.25, 0.5), "others": (1.0, 1.0)})
    assert rate(kernels, "q6_k", 1) == pytest.approx(0.25 * rate(kernels, "q4_0", 1))
    assert rate(kernels, "q6_k", 500) == pytest.approx(0.5 * rate(kernels, "q4_0", 500))
    assert rate(kernels, "iq4_nl", 4) == rate(kernels, "q4_0", 4)


def test_what_was_measured_is_predicted_and_what_lies_between_is_too():
    points = [Point(decode_size(1, 100), 0.1), Point(decode_size(16, 100), 0.4)]
    cost = calibrated(MACHINE, WORK, points)
    for point in points:
        assert cost(point.size).seconds == pytest.approx(point.seconds)
    assert 0.1 < cost(decode_size(4, 100)).seconds < 0.4
    assert cost(decode_size(1, 3000)).seconds > 0.1


def test_points_of_a_bench_report():
    report = {
        "context": 100,
        "results": [
            {"name": "pp1024", "tokens_per_second": 512.0},
            {"name": "tg40", "tokens_per_second": 20.0},
            {"name": "tg40@8", "tokens_per_second": 80.0},
        ],
    }
    assert points_of(report) == [
        Point(prompt_size(512, 256), pytest.approx(1.0)),
        Point(decode_size(1, 120), pytest.approx(0.05)),
        Point(decode_size(8, 120), pytest.approx(0.1)),
    ]


def test_a_host_is_its_limits():
    machine = host_machine("a CPU", "avx2", 2, read_gb_s=40.0, int8_gmac_s=200.0)
    size = StepSize(rows=1, logits=1, attended=0, cached=0)
    assert step_time(machine, WORK, size).bandwidth == pytest.approx(6e8 / 40e9)
    many = step_time(machine, WORK, replace(size, rows=100, logits=0))
    assert many.arithmetic == pytest.approx(100 * 8e8 / 200e9 + 100 * 1e6 / (2 * 0.02 * 1e11))


def test_bytes_of_a_step_with_experts():
    assert step_bytes(700, 0, 1.0, 8) == 700
    assert step_bytes(700, 200, 0.25, 1) == 700
    # Of two rows, the second has a quarter of its experts in common with the first.
    assert step_bytes(700, 200, 0.25, 2) == pytest.approx(500 + 1.75 * 200)
    assert step_bytes(700, 200, 0.25, 1000) == pytest.approx(500 + 4 * 200)
