"""Real models with a sliding window, served from a cache that holds less than their texts."""

import asyncio
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.window import Windows
from lanewise.engine.engine import Engine
from lanewise.engine.metering.metrics import Metrics, ModelFacts
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model, Session
from tiny_models import VOCAB_SIZE, prompt, tiny_model, write_hf
from toy_server import metric, outputs_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

REFERENCE = Path(__file__).parents[1] / "golden" / "reference" / "logits.npz"
STEP_TOKENS = 16
CONTEXT = 1024


@contextmanager
def engine_of(
    path: Path,
    n_blocks: int,
    kv_type: str = "f32",
    max_draft: int = 0,
    step_tokens: int = STEP_TOKENS,
) -> Iterator[Engine]:
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=os.environ.get("LANEWISE_ISA")) as model,
    ):
        config = EngineConfig(
            n_blocks=n_blocks,
            max_model_len=model.config.context_length,
            vocab_size=VOCAB_SIZE,
            max_seqs=4,
            max_step_tokens=step_tokens,
            max_step_logits=step_tokens,
            max_draft=max_draft,
            windows=model.kv_layout(kv_type, groups_by_window=True).windows,
        )
        session = Session(
            model,
            threads=2,
            blocks=n_blocks,
            max_batch_tokens=step_tokens,
            max_batch_logits=step_tokens,
            kv_type=kv_type,
            groups_by_window=True,
        )
        facts = ModelFacts(
            model_name="toy",
            isa=model.info.isa,
            threads=2,
            weights="f32",
            kernels="",
            version="0",
            kv_type=kv_type,
            prefix_cache=True,
            n_blocks=n_blocks,
            max_model_len=config.max_model_len,
            max_draft=max_draft,
        )
        engine = Engine(session, config, Metrics(facts))
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()


def written(folder: Path, window: int) -> Path:
    changes = {"sliding_window": window, "max_position_embeddings": CONTEXT}
    return write_hf(tiny_model("mistral", **changes), folder / "model")


def written_mixed(folder: Path, window: int, **changes: int) -> Path:
    """A model of which one layer sees all, and the others as far as a window."""
    windowed = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": window}
    changes = {"max_position_embeddings": CONTEXT} | windowed | changes
    return write_hf(tiny_model("qwen2", **changes), folder / "model")


def needed(*windows: int | None) -> int:
    """Blocks that the longest sequence needs in groups with these windows; fewer than it has."""
    blocks = Windows.for_steps(windows, STEP_TOKENS).most_blocks(CONTEXT)
    assert blocks < len(windows) * CONTEXT // 32 * 3 / 4
    return blocks


def requests(n_prompt: int, n: int) -> list[GenerationRequest]:
    params = SamplingParams(seed=3, temperature=0.8, max_tokens=CONTEXT - n_prompt, logprobs=1)
    return [GenerationRequest(prompt(n_prompt), params, choice) for choice in range(n)]


