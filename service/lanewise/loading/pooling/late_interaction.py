"""Settings of models that compare texts by the vectors of their tokens (ColBERT).

PyLate writes all of them to config_sentence_transformers.json, and only a Transformer and Dense to
modules.json. sentence-transformers writes them to the folder of each module.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.sentences import Expansion, TokenVectors

MASK = "MultiVectorMask"  # the module that selects the rows to compare
# Modules after the Transformer and any number of Dense, of sentence-transformers and PyLate.
ENDS: tuple[list[str], ...] = ([MASK, "Normalize"], ["Normalize", MASK], [MASK], ["Normalize"], [])
USUAL_LENGTH = 32  # of PyLate's queries by default
LENGTHS = ("query_length", "document_length")
PREFIXES = {"query": "query_prefix", "document": "document_prefix"}  # by the name of the prompt
OF_PYLATE = (
    *(*LENGTHS, *PREFIXES.values(), "query_expansion"),
    *("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens"),
    "skiplist_words",
)
WIDTHS = {"fixed": True, "min": False}  # kinds of expansion; whether longer queries are cut


def is_late(kinds: Sequence[str]) -> bool:
    """Return whether modules of these kinds give a vector for each token."""
    n_dense = kinds.count("Dense")
    return [*kinds[: n_dense + 1]] == ["Transformer", *["Dense"] * n_dense] and (
        [*kinds[n_dense + 1 :]] in ENDS and (n_dense > 0 or MASK in kinds)
    )


def normalizes(kinds: Sequence[str]) -> bool:
    """Return whether token vectors have length 1; PyLate's always have."""
    return "Normalize" in kinds or MASK not in kinds


def read_token_vectors(
    kinds: Sequence[str], mask: Path | None, model: Fields, config: Fields
) -> TokenVectors:
    """Return the settings for queries and documents.

    ``mask`` is the folder of the module that selects rows, ``model`` has the Transformer's fields
    and ``config`` those of config_sentence_transformers.json.
    """
    if mask is None:
        skipped = _words(config, list(string.punctuation))
        fields, expansion = config, _expansion_of_pylate(config)
    else:
        skipped = _read_mask(mask)
        fields, expansion = model, _expansion(model)
        config.ignore(*OF_PYLATE)
    lengths = [fields.integer(key) if fields.is_set(key) else None for key in LENGTHS]
    if expansion is not None and lengths[0] is not None and lengths[0] < expansion.length:
        raise fields.fail(LENGTHS[0], f"at least {expansion.length}, as queries are made so long,")
    control = [config.text(key) for key in PREFIXES.values() if config.is_set(key)]
    return TokenVectors(
        skipped=tuple(skipped),
        query_length=lengths[0],
        document_length=lengths[1],
        expansion=expansion,
        control=tuple(filter(None, control)),
    )


def with_prefixes(prompts: Mapping[str, str], config: Fields) -> dict[str, str]:
    """Return the prompts by name, preceded by the tokens that PyLate puts before every text."""
    found = dict(prompts)
    for name, key in PREFIXES.items():
        if config.is_set(key):
            prefix = config.text(key)
            found[name] = prefix + found.get(name, "").removeprefix(prefix)
    return found


def files_of_tokens(tokens: TokenVectors) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the equivalent fields of the mask's config.json and of the Transformer's."""
    said = {key: getattr(tokens, key) for key in LENGTHS if getattr(tokens, key) is not None}
    expansion = tokens.expansion
    if expansion is not None:
        kind = next(name for name, cuts in WIDTHS.items() if cuts == expansion.cuts)
        said["query_expansion"] = {
            "strategy": kind,
            "attend": expansion.attend,
            "token": expansion.token,
            "length": expansion.length,
        }
    return {"skiplist_words": list(tokens.skipped)}, said


def _read_mask(folder: Path) -> list[str]:
    fields = Fields(read_object(folder / "config.json"), str(folder / "config.json"))
    skipped = _words(fields, [])
    tasks = fields.raw("skiplist_tasks")
    if tasks not in (None, ["document"], "document") and skipped:
        raise fields.fail("skiplist_tasks", "['document']")
    if fields.raw("keep_only_token_ids") is not None:
        raise fields.fail("keep_only_token_ids", "null")
    fields.refuse_unread()
    return skipped


def _words(fields: Fields, default: list[str]) -> list[str]:
    found = fields.raw("skiplist_words")
    if found is None:
        return default
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise fields.fail("skiplist_words", "a list of strings")
    return found


def _expansion(fields: Fields) -> Expansion | None:
    """Read the query expansion from the Transformer's fields."""
    said = fields.raw("query_expansion")
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise fields.fail("query_expansion", "an object or null")
    inner = Fields(dict(said), f"{fields.source}: query_expansion")
    strategy = inner.text("strategy")
    if strategy not in WIDTHS:
        raise inner.fail("strategy", " or ".join(map(repr, WIDTHS)))
    found = Expansion(
        length=inner.integer("length"),
        attend=inner.flag("attend", default=False),
        token=inner.text("token") if inner.is_set("token") else None,
        cuts=WIDTHS[strategy],
    )
    inner.refuse_unread()
    return found


def _expansion_of_pylate(fields: Fields) -> Expansion | None:
    """Read PyLate's flags; without any of its fields, queries are not expanded."""
    if "query_expansion" in fields.values:
        return _expansion(fields)
    is_on = fields.flag("do_query_expansion", default=any(map(fields.is_set, OF_PYLATE)))
    attend, older = (
        fields.flag(key, default=False)
        for key in ("attend_to_expansion_tokens", "attend_to_mask_tokens")
    )
    length = fields.integer("query_length", default=USUAL_LENGTH)
    return Expansion(length, attend or older) if is_on else None


def check_kinds(kinds: Sequence[str], source: str) -> None:
    """Refuse unknown combinations of modules that give a vector for each token."""
    if not is_late(kinds):
        raise ModelFileError(
            f"{source}: the modules are {', '.join(kinds) or 'none'}; accepted: a Transformer,"
            " Pooling, any number of Dense, perhaps Normalize, in this order; or of models that"
            " compare tokens a Transformer, Dense, perhaps MultiVectorMask and Normalize"
        )
