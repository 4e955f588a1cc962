"""What requests may contain: every field we act on, with its range.

A null means the default. Fields that change nothing for us (user, metadata, store …) are ignored;
fields that would change the answer and that we do not have are refused by name.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lanewise.text.json_schema import without_nulls

TokenId = Annotated[int, Field(ge=0, lt=2**32)]


class FirstProblemOnly(FailFast):
    """A list is checked up to its first bad item: a million messages about one help no client."""

    __hash__ = object.__hash__  # typing.Union needs it


TokenIds = Annotated[list[TokenId], FirstProblemOnly()]
# Any larger one is refused for what it means, not for its size: no context is as long.
Count = Annotated[int, Field(ge=0, lt=2**31)]
Strings = Annotated[list[str], FirstProblemOnly()]
Penalty = Annotated[float, Field(ge=-2, le=2)]
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_BIAS = 100
MAX_TEMPERATURE = 1e6  # with which every token is as likely
MAX_NAME, MAX_NAMES = 60, 20  # characters of a field's, and how many, that are shown
NO_OBJECT = "must be a JSON object"

NOT_SUPPORTED_NOW = (
    *("audio", "function_call", "functions"),
    *("use_beam_search", "prompt_embeds", "logits_processors", "length_penalty", "documents"),
    *("typical_p", "mirostat", "dry_multiplier", "xtc_probability", "lora", "chat_template"),
    *("tfs", "tfs_z", "top_a", "dynatemp_range", "top_n_sigma", "no_repeat_ngram_size"),
    *("bad_words_ids", "prompt_template", "negative_prompt", "guidance_scale", "logit_processor"),
)
# Values of those at which they change nothing; empty ones and zero never do.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "typical_p": (1,),
    "length_penalty": (1,),
    "tfs": (1,),
    "tfs_z": (1,),
    "guidance_scale": (1,),
    "top_n_sigma": (-1,),
}
EMPTY: tuple[Any, ...] = (None, False, "", [], {}, 0)


def refuse(param: str, reason: str) -> PydanticCustomError:
    """A problem with one field, found while looking at several."""
    context = {"param": param, "reason": reason}
    return PydanticCustomError("refused", "{param}: {reason}", context)


def by_type(
    untyped: Callable[[Any], str] = lambda _: "none", known: Collection[str] = ()
) -> Discriminator:
    """Tells the branches of a union apart by ``type``; their tags show in no error's path.

    With ``known`` types all others have the branch ``[foreign]``.
    """

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        kind = kind or untyped(value)
        return f"[{kind if not known or kind in known else 'foreign'}]"

    return Discriminator(tag)


class Strict(BaseModel):
    """Types are not converted: "5" is no number and 1 is no boolean."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    # Fields that change nothing for us; a client that sends others is told. None: all may be sent.
    harmless: ClassVar[frozenset[str] | None] = None
    # Fields that ask for what we lack, unless they are empty.
    lacked: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def unknown(cls, data: Mapping[str, Any]) -> list[str]:
        """Fields of a body that are ignored: the first of them."""
        if cls.harmless is None:
            return []
        known = _known(cls)
        found = (
            name
            for name, value in data.items()
            if name not in known
            and value is not None
            and not (name in cls.lacked and value in EMPTY)
        )
        return [name[:MAX_NAME] for name in islice(found, MAX_NAMES)]

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError(NO_OBJECT)
        whole = _whole_fields(cls)
        # Some clients write every number with a point.
        return {
            key: int(value)
            if type(value) is float and key in whole and value.is_integer()
            else value
            for key, value in data.items()
            if value is not None
        }


@cache
def _whole_fields(schema: type[BaseModel]) -> frozenset[str]:
    """The fields whose numbers are integers."""

    def kinds(annotation: Any) -> Iterator[Any]:
        inner = get_args(annotation)
        yield from (kind for one in inner for kind in kinds(one)) if inner else (annotation,)

    def is_whole(annotation: Any) -> bool:
        found = set(kinds(annotation))
        return int in found and float not in found and dict not in found

    return frozenset(
        field.alias or name
        for name, field in schema.model_fields.items()
        if is_whole(field.annotation)
    )


