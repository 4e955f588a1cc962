"""A tiny random BERT that compares tokens, as PyLate and sentence-transformers write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.processors import TemplateProcessing

from encoder_models import encoder_model
from encoder_tokenizers import word_piece
from family_models import write_model
from tiny_embedder import modules_of, write_files

DIMS = 16
QUERY, DOCUMENT = "[Q] ", "[D] "  # each is a token, its space too
SKIPPED = ["-", ".", "!", "'"]  # one of them is no token
EXPANSION = {"strategy": "fixed", "attend": False, "token": None, "length": 16}
NATIVE: dict[str, Any] = {"document_length": 40, "query_expansion": EXPANSION}
PYLATE: dict[str, Any] = {
    "model_type": "ColBERT",
    "query_prefix": QUERY,
    "document_prefix": DOCUMENT,
    "query_length": 12,
    "document_length": 40,
    "attend_to_expansion_tokens": False,
    "skiplist_words": SKIPPED,
    "similarity_fn_name": "MaxSim",
}
# What the Transformer's fields say in sentence-transformers' form, and the config in PyLate's.
CASES: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "native": (NATIVE, {"prompts": {"query": QUERY, "document": DOCUMENT}}),
    "native_seen": (
        NATIVE | {"query_expansion": EXPANSION | {"attend": True, "strategy": "min"}},
        {"prompts": {"query": "query ", "document": ""}, "similarity_fn_name": "meanmaxsim"},
    ),
    "native_plain": ({"document_length": 40}, {"prompts": {"query": "", "document": ""}}),
    "pylate": (None, PYLATE),
    "pylate_seen": (None, PYLATE | {"attend_to_expansion_tokens": True}),
    "pylate_plain": (None, PYLATE | {"do_query_expansion": False, "query_length": 200}),
}


def tokenizer() -> Tokenizer:
    """One of words, the same everywhere, with the two prefixes added to it."""
    words = ["the", "it", "that", "takes", "with", "over", "and", "nobody", "counts", "slowly"]
    words += ["river", "wide", "fields", "houses"]
    letters = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789-.'"))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *words]
    tokens += [f"##{piece}" for piece in (*letters, "ing", "able", "s'", "er", "ed")]
    vocab = {token: index for index, token in enumerate(tokens)}
    library = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    whole = word_piece()
    library.normalizer, library.pre_tokenizer = whole.normalizer, whole.pre_tokenizer
    library.decoder = whole.decoder
    library.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    library.add_special_tokens(tokens[:5])
    library.add_tokens([AddedToken(name, normalized=True) for name in (QUERY, DOCUMENT)])
    return library


def write_colbert(folder: Path, name: str) -> Path:
    """Write a case's directory; return it."""
    write_model(encoder_model("bert"), folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    of_model, config = CASES[name]
    named = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("cls", "sep", "pad", "unk", "mask")}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named})
    )
    dense: dict[str, Any] = {
        "in_features": 48,
        "out_features": DIMS,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    said = {"prompts": {}, "model_type": "MultiVectorEncoder"} | config
    files: dict[str, Any] = {"config_sentence_transformers.json": said}
    if of_model is None:
        modules = modules_of("Transformer", "Dense")
        modules[1]["type"] = "pylate.models.Dense.Dense"
        files["sentence_bert_config.json"] = {"max_seq_length": 299, "do_lower_case": False}
        dense["use_residual"] = False
    else:
        modules = modules_of("Transformer", "Dense", "MultiVectorMask", "Normalize")
        base = "sentence_transformers.base.modules"
        for module, kind in zip(modules, ("transformer", "dense", "", "normalize"), strict=True):
            module["type"] = f"{base}.{kind}.{module['type'].rpartition('.')[2]}"
        modules[2]["type"] = (
            "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
        )
        dense |= {"module_input_name": "token_embeddings"}
        files["2_MultiVectorMask/config.json"] = {
            "skiplist_words": SKIPPED,
            "skiplist_tasks": ["document"],
            "keep_only_token_ids": None,
        }
        files["3_Normalize/config.json"] = {"module_input_name": "token_embeddings"}
        files["sentence_bert_config.json"] = {
            "transformer_task": "feature-extraction",
            "modality_config": {
                "text": {"method": "forward", "method_output_name": "last_hidden_state"}
            },
            "module_output_name": "token_embeddings",
            **of_model,
        }
    write_files(folder, files | {"modules.json": modules, "1_Dense/config.json": dense})
    weights = np.random.default_rng(1).standard_normal((DIMS, 48)).astype(np.float32)
    save_file({"linear.weight": weights}, folder / "1_Dense" / "model.safetensors")
    return folder
