"""How a model's files say that answers are drawn."""

from types import SimpleNamespace

import pytest
from tiny_tokenizers import gguf_files, hf_files

from lanewise.loading.vocabulary.tokenizer_files import read_tokenizer_files
from lanewise.loading.writing.packed_writer import write_tokenizer
from lanewise.text.gguf_export import gguf_tokenizer
from lanewise.text.sampling_defaults import SamplingDefaults

QWEN = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


def of_file(config):
    return SamplingDefaults.of_model(hf_files(None, 4, generation_config=config))


def test_the_file_says_some_and_openai_the_others():
    found = of_file({**QWEN, "do_sample": False, "max_new_tokens": 7, "min_p": None})
    assert found == SamplingDefaults(0.7, 0.8, 20, 0.0, 1.05)
    assert str(found) == "temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05"
    assert of_file({"top_k": -1}) == of_file({"eos_token_id": 2}) == SamplingDefaults()
    assert SamplingDefaults.of_model(hf_files(None, 4)) == SamplingDefaults()
    assert not str(SamplingDefaults())


def test_gguf_metadata_says_the_same_also_when_packed(tmp_path):
    metadata = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.25,
        "general.name": "left behind",
        "tokenizer.ggml.model": "gpt2",
    }
    wanted = SamplingDefaults(temperature=0.5, top_k=20, repetition_penalty=1.25)
    files = gguf_files(metadata)
    assert SamplingDefaults.of_model(files) == wanted
    write_tokenizer(tmp_path, SimpleNamespace(tokenizer=files, sentences=None))
    packed = read_tokenizer_files(tmp_path, 4)
    assert SamplingDefaults.of_model(packed) == wanted
    assert "general.name" not in packed.gguf
    assert gguf_tokenizer(packed) == packed.gguf


def test_what_a_directory_says_is_said_in_gguf():
    found = of_file({**QWEN, "temperature": 1, "min_p": 0.25})
    metadata = found.gguf_metadata()
    assert "general.sampling.temp" not in metadata  # it is the usual one
    assert metadata["general.sampling.top_k"] == 20
    assert SamplingDefaults.of_model(gguf_files(metadata)) == found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", 2.5),
        ("temperature", "0.7"),
        ("temperature", float("nan")),
        ("top_p", -0.1),
        ("top_k", 1.5),
        ("min_p", True),
        ("repetition_penalty", 0),
    ],
)
def test_what_no_request_may_say_is_left_out_with_a_warning(caplog, key, value):
    assert of_file({"top_k": 5, key: value}) == of_file({"top_k": 5} if key != "top_k" else {})
    (message,) = caplog.messages
    assert f"{key} is {value!r} and is not used; accepted: " in message