def answers(engine: Engine, asked: list[GenerationRequest]) -> list[list]:
    """Tokens and log-probabilities of every answer, after which no block is in use."""
    outputs = asyncio.run(outputs_of(engine, *asked))
    assert metric(engine, "lanewise_kv_blocks_used") == 0
    return [[one.sampled for one in answer if one.sampled] for answer in outputs]


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8", "q4"])
@pytest.mark.parametrize(("window", "n_prompt"), [(7, 5), (70, 300)])
def test_a_text_longer_than_the_cache_is_what_a_large_cache_gives(
    window, n_prompt, kv_type, tmp_path
):
    path = written(tmp_path, window)
    with engine_of(path, 4 * CONTEXT // 32, kv_type) as roomy:
        expected = answers(roomy, requests(n_prompt, 1))
    assert len(expected[0]) == CONTEXT - n_prompt
    with engine_of(path, needed(window), kv_type) as tight:
        assert answers(tight, requests(n_prompt, 1)) == expected
        assert metric(tight, "vllm:num_preemptions_total") == 0


@pytest.mark.parametrize("max_draft", [0, 5])
def test_several_answers_and_guesses_change_nothing(max_draft, tmp_path):
    path = written(tmp_path, 70)
    with engine_of(path, 4 * CONTEXT // 32) as roomy:
        expected = answers(roomy, requests(100, 3))
    with engine_of(path, needed(70), max_draft=max_draft) as tight:
        assert answers(tight, requests(100, 3)) == expected


@pytest.mark.parametrize("kv_type", ["f16", "int8", "k8v4"])
@pytest.mark.parametrize("max_draft", [0, 5])
def test_layers_with_and_without_windows_give_the_same_answers_from_blocks_of_their_own(
    max_draft, kv_type, tmp_path
):
    path = written_mixed(tmp_path, 70)
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=os.environ.get("LANEWISE_ISA")) as model,
    ):
        windows = model.kv_layout("f16", groups_by_window=True).windows
        assert sorted(windows, key=str) == [70, None]
        assert model.kv_layout("f16").windows == (None,)
    asked = requests(100, 3) + requests(300, 1)
    with engine_of(path, 8 * CONTEXT // 32, kv_type) as roomy:
        expected = answers(roomy, asked)
    with engine_of(path, needed(*windows), kv_type, max_draft) as tight:
        assert answers(tight, asked) == expected
        assert answers(tight, asked) == expected  # behind what is left of the first time
        assert metric(tight, "vllm:prefix_cache_hits_total") > 0


# Layers and window of Gemma 3 1B, 4B, 12B and 27B, of which every sixth layer sees all; 1B's 22 are
# in six groups of four.
@pytest.mark.parametrize(
    ("n_layers", "window", "most"),
    [(26, 512, 1.16), (34, 1024, 1.07), (48, 1024, 1.04), (62, 1024, 1.08)],
)
def test_windowed_layers_hold_little_more_than_their_windows(n_layers, window, most, tmp_path):
    n_windowed = n_layers - n_layers // 6
    changes = {"num_hidden_layers": n_layers, "max_window_layers": n_layers - n_windowed}
    path = written_mixed(tmp_path, window, **changes)
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=os.environ.get("LANEWISE_ISA")) as model,
    ):
        layout = model.kv_layout("f16", groups_by_window=True)
        attention = model.config.layers[0].attention
    row = 2 * 2 * attention.n_kv_heads * attention.head_dim  # bytes of K and V of a token and layer
    # What one token sees is all that is held between the steps that give it its answer's tokens.
    blocks = sum(window // 32 + 1 for size in layout.windows if size == window)
    assert blocks * layout.block_bytes <= most * n_windowed * window * row


def test_blocks_in_use_stay_those_of_the_window(tmp_path):
    async def watch(engine: Engine) -> list[float]:
        async with engine.submit(requests(5, 1)) as stream:
            return [metric(engine, "lanewise_kv_blocks_used") async for _ in stream]

    with engine_of(written(tmp_path, 70), 4 * CONTEXT // 32) as engine:
        used = asyncio.run(watch(engine))
    assert 3 <= max(used) <= needed(70)


def test_scores_of_a_prompt_longer_than_the_cache_are_those_of_transformers(tmp_path):
    golden = np.load(REFERENCE)
    ids = golden["mistral/prompt"].tolist()
    path = write_hf(tiny_model("mistral"), tmp_path / "model")
    params = SamplingParams(seed=0, max_tokens=1, temperature=0.0, prompt_logprobs=0)
    with engine_of(path, 2, step_tokens=8) as engine:
        assert len(ids) > 2 * 32
        [[output]] = asyncio.run(outputs_of(engine, GenerationRequest(ids, params)))
    scores = [score.logprob for score in output.prompt_scores]
    for position, row in zip(golden["mistral/positions"], golden["mistral/logits"], strict=True):
        if position + 1 < len(ids):
            logits = row.astype(np.float64)
            expected = logits[ids[position + 1]] - math.log(np.exp(logits).sum())
            assert scores[position] == pytest.approx(expected, abs=4e-4 * float(np.abs(row).max()))
        else:
            assert output.sampled.token == int(row.argmax())
