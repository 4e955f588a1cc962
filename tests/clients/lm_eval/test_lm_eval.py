"""lm-eval over completions: its scores are those of its own backend."""

import json

import pytest

import topics
from serving import lanewise_server
from tests.clients.conftest import SERVER_PYTHON
from tests.clients.lm_eval.scoring import SCORES, STORIES, scores, write_tiny

pytestmark = [pytest.mark.clients, pytest.mark.e2e]


@pytest.mark.parametrize("name", json.loads(SCORES.read_text()))
def test_scores_are_those_of_its_own_backend(name, tmp_path):
    if name == "stories3M":
        if not STORIES.is_dir():
            topics.skip("data", "../shared/data does not exist")
        path = STORIES
    else:
        path = write_tiny(SERVER_PYTHON, name, tmp_path / name)
    with lanewise_server("--threads", "1", str(path), python=SERVER_PYTHON) as url:
        arguments = {"model": path.name, "tokenizer": str(path), "max_length": 256}
        arguments["base_url"] = f"{url}/v1/completions"
        got = scores("local-completions", arguments, tmp_path)
    for ours, own in zip(got, json.loads(SCORES.read_text())[name], strict=True):
        assert ours == pytest.approx(own, abs=1e-3)
