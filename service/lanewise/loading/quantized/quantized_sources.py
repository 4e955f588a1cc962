"""The tensors of a checkpoint quantized by other programs, under unquantized models' names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lanewise.loading.base.checkpoint import Converted, LastConverted, ModelFileError, Role, Tensor
from lanewise.loading.base.formats import BLOCKS, TensorType
from lanewise.loading.base.names import BIASES, HF, TENSOR_NAMES
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.quantized.packed_linear import PARTS, SHAPE, Order, PackedLinear, read_linear
from lanewise.loading.quantized.quantization import (
    COMPRESSED,
    METHODS,
    Quantization,
    Scaled,
    Scheme,
    Ternary,
)
from lanewise.loading.quantized.scaled_sources import expand_sources, unscale_sources
from lanewise.loading.quantized.ternary_sources import ternary_sources

# Matrices that read the same inputs, by the vector that gives the inputs' order.
READERS: Mapping[Role, tuple[Role, ...]] = {
    Role.ATTN_INPUT_ORDER: (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V),
    Role.ATTN_OUTPUT_ORDER: (Role.ATTN_OUTPUT,),
    Role.FFN_INPUT_ORDER: (Role.FFN_GATE, Role.FFN_UP),
}
WEIGHT, BIAS = ".weight", ".bias"


def made_plain(
    sources: Mapping[str, SourceTensor], found: Quantization, n_layers: int
) -> dict[str, SourceTensor]:
    """Return the tensors under usual names and in types that we support."""
    if isinstance(found, Scaled):
        return unscale_sources(sources, found)
    if isinstance(found, Ternary):
        return ternary_sources(sources, found)
    if not isinstance(found, Scheme):
        return expand_sources(sources)
    if found.method == COMPRESSED and found.is_mixed:
        sources = unscale_sources(sources, Scaled())
    return unpack_sources(sources, found, n_layers)


def unpack_sources(
    sources: Mapping[str, SourceTensor], scheme: Scheme, n_layers: int
) -> dict[str, SourceTensor]:
    """Return the tensors with each packed layer as one matrix, converted when asked for.

    Inputs that act-order has scattered over groups are sorted by group. The order becomes a vector
    of its own or, before the down projection, the order of gate's and up's outputs, which are its
    inputs.
    """
    parts_of: dict[str, dict[str, SourceTensor]] = defaultdict(dict)
    plain: dict[str, SourceTensor] = {}
    for name, source in sources.items():
        layer, _, last = name.rpartition(".")
        if last in {*PARTS[scheme.method], SHAPE}:
            parts_of[layer][last] = source
        else:
            plain[name] = source
    if not parts_of:
        raise ModelFileError(
            f"{next(iter(sources.values())).where}: no layer is packed as {scheme.method} does it;"
            f" accepted: the tensors of {', '.join(METHODS)}"
        )
    linears = {name: read_linear(name, parts, scheme) for name, parts in parts_of.items()}
    for name, linear in linears.items():
        if name + WEIGHT in plain:
            raise ModelFileError(f"{linear.codes.where}: layer {name!r} is packed and unpacked")
    builder = _Builder(linears, plain)
    for number in range(n_layers):
        builder.add_layer(number)
    for name in linears.keys() - builder.used:
        builder.add_unordered(name)
    return without_empty_biases(builder.out, linears)


class _Builder:
    """Makes the tensors of layers, in the model's order."""

    def __init__(
        self, linears: Mapping[str, PackedLinear], plain: Mapping[str, SourceTensor]
    ) -> None:
        self.linears = linears
        self.out = dict(plain)
        self.used: set[str] = set()
        self._last = LastConverted()

    def add_layer(self, layer: int) -> None:
        """Add a layer's matrices and the orders of their inputs."""
        down = self._order([layer_name(Role.FFN_DOWN, layer)])
        self._add([layer_name(Role.FFN_DOWN, layer)], down, None)
        for role, readers in READERS.items():
            names = [layer_name(reader, layer) for reader in readers]
            order = self._order(names)
            self._add(names, order, down if role == Role.FFN_INPUT_ORDER else None)
            if order is not None:
                values = memoryview(order.astype("<f4").tobytes())
                where = next(self.linears[n] for n in names if n in self.linears).codes.where
                shape, name = (len(order),), TENSOR_NAMES[role][HF].format(layer)
                self.out[name] = SourceTensor(where, shape, TensorType.F32, values, lambda: None)

    def add_unordered(self, name: str) -> None:
        """Add a matrix whose inputs cannot be reordered, such as the output head."""
        linear = self.linears[name]
        if linear.order is not None:
            raise ModelFileError(
                f"{linear.codes.where}: layer {name!r} has inputs reordered by act-order;"
                " accepted outside of attention and MLP: g_idx in sequence"
            )
        self._add([name], None, None)

    def _order(self, names: Sequence[str]) -> Order | None:
        """The order that matrices with the same inputs share."""
        packed = [name for name in names if name in self.linears]
        orders = [self.linears[name].order for name in packed]
        if any(not _equal(orders[0], order) for order in orders):
            raise ModelFileError(
                f"{self.linears[packed[0]].codes.where}: layers {', '.join(map(repr, packed))} read"
                " the same inputs, but their g_idx put them in different orders; accepted: one"
                " order for all"
            )
        return orders[0] if orders else None

    def _add(self, names: Iterable[str], columns: Order | None, rows: Order | None) -> None:
        for name in names:
            self.used.add(name)
            if name in self.linears:
                self.out[name + WEIGHT] = self._packed(self.linears[name], rows)
            elif name + WEIGHT in self.out and (columns is not None or rows is not None):
                reordered = self._reordered(self.out[name + WEIGHT], columns, rows, name)
                self.out[name + WEIGHT] = reordered

    def _packed(self, linear: PackedLinear, rows: Order | None) -> SourceTensor:
        def make() -> memoryview:
            return linear.stored_rows(rows).data.cast("B")

        size = linear.rows * linear.row_bytes
        data = Converted(size, make, self._last)
        return SourceTensor(
            linear.codes.where, (linear.rows, linear.cols), linear.type, data, data.release
        )

    def _reordered(
        self, source: SourceTensor, columns: Order | None, rows: Order | None, name: str
    ) -> SourceTensor:
        """An unquantized matrix beside a quantized one."""
        if not isinstance(source.type, TensorType) or len(source.shape) != 2:
            return source  # another check reports this
        n_bytes = BLOCKS[source.type].n_bytes
        if columns is not None and len(columns) != source.shape[1]:
            raise ModelFileError(
                f"{source.where}: layer {name!r} has {source.shape[1]} inputs, the packed layers"
                f" beside it {len(columns)}"
            )

        def make() -> memoryview:
            values = np.frombuffer(source.view(), f"V{n_bytes}").reshape(source.shape)
            values = values if columns is None else values[:, columns]
            values = values if rows is None else values[rows]
            source.release()
            return np.ascontiguousarray(values).view(np.uint8).data.cast("B")

        data = Converted(source.data.nbytes, make, self._last)
        return replace(source, data=data, release=data.release)


def without_empty_biases(
    sources: dict[str, SourceTensor], linears: Iterable[str]
) -> dict[str, SourceTensor]:
    """Drop biases of zeros, which some tools add to layers without a bias."""
    ours = {TENSOR_NAMES[role][HF].rpartition(".layers.{}.")[2] for role in BIASES}
    for name in linears:
        bias = sources.get(name + BIAS)
        if bias is None or (name + BIAS).endswith(tuple(ours)):
            continue
        if not any(bias.view()):
            del sources[name + BIAS]
    return sources


def original_columns(tensors: Iterable[Tensor]) -> dict[tuple[Role, int], Order]:
    """Return the new column of each input, for matrices whose inputs were reordered."""
    found = {}
    for tensor in tensors:
        for reader in READERS.get(tensor.role, ()):
            order = np.frombuffer(tensor.data, "<f4").astype(np.intp)
            found[reader, tensor.layer] = np.argsort(order)
    return found


def layer_name(role: Role, layer: int) -> str:
    """Return the name of a layer's matrix without its last part."""
    return TENSOR_NAMES[role][HF].format(layer).removesuffix(WEIGHT)


def _equal(one: Order | None, other: Order | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
