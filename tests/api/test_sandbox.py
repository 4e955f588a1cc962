"""Grammars and templates that would take everything are a 400; nobody else notices."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hostile_texts import (
    ENDLESS_REGEX,
    ENDLESS_TEMPLATES,
    GRAMMARS,
    LARGE_TEMPLATES,
    LONG_TEMPLATE,
    NESTINGS,
    RECURSIVE_TEMPLATES,
    SCHEMAS,
    chained_gbnf,
    chained_lark,
    chained_schema,
    nested_schema,
)
from lanewise.api.shared import compiling
from lanewise.api.shared.budgets import TextBudgets
from lanewise.engine.drawing import constraint
from lanewise.text.chat_template import ChatTemplate
from processes import children
from toy_server import toy_server

COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
ASK = {"prompt": "abc", "max_tokens": 3, "seed": 3}
HELLO = [{"role": "user", "content": "hi"}]
# Ordinary requests take milliseconds, and would take minutes behind one of these.
LONG_S = 10.0


@pytest.fixture(scope="module")
def server():
    """With little time for what takes too long."""
    budgets = TextBudgets(grammar_timeout_s=0.3, template_timeout_s=0.2)
    with toy_server(budgets=budgets) as running:
        yield running


def tool(parameters):
    function = {"name": "f", "parameters": parameters, "strict": True}
    return [{"type": "function", "function": function}]


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


FIELDS = {
    "guided_json": lambda schema: {"guided_json": schema},
    "guided_json text": lambda schema: {"guided_json": json.dumps(schema)},
    "json_schema": lambda schema: {"json_schema": schema},
    "response_format": lambda schema: {"response_format": form(schema)},
    "structured_outputs": lambda schema: {"structured_outputs": {"json": schema}},
    "tools": lambda schema: {"tools": tool(schema), "messages": HELLO},
}


def refused(answer: httpx.Response) -> dict:
    """The error object of an answer that says what the client has to change."""
    assert answer.status_code in (400, 413), answer.text
    return answer.json()["error"]


def assert_well(client: httpx.Client, number: int = 0) -> None:
    """An ordinary grammar, seen for the first time, and an ordinary conversation."""
    ask = ASK | {"guided_regex": f"[ab]{{{number + 2}}}"}
    assert client.post(COMPLETIONS, json=ask, timeout=LONG_S).status_code == 200
    ask = {"messages": HELLO, "max_tokens": 2}
    assert client.post(CHAT, json=ask, timeout=LONG_S).status_code == 200


def zygote(server) -> int:
    return server.state.sandbox.zygote_pid


@pytest.mark.parametrize(
    ("field", "links"), [*((field, 3_000) for field in FIELDS), ("guided_json", 100_000)]
)
def test_long_chains_of_references_are_refused(client, field, links):
    body = ASK | FIELDS[field](chained_schema(links))
    message = refused(client.post(CHAT if "messages" in body else COMPLETIONS, json=body))[
        "message"
    ]
    assert "nested too deeply" in message or "accepted: at most" in message
    assert_well(client, links % 97)


@pytest.mark.parametrize("make", [chained_lark, chained_gbnf])
@pytest.mark.parametrize("links", [3_000, 100_000, 1_000_000])
def test_long_chains_of_rules_are_refused(client, make, links):
    refused(client.post(COMPLETIONS, json=ASK | {"grammar": make(links)}))
    assert_well(client, links % 89)


@pytest.mark.parametrize("levels", [110, 300, 20_000])
@pytest.mark.parametrize("keyword", NESTINGS)
def test_deep_nesting_of_any_keyword_ends_in_an_answer(client, keyword, levels):
    schema = nested_schema(keyword, levels)
    answer = client.post(COMPLETIONS, json=ASK | {"guided_json": schema})
    assert answer.status_code in ((200, 400) if levels < 200 else (400,))
    whole = f'{{"prompt":"a","max_tokens":1,"guided_json":{schema}}}'.encode()
    assert client.post(COMPLETIONS, content=whole).status_code in (200, 400)


@pytest.mark.parametrize("name", SCHEMAS)
def test_extreme_schemas_end_in_an_answer(client, name):
    answer = client.post(COMPLETIONS, json=ASK | {"guided_json": SCHEMAS[name]})
    assert answer.status_code in (200, 400), answer.text
    assert_well(client)


@pytest.mark.parametrize("name", GRAMMARS)
def test_extreme_grammars_end_in_an_answer(client, name):
    answer = client.post(COMPLETIONS, json=ASK | {"grammar": GRAMMARS[name]})
    assert answer.status_code in (200, 400), answer.text
    assert_well(client)


def test_text_that_leaves_no_choice_is_found_once_not_for_each_answer(client):
    body = ASK | {"guided_regex": "abcdefgh " * 2000}
    assert "begins with the same" in refused(client.post(COMPLETIONS, json=body))["message"]
    body = {**ASK, "guided_regex": "abcdefgh " * 400, "n": 8, "max_tokens": 1}
    answer = client.post(COMPLETIONS, json=body).json()
    assert {choice["text"] for choice in answer["choices"]} == {"a"}


def test_a_grammar_that_is_too_heavy_to_follow_is_refused_from_then_on(client, monkeypatch):
    monkeypatch.setattr(constraint, "TOKEN_S", 0.0001)
    monkeypatch.setattr(constraint, "MAX_DEBT_S", 0.005)
    monkeypatch.setattr(compiling, "MAX_DEBT_S", 0.005)
    body = ASK | {"max_tokens": 200, "grammar": GRAMMARS["ambiguous"], "ignore_eos": True}
    assert "ms for a token" in refused(client.post(COMPLETIONS, json=body))["message"]
    error = refused(client.post(COMPLETIONS, json=body))
    assert error["param"] == "grammar"
    assert "ms for a token" in error["message"]


def test_what_was_refused_once_is_refused_at_once(client, server):
    def counted():
        return server.metric("lanewise_sandbox_workers_total")

    body = ASK | {"guided_regex": ENDLESS_REGEX}
    first = refused(client.post(COMPLETIONS, json=body))
    assert first["param"] == "guided_regex"
    before = counted()
    assert refused(client.post(COMPLETIONS, json=body)) == first
    assert counted() == before


def test_ordinary_grammars_are_compiled_beside_64_endless_ones(client, server):
    # Each another one, so that none is answered from memory.
    bodies = [ASK | {"guided_regex": ENDLESS_REGEX + "b" * i} for i in range(64)]
    ends = []
    with ThreadPoolExecutor(64) as pool:

        def ask(body):
            ends.append(httpx.post(server.url + COMPLETIONS, json=body, timeout=120))

        for body in bodies:
            pool.submit(ask, body)
        busy = server.state.sandbox.grammars
        server.wait_until(lambda: busy.n_slow_waiting > 0)
        n_ordinary = 0
        while busy.n_slow_waiting > 0 and n_ordinary < 5:
            assert_well(client, 100 + n_ordinary)
            n_ordinary += 1
        assert n_ordinary > 0
    assert {answer.status_code for answer in ends} <= {400, 503}
    for answer in ends:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["param"] == "guided_regex"
    assert len(ends) == 64


@pytest.fixture
def patient():
    """A server that would compile for minutes."""
    with toy_server(budgets=TextBudgets(grammar_timeout_s=200, grammar_memory=4 << 30)) as running:
        assert_well(running.client)
        yield running


def started(server, body):
    """A request whose work has a worker of its own by now."""
    pool = ThreadPoolExecutor(1)
    asked = pool.submit(httpx.post, server.url + COMPLETIONS, json=body, timeout=120)
    server.wait_until(lambda: server.state.sandbox.grammars.n_slow == 1)
    pool.shutdown(wait=False)
    return asked


def test_work_ends_when_its_client_leaves(patient):
    n_workers = len(children(zygote(patient)))
    body = ASK | {"guided_regex": ENDLESS_REGEX}
    with httpx.Client(base_url=patient.url) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(COMPLETIONS, json=body, timeout=1)
    patient.wait_until(lambda: patient.state.sandbox.grammars.n_slow == 0)
    patient.wait_until(lambda: len(children(zygote(patient))) <= n_workers)
    assert_well(patient.client, 7)


def test_work_whose_worker_is_killed_is_done_once_more(patient):
    lane = patient.state.sandbox.grammars
    asked = started(patient, ASK | {"guided_regex": ENDLESS_REGEX})
    (first,) = lane.slow_pids
    os.kill(first, signal.SIGKILL)
    patient.wait_until(lambda: lane.slow_pids and lane.slow_pids != [first])
    os.kill(lane.slow_pids[0], signal.SIGKILL)
    answer = asked.result()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "ended from outside" in answer.json()["error"]["message"]
    assert_well(patient.client, 8)


def test_a_zygote_that_is_killed_is_started_again(patient):
    restarts = patient.metric("lanewise_sandbox_restarts_total")
    os.kill(zygote(patient), signal.SIGKILL)
    assert_well(patient.client, 9)
    assert patient.metric("lanewise_sandbox_restarts_total") == restarts + 1


def test_compiled_grammars_have_a_budget_of_memory(monkeypatch):
    monkeypatch.setattr(compiling, "MIN_BYTES", 6 << 20)  # more than what was measured
    with toy_server(budgets=TextBudgets(grammar_cache_memory=10 << 20)) as server:
        ask = ASK | {"max_tokens": 1}

        def fits(body: dict) -> bool:
            return server.client.post(COMPLETIONS, json=body).status_code == 200

        for i in range(4):  # one fits, and makes room for the next when its request is over
            server.wait_until(lambda i=i: fits(ask | {"guided_regex": f"a{{{i + 1}}}"}))
        body = ask | {"guided_regex": "b+", "max_tokens": 9}
        server.wait_until(lambda: fits(body))
        server.runner.gate.clear()
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(httpx.post, server.url + COMPLETIONS, json=body, timeout=60)
            server.wait_until(lambda: server.state.engine.unfinished == 1)
            answer = server.client.post(COMPLETIONS, json=ask | {"guided_regex": "c+"})
            server.runner.gate.set()
            assert held.result().status_code == 200
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "MiB" in answer.json()["error"]["message"]
        server.wait_until(lambda: fits(body))


def assert_refused(server, text, says):
    """Both paths that render a conversation refuse the template, and all others go on."""
    own = server.state.chat_template
    server.state.chat_template = ChatTemplate({"default": text})
    for path in (CHAT, TOKENIZE):
        error = refused(server.client.post(path, json={"messages": HELLO}))
        assert error["param"] == "messages"
        assert says in error["message"]
    server.state.chat_template = own
    assert_well(server.client)


@pytest.mark.parametrize("text", ENDLESS_TEMPLATES.values(), ids=ENDLESS_TEMPLATES)
def test_endless_templates_are_refused(server, text):
    assert_refused(server, text, "processor time")


@pytest.fixture(scope="module")
def unhurried():
    """With time for what ends by its size: a busy machine may need some for pages of memory."""
    with toy_server(budgets=TextBudgets(template_timeout_s=60)) as running:
        yield running


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "MiB") for text in LARGE_TEMPLATES.values()),
        (LONG_TEMPLATE, "characters"),
        *((text, "deeply") for text in RECURSIVE_TEMPLATES.values()),
    ],
    ids=[*LARGE_TEMPLATES, "long", *RECURSIVE_TEMPLATES],
)
def test_large_templates_are_refused(unhurried, text, says):
    assert_refused(unhurried, text, says)


@pytest.mark.parametrize(
    "value",
    ["[" * 150 + "]" * 150, '"' + "x" * 5_000_000 + '"', "1" * 5000, str([0] * 500_000)],
    ids=["deep", "long", "digits", "many"],
)
def test_extreme_variables_for_the_template_end_in_an_answer(client, value):
    body = json.dumps({"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": {"value": 0}})
    answer = client.post(CHAT, content=body.replace("0", value).encode())
    assert answer.status_code in (200, 400), answer.text
    assert_well(client)


def test_arguments_of_calls_nested_deeply_end_in_an_answer(client):
    deep = "[" * 980 + "]" * 980
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": deep}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    for text in (deep, "{"):
        call["function"]["arguments"] = text
        answer = client.post(CHAT, json={"messages": messages, "max_tokens": 1})
        assert answer.status_code in (200, 400), answer.text
    assert_well(client)
