"""Memory of states: what is promised is what is taken, and too little of it changes no answer."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from family_models import write_case
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.host import MIB, MemoryLimit
from lanewise.loading.base.program import (
    Attention,
    Gated,
    Layer,
    ModelConfig,
    Rope,
)
from lanewise.loading.base.recurrences import GatedDelta
from lanewise.planning.memory import plan_memory
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session
from lanewise.server import opening
from lanewise.settings import Settings
from random_checkpoints import checkpoint, random_weights
from state_engines import LIMIT, running, sampled, together
from tests.server.test_states import asked
from toy_server import metric, outputs_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

USERS, CONTEXT, STEP = 64, 4096, 512
SLACK = 12 * MIB  # huge pages, and what Python takes meanwhile


def small_shape() -> ModelConfig:
    """Like Qwen 3.6: three delta rules for each layer of attention, which has a gate."""
    attention = Attention(2, 1, 32, rope=0, qk_norm="head", output_gate=True)
    delta = GatedDelta(4, 8, 64, 4, 64)
    layers = [Layer(None, Gated(64), state=delta)] * 3 + [Layer(attention, Gated(64))]
    ropes = (Rope(1e4, 8),)
    return ModelConfig("qwen3_5_text", 64, 37, CONTEXT, 1e-6, True, ropes, tuple(layers))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def taken_by(model: Model, blocks: int, states: int, users: int) -> int:
    """What a session takes more than before once so many users have filled their contexts."""
    before = resident_bytes()
    with Session(
        model,
        threads=2,
        blocks=blocks,
        max_batch_tokens=STEP,
        max_batch_logits=USERS,
        kv_type="f16",
        states=states,
    ) as session:
        each = blocks // users
        tables = [list(range(user * each, (user + 1) * each)) for user in range(users)]
        tokens = [7 * i % 37 for i in range(STEP)]
        for user in range(users):
            for done in range(0, each * BLOCK_TOKENS, STEP):
                count = min(STEP, each * BLOCK_TOKENS - done)
                batch = Batch(tokens[:count], [0, count], [done], tables, [], table_rows=[user])
                session.step(batch)
        return resident_bytes() - before


HELD = 256 * MIB  # for requests and their texts, on small machines


@pytest.mark.thorough
@pytest.mark.slow
def test_many_users_with_long_contexts_take_what_is_promised():
    config = small_shape()
    weights = random_weights(np.random.default_rng(1), config)
    with Model.load(checkpoint(config, weights)) as model:
        layout = model.kv_layout("f16")
        limits = SchedulerConfig(USERS, STEP, STEP, CONTEXT, windows=layout.windows)
        limit = MemoryLimit(512 * MIB + HELD, "test", dedicated=True)
        plan = plan_memory(limit, model.info.packed_bytes, layout, limits, 0)
        assert (plan.max_seqs, plan.blocks) == (USERS, USERS * CONTEXT // BLOCK_TOKENS)
        promised = plan.kv_bytes + USERS * layout.state_bytes
        least = taken_by(model, 16, 1, 1)  # what a session takes beside them
        taken = taken_by(model, plan.blocks, USERS, USERS) - least
        assert 0.8 * promised < taken < promised + SLACK
        # With a quarter of the memory fewer run at a time, and states leave room for blocks.
        small = MemoryLimit(256 * MIB + 40 * MIB + HELD, "test", dedicated=True)
        less = plan_memory(small, model.info.packed_bytes, layout, limits, 0)
        assert 1 < less.max_seqs < USERS
        assert less.max_seqs * layout.state_bytes <= 40 * MIB / 2
        assert less.kv_bytes + less.state_bytes <= 40 * MIB


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1", "bailing_hybrid"])
def test_sequences_that_give_way_end_with_the_same_answers(name, tmp_path):
    """Blocks for few of ten at a time, and places for fewer than were asked for."""
    path = str(write_case(name, tmp_path / name, max_position_embeddings=512))
    params = SamplingParams(seed=3, max_tokens=150, logprobs=2)
    grow = [GenerationRequest(list(f"user {i} asks".encode()), params) for i in range(5)]
    requests = [*asked(), *grow]
    with running(path, prefix_cache=False) as engine:
        wanted = [sampled(asyncio.run(outputs_of(engine, one))) for one in requests]
    settings = Settings(model=path, kv_memory=16 * MIB)
    model, _ = opening.open_model(settings, 1, LIMIT)
    with model:
        layout = model.kv_layout("f32", groups_by_window=True)
    place = layout.place_bytes(settings.max_draft)
    memory = max(8 * place, 3 * place + 18 * layout.block_bytes)
    with running(path, kv_memory=memory, prefix_cache=False, max_seqs=64) as engine:
        assert engine.config.max_seqs < 64
        got = [sampled(one) for one in asyncio.run(together(engine, requests))]
        assert got == wanted
        assert metric(engine, "vllm:num_preemptions_total") > 0
    with running(path, kv_memory=memory, max_seqs=64) as engine:
        again = [replace(one) for one in requests]
        for _ in range(2):
            assert [sampled(one) for one in asyncio.run(together(engine, again))] == wanted
