"""Model files whose bytes a fuzzer writes, opened as a server opens them."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.text.detokenizer import StreamDecoder
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.whole_texts import WholeTexts
from tests.fuzz.reader import accept

# What stands for weights after a header, 1 in F32: nothing, a little, enough for any tiny model.
PADDING = (0, 1 << 12, 1 << 20)
ONES = b"\x00\x00\x80\x3f" * (max(PADDING) // 4)
TEXTS = ("", "Hello world", "<s> the <|user|>\n\n'll 123 🦙é", " x\u2581y ", "\ud800a")


@cache
def scratch() -> Path:
    """A folder that goes when the process does."""
    folder = Path(tempfile.mkdtemp(prefix="lanewise-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_padded(path: Path, content: bytes, padding: int) -> None:
    """Write a file that ends with so many bytes of weights."""
    path.write_bytes(content + ONES[:padding])


def open_model(path: Path) -> None:
    """Open a checkpoint, read all of it and build its tokenizer; ModelFileError is an answer."""
    try:
        with open_checkpoint(path) as checkpoint:
            for tensor in checkpoint.tensors:
                assert len(tensor.data) == tensor.n_bytes, tensor
                tensor.release()
            build_tokenizer(checkpoint.tokenizer)
    except ModelFileError as error:
        accept(error)


def build_tokenizer(files: TokenizerFiles) -> None:
    """Build a tokenizer and use it: pieces of text joined must be the whole."""
    tokenizer = Tokenizer.from_files(files)
    assert len(tokenizer.all_token_bytes()) == tokenizer.vocab_size
    whole = WholeTexts(tokenizer).encode([*TEXTS, ("Hello", "world")], 12, "right")
    assert all(0 <= token < files.vocab_size for text in whole for token in text.ids), whole
    for text in TEXTS:
        ids = tokenizer.encode(text, add_bos=True, parse_special=len(text) % 2 == 0)
        assert all(0 <= token < files.vocab_size for token in ids), ids
        tokenizer.encode_inside(text.replace("\ud800", ""))
        check_stream(tokenizer, ids)


def check_stream(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> None:
    """Compare tokens decoded one by one with tokens decoded at once."""
    decoder = StreamDecoder(tokenizer, skip_special=skip_special)
    joined = "".join(decoder.push(token) for token in ids) + decoder.flush()
    whole = tokenizer.decode(ids, skip_special=skip_special)
    assert joined == whole, f"{ids}: {joined!r} in pieces, {whole!r} at once"
