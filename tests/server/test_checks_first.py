"""Settings that a model cannot have are refused before its weights are read."""

import pytest

from lanewise import cli
from lanewise.server import opening

pytestmark = pytest.mark.native


@pytest.fixture
def loading(monkeypatch, library):
    """The names of models whose weights begin to be read; none is."""
    begun = []

    def load(settings, checkpoint, threads, limit):
        begun.append(checkpoint.name)
        raise AssertionError("weights are read")

    monkeypatch.setattr(opening, "load_beside", load)
    return begun


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lora", "poems=/nonexistent"], "lora: /nonexistent: adapter_config.json"),
        (["--lora", "lanewise-demo-q8_0=/x"], "is a name of the served model"),
        (["--lora", "a=/x,b=/y", "--max-loras", "1"], "lora has 2 adapters; accepted: at most"),
        (["--draft", "/nonexistent"], "draft: /nonexistent: no such file"),
        (["--max-model-len", "100000"], "max_model_len is 100000; accepted: at most the model's"),
        (["--kv-memory", "1KiB"], "kv_memory: 1.00 KiB"),
        (["--kv-memory", "128KiB", "--max-model-len", "300"], "max_model_len is 300; the KV cache"),
    ],
)
def test_a_header_is_enough(loading, capsys, flags, message):
    assert cli.main(["serve", "--port", "0", *flags]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not loading


def test_what_can_be_is_loaded(loading):
    with pytest.raises(AssertionError, match="weights are read"):
        cli.main(["serve", "--port", "0", "--kv-memory", "64MiB", "--max-model-len", "300"])
    assert loading == ["lanewise-demo-q8_0"]
