"""Coded types: stored rows there and back, weights as the plainest reading has them, refusals."""

import re
from dataclasses import replace

import numpy as np
import pytest

from coded_matrices import EVERY_TYPE, ODD_COLS, TABLE, plain_row, random_matrix
from lanewise_quantizer.coded import CODED_TYPES, CodedMatrix, round_row_scale

every_type = pytest.mark.parametrize("kind", EVERY_TYPE, ids=lambda kind: kind.name)
FIELDS = ("codes", "scales", "minimums", "selectors", "super_scales", "super_minimums", "table")


@every_type
@pytest.mark.parametrize("cols", [32, 256, ODD_COLS])
def test_rows_hold_the_whole_matrix(kind, cols):
    matrix = random_matrix(kind, 5, cols, np.random.default_rng(cols))
    rows = matrix.to_rows()
    assert rows.shape == (5, kind.row_bytes(cols))
    found = CodedMatrix.from_rows(kind, rows, cols, matrix.table)
    for name in FIELDS:
        one, other = getattr(matrix, name), getattr(found, name)
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype == other.dtype and (one == other).all()), name


@every_type
def test_weights_equal_the_plain_reading_of_stored_rows(kind):
    matrix = random_matrix(kind, 3, ODD_COLS, np.random.default_rng(kind.id))
    weights, rows = matrix.decode(), matrix.to_rows()
    assert weights.dtype == np.float32
    for weight, row in zip(weights, rows, strict=True):
        assert weight.tolist() == plain_row(kind, row.tobytes(), ODD_COLS, matrix.table)


@every_type
def test_scale_times_code_minus_minimum_is_the_weight(kind):
    matrix = random_matrix(kind, 3, ODD_COLS, np.random.default_rng(1))
    columns = np.arange(ODD_COLS)
    exact = matrix.group_scales().astype(np.float64)[:, columns // kind.group]
    exact *= matrix.mapped_codes()
    minimums = matrix.group_minimums()
    assert (minimums is None) == (kind.minimum.name == "NONE")
    size = np.abs(exact)
    if minimums is not None:
        assert minimums.shape == (3, ODD_COLS // kind.minimum_group)
        repeated = minimums.astype(np.float64)[:, columns // kind.minimum_group]
        exact -= repeated
        size += np.abs(repeated)
    assert (np.abs(matrix.decode() - exact) <= size * 2.0**-23).all()


@pytest.mark.parametrize(
    ("name", "bits"),
    [("cb2", 2.3125), ("cb3", 3.3125), ("cb4", 4.25), ("t2", 2.25)],
)
def test_bits_per_weight(name, bits):
    assert CODED_TYPES[name].bits_per_weight(4096) == bits + 32 / 4096


def test_row_scales_times_differences_of_codes_are_exact():
    scales = round_row_scale(np.random.default_rng(0).standard_normal(200))
    differences = np.arange(-255, 256, dtype=np.float32)
    products = scales[:, None] * differences
    exact = scales.astype(np.float64)[:, None] * differences.astype(np.float64)
    assert (products.astype(np.float64) == exact).all()
    assert (round_row_scale(scales) == scales).all()
    assert abs(round_row_scale(np.float32([1 / 3]))[0] * 3 - 1) <= 2.0**-12


CB2 = random_matrix(CODED_TYPES["cb2"], 4, 256, np.random.default_rng(0))
Q4_1 = random_matrix(CODED_TYPES["q4_1"], 4, 256, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (replace(CB2, table=None), "cb2: table: missing; needed: int8 [16]"),
        (replace(CB2, table=np.full(16, -128, np.int8)), "-128; accepted: -127 to 127"),
        (replace(CB2, codes=CB2.codes + 4), "codes: 7; accepted: 0 to 3"),
        (replace(CB2, codes=CB2.codes.astype(np.int32)), "codes: int32"),
        (replace(CB2, selectors=CB2.selectors + 4), "selectors: 7; accepted: 0 to 3"),
        (replace(CB2, scales=CB2.scales[:, :3]), "scales: int8 [4, 3]; needed: int8 [4, 8]"),
        (replace(CB2, super_scales=np.float32([1, 2, 3, 1 / 3])), "low 12 bits must be zero"),
        (replace(CB2, minimums=CB2.codes), "minimums: given, but this type has none"),
        (replace(CB2, codes=CB2.codes[:, :100]), "rows of 100 inputs; accepted: multiples of 32"),
        (replace(CB2, codes=CB2.codes[0]), "codes have shape [256]"),
        (replace(Q4_1, minimums=Q4_1.minimums.astype(np.float32)), "minimums: float32 [4, 8]"),
        (
            replace(Q4_1, scales=np.float16([[1] * 8, [1] * 8, [np.nan] * 8, [1] * 8])),
            "scales: NaN or infinity in row 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(matrix, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        matrix.validate()


def test_rows_of_the_wrong_size_are_refused():
    kind = CODED_TYPES["t2"]
    with pytest.raises(ValueError, match=r"needed: uint8 \[rows, 76\] for 256 inputs"):
        CodedMatrix.from_rows(kind, np.zeros((2, 75), np.uint8), 256, TABLE)


def test_a_slice_of_rows_is_those_rows():
    part = CB2.slice_rows(1, 3).validate()
    assert (part.decode() == CB2.decode()[1:3]).all()
