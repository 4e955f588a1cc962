"""The model's name in a body."""

import json

import pytest

from lanewise.router.naming import named_in


@pytest.mark.parametrize(
    "body",
    [
        {"model": "chat"},
        {"messages": [{"role": "user", "content": '{"model": "other"} \\" é'}], "model": "chat"},
        {"metadata": {"model": "other", "list": [{"model": "other"}]}, "model": "chat"},
        {"stop": ["model", ":"], "n": 1, "user": "model", "stream": True, "model": "chat"},
    ],
)
def test_the_name_is_found_wherever_it_stands(body):
    assert named_in(json.dumps(body).encode()) == "chat"
    assert named_in(json.dumps(body, indent=1).encode()) == "chat"


def test_a_name_may_be_written_with_escapes():
    assert named_in(rb'{"mod\u0065l" : "ch\u0061t"}') == "chat"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b'["model", "chat"]', b'[{"model": "chat"}]', b'{"model": 5}'),
        *(b'{"model": null, "user": "x"}', b'{"model": {"model": "chat"}}', b'{"model": ["a"]}'),
        *(b'{"user": "model"}', b'{"a": {"model": "chat"}}', b'"model"', b'{"model": "no end'),
        b'{"model": "' + b"a" * 5000 + b'"}',
    ],
)
def test_a_body_without_a_name_has_none(body):
    assert named_in(body) is None


def test_an_old_name_counts_where_it_is_asked_for():
    assert named_in(b'{"name": "chat"}', ("model", "name")) == "chat"
    assert named_in(b'{"name": "chat"}') is None
