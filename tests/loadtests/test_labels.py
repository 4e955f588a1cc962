"""The load of labels against a real server."""

import json

import pytest

from loadtests.labels import main
from serving import lanewise_server

pytestmark = [pytest.mark.e2e, pytest.mark.native]


def test_labels_are_measured_beside_answers_and_are_what_they_are_alone(capsys):
    with lanewise_server("--threads", "1") as url:
        arguments = ["--url", url, "--texts", "3", "--tokens", "24", "--labels", "4"]
        arguments += ["--connections", "2", "--block", "2", "--check", "2"]
        assert main([*arguments, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["largest_difference"] == 0
        assert report["prompt_tokens"] > 24
        assert report["label_tokens"] >= 4
        assert all(found > 0 for found in report["texts_per_second"].values())
        assert report["answer_tokens"]["json"] > report["answer_tokens"]["choice"] >= 1
        assert main([*arguments, "--most", "-1"]) == 1
        assert "largest difference of a probability: 0" in capsys.readouterr().out
    assert main(["--url", url]) == 2
