"""Headers of tokenizers and of generation as makers write them: no field of them is refused."""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

import pytest
from tiny_tokenizers import hf_files
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from lanewise.text.sampling_defaults import SamplingDefaults
from lanewise.text.tokenizer import Tokenizer

LETTERS = {letter: number for number, letter in enumerate("abcdefgh")}


def added(content: str, **flags: bool) -> dict[str, Any]:
    """A token as makers write it, with all its flags."""
    usual = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"__type": "AddedToken", "content": content, **usual, "special": True, **flags}


class Published(NamedTuple):
    """The headers of one family, and what they mean."""

    tokenizer: dict[str, Any]
    generation: dict[str, Any]
    tokens: tuple[str, ...]  # ids from 8 on
    bos: str | None
    ends: set[str]
    adds_bos: bool
    sampling: SamplingDefaults


# DeepSeek's, whose bars are as wide as letters of Chinese.
BEGIN, END = (f"<\uff5c{name}\u2581of\u2581sentence\uff5c>" for name in ("begin", "end"))
LONG = 1000000000000000019884624838656  # what transformers has for no limit
TYPICAL = {"_from_model_config": True, "transformers_version": "4.46.3", "do_sample": True}
PUBLISHED = {
    "llama3": Published(
        {
            "added_tokens_decoder": {"8": added("<|begin_of_text|>"), "9": added("<|eot_id|>")},
            "bos_token": "<|begin_of_text|>",
            "clean_up_tokenization_spaces": True,
            "eos_token": "<|eot_id|>",
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 131072,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": "{{ bos_token }}",
        },
        {**TYPICAL, "eos_token_id": [9, 10], "bos_token_id": 8, "temperature": 0.6, "top_p": 0.9},
        ("<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>"),
        "<|begin_of_text|>",
        {"<|eot_id|>", "<|eom_id|>"},
        adds_bos=True,
        sampling=SamplingDefaults(0.6, 0.9),
    ),
    "qwen3": Published(
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {"8": added("<|endoftext|>"), "10": added("<think>")},
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
            "add_eos_token": False,
            "padding_side": "left",
        },
        {
            **TYPICAL,
            "bos_token_id": 8,
            "pad_token_id": 8,
            "eos_token_id": [9, 8],
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
            "repetition_penalty": 1.05,
            "max_new_tokens": 2048,
            "chat_format": "chatml",
            "stop_words_ids": [[9]],
        },
        ("<|endoftext|>", "<|im_end|>", "<think>"),
        None,
        {"<|endoftext|>", "<|im_end|>"},
        adds_bos=False,
        sampling=SamplingDefaults(0.6, 0.95, 20, 0.0, 1.05),
    ),
    "gemma3": Published(
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": "<bos>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
            "eos_token": "<eos>",
            "extra_special_tokens": {"boi_token": "<start_of_image>"},
            "model_max_length": LONG,
            "pad_token": "<pad>",
            "processor_class": "Gemma3Processor",
            "sp_model_kwargs": None,
            "spaces_between_special_tokens": False,
            "tokenizer_class": "GemmaTokenizer",
            "unk_token": "<unk>",
            "use_default_system_prompt": False,
        },
        {**TYPICAL, "cache_implementation": "hybrid", "eos_token_id": [9, 10], "top_k": 64},
        ("<bos>", "<eos>", "<end_of_turn>", "<pad>", "<unk>"),
        "<bos>",
        {"<eos>", "<end_of_turn>"},
        adds_bos=True,
        sampling=SamplingDefaults(top_k=64),
    ),
    "mistral": Published(
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "add_prefix_space": None,
            "additional_special_tokens": [],
            "bos_token": added("<s>"),
            "eos_token": added("</s>"),
            "from_slow": True,
            "legacy": False,
            "mode": "test",
            "model_max_length": LONG,
            "pad_token": None,
            "processor_class": "PixtralProcessor",
            "sp_model_kwargs": {},
            "tokenizer_class": "LlamaTokenizer",
            "unk_token": "<unk>",
            "fix_mistral_regex": True,
        },
        {**TYPICAL, "bos_token_id": 8, "eos_token_id": 9, "max_length": 131072},
        ("<s>", "</s>", "<unk>"),
        "<s>",
        {"</s>"},
        adds_bos=True,
        sampling=SamplingDefaults(),
    ),
    "phi4": Published(
        {
            "add_prefix_space": False,
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "extra_special_tokens": [],
            "model_max_length": 16384,
            "pad_token": "<|dummy_87|>",
            "padding_side": "left",
            "tokenizer_class": "GPT2Tokenizer",
            "unk_token": "�",
        },
        {**TYPICAL, "temperature": 0.8, "top_p": 0.95, "top_k": 50, "eos_token_id": [8, 9]},
        ("<|endoftext|>", "<|im_end|>", "<|dummy_87|>"),
        "<|endoftext|>",
        {"<|endoftext|>", "<|im_end|>"},
        adds_bos=False,
        sampling=SamplingDefaults(0.8, 0.95, 50),
    ),
    "deepseek": Published(
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": added(BEGIN, normalized=True),
            "eos_token": added(END, normalized=True),
            "legacy": True,
            "model_max_length": 16384,
            "pad_token": added(END, normalized=True),
            "sp_model_kwargs": {},
            "unk_token": None,
            "tokenizer_class": "LlamaTokenizerFast",
        },
        {**TYPICAL, "bos_token_id": 8, "eos_token_id": 9, "temperature": 0.6, "top_p": 0.95},
        (BEGIN, END),
        BEGIN,
        {END},
        adds_bos=True,
        sampling=SamplingDefaults(0.6, 0.95),
    ),
    "smollm3": Published(
        {
            "added_tokens_decoder": {"8": added("<|end_of_text|>")},
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "fast": False,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 131072,
            "pad_token": "<|im_end|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_size": 49152,
            "max_length": 2048,
            "stride": 0,
            "truncation_side": "right",
            "truncation_strategy": "longest_first",
        },
        {**TYPICAL, "eos_token_id": 9, "temperature": 0.6, "top_p": 0.95, "min_p": None},
        ("<|end_of_text|>", "<|im_end|>"),
        None,
        {"<|im_end|>", "<|end_of_text|>"},
        adds_bos=False,
        sampling=SamplingDefaults(0.6, 0.95),
    ),
    "training tools": Published(
        {
            "backend": "tokenizers",
            "bos_token": "<s>",
            "chat_template": [
                {"name": "default", "template": "{{ messages }}"},
                {"name": "tool_use", "template": "{{ tools }}"},
            ],
            "cls_token": "<s>",
            "device_map": "auto",
            "eos_token": "</s>",
            "is_local": True,
            "local_files_only": False,
            "mask_token": {"content": "<mask>", "lstrip": True},
            "name_or_path": "somebody/model",
            "response_schema": {"type": "object"},
            "sep_token": "</s>",
            "tokenizer_file": None,
            "trust_remote_code": False,
            "use_fast": True,
            "auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", None]},
        },
        {
            "assistant_confidence_threshold": 0.4,
            "num_assistant_tokens": 20,
            "bad_words_ids": None,
            "diversity_penalty": 0.0,
            "num_beams": 1,
            "typical_p": 1.0,
            "eos_token_id": 9,
            "forced_eos_token_id": None,
            "length_penalty": 1.0,
            "compile_config": None,
            "guidance_scale": None,
            "use_cache": True,
            "top_k": 50,
            "watermarking_config": None,
            "trust_remote_code": True,
            "token_healing": False,
        },
        ("<s>", "</s>", "<mask>"),
        "<s>",
        {"</s>"},
        adds_bos=False,
        sampling=SamplingDefaults(top_k=50),
    ),
}


