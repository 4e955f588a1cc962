"""A checkpoint in memory and a library of Python functions behind the real header."""

import types
from pathlib import Path

import cffi
import numpy as np
import pytest

from lanewise.loading.base.checkpoint import Role, Tensor
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.native import library
from lanewise.runtime import cpu, guards, model, native_session, tuning

HEADER = Path(__file__).parents[2] / "native" / "include" / "lanewise.h"

CONFIG = ModelConfig(
    architecture="llama",
    hidden_size=64,
    vocab_size=50,
    context_length=128,
    rms_norm_eps=1e-5,
    tied_embeddings=True,
    ropes=(Rope(10000.0, 32),),
    layers=(Layer(Attention(n_heads=2, n_kv_heads=1, head_dim=32, rope=0), Gated(96)),),
)


def make_tensor(name, role, rows, cols, released, kind=TensorType.F32):
    data = np.full((rows, cols), float(role), np.float32)
    view = memoryview(data).cast("B")
    return Tensor(name, role, 0, kind, rows, cols, view, 0, lambda: released.append(name))


@pytest.fixture
def checkpoint():
    """Three tensors: a matrix, a matrix whose rows cannot be cut in groups, and a vector."""
    released = []
    return types.SimpleNamespace(
        vision=None,
        head=None,
        path=Path("tiny.gguf"),
        files=(Path("tiny.gguf"),),
        name="tiny",
        config=CONFIG,
        weights_name="f32",
        is_widened=False,
        released=released,
        tensors=[
            make_tensor("token_embd.weight", Role.TOKEN_EMBEDDING, 50, 64, released),
            make_tensor("blk.0.ffn_down.weight", Role.FFN_DOWN, 64, 97, released),
            make_tensor("output_norm.weight", Role.OUTPUT_NORM, 1, 64, released),
        ],
    )


