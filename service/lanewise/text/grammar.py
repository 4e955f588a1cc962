"""Compiles what an answer must look like: JSON schemas, regular expressions, choices, grammars."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lanewise.text.exact_json import has_large, json_rule
from lanewise.text.json_numbers import NumberEnds
from lanewise.text.json_schema import NotEnforceableError, enforceable
from lanewise.text.surrogates import as_characters

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from lanewise.text.tokenizer import Tokenizer

Kind = Literal["json_schema", "regex", "choice", "lark", "gbnf"]

MAX_CHARACTERS = 256 << 10  # of a grammar's source, unless a server is told otherwise
MAX_BEGINNING = 16 << 10  # bytes that every text begins with
MAX_LEVELS = 120  # of a schema's JSON; the library reads 127, some of which are ours
MAX_GBNF_CHARACTERS = 32 << 10  # translated in Python, in a time that grows with its square
MAX_GBNF_RULES = 500
CACHED_GRAMMARS = 64
# Bounds of what one grammar may cost, over twice what 130 ordinary ones need at most: 3 ms of lexer
# work for one token, and 90 ms of parsing for the most ambiguous rules found.
LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 5_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 250_000,
}
# As Python and most training data write JSON. Free white space would let a model go on with it for
# ever, and leave few tokens forced. A schema may ask for something else under "x-guidance".
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


NO_MATCH = "nothing matches it"
STUCK = {"NoExtension", "NoExtensionBias"}  # as the library calls that
NO_EOS = "this model has no token that ends a text"
EXCERPT = re.compile(r"\d+ \||<non-verbose/>")


class GrammarError(Exception):
    """A grammar cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar as a request gave it; equal sources are compiled once."""

    kind: Kind
    text: str  # JSON for json_schema and choice
    before: str = ""  # a grammar in Lark's notation that uses this one as @body

    @classmethod
    def from_json_schema(cls, schema: Any) -> GrammarSource:
        """A schema as JSON values, or as a string of JSON."""
        return cls("json_schema", styled(schema))

    @classmethod
    def from_choices(cls, choices: Sequence[str]) -> GrammarSource:
        """One of some texts."""
        return cls("choice", json.dumps(choices, ensure_ascii=False))

    @classmethod
    def from_regex(cls, text: str) -> GrammarSource:
        """A regular expression that the whole answer matches."""
        return cls("regex", text)

    @classmethod
    def from_grammar(cls, text: str) -> GrammarSource:
        """A grammar in Lark's notation, or in llama.cpp's GBNF, which alone has ``::=``."""
        return cls("gbnf" if "::=" in text else "lark", text)

    def after(self, rules: str) -> GrammarSource:
        """The same as part of another grammar, of rules in Lark's notation that call it @body."""
        return replace(self, before=rules)

    @property
    def has_json(self) -> bool:
        """Whether there may be numbers of JSON in its texts."""
        rules = self.before + (self.text if self.kind == "lark" else "")
        return self.kind == "json_schema" or "%json" in rules

    def check_size(self, most_characters: int) -> None:
        """GrammarError if the source is longer than that."""
        if len(self.text) > most_characters:
            raise GrammarError(_too_long(f"{len(self.text)}", most_characters))


class CompiledGrammar:
    """A grammar ready for the tokens of one model."""

    def __init__(
        self,
        source: GrammarSource,
        first: FirstMatchers,
        eos_ids: Sequence[int],
        mask_words: int,
        numbers: NumberEnds | None,
    ) -> None:
        self.source = source
        self._first = first
        self.numbers = numbers
        self.beginning = tuple(first.beginning)
        self.eos_ids = eos_ids
        self.mask_words = mask_words
        self.debt_s = 0.0

    def new_matcher(self) -> LLMatcher:
        """A matcher that has seen nothing."""
        return self._first.fresh.deep_copy()

    def begun_matcher(self) -> LLMatcher:
        """A matcher that has seen the beginning."""
        return self._first.begun.deep_copy()


