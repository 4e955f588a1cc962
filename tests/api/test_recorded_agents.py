"""What coding agents sent is answered as it was: statuses, prompts, and every byte of answers."""

import pytest

from agents_again import TEMPLATES, application
from data_files import data
from recorded_agents import FOLDER, read

RECORDED = {path.name.partition(".")[0]: path for path in sorted(FOLDER.glob("*.jsonl.xz"))}


@pytest.fixture(params=TEMPLATES)
def again(request):
    """With an empty cache: answers tell what came from it."""
    with application(data(f"templates/{request.param}.jinja").read_text()) as again:
        yield request.param, again


def test_there_are_some():
    assert len(RECORDED) >= 8


@pytest.mark.parametrize("agent", RECORDED)
def test_a_conversation(again, agent):
    template, server = again
    for one in read(RECORDED[agent]):
        outcome = server.send(one)
        assert outcome.status == one.status, (one.path, one.body[:200])
        assert outcome.answer == outcome.said
        assert outcome.prompts == one.prompts[template]
        assert outcome.text == one.answers[template]
    assert server.refused == []
