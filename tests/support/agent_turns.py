"""Turns of a coding agent with a scripted server."""

import subprocess
from typing import Any

from coding_agents import Agent
from scripted_clients import Scripted


def failed(done: subprocess.CompletedProcess[str], server: Scripted) -> str:
    """What to read where an agent did not do its work."""
    seen = [(one["method"], one["path"], one["status"]) for one in server.exchanges]
    return f"{done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}\n{seen}\n{server.refused}"


def ask(
    agent: Agent, server: Scripted, prompt: str, answer: str, *more: str, resumed: bool = False
) -> None:
    """A turn, whose answer the agent shows."""
    done = agent.ask(prompt, *more, resumed=resumed)
    assert answer in done.stdout, failed(done, server)
    assert done.returncode == 0, failed(done, server)


def work(agent: Agent, server: Scripted) -> list[tuple[dict[str, Any], list[Any]]]:
    """Two turns with a tool each, the second of a resumed session; what was sent and scripted."""
    n_before = len(server.exchanges)
    file = agent.project / "alpha.txt"
    answer = "ANSWER-ONE, and I write it." if agent.kind.edits else "I write it."
    rules = [
        ("TASK-ONE", agent.kind.says_file(file, "CONTENT-ONE", answer)),
        ("CONTENT-ONE", {"text": "ANSWER-ONE"}),
    ]
    server.says(*rules)
    ask(agent, server, "TASK-ONE: write the file", "ANSWER-ONE")
    assert file.read_text().strip() == "CONTENT-ONE"
    n_first = len(server.exchanges)
    first = rules

    if agent.kind.edits:
        rules = [("TASK-TWO", agent.kind.says_file(file, "CONTENT-TWO", "ANSWER-TWO"))]
    else:
        call = agent.kind.runs("cat alpha.txt; echo RESULT-$((40+2))")
        rules = [("TASK-TWO", {"calls": [call]}), ("RESULT-42", {"text": "ANSWER-TWO"})]
    server.says(*rules)
    ask(agent, server, "TASK-TWO: run it", "ANSWER-TWO", resumed=True)
    seen = server.exchanges
    turns = [(one, first) for one in seen[n_before:n_first]]
    return turns + [(one, rules) for one in seen[n_first:]]