@cache  # it is asked for with every request
def _known(schema: type[Strict]) -> frozenset[str | None]:
    """The fields that a schema has, and those that do no harm."""
    fields = ((name, field.alias) for name, field in schema.model_fields.items())
    return (schema.harmless or frozenset()).union(*fields)


class StreamOptions(Strict):
    """What a stream contains beside the tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


# Clients in Go write null for empty lists and for what they do not say.
SchemaObject = Annotated[dict[str, Any], AfterValidator(without_nulls)]
Schema = SchemaObject | bool | str
Choices = Annotated[Strings, Field(min_length=1)]


class StructuredOutputs(Strict):
    """What the answer must look like, in vLLM's words; one of these."""

    # White space is never free, and properties are as the schema says.
    harmless: ClassVar[frozenset[str] | None] = frozenset(
        ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")
    )

    @model_validator(mode="before")
    @classmethod
    def _know_all(cls, data: Any) -> Any:
        if isinstance(data, dict) and (names := cls.unknown(data)):
            raise refuse(
                f"structured_outputs.{names[0][:MAX_NAME]}",
                "there is no such form; accepted: json, regex, choice, grammar, json_object",
            )
        return data

    json_schema: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: None = Field(None, description="Not supported.")


class JsonSchemaFormat(Strict):
    """OpenAI's named schema; all that can be is enforced, and if strict it is all or a 400."""

    name: str = Field("", max_length=64)
    description: str | None = None
    json_schema: SchemaObject | bool = Field(alias="schema")
    strict: bool = False


# By which a schema is known that stands where its name should.
SCHEMA_KEYS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "$defs"}


