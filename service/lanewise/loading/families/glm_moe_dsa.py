"""GLM-5 to 5.2: DeepSeek V3.2's layers, of which some share the index of a layer before."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families import deepseek_v32
from lanewise.loading.families.common import check_values, trunk_layers_of
from lanewise.loading.families.deepseek_v32 import indexed_of, put_index_in_halves
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

MUST_BE = {"indexer_rope_interleave": (True, None)}
TYPES = {"full": True, "shared": False, "F": True, "S": False, True: True, False: False}
# GLM-5.2 has this context; its first GGUF files do not say which layers have an index.
SHARING_CONTEXT = 1 << 20


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, MUST_BE)
    return indexed_of(file, "glm_moe_dsa", own_indexes(file))


def own_indexes(file: ModelFile) -> list[bool]:
    """Return which layers have an index of their own: by a list, or every so many layers."""
    n_layers, key = trunk_layers_of(file), "indexer_types"
    frequency = file.integer("index_topk_freq", default=1)
    first = file.integer("index_skip_topk_offset", default=2, least=0)
    pattern = file.raw("index_topk_pattern")
    types = file.raw(key)
    if types is None and pattern is not None:
        key, types = "index_topk_pattern", list(pattern) if isinstance(pattern, str) else pattern
    if file.is_gguf and file.integer("max_position_embeddings") >= SHARING_CONTEXT:
        frequency, first = 4, 3
    if types is None:
        own = [max(number - first + 1, 0) % frequency == 0 for number in range(n_layers)]
    else:
        if not isinstance(types, list) or not all(_is_type(one) for one in types):
            raise file.fail(key, f"a list of {n_layers} times 'full' or 'shared'")
        own = [TYPES[one] for one in types[:n_layers]]
    if len(own) < n_layers or not own[0]:
        raise file.fail(key, f"{n_layers} times 'full' or 'shared', the first one 'full',")
    return own


def _is_type(value: object) -> bool:
    return isinstance(value, str | bool | int) and value in TYPES


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename and split matrices; reorder those of the index."""
    deepseek_v32.hf_tensors(tensors, config)
    put_index_in_halves(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Reshape the matrices of heads and experts; reorder those of the index."""
    deepseek_v32.indexed_gguf_tensors(tensors, config)
    put_index_in_halves(tensors, config)


FAMILY = Family(
    "glm_moe_dsa",
    program,
    "glm-dsa",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
    has_mtp=True,
)
