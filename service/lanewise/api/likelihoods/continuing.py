"""``/v1/score`` of a model that writes text: how likely given continuations of a prompt are."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from starlette.responses import Response

from lanewise.api.errors import BadRequestError
from lanewise.api.generation.call import Call
from lanewise.api.generation.logprobs import finite
from lanewise.api.generation.measuring import check_priority
from lanewise.api.generation.writing import dumps_long
from lanewise.api.likelihoods.classifying import listed
from lanewise.api.likelihoods.fields import ContinuationFields
from lanewise.api.likelihoods.prompts import chat_prompt, continuation_ids, text_prompt
from lanewise.api.likelihoods.scoring import Continued, Place, likelihoods
from lanewise.api.shared.request_budgets import check_count

B = TypeVar("B", bound=ContinuationFields)


async def score_continuations(call: Call[B]) -> Response:
    """The log-probability of each continuation, and of each of its tokens."""
    body = call.ask
    check_priority(call, body.priority)
    if body.continuations is None:
        raise BadRequestError(
            "continuations: this model writes text and compares none; accepted: a list of texts or"
            " token ids that may follow the prompt",
            param="continuations",
        )
    if (body.prompt is None) == (body.messages is None):
        raise BadRequestError("prompt: one of prompt and messages is needed", param="prompt")
    most = call.state.request_budgets.max_texts
    check_count("continuations", "texts", len(body.continuations), most)
    ids = await continuation_ids(call, body.continuations, "continuations")
    if body.messages is not None:
        variables = body.chat_template_kwargs
        asked = Continued(
            await chat_prompt(call, body.messages, variables, "messages"), ids, "messages"
        )
    else:
        assert body.prompt is not None
        asked = Continued(await text_prompt(call, body.prompt, "prompt"), ids, "prompt")
    place = Place("score", body.model, body.cache_salt, body.priority)
    scores = await likelihoods(call, [asked], place)

    def make() -> Any:
        data: list[dict[str, Any]] = []
        for index, one in enumerate(scores.found[0]):
            told: dict[str, Any] = {
                "object": "score",
                "index": index,
                "score": finite(one.logprob),
                "probability": math.exp(one.logprob),
                "token_logprobs": [finite(logprob) for logprob in one.logprobs],
            }
            if body.return_token_ids:
                told["token_ids"] = ids[index]
            data.append(told)
        answer = listed("score", data, call, body.model, scores)
        return answer | ({"prompt_token_ids": asked.prompt} if body.return_token_ids else {})

    return await call.state.workers.answer(call.size, lambda: dumps_long(make()))
