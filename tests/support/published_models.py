"""Shapes of published models, for what other people measured of them."""

from lanewise.planning.work import WHOLE, ModelWork, Weights

BITS = {"q4_0": 4.5, "q6_k": 6.5625, "q8_0": 8.5, "mxfp4": 4.25, "f16": 16.0}


def matrices(kind: str, weights: float, **part: bool) -> Weights:
    return Weights(kind, weights, weights * BITS[kind] / 8, **part)


def dense(layers, hidden, heads, kv_heads, head_dim, ffn, vocab, kind="q4_0", head="q6_k"):
    """A Llama: grouped queries, gated layers, one matrix for the head."""
    width, kv_width = heads * head_dim, kv_heads * head_dim
    each = hidden * (width + 2 * kv_width) + width * hidden + 3 * hidden * ffn
    parts = (matrices(kind, layers * each), matrices(head, vocab * hidden, of_head=True))
    return ModelWork(
        matrices=parts,
        expert_share=1.0,
        attention_weights=2.0 * layers * width,
        values=layers * (4 * hidden + 2 * width + 2 * kv_width + 2 * ffn),
        n_layers=layers,
        windows=WHOLE,
        kv_token_bytes=2 * 2.0 * layers * kv_width,
        held_bytes=int(sum(part.n_bytes for part in parts)),
    )


LLAMA_3_2_1B = dense(16, 2048, 32, 8, 64, 8192, 128256)
QWEN_2_5_1_5B = dense(28, 1536, 12, 2, 128, 8960, 151936)
LLAMA_2_7B = dense(32, 4096, 32, 32, 128, 11008, 32000)

# 24 layers of 2,880, 64 heads of 64 and 8 with keys, 4 of 32 experts of 2,880, 201,088 tokens.
_ATTENTION = 24 * (2880 * (64 + 2 * 8) * 64 + 64 * 64 * 2880)
_EXPERTS = 24 * 4 * 3 * 2880 * 2880
GPT_OSS_20B = ModelWork(
    matrices=(
        matrices("q8_0", _ATTENTION),
        matrices("mxfp4", _EXPERTS, of_experts=True),
        matrices("q8_0", 201088 * 2880, of_head=True),
    ),
    expert_share=4 / 32,
    attention_weights=2.0 * 24 * 64 * 64,
    values=24 * (4 * 2880 + 2 * 64 * 64 + 2 * 8 * 64 + 2 * 4 * 2880),
    n_layers=24,
    windows=((128, 0.5), (None, 0.5)),
    kv_token_bytes=2 * 2.0 * 24 * 8 * 64,
    held_bytes=12_100_000_000,
)
