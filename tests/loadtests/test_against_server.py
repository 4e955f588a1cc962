"""The load test against the real server."""

import json

import pytest

from loadtests.__main__ import main
from loadtests.prefix import main as prefix_main
from serving import lanewise_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def url():
    with lanewise_server("--threads", "1") as url:
        yield url


@pytest.mark.parametrize("endpoint", [[], ["--chat"]], ids=["completions", "chat"])
def test_every_request_is_measured(url, endpoint, capsys):
    arguments = ["--url", url, "--clients", "1,3", "--rounds", "2", "--json", *endpoint]
    arguments += ["--prompt-tokens", "64", "--max-tokens", "12"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    one, three = report["runs"]
    assert (one["clients"], one["requests"], one["errors"]) == (1, 2, 0)
    assert (three["clients"], three["requests"], three["errors"]) == (3, 6, 0)
    for run in (one, three):
        assert run["completion_tokens"] == 12 * run["requests"]
        assert run["prompt_tokens_mean"] == pytest.approx(64, rel=0.25)
        assert 0 < run["ttft_ms"]["p50"] <= run["e2e_ms"]["p50"]
        # Tokens that were read together have no time between them: the median may be nothing.
        if run["itl_ms"]["p50"] is not None:
            assert 0 <= run["itl_ms"]["p50"] <= run["itl_ms"]["p95"] <= run["itl_ms"]["p99"]
            assert run["itl_ms"]["p99"] < run["e2e_ms"]["p99"]
        assert run["tokens_per_second"] * run["duration_s"] == pytest.approx(
            run["completion_tokens"]
        )
        assert 0 < run["server_outside_share"] < 1
        assert 0 < run["server_outside_us_per_step"] < 1e6 * run["duration_s"]


def test_failed_requests_are_reported(url, capsys):
    arguments = ["--url", url, "--model", "no-such-model", "--clients", "1"]
    assert main(arguments) == 2
    assert "no-such-model" in capsys.readouterr().err


def test_a_table_is_printed(url, capsys):
    arguments = ["--url", url, "--clients", "2", "--rounds", "1", "--max-tokens", "4"]
    assert main([*arguments, "--prompt-tokens", "16"]) == 0
    printed = capsys.readouterr().out
    assert "TTFT" in printed
    assert "outside native code" in printed


def test_users_behind_one_beginning_are_measured(url, capsys):
    arguments = ["--url", url, "--users", "4", "--common-tokens", "200", "--own-tokens", "16"]
    assert prefix_main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    users, common, own = 4, report["prompt_tokens"] / 4 - 16, 16
    assert common == pytest.approx(200, rel=0.25)
    # The first of them computes the beginning, up to a block's end; the others find it.
    assert (users - 1) * (common - 32) <= report["cached_tokens"] <= (users - 1) * (common + own)
    assert 0 < report["ttft_cached_ms"]["p50"] < report["ttft_cold_ms"]["p50"]
    assert report["together_ratio"] == pytest.approx(
        report["ttft_together_ms"]["p95"] / report["ttft_cold_ms"]["p50"]
    )
