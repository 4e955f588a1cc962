"""Prompts of which something is missing in the middle, in the form that a model was taught."""

from collections.abc import Iterator

from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import Infill
from lanewise.api.generation.dialect import Prompt
from lanewise.api.generation.measuring import check_ids, check_size, room_of
from lanewise.api.shared.state import ServerState
from lanewise.text.fim import FimTokens
from lanewise.text.pieces import Bounds, Room

REPOSITORY, THIS_FILE = "repository\n", "filename\n"  # requests do not say what they are called
OTHERS = "input_extra"
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
    item: Infill, max_tokens: int | None, state: ServerState, bounds: Bounds, *, add_bos: bool
) -> Prompt:
    """The tokens around a gap; of other files the end, as much of it as there is room for."""
    tokenizer, limit = state.tokenizer, state.max_model_len
    bounds = bounds._replace(most=limit, last=None)
    fim = fim_of(item.suffix_param, state)
    check_size(len(item.suffix), limit, item.suffix_param)
    given = item.prefix
    if isinstance(given, str):
        check_size(len(given), limit, item.param)
        prefix = tokenizer.encode(given, add_bos=False, parse_special=False, bounds=bounds)
    else:
        check_ids(given, tokenizer.vocab_size, item.param)
        prefix = given
    suffix = tokenizer.encode_behind(item.suffix, bounds)
    ids = fim.prompt(prefix, suffix)
    bos = tokenizer.bos_id if add_bos and tokenizer.adds_bos else None
    begin = [] if bos is None else [bos]
    room = limit - len(ids) - len(begin) - room_of(max_tokens, limit)
    others = _end_of_others(item, fim, room, state, bounds.room) if item.others and room > 0 else []
    text = given if isinstance(given, str) else None
    return Prompt([*begin, *others, *ids], text)


def _end_of_others(
    item: Infill, fim: FimTokens, most: int, state: ServerState, room: Room
) -> list[int]:
    """The last ``most`` tokens, at most, of all other files; what is before is not even read."""
    for _, text in item.others:
        check_size(len(text), state.max_model_len, OTHERS)
    found: list[list[int]] = []  # the last piece first
    missing, bounds = most, Bounds(room=room)
    for piece in reversed(list(_others(item, fim))):
        ids = [piece] if isinstance(piece, int) else state.tokenizer.encode_behind(piece, bounds)
        found.append(ids)
        missing -= len(ids)
        if missing <= 0:
            break
    return [token for ids in reversed(found) for token in ids][-most:]


def _others(item: Infill, fim: FimTokens) -> Iterator[int | str]:
    """Other files of a repository, then the name of this one: tokens, and texts by themselves."""
    if fim.repository is not None:
        yield fim.repository
        yield REPOSITORY
    for name, text in item.others:
        if fim.file is None:
            yield SNIPPET
        else:
            yield fim.file
            yield f"{name}\n"
        yield text
    if fim.file is not None:
        yield fim.file
        yield THIS_FILE