def library_of(case: Published) -> str:
    """A tokenizer.json with the tokens that a case names; it puts BOS before texts if they do."""
    library = Library(models.BPE(dict(LETTERS), []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, normalized=False) for token in case.tokens])
    if case.adds_bos and "add_bos_token" not in case.tokenizer:
        assert case.bos is not None
        bos = (case.bos, library.token_to_id(case.bos))
        library.post_processor = processors.TemplateProcessing(f"{bos[0]} $A", None, [bos])
    return str(library.to_str())


@pytest.mark.parametrize("name", PUBLISHED)
def test_headers_as_makers_publish_them(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = PUBLISHED[name]
    files = hf_files(
        library_of(case),
        32,
        tokenizer_config=json.loads(json.dumps(case.tokenizer)),
        generation_config=case.generation,
        special_tokens_map={"eos_token": case.tokenizer["eos_token"]},
    )
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.from_files(files)
        assert SamplingDefaults.of_model(files) == case.sampling
    assert not caplog.records
    ids = {token: len(LETTERS) + number for number, token in enumerate(case.tokens)}
    assert tokenizer.bos_id == (None if case.bos is None else ids[case.bos])
    assert tokenizer.eos_ids == {ids[token] for token in case.ends}
    assert tokenizer.adds_bos == case.adds_bos
    begun = [tokenizer.bos_id] if case.adds_bos else []
    assert tokenizer.encode("abc", add_bos=True, parse_special=True) == [*begun, 0, 1, 2]
