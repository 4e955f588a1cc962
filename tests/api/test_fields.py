"""Fields in the words of other servers: honoured, refused by name, or told to be ignored."""

import json

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ASK = {"prompt": "abc", "max_tokens": 60, "seed": 3, "temperature": 1.5}
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
WARNING = "x-lanewise-warning"


def text_of(client, change):
    answer = client.post(COMPLETIONS, json=ASK | change)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def refused(client, path, body):
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"guided_json": SCHEMA}),
        ({"format": SCHEMA}, {"guided_json": SCHEMA}),
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        ({"regex": "[ab]{2,9}"}, {"guided_regex": "[ab]{2,9}"}),
        ({"ebnf": 'root ::= "a" [0-9]{2}'}, {"grammar": 'root ::= "a" [0-9]{2}'}),
        ({"repeat_penalty": 3.0}, {"repetition_penalty": 3.0}),
        ({"max_tokens": None, "max_new_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": None, "n_predict": 7}, {"max_tokens": 7}),
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_servers_words_for_what_there_is_mean_the_same(client, change, other):
    assert text_of(client, change) == text_of(client, other) != text_of(client, {})


def test_no_limit_in_the_words_of_llama_cpp(client):
    body = {"prompt": "abc", "n_predict": -1, "ignore_eos": True, "seed": 1}
    assert client.post(COMPLETIONS, json=body).json()["usage"]["total_tokens"] == 512


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"n_predict": 3}, "n_predict"),
        ({"structured_outputs": {"jsn": SCHEMA}}, "structured_outputs.jsn"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"typical_p": 0.9}, "typical_p"),
        ({"format": "xml"}, "format"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(client, change, param):
    error = refused(client, COMPLETIONS, ASK | change)
    assert error["param"] == param
    assert error["message"].startswith(param)


NEUTRAL = {
    "typical_p": 1,
    "length_penalty": 1.0,
    "use_beam_search": False,
    "xtc_probability": 0,
    "truncate_prompt_tokens": -1,
    "mirostat": 0,
    "guidance_scale": 1.0,
    "bad_words": [],
    "structured_outputs": {"disable_any_whitespace": True},
    "user": "me",
    "store": True,
}


def test_neutral_values_change_nothing_and_are_not_worth_a_word(client):
    for path, body in ((COMPLETIONS, ASK), (CHAT, {"messages": HELLO, "max_tokens": 2})):
        answer = client.post(path, json=body | NEUTRAL)
        assert answer.status_code == 200, answer.text
        assert WARNING not in answer.headers
    assert text_of(client, NEUTRAL) == text_of(client, {})


def test_high_temperatures_are_what_they_are(client):
    assert text_of(client, {"temperature": 2.5}) != text_of(client, {"temperature": 1.5})


def test_fields_that_nobody_knows_are_named_in_a_header(client):
    body = {"messages": HELLO, "max_tokens": 1, "temprature": 1, "best\r\nof": [1], "nothing": None}
    for stream in (False, True):
        answer = client.post(CHAT, json=body | {"stream": stream})
        assert answer.status_code == 200
        told = answer.headers[WARNING]
        assert "temprature" in told
        assert "nothing" not in told
    many = {f"x{i}": 1 for i in range(10_000)}
    told = client.post(CHAT, json=body | many).headers.get_list(WARNING)
    assert sum(map(len, told)) < 2000


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (COMPLETIONS, [], "the body must be a JSON object"),
        (
            COMPLETIONS,
            ASK | {"response_format": 3},
            "response_format: must be a JSON object; got 3",
        ),
        (CHAT, {"messages": HELLO, "tools": [3]}, "tools[0]: must be a JSON object; got 3"),
        (COMPLETIONS, ASK | {"regex": r"[^\x00-\x{10FFFF}]"}, "regex: nothing matches it"),
    ],
)
def test_errors_are_in_our_words(client, path, body, message):
    assert refused(client, path, body)["message"] == message


def test_a_choice_may_be_any_character(client):
    assert text_of(client, {"guided_choice": ["\x7f"]}) == "\x7f"
    assert json.loads(json.dumps(text_of(client, {"guided_choice": ["\x00\x7f\x85"]})))


def test_the_least_number_of_tokens_is_compared_with_what_there_is(client):
    ask = {"prompt": "abc", "min_tokens": 600}
    said = refused(client, COMPLETIONS, ask | {"max_tokens": 30})["message"]
    assert said == "min_tokens: 600 is more than max_tokens, which is 30"
    answer = refused(client, CHAT, {"messages": HELLO, "min_tokens": 600})
    assert answer["message"].startswith("min_tokens: 600 is more than the context has room for")
    assert answer["param"] == "min_tokens"


def test_an_effort_that_a_model_has_no_use_for_is_told(client, template):
    ask = {"messages": HELLO, "max_tokens": 1}

    def told(effort):
        answer = client.post(CHAT, json=ask | {"reasoning_effort": effort})
        assert answer.status_code == 200
        return answer.headers.get(WARNING, "")

    assert told("high").startswith("reasoning_effort: this model has no such setting")
    assert told("none") == "", "it does not reason, as was asked"
    template("{{ messages[0].content }}{{ reasoning_effort }}{# </think> #}")
    assert told("high") == told("none") == ""
    template("{{ messages[0].content }}{{ enable_thinking }}{# </think> #}")
    assert told("none") == ""
    assert told("low")


def test_tools_count_where_a_conversation_is_tokenized(client, template):
    template("{{ tools | tojson }}{{ messages[0].content }}")
    tools = [{"type": "function", "function": {"name": "now"}}]
    body = {"messages": HELLO, "tools": tools}
    found = client.post("/tokenize", json=body).json()
    usage = client.post(CHAT, json=body | {"max_tokens": 1}).json()["usage"]
    assert found["count"] == usage["prompt_tokens"] > 20
    assert refused(client, "/tokenize", {"prompt": "a", "tools": tools})["param"] == "tools"
