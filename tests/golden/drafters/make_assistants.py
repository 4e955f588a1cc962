"""Makes assistants.npz: what transformers' Gemma 4 assistants guess beside tiny targets.

    .venv/reference/bin/python tests/golden/drafters/make_assistants.py

The window that transformers gives an assistant sees two tokens more than llama.cpp's and vLLM's,
whose query stands behind the text; here it is made as narrow as theirs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
for folder in (ROOT, ROOT / "service", ROOT / "quantizer", ROOT / "tests" / "support"):
    sys.path.insert(0, str(folder))

from transformers import (  # noqa: E402
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
)

from family_models import family_model, write_model  # noqa: E402
from gemma4_assistants import assistant_arrays, assistant_config  # noqa: E402

CASES = ("gemma4", "gemma4_small")
KNOWN, N_TOKENS = 37, 40


def main() -> None:
    tokens = np.random.default_rng(5).integers(0, 256, N_TOKENS)
    found = {name: guesses_of(name, torch.tensor(tokens[None])) for name in CASES}
    np.savez(HERE / "assistants.npz", **found)


@torch.no_grad()
def guesses_of(name: str, tokens: torch.Tensor) -> np.ndarray:
    """Logits behind the last known token and each guess."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(family_model(name), Path(folder) / "m")
        target = Gemma4ForCausalLM.from_pretrained(path, dtype=torch.float32)
    config = assistant_config(name)
    narrow = config["text_config"]["sliding_window"] - 2
    config["text_config"] |= {"sliding_window": narrow}
    config.pop("architectures")
    model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(**config)).eval()
    arrays = assistant_arrays(config)
    state = {key: torch.tensor(array) for key, array in arrays.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    known = tokens[:, : KNOWN - 1]
    out = target(known, use_cache=False, output_hidden_states=True, return_shared_kv_states=True)
    h = out.hidden_states[-1][:, -1:]
    position = torch.tensor([[KNOWN - 1]])
    rows = []
    for at in range(KNOWN - 1, N_TOKENS):
        embedding = target.get_input_embeddings()(tokens[:, at : at + 1])
        made = model(
            inputs_embeds=torch.cat([embedding, h], dim=-1),
            position_ids=position,
            shared_kv_states=dict(out.shared_kv_states),
            use_cache=False,
        )
        rows.append(made.logits[0, 0].numpy())
        h = made.last_hidden_state
    return np.stack(rows)


if __name__ == "__main__":
    main()