class GrammarCompiler:
    """Compiles grammars for one tokenizer; what it needs is made by the first that is compiled.

    Threads may share it.
    """

    def __init__(self, tokenizer: Tokenizer, model_vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._model_vocab_size = model_vocab_size
        self._vocabulary: LLTokenizer | None = None
        self._numbers: NumberEnds | None = None
        self._making = threading.Lock()  # of the vocabulary
        self._lock = threading.Lock()  # of what is compiled
        self._compiled: OrderedDict[GrammarSource, CompiledGrammar] = OrderedDict()

    def cached(self, source: GrammarSource) -> CompiledGrammar | None:
        """The grammar, if it was compiled lately."""
        with self._lock:
            found = self._compiled.get(source)
            if found is not None:
                self._compiled.move_to_end(source)
            return found

    def compile(self, source: GrammarSource, grammar: str | None = None) -> CompiledGrammar:
        """The grammar for this model, for ``cached`` to find.

        Takes as long and as much memory as the source wants, and may end the process by overflowing
        the stack: a server gives the library what a worker of ``lanewise.sandbox`` has compiled
        before within limits, ``grammar`` as it came from there. GrammarError if it cannot be used.
        """
        vocabulary = self._tokens()
        first = first_matchers(vocabulary, library_grammar(source) if grammar is None else grammar)
        words = (vocabulary.vocab_size + 31) // 32
        numbers = self._number_ends(words) if source.has_json else None
        compiled = CompiledGrammar(source, first, tuple(vocabulary.eos_tokens), words, numbers)
        with self._lock:
            self._compiled[source] = compiled
            while len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        return compiled

    def describe_vocabulary(self) -> dict[str, Any]:
        """What ``ProbeVocabulary`` is made of; GrammarError if there can be no grammars."""
        tokenizer = self._tokenizer
        if not tokenizer.eos_ids:
            raise GrammarError(NO_EOS)
        special = sorted(tokenizer.special_ids)
        return {
            "n_tokens": self._model_vocab_size,
            "special": [(i, tokenizer.token_text(i)) for i in special],
            "eos_ids": sorted(tokenizer.eos_ids),
            "bos_id": tokenizer.bos_id,
        }

    def forget_oldest(self) -> bool:
        """Stop keeping the grammar whose last use is longest ago; whether there was one."""
        with self._lock:
            forgotten = self._compiled.popitem(last=False) if self._compiled else None
        return forgotten is not None

    def _number_ends(self, mask_words: int) -> NumberEnds:
        with self._making:
            if self._numbers is None:
                self._numbers = NumberEnds(self._tokenizer.all_token_bytes(), mask_words)
            return self._numbers

    def _tokens(self) -> LLTokenizer:
        with self._making:
            if self._vocabulary is None:
                from llguidance import LLTokenizer

                if not self._tokenizer.eos_ids:
                    raise GrammarError(NO_EOS)
                # In two parts, each of which keeps the interpreter: of 49k tokens 0.06 and 0.09 s.
                plain = LLTokenizer(
                    _Vocabulary(self._tokenizer),  # type: ignore[arg-type]
                    n_vocab=self._model_vocab_size,
                    eos_token=sorted(self._tokenizer.eos_ids),
                    slices=[],
                )
                self._vocabulary = plain.with_slices(LLTokenizer.general_slices())
            return self._vocabulary


def measure(value: Any, most_characters: int) -> int:
    """About how many characters a value has as JSON, counted without writing it.

    GrammarError as soon as it is certain that they are more than ``most_characters``, or that the
    value is nested more deeply than any schema can be.
    """
    total = 0
    rest = [(value, 0)]
    while rest:
        part, level = rest.pop()
        total += 2
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, Mapping):
            total += sum(map(len, part))
            rest.extend((item, level + 1) for item in part.values())
        elif isinstance(part, list | tuple):
            total += len(part)
            rest.extend((item, level + 1) for item in part)
        if total > most_characters:
            raise GrammarError(_too_long(f"more than {most_characters}", most_characters))
        if level > MAX_LEVELS:
            raise GrammarError(f"nested more than {MAX_LEVELS} levels deep")
    return total


def _too_long(found: str, most_characters: int) -> str:
    return f"{found} characters are too many; accepted: at most {most_characters}"


