"""Strings to token ids and back, the same for GGUF and Hugging Face files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.loading.vocabulary.byte_letters import BYTE_OF_CHAR
from lanewise.text.backend import Backend, Library
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError, Message
from lanewise.text.control_tokens import choose_mark, control_tokens, remove_mark
from lanewise.text.fim import find_fim
from lanewise.text.gguf_tokenizer import gguf_backend
from lanewise.text.gguf_vocabulary import SPACE
from lanewise.text.hf_tokenizer import hf_backend
from lanewise.text.limited_tokenizer import LimitedTokenizer
from lanewise.text.pieces import ALL, Bounds, Cutter, Encode, Piece, Tokens
from lanewise.text.surrogates import without_surrogates
from lanewise.text.tokenizer_copies import continuing_copy, plain_copy
from lanewise.text.tokenizing_error import TokenizingError, panics_told

# One prompt at a time gains nothing from the library's own threads, which would take cores from the
# model's.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """A model's tokenizer, with its rules for BOS, stop ids and chat.

    ``vocab_size`` counts ids from 0 to the last token's; the model may have more rows, listed with
    any gaps in ``unused_ids``, which must never be sampled.
    """

    def __init__(self, backend: Backend, model_vocab_size: int, source: str) -> None:
        self._tokenizer = backend.tokenizer
        self.is_limited = isinstance(backend.tokenizer, LimitedTokenizer)  # and may take its time
        self._byte_level = backend.byte_level
        self._word_pieces = backend.word_pieces
        self._raw_ids = backend.raw_ids
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._control = control_tokens(added, self._special_ids)
        self._token_bytes: dict[int, bytes] = {}
        self._whole_texts: dict[int, str] = {}
        self._plain, self._continuing = _copies(self._tokenizer)
        self._cutter = Cutter(added.values(), self.all_token_bytes)

        ids = backend.ids
        self.vocab_size = max(ids, default=-1) + 1
        if not 0 < self.vocab_size <= model_vocab_size:
            raise ModelFileError(
                f"{source}: the tokenizer has ids up to {self.vocab_size - 1}, the model only"
                f" {model_vocab_size} rows for them: they do not belong together"
            )
        is_full = len(ids) == model_vocab_size
        self.unused_ids = () if is_full else tuple(sorted(set(range(model_vocab_size)) - set(ids)))
        self.bos_id = backend.bos_id
        self.eos_ids = backend.eos_ids
        self.adds_bos = backend.add_bos and backend.bos_id is not None
        self.strips_leading_space = backend.strips_leading_space
        self.special_tokens = dict(backend.special_tokens)
        self.fim = find_fim(self._tokenizer.token_to_id, backend.fim_ids)
        self.chat_template: ChatTemplate | None = None
        if backend.templates:
            self.chat_template = ChatTemplate(backend.templates, self.special_tokens)

    @classmethod
    def from_files(cls, files: TokenizerFiles) -> Tokenizer:
        """Build the tokenizer of a checkpoint; raises ModelFileError if there is none to build."""
        backend = gguf_backend(files) if files.gguf is not None else hf_backend(files)
        return cls(backend, files.vocab_size, str(files.path))

    def encode(
        self, text: str, *, add_bos: bool, parse_special: bool, bounds: Bounds = ALL
    ) -> list[int]:
        """Return the ids of a text.

        With ``add_bos`` the text starts with BOS if the model's texts do. With ``parse_special``
        the names of control tokens become those tokens; without, they are text.
        """
        tokens = Tokens(bounds)
        tokens.put(self.beginning(add_bos=add_bos))
        for piece in self.pieces(text, parse_special=parse_special):
            self.add_piece(piece, tokens, parse_special=parse_special)
            if tokens.are_enough:
                break
        return tokens.ids

    def beginning(self, *, add_bos: bool) -> list[int]:
        """BOS, if it is wanted and the model's texts have it."""
        bos = self.bos_id if add_bos and self.adds_bos else None
        return [] if bos is None else [bos]

    def pieces(self, text: str, *, parse_special: bool) -> Iterator[Piece]:
        """A text in pieces, whose tokens can be made one after the other."""
        return self._cutter.pieces(without_surrogates(text), self._encoding(parse_special))

    def add_piece(self, piece: Piece, tokens: Tokens, *, parse_special: bool) -> None:
        """Make the tokens of one of them."""
        tokens.add(piece, self._encoding(parse_special))

    def _encoding(self, parse_special: bool) -> Encode:
        return partial(_encode, self._tokenizer if parse_special else self._plain)

    def first_control(self, text: str) -> int:
        """Return where the first control token of a text begins; without one, its length."""
        return self._control.first(text)

    def encode_inside(self, text: str, bounds: Bounds = ALL) -> list[int]:
        """Return the ids of a text that follows other text; their bytes are those of the text.

        Control tokens are text here, and no vocabulary's rule for first words applies. None where
        no tokens have just those bytes, or the tokenizer fails on them.
        """
        try:
            return self._encode_inside(text, bounds)
        except TokenizingError:
            return []

    def _encode_inside(self, text: str, bounds: Bounds) -> list[int]:
        wanted, encode = text.encode(), partial(_encode, self._continuing)
        ids, is_all = self._in_pieces(text, encode, bounds)
        if not is_all or b"".join(map(self.token_bytes, ids)) == wanted:
            return ids
        # Some put a space before any text. A line break, which no token shares with what follows
        # it in such vocabularies, takes that space and is cut off.
        before = encode("\n")
        ids, _ = self._in_pieces("\n" + text, encode, bounds)
        if ids[: len(before)] == before:
            ids = ids[len(before) :]
        if b"".join(map(self.token_bytes, ids)) == wanted:
            return ids
        return []

    def _in_pieces(self, text: str, encode: Encode, bounds: Bounds) -> tuple[list[int], bool]:
        """The tokens of a text, and whether they are all."""
        tokens = Tokens(bounds)
        for piece in self._cutter.pieces(text, encode):
            if tokens.are_enough:
                return tokens.ids, False
            tokens.add(piece, encode)
        return tokens.ids, bounds.last is None

    def encode_behind(self, text: str, bounds: Bounds = ALL) -> list[int]:
        """As ``encode_inside``; where no tokens have just those bytes, as near as can be."""
        return self.encode_inside(text, bounds) or self.encode(
            text, add_bos=False, parse_special=False, bounds=bounds
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: ChatTemplate | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Return the ids of a conversation as the template writes it; BOS is the template's affair.

        Control tokens come from the template alone: their names in messages, tools or kwargs stay
        text. Raises ChatTemplateError when there is no template or it refuses the messages. The
        template runs here, as long as it likes; a server has it run elsewhere, between
        ``mark_chat`` and ``encode_marked``.
        """
        template = chat_template or self.chat_template
        if template is None:
            raise ChatTemplateError(
                "the model has no chat template; use /v1/completions, or give a template file"
            )
        chat, mark = self.mark_chat(messages, tools, kwargs)
        text = template.render(chat[0], chat[1], add_generation_prompt, **chat[2])
        return self.encode_marked(text, mark)

    def mark_chat(self, messages: Any, tools: Any, variables: Any) -> tuple[list[Any], str]:
        """What a template gets of a conversation, and the mark in it of what must stay text."""
        parts = [messages, tools, variables]
        mark = choose_mark(parts)
        return [self._control.mark(part, mark) for part in parts], mark

    def encode_marked(self, text: str, mark: str, bounds: Bounds = ALL) -> list[int]:
        """Return the ids of what a template made of a conversation with this mark."""
        unmarked = remove_mark(text, mark)
        if unmarked == text:
            return self.encode(text, add_bos=False, parse_special=True, bounds=bounds)
        tokens = Tokens(bounds)
        encode = partial(_encode, self._plain)
        for part in self._control.split(text, mark):
            if isinstance(part, int):
                tokens.put((part,))
            elif between := remove_mark(part, mark):
                for piece in self._cutter.pieces(without_surrogates(between), encode):
                    tokens.add(piece, encode)
            encode = partial(_encode, self._continuing)
            if tokens.are_enough:
                break
        return tokens.ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become replacement characters."""
        kept = (i for i in ids if not (skip_special and i in self._special_ids))
        text = b"".join(self.token_bytes(i) for i in kept).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    @property
    def whole(self) -> Library:
        """What puts the special tokens around a whole text or a pair that its model reads."""
        return self._tokenizer

    @property
    def plain(self) -> Library:
        """The same without these; names of control tokens are text."""
        return self._plain

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is a control token, which plain text never contains."""
        return token_id in self._special_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """The control tokens."""
        return self._special_ids

    def split_special(self, text: str) -> list[str | int]:
        """Return the ids of the control tokens in a text, and the texts between them."""
        return self._control.split(text)

    def all_token_bytes(self) -> list[bytes]:
        """Return the bytes of every token, by id."""
        return [self._bytes_of(token_id) for token_id in range(self.vocab_size)]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for; none for an id without a token."""
        found = self._token_bytes.get(token_id)
        if found is None:
            found = self._token_bytes[token_id] = self._bytes_of(token_id)
        return found

    def whole_text(self, token_id: int) -> str:
        """Return the text of a token that stands for whole characters; none for any other."""
        found = self._whole_texts.get(token_id)
        if found is None:
            try:
                found = self.token_bytes(token_id).decode()
            except UnicodeDecodeError:
                found = ""
            self._whole_texts[token_id] = found
        return found

    def first_unlike(self, other: Tokenizer) -> int | None:
        """The first id that is another token in ``other``; None when both have the same."""
        for token in range(max(self.vocab_size, other.vocab_size)):
            if self._bytes_of(token) != other._bytes_of(token):
                return token
        return None

    def token_text(self, token_id: int) -> str:
        """Return a token as text, with replacement characters for parts of characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _bytes_of(self, token_id: int) -> bytes:
        text = self._tokenizer.id_to_token(token_id)
        if text is None:
            return b""
        if token_id in self._raw_ids:
            return text.encode()
        if self._byte_level:
            try:
                return bytes(BYTE_OF_CHAR[char] for char in text)
            except KeyError:
                return text.encode()
        if self._word_pieces:
            return (text[2:] if text.startswith("##") else f" {text}").encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                return text.encode()
        return text.replace(SPACE, " ").encode()


def _copies(tokenizer: Library) -> tuple[Library, Library]:
    """The same without control tokens, and for text inside a prompt."""
    if isinstance(tokenizer, LimitedTokenizer):
        return tokenizer.of_kind("plain"), tokenizer.of_kind("continuing")
    plain = plain_copy(tokenizer)
    return plain, continuing_copy(plain)


def _encode(tokenizer: Library, text: str) -> list[int]:
    clean = without_surrogates(text)  # JSON can carry them
    # The batch call lets other threads run meanwhile, which the call for one text does not; a
    # prompt of megabytes takes seconds.
    with panics_told():
        ids = tokenizer.encode_batch_fast([clean], add_special_tokens=False)[0].ids
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
