"""Linear layers packed by GPTQ, AWQ or compressed-tensors, converted to our rows bit for bit.

All three store unsigned codes in 32-bit words, lowest bits first, with a scale for each group of
inputs and perhaps a zero point: weight = scale * (code - zero).

- GPTQ: ``qweight`` [inputs / n, outputs], words along the inputs; ``qzeros`` [groups, outputs / n],
minus one unless the format is v2; ``scales`` [groups, outputs]; ``g_idx`` [inputs], each input's
group, not ascending with act-order.

- AWQ: ``qweight`` [inputs, outputs / 8] and ``qzeros`` [groups, outputs / 8], words along the
outputs in the order 0 2 4 6 1 3 5 7; ``scales`` [groups, outputs].

- compressed-tensors: ``weight_packed`` [outputs, inputs / n]; ``weight_zero_point`` [outputs / n,
groups], words along the outputs; ``weight_scale`` [outputs, groups]; ``weight_g_idx`` as GPTQ's.

n is 32 / bits. With GPTQ's 3 bits, 32 codes fill three consecutive words. Codes of 2 and 3 bits are
converted to 4 bits. A group size without a type of ours becomes several groups of the largest size
that divides it: a group of 256 is two of 128 with the same scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import TensorType, row_bytes
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.files.rearranging import to_f32
from lanewise.loading.quantized.quantization import AWQ, BITS, COMPRESSED, GPTQ, Scheme

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Order = npt.NDArray[np.intp]

AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each nibble of a word, lowest first
# Names of a layer's parts: codes, scales, zero points, group of each input.
PARTS = {
    GPTQ: ("qweight", "scales", "qzeros", "g_idx"),
    AWQ: ("qweight", "scales", "qzeros", ""),
    COMPRESSED: ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"),
}
SHAPE = "weight_shape"  # of compressed-tensors
# Our types by bits and inputs of a group: with zero points, and without.
WITH_ZEROS = {
    4: {128: TensorType.A4_G128, 64: TensorType.A4_G64, 32: TensorType.A4_G32},
    8: {128: TensorType.A8_G128, 32: TensorType.A8_G32},
}
SYMMETRIC = {4: {128: TensorType.Q4_G128, 64: TensorType.Q4_G64}, 8: {}}
NUMPY = {TensorType.F16: "<f2", TensorType.F32: "<f4", "I32": "<i4", "I64": "<i8"}
LARGEST_ZERO = 255


@dataclass(frozen=True)
class PackedLinear:
    """One layer; its scales and order are read and checked, its codes are not read yet."""

    codes: SourceTensor
    method: str
    stored_bits: int
    added: int  # to codes of 2 or 3 bits, which are held in 4
    rows: int
    cols: int
    scales: Array  # f16 [rows, groups of the result]
    zeros: Bytes  # [rows, groups of the result]
    type: TensorType
    order: Order | None  # the layer's input that is input j of the result; None: the same

    @property
    def bits(self) -> int:
        """Bits of a code in the result."""
        return held_bits(self.stored_bits)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the result."""
        return row_bytes(self.type, self.cols)

    def stored_rows(self, rows: Order | None = None) -> Bytes:
        """The layer as rows [outputs, row_bytes] of its type, outputs in the order ``rows``."""
        plane = self._plane()
        if self.order is not None:
            plane = pack_codes(unpack_codes(plane, self.bits)[:, self.order], self.bits)
        parts = [plane, self.scales.view(np.uint8)]
        if self.type not in SYMMETRIC[self.bits].values():
            parts.append(self.zeros)
        self.codes.release()
        out: Bytes = np.concatenate(parts if rows is None else [p[rows] for p in parts], axis=1)
        return out

    def _plane(self) -> Bytes:
        """The codes [outputs, inputs * bits / 8], lower inputs in lower bits."""
        words = np.frombuffer(self.codes.view(), "<u4").reshape(self.codes.shape)
        if self.method == COMPRESSED:
            return words.view(np.uint8)
        across = np.ascontiguousarray(words.T)
        if self.stored_bits < self.bits:
            codes = unpack_narrow(across.view(np.uint8), self.stored_bits)
            return pack_codes(codes + np.uint8(self.added), self.bits)
        if self.method == GPTQ:
            return across.view(np.uint8)
        plane = np.empty((len(across), 8, self.cols // 2), np.uint8)
        for place, output in enumerate(AWQ_PLACES):
            codes = (across >> np.uint32(4 * place)).astype(np.uint8) & np.uint8(15)
            plane[:, output] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
        return plane.reshape(self.rows, -1)


def held_bits(bits: int) -> int:
    """Return the bits in which codes of 2, 3, 4 or 8 bits are held."""
    return max(bits, 4)


def unpack_narrow(plane: Bytes, bits: int) -> Bytes:
    """Unpack consecutive codes of any number of bits [rows, codes], lowest bits first."""
    of_codes = np.unpackbits(plane, axis=1, bitorder="little").reshape(len(plane), -1, bits)
    codes: Bytes = (of_codes << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)
    return codes


def unpack_codes(plane: Bytes, bits: int) -> Bytes:
    """Unpack codes of 4 or 8 bits, to one byte each."""
    if bits == 8:
        return plane
    codes = np.empty((len(plane), 2 * plane.shape[1]), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = plane & np.uint8(15), plane >> np.uint8(4)
    return codes


def pack_codes(codes: Bytes, bits: int) -> Bytes:
    """The inverse of :func:`unpack_codes`."""
    return codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def read_linear(name: str, parts: Mapping[str, SourceTensor], scheme: Scheme) -> PackedLinear:
    """Read a layer's scales, zero points and order; ``parts`` are its tensors by last name."""
    codes_name, scales_name, zeros_name, index_name = PARTS[scheme.method]
    if scheme.is_mixed:
        scheme = own_scheme(name, parts, scheme)
    missing = {codes_name, scales_name} | ({zeros_name} if scheme.has_zeros else set())
    missing -= set(parts)
    codes = parts.get(codes_name)
    if missing or codes is None:
        where = next(iter(parts.values())).where
        raise ModelFileError(f"{where}: layer {name!r} lacks {', '.join(sorted(missing))}")
    rows, cols = layer_shape(name, parts, codes, scheme)
    if row_bytes(TensorType.A4_G32, cols) == 0:
        raise ModelFileError(f"{codes.where}: {name}: {cols} inputs; accepted: a multiple of 32")
    index = parts.get(index_name)
    order, group = read_order(f"{name}.{index_name}", index, cols, scheme.group or cols)
    groups = -(-cols // group)
    scales = read_scales(f"{name}.{scales_name}", parts[scales_name], scheme, rows, groups)
    middle, bits = 1 << (scheme.bits - 1), held_bits(scheme.bits)
    zeros = np.full((rows, groups), middle, np.uint8)
    if scheme.has_zeros:
        zeros = read_zeros(f"{name}.{zeros_name}", parts[zeros_name], scheme, rows, groups)
    symmetric = bool((zeros == middle).all())
    added = (1 << (bits - 1)) - middle if symmetric else 0
    zeros += np.uint8(added)
    kind, size = type_of(bits, group, cols, symmetric)
    starts = np.arange(0, cols, size) // group
    scales, zeros = (np.ascontiguousarray(part[:, starts]) for part in (scales, zeros))
    about = (scheme.method, scheme.bits, added, rows, cols)
    return PackedLinear(codes, *about, scales, zeros, kind, order)


def own_scheme(name: str, parts: Mapping[str, SourceTensor], scheme: Scheme) -> Scheme:
    """Return a layer's own scheme, in a checkpoint whose layers are packed in different ways."""
    codes_name, scales_name, zeros_name, index_name = PARTS[scheme.method]
    codes, scales = parts.get(codes_name), parts.get(scales_name)
    if codes is None or scales is None or len(codes.shape) != 2 or len(scales.shape) != 2:
        return scheme  # another check reports this
    along = 0 if scheme.method == GPTQ else 1  # the dimension of the inputs
    cols, groups = 0, scales.shape[along if scheme.method == GPTQ else 1]
    if SHAPE in parts:
        cols = int(_array(f"{name}.{SHAPE}", parts[SHAPE], ("I32", "I64"))[-1])
    elif index_name in parts:
        cols = parts[index_name].shape[0]
    elif scheme.group:
        cols = groups * scheme.group
    bits = 32 * codes.shape[along] // cols if cols else scheme.bits
    if scheme.method == AWQ or bits not in BITS[scheme.method] or groups == 0:
        return scheme
    group = 0 if groups == 1 else -(-cols // groups)
    return replace(scheme, bits=bits, group=group, has_zeros=zeros_name in parts)


def type_of(bits: int, group: int, cols: int, symmetric: bool) -> tuple[TensorType, int]:
    """Return the type for groups of ``group`` inputs, and the group size of that type."""
    for types in (SYMMETRIC[bits], WITH_ZEROS[bits]) if symmetric else (WITH_ZEROS[bits],):
        for size, kind in types.items():
            if group % size == 0 or group >= cols:
                return kind, size
    raise AssertionError(group)  # 32 divides every group


def layer_shape(
    name: str, parts: Mapping[str, SourceTensor], codes: SourceTensor, scheme: Scheme
) -> tuple[int, int]:
    """Return a layer's outputs and inputs."""
    if codes.type != "I32" or len(codes.shape) != 2:
        raise _odd(name, codes, "I32 with two dimensions")
    first, second = codes.shape
    if scheme.method == GPTQ:
        return second, first * 32 // scheme.bits
    if scheme.method == AWQ:
        return second * 32 // scheme.bits, first
    cols = second * 32 // scheme.bits
    if SHAPE in parts:
        shape = [int(size) for size in _array(f"{name}.{SHAPE}", parts[SHAPE], ("I32", "I64"))]
        if shape != [first, cols]:
            raise ModelFileError(
                f"{codes.where}: {name}.{SHAPE} is {shape}; the packed codes are [{first}, {cols}]"
            )
    return first, cols


def read_order(
    name: str, index: SourceTensor | None, cols: int, group: int
) -> tuple[Order | None, int]:
    """Return the inputs sorted by group (None if they are), and the inputs of a group."""
    if index is None:
        return None, group
    of_input = _array(name, index, ("I32", "I64"))
    if of_input.shape != (cols,):
        raise _odd(name, index, f"[{cols}], the layer's inputs")
    order = np.argsort(of_input, kind="stable")
    wanted = np.arange(cols) // group
    if not np.array_equal(of_input[order], wanted):
        raise ModelFileError(
            f"{index.where}: tensor {name!r} does not put {group} inputs in each group from 0 to"
            f" {wanted[-1]}, as group_size says"
        )
    return (None if np.array_equal(of_input, wanted) else order), group


def read_scales(name: str, tensor: SourceTensor, scheme: Scheme, rows: int, groups: int) -> Array:
    """Return scales [rows, groups] in f16, rounded if necessary."""
    if tensor.type == TensorType.BF16:
        scales: Array = to_f32(tensor.view(), TensorType.BF16).reshape(tensor.shape)
    else:
        scales = _array(name, tensor, (TensorType.F16, TensorType.F32))
    needed = (rows, groups) if scheme.method == COMPRESSED else (groups, rows)
    if scales.shape != needed:
        raise _odd(name, tensor, f"{list(needed)}")
    if not (np.abs(scales.astype(np.float32)) <= np.finfo(np.float16).max).all():
        raise ModelFileError(f"{tensor.where}: tensor {name!r} holds numbers that f16 does not")
    return (scales if scheme.method == COMPRESSED else scales.T).astype("<f2")


def read_zeros(name: str, tensor: SourceTensor, scheme: Scheme, rows: int, groups: int) -> Bytes:
    """Return zero points [rows, groups]; GPTQ's are corrected by one where needed."""
    words = _array(name, tensor, ("I32",)).view(np.uint32)
    wide = -(-rows * scheme.bits // 32)
    needed = (wide, groups) if scheme.method == COMPRESSED else (groups, wide)
    if words.shape != needed:
        raise _odd(name, tensor, f"{list(needed)}")
    across = words.T if scheme.method == COMPRESSED else words  # [groups, rows / n]
    plane = np.ascontiguousarray(across).view(np.uint8)
    codes = unpack_narrow(plane, scheme.bits)
    if scheme.method == AWQ:
        codes = codes.reshape(groups, -1, len(AWQ_PLACES))[:, :, np.argsort(AWQ_PLACES)]
    zeros = codes.reshape(groups, -1).T[:rows].astype(np.int32)
    if scheme.method == GPTQ and not is_v2(zeros, scheme):
        zeros = zeros + 1
    if zeros.max(initial=0) > LARGEST_ZERO:
        raise ModelFileError(
            f"{tensor.where}: tensor {name!r} holds zero point {zeros.max()}; accepted: up to"
            f" {LARGEST_ZERO}"
        )
    return zeros.astype(np.uint8)


def is_v2(zeros: Array, scheme: Scheme) -> bool:
    """Whether zero points are stored without subtracting one.

    Some tools write v2 under v1's name. Symmetric layers have the middle of the code range
    everywhere, of which v1 stores one less; this tells them apart.
    """
    middle = 1 << (scheme.bits - 1)
    if scheme.symmetric and (zeros == middle).all():
        return True
    if scheme.symmetric and (zeros == middle - 1).all():
        return False
    return scheme.is_v2


def _array(name: str, tensor: SourceTensor, kinds: tuple[TensorType | str, ...]) -> Array:
    if tensor.type not in kinds:
        names = [kind.name if isinstance(kind, TensorType) else kind for kind in kinds]
        raise _odd(name, tensor, " or ".join(names))
    return np.frombuffer(tensor.view(), NUMPY[tensor.type]).reshape(tensor.shape)


def _odd(name: str, tensor: SourceTensor, needed: str) -> ModelFileError:
    kind = tensor.type.name if isinstance(tensor.type, TensorType) else tensor.type
    return ModelFileError(
        f"{tensor.where}: tensor {name!r} is {kind} {list(tensor.shape)}; {needed} is needed"
    )
