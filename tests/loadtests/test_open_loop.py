"""Open-loop load: what is due when, what counts as good, and a real server at real rates."""

import asyncio
import json
import math
import time
from itertools import pairwise

import pytest

from loadtests.open_loop.__main__ import main
from loadtests.open_loop.measure import (
    ENOUGH,
    Batch,
    Outcome,
    Point,
    _sweep,
    interval,
    point_of,
    saturation_of,
)
from loadtests.open_loop.workload import (
    Objectives,
    Request,
    ScenarioError,
    Workload,
    read_trace,
    read_workload,
)
from serving import lanewise_server

LIMITS = Objectives(ttft_ms=100, tpot_ms=20)


def test_requests_come_at_random_times_at_the_rate_and_are_the_same_for_everybody():
    workload = Workload(name="w", seconds=1000, prompt_tokens=(10, 1000), output_tokens=(5, 5))
    requests = workload.requests(2.0, 0)
    assert requests == workload.requests(2.0, 0)
    assert requests != workload.requests(2.0, 1)
    assert len(requests) == pytest.approx(2000, abs=150)
    gaps = [b.at_s - a.at_s for a, b in pairwise(requests)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation == pytest.approx(mean, rel=0.15)  # as the exponential distribution has it
    sizes = sorted(one.prompt_tokens for one in requests)
    assert sizes[0] >= 10
    assert sizes[-1] <= 1000
    assert sizes[len(sizes) // 2] == pytest.approx(100, rel=0.25)
    assert {one.output_tokens for one in requests} == {5}
    regular = Workload(name="w", seconds=10, arrivals="constant").requests(2.0, 0)
    assert [one.at_s for one in regular] == [0.5 * n for n in range(1, 20)]


def test_a_trace_is_stretched_to_the_rate(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("at_s,prompt_tokens,output_tokens\n12,7,1\n10,5,2\n20,6,3\n")
    assert read_trace(path) == [Request(10, 5, 2), Request(12, 7, 1), Request(20, 6, 3)]
    workload = Workload(name="w", arrivals="trace", trace=path, seconds=100)
    assert workload.requests(0.3, 0) == [Request(0, 5, 2), Request(2, 7, 1), Request(10, 6, 3)]
    assert workload.requests(3.0, 1)[-1] == Request(pytest.approx(1), 6, 3)
    path.write_text("at_s,prompt_tokens\n1,2\n")
    with pytest.raises(ScenarioError, match="accepted: columns at_s, prompt_tokens, output_tokens"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rate = 3", "rate is unknown; accepted: name, seconds, rounds, rates"),
        ("rates = [0]", "rates is .* accepted: numbers above 0"),
        ("seconds = 0", "seconds is 0; accepted: a number above 0"),
        ('arrivals = "trace"', "arrivals is 'trace'; accepted: .* with a `trace` file"),
        ("prompt_tokens = 5", r"prompt_tokens is 5; accepted: \[from, to\]"),
        ("[objectives]\nttft = 3", "ttft is unknown; accepted: ttft_ms, tpot_ms"),
        ("rounds = ", "Invalid value"),
    ],
)
def test_a_scenario_that_is_wrong_is_refused_by_name(tmp_path, text, says):
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=says):
        read_workload(path)


def outcome(ttft_ms: float, tpot_ms: float) -> Outcome:
    return Outcome(ttft_ms / 1000, tpot_ms / 1000, (0.01, 0.03), 1.0, 10)


def test_good_requests_are_those_within_both_limits_and_errors_are_none():
    batch = Batch(offered=5, seconds=2.0, late_s=0.001)
    batch.outcomes = [outcome(99, 19), outcome(101, 1), outcome(1, 21), outcome(50, 10)]
    batch.errors["no"] = 1
    point = point_of("a", 2.5, [batch], LIMITS)
    assert point.good.value == pytest.approx(2 / 5)
    assert point.goodput == pytest.approx(1.0)
    assert point.tokens_per_s == pytest.approx(20)
    assert (point.errors, point.offered, point.itl_p99) == ({"no": 1}, 5, pytest.approx(30))


def test_intervals_hold_what_they_should_and_shrink():
    few, many = ([float(i % 100) for i in range(n)] for n in (40, 4000))

    def mean(values):
        return sum(values) / len(values)

    wide, narrow = interval(few, mean), interval(many, mean)
    assert wide.low < wide.value < wide.high
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3


def points_at(rates: dict[str, float]):
    """A measurement of imaginary servers, each good up to a rate."""
    seen: list[Point] = []

    async def at(rate: float) -> list[Point]:
        here = []
        for name, most in rates.items():
            batch = Batch(offered=20, seconds=1.0)
            batch.outcomes = [outcome(1, 1 if rate <= most else 99)] * 20
            here.append(point_of(name, rate, [batch], LIMITS))
        seen.extend(here)
        return here

    return at, seen


@pytest.mark.parametrize("first", [0.5, 8.0, 100.0])
def test_a_sweep_finds_where_servers_are_saturated(first):
    rates = {"fast": 20.0, "slow": 3.0}
    at, seen = points_at(rates)
    asyncio.run(_sweep(at, first))
    for name, point in saturation_of(seen).items():
        assert point.good.value >= ENOUGH
        assert rates[name] / 1.2 <= point.rate <= rates[name]
    assert len({point.rate for point in seen}) < 20


@pytest.mark.native
@pytest.mark.usefixtures("library")
@pytest.mark.thorough
def test_real_servers_in_turns_give_a_report(tmp_path, capsys):
    scenario = tmp_path / "small.toml"
    scenario.write_text(
        "seconds = 2\nrounds = 2\nrates = [2, 5]\n"
        "prompt_tokens = [8, 30]\noutput_tokens = [4, 12]\n"
        "[objectives]\nttft_ms = 60000\ntpot_ms = 60000\n"
    )
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    with lanewise_server("--threads", "1") as one, lanewise_server("--threads", "1") as two:
        began = time.monotonic()
        arguments = [str(scenario), "--url", f"a={one}", "--url", f"b={two}"]
        assert main([*arguments, "--report", str(page), "--json", str(figures)]) == 0
        assert time.monotonic() - began > 2 * 2 * 2 * 1.0  # it waits for what is due
    points = json.loads(figures.read_text())["points"]
    assert [(one["server"], one["rate"]) for one in points] == [
        *(("a", 2), ("a", 5), ("b", 2), ("b", 5)),
    ]
    for point in points:
        assert point["good"]["value"] == 1.0
        assert point["offered"] >= 2
        assert (
            0 < point["ttft_p50"]["low"] <= point["ttft_p50"]["value"] <= point["ttft_p95"]["value"]
        )
        assert point["tpot_p50"]["value"] >= 0  # short answers may come at once
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "http" not in text.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")
    assert "nine in ten requests are good up to 5 per second" in capsys.readouterr().out


def test_what_does_not_answer_is_said(tmp_path, capsys):
    scenario = tmp_path / "s.toml"
    scenario.write_text("rates = [1]\n")
    assert main([str(scenario), "--url", "http://127.0.0.1:9"]) == 2
    assert "127.0.0.1:9" in capsys.readouterr().err
