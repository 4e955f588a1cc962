"""From drawn tokens to the pieces of answers: text, reasoning, calls, and where they end."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from lanewise.api.generation.ask import Ask
from lanewise.api.generation.events import (
    CallArguments,
    CallBegins,
    End,
    Event,
    Piece,
    Text,
    Thinking,
    Usage,
)
from lanewise.api.generation.expecting import Expectation, Follower
from lanewise.api.generation.receipts import Receipts
from lanewise.api.generation.rendering import Rendered
from lanewise.engine.base.stream import RequestStream, TokenOutput
from lanewise.text.answers.families import AnswerParser
from lanewise.text.detokenizer import StopMatcher, StopStrings, StreamDecoder
from lanewise.text.tokenizer import Tokenizer

# A token's part of the work on an answer, in the characters that take as long to tokenize.
TOKEN_SIZE = 16
# In whole answers a token takes so much, and so does each of its alternatives: as JSON too.
PIECE_BYTES, ENTRY_BYTES = 64, 400


class Answering:
    """All answers to one request as they grow."""

    def __init__(
        self,
        ask: Ask,
        rendered: Rendered,
        tokenizer: Tokenizer,
        expected: Sequence[int] = (),
        *,
        continues: bool,
        receipts: Receipts | None = None,
    ) -> None:
        self._receipts = receipts
        prompts, form = rendered.prompts, rendered.form
        self._ask = ask
        self._prompts = prompts
        self._n_drawn = ask.n_drawn
        self._stream_ends: list[int] = []  # sequences whose text ends before they do
        shown = ask.shown
        self._shows_prompt = shown.token_ids or shown.echo  # with the first token
        # More where each comes with alternatives.
        self._token_size = TOKEN_SIZE * (1 + (shown.logprobs or 0))
        parses = form is not None and form.needs_parser(ask.tools.parameters)
        self.size = 0  # of all that was taken
        self.usage = Usage(
            prompt_tokens=sum(len(prompt.ids) for prompt in prompts),
            thinking_tokens=0 if parses else None,
        )
        n_answers = len(prompts) * ask.n_drawn
        self._followers: list[Follower] = []  # of each answer, if something is expected
        if ask.expected is not None:
            expectation = Expectation(expected)
            self._followers = [expectation.follower() for _ in range(n_answers)]
            self.usage.expected_tokens = len(expected) * n_answers
        stops = StopStrings(ask.ending.strings)
        tokens = form.tokens(tokenizer) if form is not None and parses else frozenset[int]()
        marked = form is not None and parses and form.marks_tokens

        def begin() -> "Answer":
            decoder = StreamDecoder(
                tokenizer,
                skip_special=not shown.special_tokens,
                continues=continues,
                shown=tokens,
                marked=marked,
            )
            parser = None
            if form is not None and parses:
                parser = form.parser(rendered.start, ask.tools.parameters)
            return Answer(ask, decoder, stops, parser)

        self._answers = [begin() for _ in range(n_answers)]

    def measure(self, outputs: Sequence[TokenOutput]) -> int:
        """How much work outputs are, as ``Workers`` measure it."""
        count = len(outputs)
        for output in outputs:
            count += len(output.prompt_scores)
        size = count * self._token_size
        if self._shows_prompt:
            new = (output.index for output in outputs if not self._answers[output.index].n_tokens)
            size += sum(len(self._prompts[index // self._n_drawn].ids) for index in new)
        self.size += size
        return size

    def held_bytes(self, outputs: Sequence[TokenOutput]) -> int:
        """What outputs add to whole answers, and to how these are written."""
        shown = self._ask.shown
        own = PIECE_BYTES + ENTRY_BYTES * (shown.logprobs or 0)
        scored = PIECE_BYTES + ENTRY_BYTES * (shown.prompt_logprobs or 0)
        return sum(own + scored * len(output.prompt_scores) for output in outputs)

    def pieces(self, outputs: Sequence[TokenOutput]) -> Iterator[Piece]:
        """What outputs of the engine add to the answers."""
        usage = self.usage
        usage.times.tick()
        for output in outputs:
            answer = self._answers[output.index]
            if answer.is_over:
                continue  # drawn while its text had already come to a stop string
            usage.completion_tokens += output.sampled is not None
            is_first = not answer.has_begun
            if is_first and output.index % self._n_drawn == 0:  # for the first answer to a prompt
                # What a form begins with may have been cached too.
                n_prompt = len(self._prompts[output.index // self._n_drawn].ids)
                usage.cached_tokens += min(output.cached_tokens, n_prompt)
            if self._followers and output.sampled is not None:
                follower = self._followers[output.index]
                usage.accepted_tokens += follower.push(output.sampled.token)
            events = answer.push(output)
            if self._receipts is not None:
                self._receipts.note(output.index, output.sampled, events)
            if usage.thinking_tokens is not None:
                usage.thinking_tokens += answer.take_thinking_tokens()
            if answer.is_over and output.finish_reason is None:
                self._stream_ends.append(output.index)
            yield Piece(output.index, output.sampled, events, is_first, output.prompt_scores)

    def end_streams(self, stream: RequestStream) -> None:
        """Stop the sequences whose text has ended; on the event loop, as all that a stream does."""
        for index in self._stream_ends:
            stream.stop(index)
        self._stream_ends.clear()


class Answer:
    """One sequence's text as it grows."""

    def __init__(
        self, ask: Ask, decoder: StreamDecoder, stops: StopStrings, parser: AnswerParser | None
    ) -> None:
        self.n_tokens = 0
        self.has_begun = self.is_over = self._has_calls = False
        self._decoder = decoder
        self._parser = parser
        self._stops = stops
        self._shows_end = ask.ending.shows_end
        self._shows_thinking = ask.shown.thinking
        self._matcher = StopMatcher(stops, self._shows_end)
        self._min_tokens = ask.ending.min_tokens
        self._n_silent = self._n_thinking = 0  # tokens: since anything came of them; of reasoning

    def push(self, output: TokenOutput) -> Sequence[Event]:
        """What the next output of the engine adds."""
        self.has_begun = True
        reason = output.finish_reason
        text = ""
        if output.sampled is not None:
            self.n_tokens += 1
            if reason != "stop" or output.ends_complete or self._shows_end:
                text = self._decoder.push(output.sampled.token)
        if reason is not None:
            text += self._decoder.flush()
        events: list[Event] = []
        if self._parser is not None:
            text = self._parse(self._parser, text, events, last=reason is not None)
        if self._stops.strings:
            text, reason = self._stop(text, reason, events)
        if events:
            self._has_calls |= any(isinstance(event, CallBegins) for event in events)
            if text:
                # Behind reasoning and the end of a call that was begun before, before other calls.
                before = takewhile(_is_before_text, events)
                events.insert(sum(1 for _ in before), Text(text))
        elif text:  # most tokens
            events.append(Text(text))
        if reason is not None:
            self.is_over = True
            if reason == "stop" and self._has_calls:
                reason = "tool_calls"  # each of which is complete: grammars and stops see to it
            events.append(End(reason, self._matcher.matched))
        return events

    def take_thinking_tokens(self) -> int:
        """How many tokens were reasoning since this was asked last."""
        taken, self._n_thinking = self._n_thinking, 0
        return taken

    def _parse(self, parser: AnswerParser, text: str, events: list[Event], *, last: bool) -> str:
        """Put reasoning and calls into ``events``; return content."""
        thinking, content = parser.push(text, last=last)
        deltas = parser.take_deltas()
        self._n_silent += 1
        if thinking:
            self._n_thinking += self._n_silent
            if self._shows_thinking:
                events.append(Thinking(thinking))
        if thinking or content or deltas:
            self._n_silent = 0
        for delta in deltas:
            self._add_call(delta, events)
        return content

    def _add_call(self, delta: dict[str, Any], events: list[Event]) -> None:
        index, arguments = delta["index"], delta["function"]["arguments"]
        if "id" in delta:
            events.append(CallBegins(index, delta["id"], delta["function"]["name"], arguments))
            return
        before = events[-1] if events else None
        if isinstance(before, CallBegins):  # they come together
            events[-1] = before._replace(arguments=before.arguments + arguments)
        elif isinstance(before, CallArguments):
            events[-1] = CallArguments(index, before.text + arguments)
        else:
            events.append(CallArguments(index, arguments))

    def _stop(self, text: str, reason: str | None, events: list[Event]) -> tuple[str, str | None]:
        """Content up to a stop string. Reasoning and arguments of calls have none."""
        # Stop strings count from the token after the first min_tokens on.
        if self.n_tokens <= self._min_tokens:
            return text, reason
        matcher = self._matcher
        text, found = matcher.push(text)
        calls = any(isinstance(event, CallBegins | CallArguments) for event in events)
        if not found and (reason is not None or calls):
            text += matcher.flush()  # no string goes on behind a call
            found = matcher.matched is not None
        if found:
            events[:] = [event for event in events if isinstance(event, Thinking)]
            return text, "stop"
        if calls:
            self._matcher = StopMatcher(self._stops, self._shows_end)
        return text, reason


def _is_before_text(event: Event) -> bool:
    return isinstance(event, Thinking | CallArguments)
