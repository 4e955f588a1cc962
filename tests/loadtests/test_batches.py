"""The load of a batch beside streams, against a real server."""

import json

import pytest

from loadtests.batches import main
from loadtests.decoders import idle_share
from loadtests.http_stream import Stream
from serving import lanewise_server

pytestmark = [pytest.mark.e2e, pytest.mark.native]


def test_a_batch_is_measured_beside_streams_that_pause(tmp_path, capsys):
    with lanewise_server("--threads", "1", "--data-dir", str(tmp_path)) as url:
        arguments = ["--url", url, "--streams", "2", "--answer-tokens", "20", "--pause", "0.5"]
        arguments += ["--requests", "50", "--common-tokens", "20", "--max-tokens", "4"]
        assert main([*arguments, "--seconds", "2", "--calm", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["alone_per_s"] > 0
    assert report["beside_per_s"] > 0
    assert 0 < report["idle_share"] < 1
    assert report["share_of_idle"] > 0


def test_time_is_idle_when_no_stream_waits():
    streams = [Stream(*times) for times in ((1.0, 3.0), (2.0, 4.0), (6.0, 0.0), (0.0, 0.0))]
    assert idle_share(streams, 0.0, 8.0) == pytest.approx((1 + 2) / 8)
    assert idle_share(streams, 3.0, 5.0) == pytest.approx(1 / 2)
    assert idle_share([], 0.0, 1.0) == 1.0
