"""Every family from its files to its logits, against transformers, an independent implementation.

What transformers computes is committed (tests/golden/families, with the script that makes it); the
live test runs that script again where torch is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

import gguf
import numpy as np
import pytest

import tiny_models
from family_gguf import GGUF_CASES, write_gguf
from family_models import CASE_NAMES, GOLDEN, family_model, write_case, write_model
from gguf_states import MULTIPLIED, REORDERED
from goldens import check_goldens
from lanewise import cli
from lanewise.loading.base.checkpoint import Checkpoint, Tensor
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.families.table import FAMILIES
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session, usable_levels
from lanewise.runtime.sampling import Draw, Sampled, Sampling
from opened_models import ISA, write_as_packed
from published_configs import CASES, ENCODERS
from published_keys import OF_DECODERS, OF_TOOLS

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

LOGITS = np.load(GOLDEN / "logits.npz")
N_SEQUENCES, TEXT_BLOCKS = 8, 3  # a prompt of 48 tokens and 32 more
TOLERANCE = 2e-5  # of the largest logit; 4e-6 is the most that is found


@contextmanager
def opened(
    path: Path, isa: str | None = ISA, threads: int = 2, weights: str | None = None
) -> Iterator[Session]:
    with (
        open_checkpoint(path) as checkpoint,
        session_of(checkpoint, isa, threads, weights) as session,
    ):
        yield session


@contextmanager
def session_of(
    checkpoint: Checkpoint,
    isa: str | None = ISA,
    threads: int = 2,
    weights: str | None = None,
) -> Iterator[Session]:
    with (
        Model.load(checkpoint, weights=weights, isa=isa, threads=1) as model,
        Session(
            model,
            threads=threads,
            blocks=N_SEQUENCES * TEXT_BLOCKS,
            states=N_SEQUENCES,
            max_batch_tokens=N_SEQUENCES * TEXT_BLOCKS * BLOCK_TOKENS,
            max_batch_logits=TEXT_BLOCKS * BLOCK_TOKENS,
            kv_type="f32",
        ) as session,
    ):
        yield session


def run(
    session: Session, tokens: list[int], chunk: int, done: int = 0, snapshot: int = 0
) -> np.ndarray:
    """Logits of a text from ``done`` on, ``chunk`` tokens a step; its state is in ``snapshot``."""
    blocks, rows = [0, 1, 2], []
    for at in range(done, len(tokens), chunk):
        now = tokens[at : at + chunk]
        batch = Batch(now, [0, len(now)], [at], [blocks], range(len(now)))
        if at == done > 0 and session.has_states:
            batch.state_copies = [(snapshot, 0)]
        rows.append(session.step(batch).copy())
    return np.concatenate(rows)


def keep_snapshot(session: Session, tokens: list[int], place: int) -> None:
    """The state after these tokens, in another place than that of the sequence that runs them."""
    table = [[0, 1, 2]] * (place + 1)
    session.step(Batch(tokens, [0, len(tokens)], [0], table, [], table_rows=[place]))


def continued(session: Session, prompts: list[list[int]], n: int) -> list[list[Sampled]]:
    """The likeliest ``n`` tokens after each prompt and their probabilities, in the same steps."""
    drawn: list[list[Sampled]] = [[] for _ in prompts]
    texts, done = [list(prompt) for prompt in prompts], [0] * len(prompts)
    tables = [[TEXT_BLOCKS * s + i for i in range(TEXT_BLOCKS)] for s in range(len(prompts))]
    greedy = Sampling(temperature=0.0, want_logprob=True)
    for _ in range(n):
        new = [text[at:] for text, at in zip(texts, done, strict=True)]
        starts = np.cumsum([0, *map(len, new)]).tolist()
        batch = Batch([*chain(*new)], starts, done, tables, [end - 1 for end in starts[1:]])
        draws = [Draw(greedy, len(text)) for text in texts]
        done = [len(text) for text in texts]
        for s, sampled in enumerate(session.step_and_draw(batch, draws)):
            texts[s].append(sampled.token)
            drawn[s].append(sampled)
    return drawn


def golden(name: str, part: str) -> np.ndarray:
    return LOGITS[f"{name}/{part}"]


def prompt_of(name: str) -> list[int]:
    return golden(name, "prompt").tolist()


def assert_as_transformers(session: Session, name: str, tolerance: float = TOLERANCE) -> None:
    prompt = prompt_of(name)
    found = run(session, prompt, len(prompt))[golden(name, "positions")]
    expected = golden(name, "logits")
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() / np.abs(expected).max() < tolerance


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    return write_model(family_model(name), tmp_path / "model")


def test_every_family_of_the_table_has_a_case() -> None:
    cases = [*CASES.values(), *ENCODERS.values()]
    assert {family.name for family in FAMILIES} <= {config["model_type"] for config in cases}


@pytest.mark.parametrize("name", CASE_NAMES)
def test_logits_and_choices_are_those_of_transformers(name: str, path: Path) -> None:
    """The prompt alone, then its continuation beside those of seven other texts."""
    prompt = prompt_of(name)
    others = [prompt[s:] + prompt[: s % 5] for s in range(1, N_SEQUENCES)]
    expected = golden(name, "tokens").tolist()
    with opened(path) as session:
        assert_as_transformers(session, name)
        beside = continued(session, [prompt, *others], len(expected))
        assert [sampled.token for sampled in beside[0]] == expected
        for text, answer in zip([prompt, *others], beside, strict=True):
            assert continued(session, [text], len(expected)) == [answer]


@pytest.mark.parametrize("name", CASE_NAMES)
def test_the_published_config_means_the_same_program(name: str, path: Path, tmp_path: Path) -> None:
    other = write_model(family_model(name), tmp_path / "published", CASES[name])
    with open_checkpoint(path) as one, open_checkpoint(other) as two:
        assert one.config == two.config


@pytest.mark.parametrize("name", CASE_NAMES)
def test_levels_threads_chunks_and_packing_give_the_same_bits(
    name: str, path: Path, tmp_path: Path
) -> None:
    text = [*prompt_of(name), *golden(name, "tokens").tolist()]
    with opened(path) as session:
        expected = run(session, text, len(text)).tobytes()
        if session.has_states:
            keep_snapshot(session, text[:BLOCK_TOKENS], place=3)
        # After a hit of the prefix cache.
        again = run(session, text, len(text), done=BLOCK_TOKENS, snapshot=3)
        assert expected.endswith(again.tobytes())
    for i, isa in enumerate(usable_levels()):
        with opened(path, isa, threads=1 + i % 3) as session:
            assert run(session, text, [len(text), 1, 13][i % 3]).tobytes() == expected, isa
    with opened(write_as_packed(path, tmp_path / "packed"), threads=1) as session:
        assert run(session, text, 7).tobytes() == expected


@pytest.mark.parametrize("weights", ["q8_0", "q4_0"])
@pytest.mark.parametrize(
    "name",
    [
        *("qwen3_moe", "gpt_oss", "glm4_moe", "ernie4_5_moe", "qwen3_next", "granitemoehybrid"),
        *("deepseek_v2", "deepseek_v3", "minicpm3", "deepseek_v4", "deepseek_v4_odd"),
        *("kimi_linear", "bailing_hybrid"),
    ],
)
def test_matrices_held_in_other_types_have_one_set_of_bits(
    name: str, weights: str, path: Path
) -> None:
    prompt, found = prompt_of(name), set()
    for i, isa in enumerate(usable_levels()):
        with opened(path, isa, 1 + i % 3, weights) as session:
            found.add(run(session, prompt, [len(prompt), 1, 13][i % 3]).tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("name", GGUF_CASES)
def test_a_gguf_file_has_the_logits_of_transformers(name: str, path: Path, tmp_path: Path) -> None:
    """And the bits of the other file, where the converter leaves numbers and order alone."""
    prompt = prompt_of(name)
    with opened(write_gguf(family_model(name), tmp_path / "m.gguf")) as session:
        assert_as_transformers(session, name)
        found = run(session, prompt, len(prompt))
    if name in (*REORDERED, *MULTIPLIED):
        return
    with opened(path) as session:
        assert run(session, prompt, len(prompt)).tobytes() == found.tobytes()


def test_longrope_turns_by_the_longest_text_that_is_served(tmp_path: Path) -> None:
    """From every kind of file: short factors give the logits of a model that has no others."""
    name = "phi3_longrope"
    prompt, model, config = prompt_of(name), family_model(name), CASES[name]
    scaling = config["rope_scaling"]
    only_short = scaling | {"long_factor": scaling["short_factor"]}
    paths = {
        "long": write_model(model, tmp_path / "hf", config),
        "gguf": write_gguf(model, tmp_path / "m.gguf"),
        "short": write_model(model, tmp_path / "short", config | {"rope_scaling": only_short}),
    }
    paths["packed"] = write_as_packed(paths["long"], tmp_path / "packed")

    def logits(kind: str, longest: int | None) -> bytes:
        with open_checkpoint(paths[kind]) as checkpoint:
            checkpoint.limit_context(longest)
            with session_of(checkpoint) as session:
                return run(session, prompt[:32], 32).tobytes()

    short = logits("short", None)
    for kind in ("long", "gguf", "packed"):
        assert logits(kind, 32) == short
        assert logits(kind, 33) == logits(kind, None) != short


def test_longrope_turns_by_the_windows_of_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it does where a model serves no longer texts: `max_model_len`."""
    scaling = CASES["phi3_longrope"]["rope_scaling"]
    only_short = {"rope_scaling": scaling | {"long_factor": scaling["short_factor"]}}
    long = write_case("phi3_longrope", tmp_path / "long")
    short = write_case("phi3_longrope", tmp_path / "short", **only_short)
    text = tiny_models.write_text(tmp_path / "text.txt")

    def logits(path: Path, context: int) -> str:
        options = ["--file", str(text), "--chars", "300", "--context", str(context), "--json"]
        assert cli.main(["perplexity", str(path), *options]) == 0
        return str(json.loads(capsys.readouterr().out)["logits_sha256"])

    assert logits(long, 32) == logits(short, 32)
    assert logits(long, 33) != logits(short, 33)


