"""Quantizing mixtures of experts: routers stay as they are, and what is not supported says so."""

from pathlib import Path

import numpy as np
import pytest

import tiny_models
from lanewise import cli
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lora_files import lora_config, write_adapter
from quantizing import errors_on_text, logits_of, written_family
from topics import thorough

pytestmark = pytest.mark.slow


def routers(path: Path) -> dict[int, bytes]:
    with open_checkpoint(path) as checkpoint:
        found = [tensor for tensor in checkpoint.tensors if tensor.role == Role.ROUTER]
        assert {tensor.type for tensor in found} == {TensorType.F32}
        return {tensor.layer: bytes(tensor.data) for tensor in found}


@pytest.mark.parametrize("options", [["--format", "q8_0"], ["--bits", "8.5"]], ids=["q8_0", "bits"])
@pytest.mark.parametrize(
    "name",
    ["qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss", "nemotron_h_moe_groups", "deepseek_v2"],
)
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_mixtures_are_quantized_but_for_their_routers(name, options, tmp_path):
    source, folder = written_family(name, tmp_path), tmp_path / "q"
    assert cli.main(["quantize", str(source), "-o", str(folder), *options]) == 0
    assert routers(folder) == routers(source)
    exact, found = logits_of(source), logits_of(folder)
    # Roundings, and experts that they change; wrong weights give about 1.4.
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.2


@pytest.mark.parametrize("name", ["qwen2_moe", *thorough("gpt_oss", "nemotron_h_moe")])
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_calibrated_mixtures_are_nearer_to_their_source_on_such_text(name, tmp_path):
    """Shared experts and gates; biases, sinks, windows and clamps: 0.13 and 0.14, not 0.25."""
    source = written_family(name, tmp_path)
    plain, fitted = errors_on_text(source, tmp_path)
    for made in ("plain", "fitted"):
        assert routers(tmp_path / made) == routers(source)
    assert fitted < 0.8 * plain


@pytest.mark.parametrize("name", ["qwen3_moe", *thorough("nemotron_h_moe", "deepseek_v2")])
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_what_experts_lose_is_measured_on_a_text(name, tmp_path, capsys):
    source, text = written_family(name, tmp_path), tiny_models.write_text(tmp_path / "text.txt")
    sizes = []
    for kl in ("0.001", "1"):
        out = tmp_path / kl
        options = ["--target-kl", kl, "--calibrate", str(text), "--calibration-tokens", "512"]
        assert cli.main(["quantize", str(source), "-o", str(out), *options]) == 0
        assert routers(out) == routers(source)
        sizes.append((out / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.8 * sizes[0]
    said = capsys.readouterr().err
    assert said.count("bits per weight should lose") == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--gguf"],
            "qwen3_moe: --gguf cannot write experts yet; accepted are models whose",
        ),
    ],
)
def test_what_mixtures_cannot_have_is_refused(options, says, tmp_path, capsys):
    source, output = written_family("qwen3_moe", tmp_path), tmp_path / "out"
    text = tiny_models.write_text(tmp_path / "text.txt")
    options = [str(text) if option == "TEXT" else option for option in options]
    assert cli.main(["quantize", str(source), "-o", str(output), *options]) == 1
    assert says in capsys.readouterr().err
    assert not output.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["qwen3_moe", "text.txt"]


@pytest.mark.parametrize("module", ["mlp.experts.3.down_proj", "mlp.gate", "mlp.down_proj"])
def test_adapters_of_experts_are_refused(module, tmp_path):
    """Attention may be adapted, and the message names what may be."""
    source, rank = written_family("qwen3_moe", tmp_path), 2
    tensors = {
        f"base_model.model.model.layers.0.{module}.lora_{part}.weight": np.ones(shape, np.float32)
        for part, shape in (("A", (rank, 64)), ("B", (64, rank)))
    }
    adapter = write_adapter(tmp_path / "adapter", tensors, lora_config(rank, 4))
    accepted = [f"self_attn.{name}_proj" for name in "qkvo"]
    with open_checkpoint(source) as checkpoint, pytest.raises(ModelFileError) as caught:
        open_adapter(adapter, checkpoint.config)
    assert f"lora_A and lora_B of the modules for {', '.join(accepted)}; " in str(caught.value)
    assert module in str(caught.value)
