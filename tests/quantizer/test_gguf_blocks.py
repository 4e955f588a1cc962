"""GGUF's blocks: weights to the bit as the gguf package has them, and every bit there and back."""

import gguf
import numpy as np
import pytest

from coded_matrices import random_matrix
from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.gguf_blocks import (
    block_inputs,
    block_row_bytes,
    decode_blocks,
    encode_blocks,
    gguf_types,
)

every_type = pytest.mark.parametrize("kind", gguf_types(), ids=lambda kind: kind.name)
COLS = 768


def random_blocks(kind, rows, rng):
    """Blocks of random bytes whose f16 numbers are finite."""
    data = rng.integers(0, 256, (rows, block_row_bytes(kind, COLS)), np.uint8)
    matrix_of = gguf.GGMLQuantizationType(kind.id)
    inputs, size = gguf.GGML_QUANT_SIZES[matrix_of]
    assert (inputs, size) == (block_inputs(kind), block_row_bytes(kind, inputs))
    blocks = data.reshape(-1, size)
    places = {"q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,), "mxfp4": ()}
    default = (0, 2) if kind.name in ("q4_1", "q5_1", "q4_k", "q5_k") else (0,)
    for at in places.get(kind.name, default):
        halves = (rng.standard_normal(len(blocks)) * 0.01).astype("<f2")
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if kind.name == "mxfp4":
        blocks[:, 0] = np.minimum(blocks[:, 0], 252)
    return data


@every_type
def test_weights_equal_the_gguf_package(kind):
    data = random_blocks(kind, 16, np.random.default_rng(kind.id))
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind.id))
    found = decode_blocks(kind, data, COLS).decode()
    assert found.dtype == expected.dtype == np.float32
    assert (found == expected).all()


@every_type
def test_no_bit_of_a_block_is_lost(kind):
    data = random_blocks(kind, 16, np.random.default_rng(kind.id + 100))
    assert (encode_blocks(decode_blocks(kind, data, COLS)) == data).all()


def test_ids_are_those_of_gguf():
    for kind in gguf_types():
        assert gguf.GGMLQuantizationType[kind.name.upper()] == kind.id
    assert all(kind.id >= 256 for kind in CODED_TYPES.values() if kind not in gguf_types())


def test_what_a_block_cannot_hold_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="cb2: no type of GGUF"):
        encode_blocks(random_matrix(CODED_TYPES["cb2"], 2, 256, rng))
    with pytest.raises(ValueError, match="q4_k: rows of 96 inputs; accepted: multiples of 256"):
        encode_blocks(random_matrix(CODED_TYPES["q4_k"], 2, 96, rng))
    for name in ("q3_k", "iq4_xs", "q4_k"):
        with pytest.raises(ValueError, match=f"{name}: scales from -1.* accepted in a block"):
            encode_blocks(random_matrix(CODED_TYPES[name], 64, 256, rng))
    with pytest.raises(ValueError, match=r"q4_0: rows are uint8 \[2, 17\]; needed"):
        decode_blocks(CODED_TYPES["q4_0"], np.zeros((2, 17), np.uint8), 32)


def test_mxfp4_scale_beyond_floats_is_refused():
    block = np.frombuffer(b"\xfd" + bytes(16), np.uint8).reshape(1, 17)
    with pytest.raises(ValueError, match="mxfp4: scales: 253; accepted: 0 to 252"):
        decode_blocks(CODED_TYPES["mxfp4"], block, 32)


def test_infinite_scale_is_refused():
    block = np.frombuffer(b"\x00\x7c" + bytes(16), np.uint8).reshape(1, 18)
    with pytest.raises(ValueError, match="q4_0: scales: NaN or infinity in row 0"):
        decode_blocks(CODED_TYPES["q4_0"], block, 32)
