"""Typed questions about a state, over a socket."""

import math

import pytest

from lanewise.api.likelihoods.deciding import confidence_of_choice, confidence_of_score

STATE = {"message": "I was charged twice, and nobody answers. Größe: 7", "channel": "chat"}
QUESTIONS = {
    "refund": {
        "type": "noul",
        "instructions": "Does it ask for money back?",
        "criteria": {"true": "Money is to be returned.", "false": None},
    },
    "team": {
        "type": "choice",
        "instructions": "Who answers?",
        "criteria": {"billing": "invoices", "technical": None, "sales": "offers"},
    },
    "anger": {
        "type": "score",
        "instructions": {"rate": "How angry?"},
        "criteria": ["calm", "annoyed", "furious"],
    },
}
# What the model reads of each, behind the state.
WRITTEN = {
    "refund": "Does it ask for money back?\nyes: Money is to be returned.\n"
    "Answer with yes or no alone.",
    "team": "Who answers?\nA. billing: invoices\nB. technical\nC. sales: offers\n"
    "Answer with the letter of the best option alone.",
    "anger": '{"rate": "How angry?"}\n0. calm\n1. annoyed\n2. furious\n'
    "Answer with the number of the level that fits best alone.",
}
SIGNS = {"refund": ["yes", "no"], "team": ["A", "B", "C"], "anger": ["0", "1", "2"]}
SHOWN = '{"message": "I was charged twice, and nobody answers. Größe: 7", "channel": "chat"}'


def post(client, path, body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def alone(server):
    """The probabilities of each question's signs, asked as labels."""
    found = {}
    for name, text in WRITTEN.items():
        messages = [{"role": "user", "content": f"{SHOWN}\n\n{text}"}]
        body = {"messages": messages, "labels": SIGNS[name], "return_token_ids": True}
        (found[name],) = post(server.client, "/v1/classify", body)["data"]
    return found


def test_answers_are_the_probabilities_of_labels(client, alone):
    body = {"model": "toy", "state": STATE, "questions": QUESTIONS, "cache_salt": "new"}
    answer = post(client, "/v1/systemone", body)
    probs = {name: told["probs"] for name, told in alone.items()}
    refund, team, anger = (answer["answers"][name] for name in QUESTIONS)
    assert refund == {"type": "noul", "noul": probs["refund"][0]}
    names = ["billing", "technical", "sales"]
    best = max(range(3), key=lambda i: probs["team"][i])
    assert team == {
        "type": "choice",
        "choice": names[best],
        "probabilities": dict(zip(names, probs["team"], strict=True)),
        "confidence": pytest.approx((probs["team"][best] - 1 / 3) / (2 / 3)),
    }
    assert anger["probabilities"] == dict(zip("012", probs["anger"], strict=True))
    assert anger["score"] == pytest.approx(probs["anger"][1] + 2 * probs["anger"][2])
    assert anger["legend"] == {"0": "calm", "1": "annoyed", "2": "furious"}
    assert 0 <= anger["confidence"] <= 1
    assert answer["model"] == "toy"
    n_tokens = sum(
        len(told["prompt_token_ids"]) + sum(map(len, told["label_token_ids"]))
        for told in alone.values()
    )
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (n_tokens, 0)


def test_a_question_does_not_depend_on_others(client):
    together = post(client, "/v1/systemone", {"state": STATE, "questions": QUESTIONS})["answers"]
    for name, question in QUESTIONS.items():
        body = {"state": STATE, "questions": {name: question}}
        assert post(client, "/systemone", body)["answers"] == {name: together[name]}


def test_many_options_have_two_letters_each(client):
    criteria = {f"o{i}": None for i in range(30)}
    body = {
        "state": "x",
        "questions": {"q": {"type": "choice", "instructions": "?", "criteria": criteria}},
    }
    answer = post(client, "/v1/systemone", body)["answers"]["q"]
    assert list(answer["probabilities"]) == list(criteria)
    assert math.isclose(sum(answer["probabilities"].values()), 1)


def test_confidence_is_that_of_the_protocol():
    assert confidence_of_choice([1.0]) == 1
    assert confidence_of_choice([0.25] * 4) == 0
    assert confidence_of_choice([0.7, 0.2, 0.1]) == pytest.approx(0.55)
    assert confidence_of_score([0, 1, 0]) == 1
    assert confidence_of_score([0.25, 0.5, 0.25]) == pytest.approx(1 - 0.5 / (2 / 3))
    assert confidence_of_score([0.5, 0, 0.5]) == 0


NOUL = {"type": "noul", "instructions": "x"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": {"q": NOUL}}, "state"),
        ({"state": 7, "questions": {"q": NOUL}}, "state"),
        ({"state": "x"}, "questions"),
        ({"state": "x", "questions": {}}, "questions"),
        ({"state": "x", "questions": {"q": {"type": "noul"}}}, "questions.q.instructions"),
        ({"state": "x", "questions": {"q": NOUL | {"type": "rank"}}}, "questions.q"),
        ({"state": "x", "questions": {"q": NOUL | {"type": "choice"}}}, "questions.q.criteria"),
        (
            {"state": "x", "questions": {"q": NOUL | {"type": "choice", "criteria": {}}}},
            "questions.q.criteria",
        ),
        (
            {"state": "x", "questions": {"q": NOUL | {"type": "score", "criteria": ["a"]}}},
            "questions.q.criteria",
        ),
        ({"state": "x", "questions": {"q": NOUL}, "images": ["data:"]}, "images"),
        ({"state": "x", "questions": {"q": NOUL}, "model": "jev-latest"}, "model"),
        ({"state": "x " * 2000, "questions": {"q": NOUL}}, "state"),
    ],
)
def test_wrong_fields_are_named(client, body, param):
    answer = client.post("/v1/systemone", json=body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param