class FakeLibrary:
    """The functions of the header in Python; logits row r is filled with the id of its token."""

    LW_OK = 0
    LW_ERR_ARGUMENT = 1
    LW_ABI_VERSION = 12
    LW_DRAWN_BEFORE = 1 << 30
    LW_STEPS_AHEAD = 2
    LW_BLOCK_TOKENS = 32
    LW_MAX_TOP_LOGPROBS = 20
    LW_NUMERICS = 2
    LW_F16 = 1
    LW_F32 = 0
    LW_LOAD_MAP = 0
    LW_LOAD_COPY = 1
    LW_ERR_FORMAT = 3
    LW_NO_ROPE = -1
    LW_QK_NORM_NONE = 0
    LW_QK_NORM_HEAD = 1
    LW_FFN_GATED = 0
    LW_SILU = 0
    LW_NORM_RMS = 0
    LW_IN_TURN = 0

    def __init__(self, ffi):
        self.ffi = ffi
        self.calls = []
        self.failure = None
        self.message = ffi.new("char[]", 200)
        self.symbol = ffi.new("char[]", b"avx2")

    def _answer(self, name, *details):
        self.calls.append((name, *details))
        if self.failure and self.failure[0] == name:
            self.ffi.buffer(self.message)[:] = self.failure[1].encode().ljust(200, b"\0")
            return 3
        return 0

    def lw_last_error(self):
        return self.message

    def lw_model_create(self, config, isa, threads, out):
        rope, attention = config.ropes[0], config.layers[0].attention
        factors = rope.factors
        self.factors = [factors[i] for i in range(rope.rotated // 2)] if factors else None
        level = None if isa == self.ffi.NULL else self.ffi.string(isa)
        out[0] = self.ffi.cast("lw_model*", 0x1000)
        return self._answer("create", level, threads, config.vocab_size, attention.window)

    def lw_model_load(self, handle, role, layer, tensor, target):
        first = self.ffi.cast("const float*", tensor.data)[0]
        return self._answer("load", role, target, tensor.n_bytes, first)

    def lw_model_finish(self, handle):
        return self._answer("finish")

    def lw_model_describe(self, handle, out):
        out.isa = b"avx2"
        out.packed_bytes = 123
        return self._answer("describe")

    def lw_model_close(self, handle):
        self._answer("close_model", handle != self.ffi.NULL)

    def lw_guard_mapping(self, begin, n_bytes, name):
        return 0

    def lw_unguard_mapping(self, begin):
        return 0

    def lw_model_kv_layout(self, handle, kv_type, groups_by_window, out):
        out.block_bytes = 1000 + kv_type
        out.n_groups = 1
        return self._answer("kv_layout")

    def lw_session_open(self, handle, config, out):
        out[0] = self.ffi.cast("lw_session*", 0x2000)
        return self._answer("open", config.n_threads, config.n_blocks, config.kv_type)

    def lw_session_close(self, handle):
        self._answer("close_session", handle != self.ffi.NULL)

    def lw_step(self, handle, batch, logits, drawn):
        n_tokens = batch.query_start[batch.n_seqs]
        stride = batch.block_table_stride
        starts = [batch.table_rows[s] * stride for s in range(batch.n_seqs)]
        tables = [[batch.block_tables[start + i] for i in range(2)] for start in starts]
        self.seen = {
            "tokens": [batch.token_ids[i] for i in range(n_tokens)],
            "context": [batch.context_lens[s] for s in range(batch.n_seqs)],
            "tables": tables,
        }
        for row in range(batch.n_logits):
            for i in range(CONFIG.vocab_size):
                logits[row * CONFIG.vocab_size + i] = batch.token_ids[batch.logit_rows[row]]
        self.draws = None
        if batch.draws:
            self.draws = [self._draw(batch.draws[i]) for i in range(batch.n_logits)]
            for i, row in enumerate(self.draws):
                drawn[i].token = int(logits[i * CONFIG.vocab_size])
                drawn[i].n_top = row["n_top_logprobs"]
                for k in range(row["n_top_logprobs"]):
                    drawn[i].top_ids[k] = k
                    drawn[i].top_logprobs[k] = -float(k)
        return self._answer("step")

    def _draw(self, draw):
        row = draw.sampling
        return {
            "temperature": row.temperature,
            "seed": row.seed,
            "bias": {row.bias_ids[k]: row.bias_values[k] for k in range(row.n_bias)},
            "mask": row.mask[0] if row.mask else None,
            "n_top_logprobs": row.n_top_logprobs,
            "position": draw.position,
            "n_prompt": draw.n_prompt,
            "history": [draw.history[k] for k in range(draw.n_history)],
            "forced_token": draw.forced_token,
        }

    def lw_session_hold_draws(self, handle):
        return self._answer("hold_draws")

    def lw_session_release_draws(self, handle):
        return self._answer("release_draws")

    def lw_session_counters(self, handle, out):
        out.steps = 7
        out.gemm_rows = 9
        out.native_seconds = 0.5
        out.held_seconds = 0.25
        return self._answer("counters")

    def lw_session_profile(self, handle, on):
        self.profiled = 2 if on else 0
        return self._answer("profile", on)

    def lw_session_profile_rows(self, handle, out, capacity, count):
        for i in range(min(capacity, self.profiled)):
            out[i].operation = f"op{i}".encode()
            out[i].kernel = f"gemv_{i}".encode() if i else b""
            out[i].work_seconds = 1.5 + i
            out[i].wait_seconds = 0.25
            out[i].bytes = 100 + i
            out[i].macs = 2**40
        count[0] = self.profiled
        return self._answer("profile_rows", capacity)

    def lw_cpu_isa(self):
        return self.symbol

    def lw_cpu_features(self):
        return self.symbol

    def lw_cpu_check(self, isa):
        return self._answer("check", isa)

    def lw_kernel_count(self):
        return 2

    def lw_kernel_describe(self, index, out):
        out.symbol = f"gemv_{index}".encode()
        out.available = index
        return self._answer("kernel", index)

    def lw_measure_limits(self, threads, isa, out):
        out.read_gb_s = 30.0 * threads
        out.int8_gmac_s = 400.0
        return self._answer("limits", threads)


@pytest.fixture
def fake(monkeypatch):
    """The fake library in the place of the real one."""
    ffi = cffi.FFI()
    ffi.cdef(library.definitions(HEADER))
    opened = library.Native.__new__(library.Native)
    opened.ffi = ffi
    opened.lib = FakeLibrary(ffi)
    for module in (model, native_session, cpu, tuning, guards):
        monkeypatch.setattr(module, "native", lambda: opened)
    return opened.lib
