"""The receipts of one request's answers, which grow with their tokens."""

import time
from array import array
from collections.abc import Sequence
from typing import Any

from lanewise.api.generation.ask import Ask
from lanewise.api.generation.call import Call
from lanewise.api.generation.events import End, Event
from lanewise.api.shared.receipt_issuer import ReceiptIssuer
from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.request import Grammar as EngineGrammar
from lanewise.engine.base.stream import Sampled
from lanewise.receipts.statement import (
    Drawing,
    Grammar,
    ModelIdentity,
    ReceiptError,
    Statement,
    tokens_of,
)
from lanewise.text.answers.bad_words import CleanGrammar
from lanewise.text.answers.layered import LayeredGrammar
from lanewise.text.grammar import CompiledGrammar

TOKEN_BYTES = 16  # of a token of prompt or answer: kept, and as JSON


class Receipts:
    """What all answers of a request have in common, and the tokens of each so far."""

    def __init__(
        self,
        issuer: ReceiptIssuer,
        call: Call[Ask],
        requests: Sequence[GenerationRequest],
        grammar: Grammar | None,
        identity: ModelIdentity,
    ) -> None:
        self._issuer = issuer
        self._id = call.id
        self._created = int(time.time())
        self._bad_words = list(call.ask.sampling.bad_words)
        self._requests = requests
        self._grammar = grammar
        self._identity = identity
        self._tokens = [array("I") for _ in requests]
        self._reasons = ["length"] * len(requests)

    def note(self, index: int, drawn: Sampled | None, events: Sequence[Event]) -> None:
        """Take a token of an answer, and what it gave."""
        if drawn is not None:
            self._tokens[index].append(drawn.token)
        for event in events:
            if isinstance(event, End):
                self._reasons[index] = event.reason

    def made(self) -> list[dict[str, Any]]:
        """A receipt of each answer, once all are over."""
        return [self._receipt(index) for index in range(len(self._requests))]

    def _receipt(self, index: int) -> dict[str, Any]:
        request, answer = self._requests[index], self._tokens[index].tolist()
        statement = Statement.model_validate(
            {
                "version": 1,
                "id": self._id,
                "created": self._created,
                "model": self._identity,
                "prompt": tokens_of(request.prompt),
                "drawing": _drawing(request, self._bad_words),
                "grammar": self._grammar,
                "answer": tokens_of(answer),
                "finish_reason": self._reasons[index],
            }
        )
        return self._issuer.signer.sign(statement, request.prompt, answer).model_dump()


def receipts_for(
    call: Call[Ask], requests: Sequence[GenerationRequest], grammar: EngineGrammar | None
) -> Receipts | None:
    """The receipts of a request; None, which the client is told, where there can be none."""
    issuer = call.state.issuer
    try:
        if issuer is None:
            raise ReceiptError("this server has no key for receipts")
        if any(request.pictures for request in requests):
            raise ReceiptError("an answer to images has none")
        source = _source(grammar)
        call.hold.keep(
            TOKEN_BYTES * sum(len(one.prompt) + one.params.max_tokens for one in requests)
        )
        identity = issuer.identity(requests[0].adapter)
        return Receipts(issuer, call, requests, source, identity)
    except ReceiptError as error:
        call.caller.tell(f"receipt: {error}")
        return None


def _source(grammar: EngineGrammar | None) -> Grammar | None:
    below = grammar
    if isinstance(grammar, CleanGrammar):
        below = grammar.below
    if isinstance(below, LayeredGrammar):
        raise ReceiptError("an answer whose reasoning has a budget has none")
    if not isinstance(below, CompiledGrammar):
        return None
    source = below.source
    return Grammar(kind=source.kind, text=source.text, before=source.before)


def _drawing(request: GenerationRequest, bad_words: list[str]) -> Drawing:
    params, allowed = request.params, request.params.allowed_token_ids
    own = {
        "seed": str(params.seed),
        "choice": request.choice,
        "logit_bias": list(params.logit_bias),
        "allowed_token_ids": None if allowed is None else list(allowed),
        "stop_token_ids": sorted(params.stop_token_ids),
        "bad_words": bad_words,
    }
    same = {name: getattr(params, name) for name in Drawing.model_fields.keys() - own.keys()}
    return Drawing.model_validate(own | same)