def test_published_gpt_oss_has_experts_in_mxfp4(tmp_path: Path) -> None:
    """Their values are those of transformers; products with them round activations to int8."""
    name = "gpt_oss_mxfp4"
    path = write_model(family_model(name), tmp_path / "model")
    found = set()
    for i, isa in enumerate(usable_levels()):
        with opened(path, isa, threads=1 + i % 3) as session:
            assert_as_transformers(session, name, tolerance=0.05)
            found.add(run(session, prompt_of(name), [48, 1, 13][i % 3]).tobytes())
    assert len(found) == 1
    with open_checkpoint(path) as checkpoint:
        assert sum(t.type == TensorType.MXFP4 for t in checkpoint.tensors) == 4 * 3
        checkpoint.tensors = [in_f32(tensor) for tensor in checkpoint.tensors]
        with session_of(checkpoint) as session:
            assert_as_transformers(session, name)


def in_f32(tensor: Tensor) -> Tensor:
    """A tensor with the values that gguf-py takes out of blocks of MXFP4."""
    if tensor.type != TensorType.MXFP4:
        return tensor
    rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.rows, -1)
    values = gguf.dequantize(rows, gguf.GGMLQuantizationType.MXFP4)
    return replace(tensor, type=TensorType.F32, stored=memoryview(values.tobytes()))


def test_the_tolerance_notices_a_window_one_token_too_wide(tmp_path: Path) -> None:
    model = family_model("gpt_oss")
    config = model.config | {"sliding_window": model.config["sliding_window"] + 1}
    with (
        opened(write_model(model, tmp_path / "model", config)) as session,
        pytest.raises(AssertionError),
    ):
        assert_as_transformers(session, "gpt_oss")


@pytest.mark.parametrize("name", OF_DECODERS)
def test_fields_that_the_reference_does_not_read_change_no_logits(
    name: str, tmp_path: Path
) -> None:
    path = write_case(name, tmp_path / "model", **(OF_DECODERS[name] | OF_TOOLS))
    with opened(path) as session:
        assert_as_transformers(session, name)


@pytest.mark.reference
def test_transformers_computes_the_same_with_these_fields() -> None:
    check_goldens(GOLDEN / "check_keys.py")


@pytest.mark.reference
def test_the_goldens_are_what_transformers_computes_now() -> None:
    check_goldens(GOLDEN / "make_families.py")
