"""``/v1/classify`` of a model that writes text: which of given labels it would answer with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from starlette.responses import Response

from lanewise.api.conversations import Message
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.call import Call
from lanewise.api.generation.measuring import check_priority
from lanewise.api.generation.writing import dumps_long
from lanewise.api.likelihoods.fields import LabelFields, Question
from lanewise.api.likelihoods.prompts import chat_prompt, continuation_ids, text_prompt
from lanewise.api.likelihoods.scoring import (
    Continued,
    Likelihood,
    Place,
    Scores,
    likelihoods,
    shares,
    usage_of,
)
from lanewise.api.shared.request_budgets import check_count

LISTED = "Which of these labels fits the text best? Answer with the label alone.\n"
B = TypeVar("B", bound=LabelFields)


class _Asked(NamedTuple):
    """A question about one text."""

    text: int
    number: int  # of the question
    continued: Continued


async def classify_by_labels(call: Call[B], texts: Sequence[str] | None) -> Response:
    """The labels of texts, or of the answer to a conversation, each with its probability."""
    body = call.ask
    check_priority(call, body.priority)
    questions = _questions(body)
    asked = await _asked(call, texts, questions)
    place = Place("classify", body.model, body.cache_salt, body.priority)
    scores = await likelihoods(call, [one.continued for one in asked], place)

    def make() -> Any:
        data: list[dict[str, Any]] = []
        for one, found in zip(asked, scores.found, strict=True):
            told = {"index": len(data), **_told(questions[one.number].labels, found)}
            if body.questions is not None:
                name = questions[one.number].name
                told |= {"input": one.text, "question": one.number if name is None else name}
            if body.return_token_ids:
                prompt, labels, _ = one.continued
                told |= {"prompt_token_ids": prompt, "label_token_ids": labels}
            data.append(told)
        return listed("classify", data, call, body.model, scores)

    return await call.state.workers.answer(call.size, lambda: dumps_long(make()))


def listed(
    prefix: str, data: list[dict[str, Any]], call: Call[Any], model: str | None, scores: Scores
) -> dict[str, Any]:
    """An answer of many parts."""
    return {
        "id": f"{prefix}-{call.id}",
        "object": "list",
        "created": int(time.time()),
        "model": model or call.state.model_name,
        "data": data,
        "usage": usage_of(scores),
    }


def _told(labels: Sequence[str], found: Sequence[Likelihood]) -> dict[str, Any]:
    probs = shares(found)
    return {
        "label": labels[probs.index(max(probs))],
        "probs": probs,
        "num_classes": len(probs),
        "labels": labels,
        "logprobs": [one.logprob for one in found],
    }


def _questions(body: LabelFields) -> Sequence[Question]:
    """All of them, whichever form they came in."""
    if body.questions is not None:
        return body.questions
    if body.labels is None:
        raise BadRequestError(
            "labels: this model writes text and has no classes of its own; accepted: a list of"
            " labels to choose from",
            param="labels",
        )
    return [Question(labels=body.labels, instruction=body.instruction, name=None)]


async def _asked(
    call: Call[B], texts: Sequence[str] | None, questions: Sequence[Question]
) -> list[_Asked]:
    body, most = call.ask, call.state.request_budgets.max_texts
    if (texts is None) == (body.messages is None):
        raise BadRequestError("input: one of input and messages is needed", param="input")
    if texts is not None and not texts:
        raise BadRequestError("input: the list is empty", param="input")
    n_texts = 1 if texts is None else len(texts)
    check_count("input", "texts with questions", n_texts * len(questions), most)
    labels = []
    for number, question in enumerate(questions):
        param = "labels" if body.questions is None else f"questions[{number}].labels"
        check_count(param, "labels", len(question.labels), most)
        labels.append(await _label_ids(call, question.labels, param))
    if texts is None:
        assert body.messages is not None
        ids = await chat_prompt(call, body.messages, body.chat_template_kwargs, "messages")
        return [_Asked(0, 0, Continued(ids, labels[0], "messages"))]
    made = []
    for place, text in enumerate(texts):
        for number, question in enumerate(questions):
            param = "input" if len(texts) == 1 else f"input[{place}]"
            ids = await _prompt(call, text, question, param)
            made.append(_Asked(place, number, Continued(ids, labels[number], param)))
    return made


async def _label_ids(call: Call[B], labels: Sequence[str], param: str) -> list[list[int]]:
    """The tokens of labels; the client is told of one that goes on from another."""
    if len(set(labels)) < len(labels):
        twice = next(i for i, one in enumerate(labels) if one in labels[:i])
        name = f"{param}[{twice}]"
        raise BadRequestError(f"{name}: it is there twice; accepted: it once", param=name)
    ids = await continuation_ids(call, labels, param)
    longer = sorted(range(len(ids)), key=lambda i: ids[i])
    for one, other in pairwise(longer):
        if ids[other][: len(ids[one])] == ids[one]:
            call.caller.tell(
                f"{param}[{other}] goes on from [{one}], which is at least as likely therefore"
            )
    return ids


async def _prompt(call: Call[B], text: str, question: Question, param: str) -> list[int]:
    """A text and what is asked about it, as the model gets it."""
    asked = question.instruction
    if asked is None:
        asked = LISTED + "\n".join(f"- {label}" for label in question.labels)
    if call.state.chat_template is None:
        return await text_prompt(call, f"{text}\n\n{asked}\n", param)
    message = Message(role="user", content=f"{text}\n\n{asked}")
    return await chat_prompt(call, [message], call.ask.chat_template_kwargs, param)
