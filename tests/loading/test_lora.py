"""Adapter files that cannot be used: each is refused by name, damage included."""

import json
import random

import pytest

from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import HF
from lanewise.loading.families.llama import FAMILY
from lanewise.loading.programs.model_file import ModelFile
from lora_files import lora_config, lora_tensors, write_adapter
from tiny_models import tiny_model

MODEL = tiny_model("llama3")
CONFIG = FAMILY.program(ModelFile(Fields(MODEL.config, "config.json"), MODEL.tensors, HF))
RANK = 4
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def tensors():
    return lora_tensors(MODEL, rank=RANK, seed=1)


def error_of(path, **options) -> str | None:
    try:
        open_adapter(path, CONFIG, **options).close()
    except ModelFileError as error:
        return str(error)
    return None


def test_a_good_adapter_has_all_its_matrices(tensors, tmp_path):
    path = write_adapter(tmp_path, tensors, lora_config(RANK, 8))
    files = open_adapter(path, CONFIG)
    assert len(files.matrices) == 7 * CONFIG.n_layers
    assert files.rank == RANK
    assert {matrix.scale for matrix in files.matrices} == {2.0}
    files.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; 'LORA' is needed"),
        ({"peft_type": None}, "peft_type"),
        ({"use_dora": True}, "use_dora is True; false .DoRA is not supported. is needed"),
        ({"bias": "lora_only"}, "bias is 'lora_only'; 'none'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"r": 0}, "r is 0; a whole number from 1"),
        ({"r": 5}, "A has 4 rows; .* says rank 5"),
        ({"lora_alpha": "8"}, "lora_alpha is '8'"),
        ({"alpha_pattern": {"q_proj": -1}}, "alpha_pattern: q_proj is -1"),
        (
            {"alpha_pattern": {"(q|k)*_proj": 1}},
            r"alpha_pattern: '\(q\|k\)\*_proj' is not supp",
        ),
        ({"alpha_pattern": {".*" * 1100: 1}}, "regular expressions of 2200 letters; accepted are"),
        ({"rank_pattern": {r"layers\.1\..*(up|q)_proj": 2}}, "A has 4 rows; .* says rank 2"),
        ({"arrow_config": {"top_k": 2}}, "arrow_config is .*; null"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora is .*; null"),
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config is .*; null"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights is 'lora_ga'"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern"),
        ({"rank_pattern": {"q_proj": 2}}, "A has 4 rows; .* says rank 2"),
    ],
)
def test_settings_that_cannot_be_honoured(tensors, tmp_path, changes, message):
    path = write_adapter(tmp_path, tensors, lora_config(RANK, 8, **changes))
    with pytest.raises(ModelFileError, match=rf"adapter_config\.json.*{message}|{message}"):
        open_adapter(path, CONFIG)


# What PEFT 0.21 writes besides, and what it does not know and passes over.
NEUTRAL = {
    "auto_mapping": None,
    "revision": None,
    "inference_mode": True,
    "peft_version": "0.21.2",
    "exclude_modules": None,
    "layers_pattern": None,
    "layers_to_transform": [0, 1],
    "eva_config": None,
    "corda_config": None,
    "loftq_config": {},
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "qalora_group_size": 16,
    "trainable_token_indices": None,
    "use_qalora": False,
    "use_bdlora": None,
    "target_parameters": None,
    "arrow_config": None,
    "kasa_config": None,
    "velora_config": None,
    "monteclora_config": None,
    "ensure_weight_tying": False,
    "alora_invocation_tokens": None,
    "task_type": "SEQ_CLS",
    "lora_dropout": 0.1,
    "unsloth_fixed": True,
    "training_args": {"seed": 1},
    "use_of_tomorrow": [1],
}


def test_fields_that_change_no_answer(tensors, tmp_path):
    def scales(config):
        files = open_adapter(write_adapter(tmp_path, tensors, config), CONFIG)
        files.close()
        return [(matrix.name, matrix.scale) for matrix in files.matrices]

    assert scales(lora_config(RANK, 8, **NEUTRAL)) == scales(lora_config(RANK, 8))


