"""Files of requests: their order, and hours in which they are asked."""

import json
from datetime import datetime
from itertools import pairwise

import pytest

from lanewise.batches.hours import Hours
from lanewise.batches.lines import BadLinesError, Limits, read_lines, text_of

LIMITS = Limits(["/v1/chat/completions"], 1 << 20)


def written(path, bodies):
    path.write_text(
        "\r\n".join(
            json.dumps({"custom_id": f"{i}", "url": "/v1/chat/completions", "body": body})
            for i, body in enumerate(bodies)
        )
    )
    return path


def chat(system, user):
    return {
        "max_tokens": 5,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
        ],
    }


def test_prompts_that_begin_alike_follow_each_other(tmp_path):
    systems = [f"You are {name}. " * 100 for name in ("kind", "brief", "odd")]
    path = written(tmp_path / "in", [chat(systems[i % 3], f"{i}" * 700) for i in range(30)])
    lines = read_lines(path, LIMITS)
    kinds = [int(line.custom_id) % 3 for line in lines]
    assert sum(one != other for one, other in pairwise(kinds)) == 2
    assert len({line.custom_id for line in lines}) == 30
    for line in lines:
        assert json.loads(text_of(path, line))["custom_id"] == line.custom_id


def test_short_prompts_stay_in_order(tmp_path):
    lines = read_lines(written(tmp_path / "in", [chat("a", f"{i}") for i in range(9)]), LIMITS)
    assert [line.custom_id for line in lines] == [f"{i}" for i in range(9)]


def test_more_than_there_may_be(tmp_path):
    path = written(tmp_path / "in", [{}] * 5)
    assert len(read_lines(path, Limits(LIMITS.urls, 1000, 5))) == 5
    with pytest.raises(BadLinesError, match="more than 4 requests"):
        read_lines(path, Limits(LIMITS.urls, 1000, 4))


def test_many_faults_are_some_faults(tmp_path):
    (tmp_path / "in").write_text("x\n" * 1000)
    with pytest.raises(BadLinesError) as bad:
        read_lines(tmp_path / "in", LIMITS)
    assert [fault.line for fault in bad.value.faults] == [*range(1, 21)]


@pytest.mark.parametrize(
    ("spans", "clock", "is_open"),
    [
        ([], "12:00", True),
        (["22-6"], "23:30", True),
        (["22-6"], "05:59", True),
        (["22-6"], "06:00", False),
        (["22-6"], "21:59", False),
        (["12:30-14", "18-24"], "12:29", False),
        (["12:30-14", "18-24"], "13:59", True),
        (["12:30-14", "18-24"], "23:59", True),
    ],
)
def test_hours(spans, clock, is_open):
    assert Hours(spans).has(datetime.fromisoformat(f"2026-11-29T{clock}")) is is_open