class ResponseFormat(Strict):
    """What the answer must look like, in OpenAI's words."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    bare_schema: SchemaObject | bool | None = Field(
        None, alias="schema", description="With json_object: json_schema.schema, not strict."
    )

    @model_validator(mode="before")
    @classmethod
    def _wrap_schema(cls, data: Any) -> Any:
        """A schema may stand where its name and itself should be, or beside the type."""
        if not isinstance(data, dict) or data.get("type") != "json_schema":
            return data
        named, bare = data.get("json_schema"), data.get("schema")
        if named is None and isinstance(bare, dict):
            others = {key: data[key] for key in ("name", "strict") if key in data}
            return {"type": "json_schema", "json_schema": {**others, "schema": bare}}
        if isinstance(named, dict) and "schema" not in named and named.keys() & SCHEMA_KEYS:
            return {**data, "json_schema": {"schema": named}}
        return data

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.bare_schema is not None and self.type != "json_object":
            raise refuse("response_format.schema", "goes with type json_object, and with no other")
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise refuse(
                "response_format.json_schema", "goes with type json_schema, and with no other"
            )
        return self


class GenerationFields(Strict):
    """What both endpoints share."""

    model: str | None = None
    max_tokens: Count | None = None
    max_new_tokens: Count | None = Field(None, description="max_tokens.")
    n_predict: int | None = Field(None, ge=-1, lt=2**31, description="max_tokens; -1: any.")
    temperature: float = Field(1.0, ge=0, le=MAX_TEMPERATURE)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31, description="0 and -1 switch it off.")
    min_p: float = Field(0.0, ge=0, le=1)
    # Logits are divided by it: with less they would leave the range of float32.
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description="repetition_penalty.")
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[str, float] = Field(
        default_factory=dict, description="Token ids, each with a number from -100 to 100."
    )
    allowed_token_ids: TokenIds | None = Field(None, min_length=1)
    bad_words: Annotated[list[Annotated[str, Field(min_length=1)]], FirstProblemOnly()] = Field(
        default_factory=list, description="The tokens of each are never drawn one after another."
    )
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stop: str | Strings = Field(default_factory=list)
    stop_token_ids: TokenIds = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Count = 0
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    receipt: bool = Field(
        False, description="A signed statement beside each answer, which `lanewise verify` checks."
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Alternatives beside each token of the prompt; only without stream.",
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        lt=2**31,
        json_schema_extra={"not": {"const": 0}},
        description="Only so many at the end of the prompt; -1: as many as there is room for.",
    )
    cache_salt: str | None = Field(
        None, min_length=1, description="Only requests with the same salt share cached prefixes."
    )
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower is served earlier.")
    speculative_n_max: Count | None = Field(
        None,
        alias="speculative.n_max",
        description="Most guessed tokens in one step; 0 switches guessing off for this request.",
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_progress: bool = Field(
        False, description="A stream tells how much of the prompt is read, as prompt_progress."
    )
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = Field(None, description="structured_outputs.json.")
    guided_regex: str | None = Field(None, description="structured_outputs.regex.")
    guided_choice: Choices | None = Field(None, description="structured_outputs.choice.")
    guided_grammar: str | None = Field(None, description="structured_outputs.grammar.")
    grammar: str | None = Field(None, description="A grammar in Lark's or llama.cpp's notation.")
    json_schema: Schema | None = Field(None, description="structured_outputs.json.")
    regex: str | None = Field(None, description="structured_outputs.regex.")
    ebnf: str | None = Field(None, description="structured_outputs.grammar.")
    format: Schema | None = Field(None, description='"json", or structured_outputs.json.')

    harmless: ClassVar[frozenset[str] | None] = frozenset(
        (
            *("user", "metadata", "store", "service_tier", "safety_identifier", "request_id"),
            *("prompt_cache_key", "prompt_cache_retention", "detokenize", "cache_prompt"),
            *NOT_SUPPORTED_NOW,  # of which those that say something are refused
        )
    )
    refused: ClassVar[tuple[str, ...]] = NOT_SUPPORTED_NOW

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_we_lack(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in cls.refused:
                value, neutral = data.get(name), NEUTRAL.get(name, ())
                if value not in EMPTY and value not in neutral:
                    accepted = f"; accepted: {neutral[0]}, which changes nothing" if neutral else ""
                    raise refuse(name, f"this field is not supported{accepted}")
        return data

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _keep_something(cls, most: int | None) -> int | None:
        if most == 0:
            raise ValueError("accepted: -1, and 1 or more")
        return most

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: str | list[str]) -> str | list[str]:
        if "" in (stop if isinstance(stop, list) else [stop]):
            raise ValueError("a stop string must not be empty")
        return stop

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _check_bias(cls, bias: Any) -> Any:
        """Up to its first problem, as lists are."""
        for key, value in bias.items() if isinstance(bias, dict) else ():
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise refuse("logit_bias", f"the key {key[:20]!r} is not a token id")
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not -MAX_BIAS <= value <= MAX_BIAS:
                got = repr(value)[:20] if is_number else type(value).__name__
                raise refuse(f"logit_bias.{key}", f"{got} is not a number from -100 to 100")
        return bias

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options", "only allowed with stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise refuse("prompt_logprobs", "only allowed without stream")
        return self

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return self.stop if isinstance(self.stop, list) else [self.stop]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class LoadAdapterRequest(Strict):
    """Body of ``POST /v1/load_lora_adapter``."""

    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str = Field(
        min_length=1, max_length=4096, description="A directory under the server's lora_root."
    )

    @field_validator("lora_name")
    @classmethod
    def _name_fits_logs_and_headers(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("accepted: characters that print")
        return name


class UnloadAdapterRequest(Strict):
    """Body of ``POST /v1/unload_lora_adapter``."""

    lora_name: str = Field(min_length=1, max_length=256)