def test_what_only_training_reads_is_passed_over(tensors, tmp_path):
    """VeLoRA and MonteCLoRA answer as any other LoRA does."""
    added = tensors | {
        f"{Q0}.lora_velora_embed": tensors[f"{Q0}.lora_A.weight"],
        f"{Q0}.lora_monteclora_sampler.std_prior": tensors[f"{Q0}.lora_A.weight"],
    }
    config = lora_config(
        RANK, 8, velora_config={"scale": 1.0}, monteclora_config={"num_samples": 8}
    )
    files = open_adapter(write_adapter(tmp_path, added, config), CONFIG)
    assert len(files.matrices) == 7 * CONFIG.n_layers
    files.close()


def test_alphas_by_regular_expressions(tensors, tmp_path):
    patterns = {r"layers\.0\..*(q|k)_proj": 4, r".*\.\d+\.mlp\..*": 16, "q_proj": 2}
    config = lora_config(RANK, 8, alpha_pattern=patterns)
    files = open_adapter(write_adapter(tmp_path, tensors, config), CONFIG)
    found = {matrix.name.removeprefix("model.layers."): matrix.scale for matrix in files.matrices}
    files.close()
    assert found["0.self_attn.q_proj"] == found["0.self_attn.k_proj"] == 1
    assert (found["1.self_attn.q_proj"], found["1.self_attn.k_proj"]) == (0.5, 2)
    assert found["0.mlp.up_proj"] == found["1.mlp.down_proj"] == 4


def test_ranks_above_the_limit_and_missing_files(tensors, tmp_path):
    path = write_adapter(tmp_path, tensors, lora_config(RANK, 8))
    assert "has rank 4; accepted: 1 to 3 (max_lora_rank)" in error_of(path, max_rank=3)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    assert "must be converted to safetensors" in error_of(path)
    (path / "adapter_config.json").unlink()
    assert "adapter_config.json is missing" in error_of(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{Q0}.lora_magnitude_vector", "lora_magnitude_vector' is not supported"),
        ("base_model.model.lm_head.lora_A.weight", "is not supported"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "is not supported"),
        ("base_model.model.model.layers.0.mlp.router.lora_A.weight", "is not supported"),
        ("base_model.model.model.layers.99.mlp.up_proj.lora_A.weight", "the model has 2 layers"),
    ],
)
def test_tensors_that_mean_something_else(tensors, tmp_path, name, message):
    added = tensors | {name: tensors[f"{Q0}.lora_A.weight"]}
    added[name.replace("lora_A", "lora_B")] = tensors[f"{Q0}.lora_B.weight"]
    path = write_adapter(tmp_path, added, lora_config(RANK, 8))
    assert message in error_of(path)


def test_halves_and_shapes_of_other_models(tensors, tmp_path):
    a, b = f"{Q0}.lora_A.weight", f"{Q0}.lora_B.weight"
    config = lora_config(RANK, 8)

    def error(changed):
        return error_of(write_adapter(tmp_path, changed, config))

    half = dict(tensors)
    del half[b]
    assert "layers.0.self_attn.q_proj has no lora_B.weight" in error(half)
    assert "the model needs (4, 64)" in error(tensors | {a: tensors[a][:, :-1].copy()})
    assert "the model needs (64, 4)" in error(tensors | {b: tensors[b][:-1].copy()})
    assert "a matrix is needed" in error(tensors | {a: tensors[a].reshape(-1)})
    assert "no tensors" in error({})


def test_damage_anywhere_in_the_weights_file(tensors, tmp_path):
    path = write_adapter(tmp_path, tensors, lora_config(RANK, 8))
    file = path / "adapter_model.safetensors"
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(1)
    for length in [*range(9), *draw.sample(range(len(whole)), 60), len(whole) - 1]:
        file.write_bytes(whole[:length])
        assert "adapter_model.safetensors" in error_of(path)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(header)] = draw.choice([0, 34, 44, 48, 57, 123, 255])
        file.write_bytes(damaged)
        error = error_of(path)
        assert error is None or "adapter_" in error


def test_damage_to_the_config(tensors, tmp_path):
    path = write_adapter(tmp_path, tensors, lora_config(RANK, 8))
    text = json.dumps(lora_config(RANK, 8))
    for content in ("", "[]", "{", text[:-20], "\0", "[" * 100_000):
        (path / "adapter_config.json").write_text(content)
        assert "adapter_config.json" in error_of(path)
