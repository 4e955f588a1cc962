"""The figures of the load test's report."""

import json
from dataclasses import asdict

import pytest

from loadtests.http_stream import Stream
from loadtests.report import Times, percentile, print_table, summarize
from loadtests.scenario import Run


def test_percentiles_interpolate_between_neighbours():
    values = [float(i) for i in range(1, 101)]
    assert percentile(values, 50) == pytest.approx(50.5)
    assert percentile(values, 99) == pytest.approx(99.01)
    assert percentile([3.0], 95) == 3.0
    assert percentile([], 95) is None


def test_a_run_is_summarized_in_milliseconds(capsys):
    streams = [
        Stream(started=0.0, ended=0.5, chunk_times=[0.1, 0.2, 0.5], prompt_tokens=10),
        Stream(started=1.0, ended=2.0, chunk_times=[1.3, 2.0], prompt_tokens=14),
    ]
    run = Run(clients=2, duration_s=2.0, cpu_s=0.1, streams=streams)
    run.errors["status 429"] += 1
    summary = summarize(run)
    assert (summary.requests, summary.errors, summary.completion_tokens) == (2, 1, 5)
    assert summary.prompt_tokens_mean == 12
    assert summary.tokens_per_second == 2.5
    assert summary.ttft_ms.p50 == pytest.approx(200)
    assert summary.itl_ms.p50 == pytest.approx(300)
    assert summary.e2e_ms.mean == pytest.approx(750)
    assert summary.client_cpu_share == 0.05
    assert json.loads(json.dumps(asdict(summary)))["error_messages"] == {"status 429": 1}
    print_table([summary], "title")
    assert "1 times: status 429" in capsys.readouterr().out


def test_a_run_without_answers_has_no_times():
    summary = summarize(Run(clients=1, duration_s=1.0, cpu_s=0.0))
    assert summary.ttft_ms == Times(None, None, None, None)
    assert summary.tokens_per_second == 0
