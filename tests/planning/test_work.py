"""What a model costs as its file says, beside what the library says of the loaded model."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from family_models import write_case
from lanewise.commands.selftest import random_checkpoint
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.planning.work import cached_token_bytes, moved_state_bytes, work_of
from lanewise.runtime import BLOCK_TOKENS, Model
from mtp_models import write_directory

pytestmark = pytest.mark.native


def same_as_loaded(checkpoint, weights):
    work = work_of(checkpoint, weights, 1.0)
    with Model.load(checkpoint, weights=weights) as model:
        info = model.info
    assert sum(one.weights for one in work.matrices) == info.matrix_weights
    in_layers = sum(one.weights for one in work.matrices if not one.of_head)
    assert in_layers == info.layer_weights
    assert work.bytes_read(1) == pytest.approx(info.matrix_bytes, rel=0.02)
    assert work.held_bytes == pytest.approx(info.packed_bytes, rel=0.02)
    return work


def test_the_bundled_model(library):
    with open_checkpoint(resolve_model(None)) as checkpoint:
        work = same_as_loaded(checkpoint, None)
        assert {one.type for one in work.matrices} == {"q8_0"}
        assert work.n_layers == len(checkpoint.config.layers)


def test_a_model_that_is_quantized_while_it_is_loaded(library):
    checkpoint = random_checkpoint(TensorType.F32)
    work = same_as_loaded(checkpoint, "q4_0")
    assert {one.type for one in work.matrices} == {"q4_0"}
    assert work.held_bytes < same_as_loaded(checkpoint, "q8_0").held_bytes


def test_states_are_read_and_written(library, tmp_path):
    path = write_case("falcon_h1", tmp_path)
    with open_checkpoint(path) as checkpoint, Model.load(checkpoint) as model:
        moved = moved_state_bytes(model)
        assert moved == 2 * model.kv_layout("int8").state_bytes
    # Two layers of three inputs of 288 channels, and of six heads of 16 x 32.
    assert moved == 2 * 4 * 2 * (3 * 288 + 6 * 16 * 32)
    with Model.load(random_checkpoint(TensorType.F32)) as model:
        assert moved_state_bytes(model) == 0


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_of_a_head_a_step_runs_the_projection_keys_and_values(name, library, tmp_path):
    path = write_directory(name, tmp_path)
    with open_checkpoint(path) as plain, open_checkpoint(path, mtp=True) as checkpoint:
        without, work = work_of(plain, None, 1.0), work_of(checkpoint, None, 1.0)
        with Model.load(checkpoint) as model:
            info = model.info
    hidden, keys = checkpoint.config.hidden_size, checkpoint.config.heads
    more = 2 * hidden**2 + 2 * hidden * keys.n_kv_heads * keys.head_dim
    weights, before = (sum(one.weights for one in each.matrices) for each in (work, without))
    assert weights - before == more
    assert weights == info.matrix_weights
    assert work.held_bytes - without.held_bytes > 4 * more
    assert (work.n_layers, work.values) == (without.n_layers, without.values)


def test_experts_without_a_gate(library, tmp_path):
    with open_checkpoint(write_case("nemotron_h_moe", tmp_path)) as checkpoint:
        work = work_of(checkpoint, None, 1.0)
        with Model.load(checkpoint) as model:
            assert sum(one.weights for one in work.matrices) == model.info.matrix_weights
    # Of hidden size 64, in three layers: two matrices of each of three experts of 32.
    of_experts = sum(one.weights for one in work.matrices if one.of_experts)
    assert of_experts == 3 * 2 * 3 * 32 * 64


def test_queries_of_sparse_attention_meet_what_the_index_chose_and_the_index_all(tmp_path):
    """Four heads of 2 * 64 + 16 numbers beside six index heads of 24, in three layers."""
    with open_checkpoint(write_case("deepseek_v32", tmp_path)) as checkpoint:
        work = work_of(checkpoint, None, 1.0)
    assert work.attention_weights == 3 * (4 * 144 + 6 * 24)
    assert dict(work.windows) == pytest.approx({7: 0.8, None: 0.2})


def test_room_that_no_layer_uses_is_no_part_of_a_token(library):
    config = random_checkpoint(TensorType.F32).config
    layer = config.layers[0]
    attention = layer.attention
    seeing = {size: replace(layer, attention=replace(attention, window=size)) for size in (9, None)}
    layers = (*[seeing[9]] * 5, *[seeing[None]] * 4)
    unloaded = SimpleNamespace(
        config=replace(config, layers=layers),
        name="windows",
        weights_name="f32",
        files=(),
        vision=None,
        head=None,
    )
    with Model(unloaded, isa=None, threads=1) as model:
        layout = model.kv_layout("f16", groups_by_window=True)
        token = cached_token_bytes(model, "f16")
    of_layer = 2 * 2 * attention.n_kv_heads * attention.head_dim
    assert layout.windows == (9, None)
    assert layout.block_bytes == 5 * of_layer * BLOCK_TOKENS
    assert token == 9 * of_layer
