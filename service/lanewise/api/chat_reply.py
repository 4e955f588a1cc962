"""The answers to a conversation: messages with content, reasoning and calls."""

from collections.abc import Collection, Iterator
from typing import Any

from lanewise.api.generation import Answer, Piece
from lanewise.api.logprobs import ChatLogprobs, TokenNames
from lanewise.api.reply import Reply, dumps, dumps_text
from lanewise.api.schemas import ChatCompletionRequest
from lanewise.api.state import ServerState
from lanewise.text.answers.calls import Tools
from lanewise.text.answers.families import AnswerFormat
from lanewise.text.answers.thinking import Start

# Clients of DeepSeek, llama.cpp and SGLang read the first, those of vLLM and OpenRouter the second.
REASONING_NAMES = ("reasoning_content", "reasoning")


class ChatReply(Reply[ChatLogprobs]):
    """One message for each choice."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(
        self,
        body: ChatCompletionRequest,
        prompt: list[int],
        state: ServerState,
        *,
        continues: bool = False,
        shown: Collection[int] = (),
        marked: bool = False,
    ) -> None:
        continues = continues or body.continue_final_message
        super().__init__(body, [prompt], state, continues=continues, shown=shown, marked=marked)
        self._names = TokenNames(state.tokenizer)
        self._with_logprobs = body.logprobs
        self._token_size *= 1 + (body.top_logprobs or 0)

    def first_events(self) -> Iterator[str]:
        """Whose message it is."""
        for answer in self.answers:
            role = '"delta":{"role":"assistant","content":""},"logprobs":null'
            yield self.event(answer.index, role, None)

    def express(self, answer: Answer, piece: Piece) -> tuple[str, ChatLogprobs | None]:
        """Text and, if asked for, log-probabilities."""
        if not self._with_logprobs:
            return piece.text, None
        logprobs = ChatLogprobs()
        if piece.output.sampled is not None:
            logprobs.add(self._names, piece.output.sampled)
        return piece.text, logprobs

    def whole_choice(self, answer: Answer, text: str) -> dict[str, Any]:
        """The message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def event_choice(self, answer: Answer, text: str) -> str:
        """The message's next part."""
        return f'"delta":{{"content":{dumps_text(text)}}}'


class ParsedReply(ChatReply):
    """Messages that may have reasoning, and may call tools."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        prompt: list[int],
        state: ServerState,
        form: AnswerFormat,
        start: Start,
        tools: Tools,
        *,
        continues: bool,
    ) -> None:
        shown, marked = form.tokens(state.tokenizer), form.marks_tokens
        super().__init__(body, prompt, state, continues=continues, shown=shown, marked=marked)
        self._parsers = [form.parser(start, tools) for _ in self.answers]
        self._shows_reasoning = body.include_reasoning
        self._reasoning: list[list[str]] = [[] for _ in self.answers]
        self._new_reasoning = ""  # of the piece that was expressed last
        self._n_reasoning = 0  # tokens
        self._n_silent = [0 for _ in self.answers]  # tokens since reasoning, content or a call

    def express(self, answer: Answer, piece: Piece) -> tuple[str, ChatLogprobs | None]:
        """Only content is text; reasoning and calls are kept."""
        text, logprobs = super().express(answer, piece)
        last = piece.finish_reason is not None
        parser = self._parsers[answer.index]
        n_calls = len(parser.calls)
        reasoning, content = parser.push(text, last=last)
        self._n_silent[answer.index] += 1
        if reasoning:
            self._n_reasoning += self._n_silent[answer.index]
        if reasoning or content or len(parser.calls) > n_calls:
            self._n_silent[answer.index] = 0
        self._new_reasoning = reasoning if self._shows_reasoning else ""
        if self._new_reasoning and not self.streams:
            self._reasoning[answer.index].append(reasoning)
        return content, logprobs

    def whole_choice(self, answer: Answer, text: str) -> dict[str, Any]:
        """The message with its reasoning and calls."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning := "".join(self._reasoning[answer.index]):
            message |= dict.fromkeys(REASONING_NAMES, reasoning)
        if calls := self._parsers[answer.index].calls:
            message |= {"content": text or None, "tool_calls": calls}
        return {"message": message}

    def event_choice(self, answer: Answer, text: str) -> str:
        """The message's next part: content, reasoning, parts of calls, or none of them."""
        delta: dict[str, Any] = {"content": text} if text else {}
        if self._new_reasoning:
            delta |= dict.fromkeys(REASONING_NAMES, self._new_reasoning)
        if calls := self._parsers[answer.index].take_deltas():
            delta["tool_calls"] = calls
        return f'"delta":{dumps(delta)}'

    def shown_reason(self, answer: Answer) -> str | None:
        """An answer that came to its own end with calls ends for them."""
        called = answer.finish_reason == "stop" and self._parsers[answer.index].calls
        return "tool_calls" if called else answer.finish_reason

    def totals(self) -> dict[str, Any]:
        """OpenAI's token counts; how many tokens were reasoning may be off by a tag."""
        return super().totals() | {
            "completion_tokens_details": {"reasoning_tokens": self._n_reasoning}
        }
