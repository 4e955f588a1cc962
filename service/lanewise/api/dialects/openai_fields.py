"""Fields that OpenAI's endpoints share, in our terms."""

from collections.abc import Callable, Iterator
from typing import Any

from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import BestEffort, Constraint, Delivery, Ending, Sampling
from lanewise.api.schemas import GenerationFields
from lanewise.text.grammar import GrammarSource

JSON_OBJECT = {"type": "object"}


def sampling_of(fields: GenerationFields) -> Sampling:
    """How tokens are drawn."""
    said = fields.model_fields_set

    def given(name: str) -> Any:
        return getattr(fields, name) if name in said else None

    return Sampling(
        temperature=given("temperature"),
        top_p=given("top_p"),
        top_k=given("top_k"),
        min_p=given("min_p"),
        repetition_penalty=_one_of(fields, "repetition_penalty", "repeat_penalty"),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=fields.logit_bias,
        allowed_token_ids=fields.allowed_token_ids,
        bad_words=fields.bad_words,
        seed=fields.seed,
        max_draft=fields.speculative_n_max,
    )


def _one_of(fields: GenerationFields, *names: str) -> Any:
    """What a field says that has several names; BadRequestError if they say different things."""
    said = [(name, getattr(fields, name)) for name in names if name in fields.model_fields_set]
    for name, value in said[1:]:
        if value != said[0][1]:
            raise BadRequestError(
                f"{name}: {value} is not what {said[0][0]} says, {said[0][1]}", param=name
            )
    return said[0][1] if said else None


def ending_of(fields: GenerationFields, max_tokens: int | None, param: str | None = None) -> Ending:
    """Where answers end: after ``max_tokens``, which ``param`` says, if no other field does."""
    names = ("max_tokens", "max_new_tokens", "n_predict")
    asked = _one_of(fields, *names)
    if asked is None:
        asked = max_tokens
    else:
        param = next(name for name in names if getattr(fields, name) is not None)
    return Ending(
        max_tokens=None if asked == -1 else asked,
        param=param,
        min_tokens=fields.min_tokens,
        strings=fields.stops,
        token_ids=fields.stop_token_ids,
        shows_end=fields.include_stop_str_in_output,
        ignores_eos=fields.ignore_eos,
    )


def delivery_of(fields: GenerationFields) -> Delivery:
    """How answers leave."""
    options = fields.stream_options
    return Delivery(
        stream=fields.stream,
        usage=options is not None and options.include_usage,
        running_usage=options is not None and options.continuous_usage_stats,
        progress=fields.return_progress and fields.stream,
    )


def constraint_of(fields: GenerationFields) -> Constraint | None:
    """The form that answers obey, in whichever of many words; BadRequestError if in two."""
    found = list(_constraints(fields))
    if len(found) > 1:
        first, second = found[0].param, found[1].param
        raise BadRequestError(
            f"{second}: only one of {first} and {second} can be used", param=second
        )
    return found[0] if found else None


def _constraints(fields: GenerationFields) -> Iterator[Constraint]:
    schema, choices = GrammarSource.from_json_schema, GrammarSource.from_choices
    grammar, regex = GrammarSource.from_grammar, GrammarSource.from_regex
    form, asked = fields.response_format, fields.structured_outputs
    if form is not None and form.json_schema is not None:
        named = form.json_schema
        make = schema if named.strict else BestEffort()
        yield Constraint("response_format.json_schema.schema", make, named.json_schema)
    elif form is not None and form.type == "json_object":
        if form.bare_schema is not None:
            yield Constraint("response_format.schema", BestEffort(), form.bare_schema)
        else:
            yield Constraint("response_format", schema, JSON_OBJECT)
    if asked is not None:
        if asked.json_object:
            yield Constraint("structured_outputs.json_object", schema, JSON_OBJECT)
        yield from _given("structured_outputs.json", schema, asked.json_schema)
        yield from _given("structured_outputs.regex", regex, asked.regex)
        yield from _given("structured_outputs.choice", choices, asked.choice)
        yield from _given("structured_outputs.grammar", grammar, asked.grammar)
    yield from _given("guided_json", schema, fields.guided_json)
    yield from _given("guided_regex", regex, fields.guided_regex)
    yield from _given("guided_choice", choices, fields.guided_choice)
    yield from _given("guided_grammar", grammar, fields.guided_grammar)
    yield from _given("grammar", grammar, fields.grammar)
    yield from _given("json_schema", schema, fields.json_schema)
    yield from _given("regex", regex, fields.regex)
    yield from _given("ebnf", grammar, fields.ebnf)
    yield from _given("format", schema, JSON_OBJECT if fields.format == "json" else fields.format)


def _given(param: str, make: Callable[[Any], GrammarSource], value: Any) -> Iterator[Constraint]:
    if value is not None:
        yield Constraint(param, make, value)
