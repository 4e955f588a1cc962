"""Agents do their work: tools, answers, resumed sessions, what is cut or too long."""

import pytest

from agent_turns import ask, work
from coding_agents import usage_of

pytestmark = [pytest.mark.clients, pytest.mark.e2e]


def test_sessions(kind, server, made):
    agent = made(kind, server)
    n_refused = len(server.refused)
    kept = work(agent, server)
    end = "TASK-TWO" if kind.edits else "RESULT-42"
    last = [one["asked"] for one, _ in kept if end in one["asked"]][-1]
    assert all(words in last for words in ("CONTENT-ONE", "TASK-TWO"))
    assert not kind.resumes or all(words in last for words in ("TASK-ONE", "ANSWER-ONE"))
    assert {one["status"] for one, _ in kept if one["method"] == "POST"} == {200}
    assert server.refused[n_refused:] == ""
    assert kind.counts or max(usage_of(one["answered"]) for one, _ in kept)[1] > 0


def test_a_second_session_comes_from_the_cache(kind, qwen, made):
    agent = made(kind, qwen)
    qwen.says(("TASK", {"text": "ANSWER"}))
    shares = []
    for prompt in ("TASK: look at the sea", "TASK: count the ships"):
        n_before = len(qwen.exchanges)
        ask(agent, qwen, prompt, "ANSWER", *kind.counts)
        answered = [one["answered"] for one in qwen.exchanges[n_before:]]
        n_prompt, n_cached = max(map(usage_of, answered))  # the one with tools
        shares.append(n_cached / n_prompt)
        assert n_prompt > kind.least_prompt
    assert shares[1] > kind.cached, shares


def test_an_answer_and_a_call_that_are_cut(kind, qwen, made):
    agent = made(kind, qwen)
    talk = {"text": f"I say {'very ' * 99}", "cut": 40}
    qwen.says(("TASK-ONE", talk), ("very very", {"text": "so"}))
    done = agent.ask("TASK-ONE: talk")
    assert "I say very very" in done.stdout + done.stderr
    said = agent.kind.says_file(agent.project / "b.txt", "word " * 99, "ANSWER-TWO")
    write = {**said, "cut": 60, "once": True}
    qwen.says(("TASK-TWO", write), ("word word", {"text": "ANSWER-TWO"}))
    agent.ask("TASK-TWO: write", resumed=True)
    qwen.says(("TASK-THREE", {"text": "ANSWER-THREE"}))
    ask(agent, qwen, "TASK-THREE: go on", "ANSWER-THREE", resumed=True)
    assert {one["status"] for one in qwen.exchanges if one["method"] == "POST"} == {200}


def test_a_conversation_that_outgrows_the_context(kind, small, made):
    agent = made(kind, small)
    small.says(("TASK-ONE", {"text": "ANSWER-ONE"}))
    ask(agent, small, "TASK-ONE: talk", "ANSWER-ONE")
    if kind.edits:
        (agent.project / "long.txt").write_text("".join(f"{i}\n" for i in range(1, 4001)))
        small.says(("TASK-TWO", {"text": "ANSWER-TWO"}))
        agent.ask("TASK-TWO: count", "--read", "long.txt", resumed=True)
    else:
        counted = {"text": "ANSWER-TWO", "calls": [kind.runs("seq 1 4000")], "once": True}
        small.says(("TASK-TWO", counted), ("3999", {"text": "ANSWER-TWO"}))
        agent.ask("TASK-TWO: count", resumed=True)
    if not kind.resumes:
        assert small.exchanges[-1]["status"] == 200, "it made no room within its session"
    small.says(("TASK-THREE", {"text": "ANSWER-THREE"}))
    if kind.gives_up:
        assert kind.gives_up in agent.ask("TASK-THREE: go on", resumed=True).stderr
        return
    ask(agent, small, "TASK-THREE: go on", "ANSWER-THREE", resumed=True)
    refused = [one["answered"] for one in small.exchanges if one["status"] == 400]
    assert all("context" in words or "too long" in words for words in refused)
    assert refused or kind.knows_context
    last = [one["asked"] for one in small.exchanges if "TASK-THREE" in one["asked"]][-1]
    assert r"3998\n3999" not in last, "nothing was left out"
