"""Directories with Mistral's tekken.json and no tokenizer.json."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

import topics
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.vocabulary.byte_letters import BYTE_OF_CHAR
from lanewise.loading.vocabulary.tekken import CONTROLS, PATTERN
from lanewise.loading.vocabulary.tokenizer_files import read_tokenizer_files
from lanewise.text.tokenizer import Tokenizer

N_CONTROLS, N_PLAIN = 32, 500
WORDS = (
    *("Hello", " world", "the", " THE", "camelCase", "\n\n", "  ", "\t", "12345", "\u00e9"),
    *("\u65e5\u672c\u8a9e", "\U0001f642", "</s>", "[INST]", "==", "\r\n", "a\u0300"),
    *("\u0130", "print(", "aaaaaa", "abababa", "don't"),
)
LETTERS = ((32, 126), (0xA0, 0x24F), (0x370, 0x5FF), (0x3040, 0x9FFF), (0x1F300, 0x1F6FF))


def strings(count: int) -> list[str]:
    """Random texts of words and letters of all kinds."""
    draw = random.Random(5)

    def part() -> str:
        return (
            draw.choice(WORDS) if draw.random() < 0.5 else chr(draw.randint(*draw.choice(LETTERS)))
        )

    return ["".join(part() for _ in range(draw.randrange(1, 24))) for _ in range(count)]


def vocabulary() -> list[bytes]:
    """The bytes, and what a training joins of some texts, in its order."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.train_from_iterator(
        strings(2000),
        trainers.BpeTrainer(
            vocab_size=N_PLAIN,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    ids = sorted((number, text) for text, number in library.get_vocab().items())
    joined = [bytes(BYTE_OF_CHAR[char] for char in text) for _, text in ids if len(text) > 1]
    return [bytes([byte]) for byte in range(256)] + joined


PLAIN = vocabulary()


def tekken(**changes: Any) -> dict[str, Any]:
    """A file as Mistral writes it."""
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*PLAIN, b"one more", b"than is used"])
    ]
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(entries),
        "default_vocab_size": N_CONTROLS + len(PLAIN),
        "default_num_special_tokens": N_CONTROLS,
        "version": "v3",
    }
    config |= changes.pop("config", {})
    return {"config": config, "vocab": entries, "image": {"image_patch_size": 16}} | changes


def opened(folder: Path, file: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a directory with this file."""
    (folder / "tekken.json").write_text(json.dumps(file))
    return Tokenizer.from_files(read_tokenizer_files(folder, N_CONTROLS + len(PLAIN)))


def joined(text: str) -> list[int]:
    """The numbers of a text's tokens: the two neighbours that make the lowest rank, first."""
    ranks = {token: rank for rank, token in enumerate(PLAIN)}
    cut = pre_tokenizers.Split(Regex(PATTERN), "isolated").pre_tokenize_str(text)
    found = []
    for piece, _ in cut:
        parts = [bytes([byte]) for byte in piece.encode()]
        while pairs := [
            (ranks[one + other], place)
            for place, (one, other) in enumerate(pairwise(parts))
            if one + other in ranks
        ]:
            place = min(pairs)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        found += [N_CONTROLS + ranks[part] for part in parts]
    return found


def test_neighbours_are_joined_by_rank_and_controls_come_first(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, tekken())
    for text in strings(400):
        ids = tokenizer.encode(text, add_bos=False, parse_special=False)
        assert ids == joined(text), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("[INST]a</s>", add_bos=True, parse_special=True) == [
        *(1, CONTROLS.index("[INST]"), N_CONTROLS + ord("a"), 2)
    ]
    assert tokenizer.eos_ids == {2}
    assert tokenizer.special_tokens["bos_token"] == "<s>"


def test_a_list_of_controls_is_taken_as_it_is(tmp_path: Path) -> None:
    texts = ["<unk>", "<s>", "</s>", "[THINK]", "<pad>"]
    listed = [
        {"rank": rank, "token_str": text, "is_control": text != "[THINK]"}
        for rank, text in enumerate(texts)
    ]
    tokenizer = opened(tmp_path, tekken(special_tokens=listed, config={"version": "v13"}))
    ids = tokenizer.encode("[THINK]<SPECIAL_31>", add_bos=False, parse_special=True)
    assert ids == [3, 31]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"pattern": r"\w+"}}, r"config: pattern is '\\w+'; the one of all Mistral's"),
        ({"config": {"version": "v13"}}, "special_tokens is missing; the list of tokens that"),
        ({"config": {"default_vocab_size": 10_000}}, "; a list of 9968 is needed"),
        ({"config": {"default_num_special_tokens": 1 << 20}}, "at most 65536 is needed"),
        ({"config": {"default_num_special_tokens": 8}}, "at most 8 texts is needed"),
        ({"config": 3}, "config is 3; an object is needed"),
        ({"vocab": [{"rank": 1}] * 900}, r"vocab[0]: rank 0 is needed"),
        ({"vocab": [{"rank": n, "token_bytes": "*"} for n in range(900)]}, "token_bytes is '*'"),
        ({"special_tokens": [{"rank": 0, "token_str": 1}]}, "at most 32 texts is needed"),
    ],
)
def test_other_files_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tekken()
    for key, value in changes.items():
        is_part = key == "config" and isinstance(value, dict)
        file[key] = file[key] | value if is_part else value
    with pytest.raises(ModelFileError) as caught:
        opened(tmp_path, file)
    assert message in str(caught.value)
    assert "tekken.json" in str(caught.value)


@pytest.mark.reference
def test_a_published_file_gives_the_numbers_of_mistral_common(tmp_path: Path) -> None:
    common = topics.module("mistral_common", "reference")
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    (file,) = Path(common.__file__).parent.glob("data/tekken_240911.json")
    theirs = Tekkenizer.from_file(file)
    (tmp_path / "tekken.json").write_bytes(file.read_bytes())
    ours = Tokenizer.from_files(read_tokenizer_files(tmp_path, theirs.n_words))
    for text in strings(5000):
        expected = theirs.encode(text, bos=True, eos=False)
        assert ours.encode(text, add_bos=True, parse_special=False) == expected, text
    controls = "<s>[INST]a[/INST]</s>[TOOL_CALLS]"
    ids = ours.encode(controls, add_bos=False, parse_special=True)
    assert [theirs.id_to_piece(number) for number in ids] == [
        *("<s>", "[INST]", "a", "[/INST]", "</s>", "[TOOL_CALLS]")
    ]
