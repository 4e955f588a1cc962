"""``/v1/chat/completions``: conversations in OpenAI's older and most widespread form."""

from collections.abc import Iterator
from typing import Any

from lanewise.api.ask import Ask, Conversation, Shown, ToolUse
from lanewise.api.dialect import Dialect
from lanewise.api.dialects.openai_fields import (
    constraint_of,
    delivery_of,
    ending_of,
    sampling_of,
)
from lanewise.api.dialects.openai_wire import OpenAiWire
from lanewise.api.events import CallArguments, CallBegins, Choice, End, Event, Piece, Text, Thinking
from lanewise.api.logprobs import ChatLogprobs
from lanewise.api.schemas import ChatCompletionRequest
from lanewise.api.writing import dumps, dumps_long, dumps_text
from lanewise.engine.stream import Sampled

# Clients of DeepSeek, llama.cpp and SGLang read the first, those of vLLM and OpenRouter the second.
REASONING_NAMES = ("reasoning_content", "reasoning")


def ask(body: ChatCompletionRequest) -> Ask:
    """What a request asks for."""
    newer, choice = body.max_completion_tokens, body.tool_choice
    may_repeat = body.parallel_tool_calls and choice in ("auto", "required")
    return Ask(
        input=Conversation(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
            effort=body.reasoning_effort,
            thinking_budget=body.thinking_token_budget,
        ),
        model=body.model,
        tools=ToolUse(
            listed=body.tools,
            callable=body.callable_tools,
            required=choice != "auto",
            parallel=may_repeat,
        ),
        constraint=constraint_of(body),
        sampling=sampling_of(body),
        ending=ending_of(body, body.max_tokens if newer is None else newer),
        shown=Shown(
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            token_ids=body.return_token_ids,
            special_tokens=not body.skip_special_tokens,
            thinking=body.include_reasoning,
        ),
        delivery=delivery_of(body),
        n=body.n,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


class ChatWire(OpenAiWire):
    """A message, or what each token adds to it."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first(self) -> Iterator[str]:
        """Whose message it is."""
        ask = self.about.ask
        for index in range(len(self.about.prompts) * ask.n_drawn):
            yield self.chunk(index, '"delta":{"role":"assistant","content":""},"logprobs":null')

    def piece(self, piece: Piece) -> Iterator[str]:
        """A chunk for each thing that a token adds; none if that is nothing."""
        if self.says_nothing(piece):
            return
        deltas = [delta for event in piece.events if (delta := _delta(event))] or ["{}"]
        end = piece.events[-1] if piece.events else None
        reason = end.reason if isinstance(end, End) else None
        logprobs = self._logprobs([piece.token])
        more = f',"logprobs":{dumps_long(logprobs)}{self.ids_of(piece)}'
        for delta in deltas[:-1]:
            yield self.chunk(piece.choice, f'"delta":{delta}{more}')
            more = ',"logprobs":null'  # a token is told once
        yield self.chunk(piece.choice, f'"delta":{deltas[-1]}{more}', reason)

    def whole_choice(self, choice: Choice) -> dict[str, Any]:
        """The message."""
        text = choice.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thinking := choice.thinking:
            message |= dict.fromkeys(REASONING_NAMES, thinking)
        if choice.calls:
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in choice.calls
            ]
            message |= {"content": text or None, "tool_calls": calls}
        return {"message": message}

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """Those of all tokens."""
        return self._logprobs(choice.tokens)

    def _logprobs(self, tokens: list[Sampled | None]) -> dict[str, Any] | None:
        if self.about.ask.shown.logprobs is None:
            return None
        made = ChatLogprobs()
        for token in tokens:
            if token is not None:
                made.add(self.about.names, token)
        return made.to_json()


def _delta(event: Event) -> str:
    """What an event adds to a message, as JSON; nothing for an end."""
    match event:
        case Text(text):
            return f'{{"content":{dumps_text(text)}}}'
        case Thinking(text):
            return dumps(dict.fromkeys(REASONING_NAMES, text))
        case CallBegins(index, id_, name, arguments):
            function = {"name": name, "arguments": arguments}
            call = {"index": index, "id": id_, "type": "function", "function": function}
            return dumps({"tool_calls": [call]})
        case CallArguments(index, text):
            return dumps({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        case End():
            return ""


CHAT_COMPLETIONS = Dialect(
    name="create_chat_completion",
    summary="Answer a conversation",
    body=ChatCompletionRequest,
    ask=ask,
    wire=ChatWire,
)
