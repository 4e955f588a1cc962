"""What a request asks for, whichever dialect it came in; a dialect makes one ``Ask`` of its body.

Values are within the ranges that their schemas have; what depends on the model is checked on the
path. ``param`` is what a client calls a field, for errors about it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lanewise.api.conversations import ImagePart, Message, Tool
from lanewise.text.answers.calls import Tools
from lanewise.text.grammar import GrammarSource
from lanewise.text.json_schema import relaxed


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for the model's chat template, in the words of OpenAI's chat completions."""

    messages: Sequence[Message]
    drops_oldest: bool = False  # messages, where the context has no room for all
    makes_room: bool = False  # as many of them that the answer has room for all that it may have
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template
    effort: str | None = None  # of reasoning
    must_think: bool = False  # a model that cannot is an error
    thinking_budget: int | None = None  # tokens of reasoning at most
    thinking_control: bool = False  # the client may end it while it is written
    plain: str | None = None  # what a model without a template continues; None: it must have one
    param: str = "messages"
    effort_param: str = "reasoning_effort"

    @property
    def continued(self) -> str | None:
        """The text that the answer goes on with, if it is to."""
        return self.messages[-1].text if self.continue_final_message else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Infill:
    """What is before a gap and what is behind it; ``others`` are files by their names."""

    prefix: str | list[int]
    suffix: str
    others: Sequence[tuple[str, str]] = ()
    param: str = "prompt"
    suffix_param: str = "suffix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Illustrated:
    """A text with images, each where ``mark`` stands in it."""

    text: str
    mark: str
    images: Sequence[ImagePart]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Texts, token ids or gaps, each to be continued. None asks whether the model is here."""

    items: Sequence[str | list[int] | Infill | Illustrated]
    add_special_tokens: bool = True
    param: str = "prompt"

    @property
    def has_gaps(self) -> bool:
        """Whether answers fill something in."""
        return any(isinstance(item, Infill) for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a conversation, and which the answer may call."""

    listed: Sequence[Tool] = ()
    callable: Sequence[Tool] = ()
    required: bool = False  # the answer calls one of them
    parallel: bool = True  # it may call several
    params: Sequence[str] = ()  # what clients call what is enforced of each; chat's words if none

    @property
    def parameters(self) -> Tools:
        """The schemas of the functions that the answer may call."""
        return {tool.function.name: tool.function.parameters for tool in self.callable}

    def param_of(self, i: int) -> str:
        """What a client calls the parameters of one of those that are listed."""
        return self.params[i] if self.params else f"tools[{i}].function.parameters"


NO_TOOLS = ToolUse()


class BestEffort:
    """Makes the grammar of a schema without what cannot be enforced, which it remembers."""

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def __call__(self, schema: Any) -> GrammarSource:
        """The grammar of what is left."""
        made, self.left_out = relaxed(schema)
        return GrammarSource.from_json_schema(made)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A form that the answer's content obeys."""

    param: str
    make: Callable[[Any], GrammarSource]  # GrammarError if the value cannot be used
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. None: as the model's files say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[str, float] = field(default_factory=dict)  # by token id
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()  # the tokens of each are never drawn one after another
    seed: int | None = None  # None: another one for each request
    max_draft: int | None = None  # most guessed tokens in one step; None: as the server likes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Where an answer ends. ``max_tokens`` None: where the context does, which may be earlier."""

    max_tokens: int | None = None
    param: str | None = None  # what the client calls max_tokens; None: it has not said them
    min_tokens: int = 0
    strings: Sequence[str] = ()
    token_ids: Sequence[int] = ()
    shows_end: bool = False  # the text ends with the stop string, not before it
    ignores_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What an answer shows beside its text."""

    logprobs: int | None = None  # so many alternatives beside each token; None: nothing
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    prompt_scores: int | None = None  # the same again, in a separate list
    echo: bool = False  # the prompt before the answer
    token_ids: bool = False
    receipt: bool = False  # a signed statement of each answer
    special_tokens: bool = False  # in texts
    thinking: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How an answer leaves: in one piece, or as events with or without numbers of tokens."""

    stream: bool = False
    usage: bool = False  # at the end
    running_usage: bool = False  # with each event
    progress: bool = False  # how much of the prompt is read, before the answer begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request asks for."""

    input: Conversation | Prompts
    model: str | None = None  # None: the served one
    tools: ToolUse = NO_TOOLS
    constraint: Constraint | None = None
    sampling: Sampling = field(default_factory=Sampling)
    ending: Ending = field(default_factory=Ending)
    shown: Shown = field(default_factory=Shown)
    delivery: Delivery = field(default_factory=Delivery)
    expected: str | None = None  # what the answers are expected to be, mostly: they come faster
    n: int = 1  # answers to each prompt
    best_of: int | None = None  # drawn, of which the likeliest n are given
    priority: int = 0  # lower is served earlier
    # Tokens at the end of each prompt that are kept; -1: as many as there is room for. None: all.
    last_prompt_tokens: int | None = None
    cache_salt: str | None = None  # only requests with the same share cached prefixes
    context: int | None = None  # tokens that the context must have room for
    context_param: str = "n_ctx"
    notices: Sequence[str] = ()  # what the client is told beside the answer
    says_goodbye: bool = False  # Ollama: no prompt and keep_alive 0, a wish to unload the model

    @property
    def n_drawn(self) -> int:
        """Answers that are drawn for each prompt."""
        return max(self.best_of or 0, self.n)

    @property
    def keeps_tokens(self) -> bool:
        """Whether an answer in one piece needs its tokens."""
        shown = self.shown
        return shown.logprobs is not None or shown.token_ids or self.n_drawn > self.n
