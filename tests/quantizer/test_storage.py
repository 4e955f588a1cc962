"""Rows of storage types, floats among them."""

import numpy as np
import pytest

from coded_matrices import EVERY_TYPE, random_matrix
from lanewise_quantizer.storage import (
    decode_rows,
    encode_floats,
    encode_rows,
    row_bytes,
    row_multiple,
)


@pytest.mark.parametrize("kind", EVERY_TYPE, ids=lambda kind: kind.name)
def test_rows_are_those_of_the_type(kind):
    cols = 2 * row_multiple(kind.name)
    matrix = random_matrix(kind, 3, cols, np.random.default_rng(0))
    if matrix.scales.dtype == np.int8 and kind.id < 256 and kind.name != "q6_k":
        matrix.scales[:] = matrix.scales % 32  # as many bits as blocks have
        if matrix.minimums is not None:
            matrix.minimums[:] = matrix.minimums % 64
    rows = encode_rows(matrix)
    assert rows.shape == (3, row_bytes(kind.name, cols))
    assert (decode_rows(kind.name, rows, cols, matrix.table) == matrix.decode()).all()


def test_floats_round_to_nearest_even():
    weights = np.float32([[1, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -3.5, 1e-40, 0.1]])
    for name, digits in (("bf16", 2.0**-8), ("f16", 2.0**-11), ("f32", 0)):
        rows = encode_floats(name, weights)
        assert rows.shape == (1, row_bytes(name, 6))
        found = decode_rows(name, rows, 6)
        assert found.shape == (1, 6)
        assert (np.abs(found - weights) <= np.abs(weights) * digits + 1e-7).all()
    assert decode_rows("bf16", encode_floats("bf16", weights), 6)[0, :3].tolist() == [
        1,
        1,
        1 + 2.0**-6,
    ]
    with pytest.raises(ValueError, match="1e\\+06 is beyond f16; accepted: up to 65504"):
        encode_floats("f16", np.float32([[1e6]]))
