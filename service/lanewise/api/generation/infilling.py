"""Prompts of which something is missing in the middle, in the form that a model was taught."""

from collections.abc import Iterator

from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import Infill
from lanewise.api.generation.dialect import Prompt
from lanewise.api.generation.measuring import check_ids, check_size
from lanewise.api.shared.state import ServerState
from lanewise.text.fim import FimTokens
from lanewise.text.tokenizer import Tokenizer

ROOM = 8  # of the context so much is left for an answer that may be of any length: one of so many
REPOSITORY = "repository\n"  # nobody says what it is called
SNIPPET = "\n\n--- snippet ---\n\n"  # between files where there is no token for it


def fim_of(param: str, state: ServerState) -> FimTokens:
    """The model's tokens for this, which it must have."""
    if state.tokenizer.fim is None:
        raise BadRequestError(
            f"{param}: this model does not support insert: it has no tokens such as"
            " <|fim_prefix|>, <|fim_suffix|> and <|fim_middle|>",
            param=param,
        )
    return state.tokenizer.fim


def read_infill(
    item: Infill, max_tokens: int | None, state: ServerState, *, add_bos: bool
) -> Prompt:
    """The tokens around a gap; of other files the end, as much of it as there is room for."""
    tokenizer, limit = state.tokenizer, state.max_model_len
    fim = fim_of(item.suffix_param, state)
    check_size(len(item.suffix), limit, item.suffix_param)
    given = item.prefix
    if isinstance(given, str):
        check_size(len(given), limit, item.param)
        prefix = tokenizer.encode(given, add_bos=False, parse_special=False)
    else:
        check_ids(given, tokenizer.vocab_size, item.param)
        prefix = given
    suffix = _inside(item.suffix, tokenizer)
    ids = fim.prompt(prefix, suffix)
    begin = [tokenizer.bos_id] if add_bos and tokenizer.adds_bos else []
    room = limit - len(ids) - len(begin) - (max_tokens or limit // ROOM)
    others = list(_others(item, fim, tokenizer, limit)) if item.others and room > 0 else []
    others = others[max(0, len(others) - room) :]
    text = given if isinstance(given, str) else None
    return Prompt([*(one for one in begin if one is not None), *others, *ids], text)


def _others(item: Infill, fim: FimTokens, tokenizer: Tokenizer, limit: int) -> Iterator[int]:
    """Other files of a repository, then the name of this one."""
    if fim.repository is not None:
        yield fim.repository
        yield from _inside(REPOSITORY, tokenizer)
    for name, text in item.others:
        check_size(len(text), limit, item.others_param)
        if fim.file is None:
            yield from _inside(SNIPPET, tokenizer)
        else:
            yield fim.file
            yield from _inside(f"{name}\n", tokenizer)
        yield from _inside(text, tokenizer)
    if fim.file is not None:
        yield fim.file
        yield from _inside(f"{item.name}\n", tokenizer)


def _inside(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text that others are before."""
    found = tokenizer.encode_inside(text)
    return found or tokenizer.encode(text, add_bos=False, parse_special=False)