def styled(schema: Any) -> str:
    """A JSON schema as JSON, with our rules for white space."""
    if isinstance(schema, str):
        try:
            schema = json.loads(as_characters(schema))
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is not JSON: {error}") from None
    if schema is True:
        schema = {}
    if schema is False:
        raise GrammarError(NO_MATCH)
    if not isinstance(schema, Mapping):
        raise GrammarError("a schema is an object or true")
    asked = schema.get("x-guidance", {})
    if not isinstance(asked, Mapping):
        raise GrammarError("x-guidance is not an object")
    free = asked.get("whitespace_flexible") or asked.get("whitespace_pattern")
    try:
        schema = enforceable(schema)
    except NotEnforceableError as error:
        raise GrammarError(str(error)) from None
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    # Never lenient: keywords that are not implemented must be errors, not be ignored.
    style = {**({} if free else JSON_STYLE), **asked, "lenient": False}
    try:
        made = json.dumps({**schema, "x-guidance": style}, ensure_ascii=False)
        json_rule(made)
        return made
    except NotEnforceableError as error:
        raise GrammarError(str(error)) from None
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


def rule_of_json(schema: Any) -> str:
    """What stands in a rule for JSON that obeys a schema."""
    try:
        return json_rule(styled(schema))
    except NotEnforceableError as error:
        raise GrammarError(str(error)) from None


def library_grammar(source: GrammarSource) -> str:
    """The grammar in the notation of the library that matches it."""
    if source.before:
        body = json.loads(library_grammar(replace(source, before="")))["grammars"][0]
        parts = [{"lark_grammar": source.before}, {**body, "name": "body"}]
        return json.dumps({"grammars": parts})
    if source.kind == "json_schema":
        schema = json.loads(source.text)
        if has_large(schema):
            return _lark(f"start: {json_rule(source.text)}")
        return json.dumps({"grammars": [{"json_schema": schema}]})
    if source.kind == "choice":
        options = (json.dumps(text, ensure_ascii=False) for text in json.loads(source.text))
        # The one character that JSON need not escape and the notation's strings must.
        return _lark("start: " + " | ".join(options).replace("\x7f", r"\u007f"))
    if source.kind == "regex":
        from llguidance import LLMatcher

        return LLMatcher.grammar_from_regex(source.text)
    return _lark(_from_gbnf(source.text) if source.kind == "gbnf" else source.text)


class FirstMatchers(NamedTuple):
    """What the matchers of a grammar's sequences are copied from."""

    fresh: LLMatcher
    begun: LLMatcher  # after the beginning
    beginning: list[int]  # tokens that every text begins with


def first_matchers(vocabulary: LLTokenizer, grammar: str) -> FirstMatchers:
    """Compile a grammar in the library's notation; GrammarError if it cannot be used.

    What every sequence would do first is done here once.
    """
    from llguidance import LLMatcher

    fresh = LLMatcher(vocabulary, grammar, log_level=0, limits=_limits())
    _check(fresh)
    beginning = fresh.compute_ff_tokens()
    fresh.compute_bitmask()
    _check(fresh)
    n_bytes = len(fresh.compute_ff_bytes())
    if n_bytes > MAX_BEGINNING:
        raise GrammarError(
            f"every text begins with the same {n_bytes} bytes; accepted: at most {MAX_BEGINNING}"
        )
    begun = fresh.deep_copy()
    if beginning and begun.consume_tokens(beginning) and not begun.is_stopped():
        begun.compute_bitmask()
    _check(begun)
    return FirstMatchers(fresh, begun, beginning)


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_one_line(matcher.get_error()))
    if matcher.is_stopped() and not matcher.is_accepting():
        raise GrammarError(NO_MATCH)


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _from_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(text) > MAX_GBNF_CHARACTERS or text.count("::=") > MAX_GBNF_RULES:
        raise GrammarError(
            f"a GBNF grammar of {len(text)} characters and {text.count('::=')} rules is too large; "
            f"accepted: at most {MAX_GBNF_CHARACTERS} characters and {MAX_GBNF_RULES} rules"
        )
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None
    except Exception as error:  # the library raises whatever Python does
        raise GrammarError(f"not a GBNF grammar: {error}") from None


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(**LIMITS, verbose_errors=False)  # type: ignore[arg-type]


def _one_line(message: str) -> str:
    # What follows the message shows it in the source: numbered lines, and a line with a caret.
    lines = (line.strip() for line in message.splitlines())
    told = [line for line in lines if line not in ("", "^") and not EXCERPT.match(line)]
    if told and told[0] in STUCK:
        return NO_MATCH
    return " ".join(told)[:500]


class _Vocabulary:
    """A tokenizer as llguidance wants to see it."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokenizer.all_token_bytes()
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of text in the middle of a text: no space is put before it."""
        text = text.decode() if isinstance(text, bytes) else text
        return self._tokenizer.encode_inside(text)
