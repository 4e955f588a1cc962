"""Makes the table of what the references read of model files: loading/reference_fields.json.

    python make_fields.py [--check] [--llama-cpp DIR]

Of a config.json by model_type (transformers), of GGUF metadata by architecture (llama.cpp, whose
sources lie in DIR). With --check nothing is written: what is committed must be what comes out now.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from llama_cpp_keys import LlamaCpp
from transformers import CONFIG_MAPPING
from transformers_fields import ROOT as TRANSFORMERS
from transformers_fields import fields_of, rope_settings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TABLE = ROOT / "service" / "lanewise" / "loading" / "programs" / "reference_fields.json"
SOURCES = ROOT / ".venv" / "llama.cpp"
sys.path.insert(0, str(ROOT / "service"))

from lanewise.loading.families.table import (  # noqa: E402
    FAMILIES,
    OTHER_GGUF_NAMES,
    OTHER_NAMES,
)

# Of families that transformers does not have, what the code of their makers reads.
BY_HAND: dict[str, dict[str, Any]] = {
    "bailing_moe": {
        "attention_dropout": 0.0,
        "first_k_dense_replace": 0,
        "head_dim": None,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": None,
        "max_position_embeddings": 16384,
        "moe_intermediate_size": None,
        "n_group": 8,
        "num_attention_heads": 16,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 24,
        "num_key_value_heads": 0,
        "num_shared_experts": 0,
        "pad_token_id": 126081,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
        "use_bias": True,
        "use_qk_norm": False,
        "use_qkv_bias": False,
        "vocab_size": 30592,
    },
    "step3p7": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_other_setting": None,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11264,
        "layer_types": None,
        "max_position_embeddings": 128000,
        "mlp_bias": False,
        "mlp_layer_types": None,
        "moe_intermediate_size": 1280,
        "moe_layers_enum": None,
        "moe_num_experts": None,
        "moe_router_scaling_factor": 1.0,
        "moe_top_k": None,
        "n_routed_experts": 288,
        "num_attention_groups": None,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 45,
        "num_key_value_heads": 8,
        "num_sliding_attention_heads": None,
        "pad_token_id": 1,
        "partial_rotary_factors": None,
        "query_pre_attn_scalar": None,
        "rms_norm_eps": 1e-5,
        "rope_parameters": None,
        "rope_scaling": None,
        "rope_theta": None,
        "share_expert_dim": 1280,
        "share_expert_dims": None,
        "sliding_window": None,
        "swiglu_limits": None,
        "swiglu_limits_shared": None,
        "vocab_size": 128815,
    },
    "minicpm": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dim_model_base": 1,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_experts": 0,
        "num_experts_per_tok": None,
        "num_hidden_layers": 32,
        "num_key_value_heads": None,
        "pad_token_id": None,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "scale_depth": 1,
        "scale_emb": 1,
        "sparse_config": None,
        "vocab_size": 32000,
    },
}

# Architectures that only BitNet's own llama.cpp has; it reads the same keys of them.
READ_AS = dict.fromkeys(("bitnet-25", "bitnet-b1.58"), "bitnet")
BY_HAND["step3p5"] = BY_HAND["step3p7"]  # the language model's own name

Table = dict[str, dict[str, Any]]


def made(llama_cpp: Path) -> Table:
    """Return the table."""
    reference = LlamaCpp(llama_cpp)
    archs = {family.gguf for family in FAMILIES if family.gguf} | OTHER_GGUF_NAMES.keys()
    names = [family.name for family in FAMILIES]
    # Other names that have a class of their own, of the language model alone.
    names += [
        name
        for name in OTHER_NAMES
        if name in CONFIG_MAPPING and not CONFIG_MAPPING[name].sub_configs
    ]
    return {
        "config.json": {name: BY_HAND.get(name) or fields_of(name) for name in sorted(names)},
        "rope_parameters": rope_settings(name for name in names if name not in BY_HAND),
        "gguf": {"": sorted(reference.of_all)}
        | {arch: reference.keys_of(READ_AS.get(arch, arch)) for arch in sorted(archs)},
    }


def differences(old: Table, new: Table) -> list[str]:
    """Return how the table differs from what is committed, a line for each name."""
    found = []
    for part in sorted(old.keys() | new.keys()):
        before, now = old.get(part, {}), new.get(part, {})
        for kind in sorted(before.keys() | now.keys()):
            one, other = before.get(kind, {}), now.get(kind, {})
            place = f"{part}{f' of {kind}' if kind else ''}"
            found += [f"{place}: {name} is read, too" for name in sorted(set(other) - set(one))]
            found += [f"{place}: {name} is not read" for name in sorted(set(one) - set(other))]
            if isinstance(one, dict) and isinstance(other, dict):
                found += [
                    f"{place}: {name} means {other[name]!r} where it is left out"
                    for name in sorted(one.keys() & other.keys())
                    if one[name] != other[name]
                ]
    return found


def text_of(table: Table) -> str:
    """Return the table as JSON, with a line for each model_type."""
    parts = []
    for part, kinds in table.items():
        lines = [f"  {json.dumps(kind)}: {json.dumps(names)}" for kind, names in kinds.items()]
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Make the table, or compare it."""
    parser = argparse.ArgumentParser(description="Makes the table of what the references read.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--llama-cpp", type=Path, default=SOURCES, help="its folder of sources")
    arguments = parser.parse_args()
    table = made(arguments.llama_cpp)
    if arguments.check:
        wrong = differences(json.loads(TABLE.read_text()), table)
        raise SystemExit("\n".join(wrong) if wrong else 0)
    TABLE.write_text(text_of(table), encoding="utf-8")
    print(f"from {TRANSFORMERS} and {arguments.llama_cpp}")


if __name__ == "__main__":
    main()
