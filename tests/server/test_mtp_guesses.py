"""Guesses of a model's own head, with the real library: the same bits as without."""

import asyncio

import pytest

from family_models import family_model, write_case
from lanewise import cli
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.engine import Engine
from lanewise.engine.guessing import prediction_head
from lanewise.engine.guessing.prompt_lookup import PromptLookup
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.server import opening
from lanewise.settings import Settings
from mtp_models import cyclic_tensors, write_directory
from state_engines import (
    CONTEXT,
    LIMIT,
    alone,
    asked_for_letters,
    leave_few_blocks,
    next_turn,
    running,
    sampled,
    together,
)
from toy_server import metric, outputs_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library", "rows_are_free")]

FAMILIES = ["qwen3_5", "qwen3_5_moe", "glm4_moe"]


@pytest.fixture(autouse=True)
def rows_are_free(monkeypatch):
    """Every step takes as long as any other; only the head guesses."""
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)
    monkeypatch.setattr(prediction_head, "RowCosts", Nothing)
    monkeypatch.setattr(PromptLookup, "find", lambda self, tokens: (0, 0))


@pytest.fixture(scope="module", params=FAMILIES)
def path(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("m") / request.param
    return str(write_directory(request.param, folder, **CONTEXT))


class Nothing(RowCosts):
    """Costs of a head that takes next to no time."""

    def seconds(self, rows: int) -> float:
        return 0.001


def count(engine: Engine, name: str) -> float:
    return metric(engine, f"vllm:spec_decode_num_{name}_total")


@pytest.fixture(scope="module")
def plain(path):
    return alone(path)


def test_answers_are_those_without_a_head(path, plain):
    with running(path, draft="mtp") as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked_for_letters()))] == plain
        assert 20 < count(engine, "accepted_tokens") <= count(engine, "draft_tokens")
        # The next turn goes on behind an answer of which much was guessed, and from the cache.
        turn_two = next_turn(plain[0])
        hits, before = metric(engine, "vllm:prefix_cache_hits_total"), count(engine, "drafts")
        second = asyncio.run(outputs_of(engine, turn_two))
        assert metric(engine, "vllm:prefix_cache_hits_total") > hits
        assert count(engine, "drafts") > before
    with running(path, speculation=False, prefix_cache=False) as engine:
        assert sampled(second) == sampled(asyncio.run(outputs_of(engine, turn_two)))


def test_a_crowd_that_is_preempted_gets_them_too(path, plain, monkeypatch):
    leave_few_blocks(monkeypatch)
    with running(path, draft="mtp", max_seqs=8, draft_tokens=5) as engine:
        got = asyncio.run(together(engine, asked_for_letters() * 2))
        assert [sampled(one) for one in got] == plain * 2
        assert metric(engine, "vllm:num_preemptions_total") > 0
        assert count(engine, "accepted_tokens") > 20


def test_a_packed_model_has_its_head(path, plain, tmp_path):
    """The same tokens as the directory it was packed from, with and without the head."""
    folder = str(tmp_path / "packed")
    assert cli.main(["pack", path, "-o", folder]) == 0
    with running(folder, draft="mtp") as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked_for_letters()))] == plain
        assert count(engine, "accepted_tokens") > 20
    assert alone(folder) == plain
    again = str(tmp_path / "again")
    assert cli.main(["pack", folder, "-o", again, "--isa", "scalar"]) == 0
    with running(again, draft="mtp") as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked_for_letters()))] == plain
        assert count(engine, "accepted_tokens") > 20


def test_a_head_is_packed_in_the_format_of_the_rest(path, tmp_path):
    folder = str(tmp_path / "packed")
    assert cli.main(["pack", path, "-o", folder, "--weights", "q8_0"]) == 0
    with open_checkpoint(folder, mtp=True) as packed:
        types = {tensor.role: tensor.type for tensor in packed.tensors if tensor.rows > 1}
    assert types[Role.MTP_PROJECTION] == types[Role.ATTN_OUTPUT] == TensorType.Q8_0
    with running(path, draft="mtp", weights="q8_0") as engine:
        wanted = [sampled(one) for one in asyncio.run(together(engine, asked_for_letters()))]
    with running(folder, draft="mtp") as engine:
        got = asyncio.run(together(engine, asked_for_letters()))
        assert [sampled(one) for one in got] == wanted
        assert count(engine, "drafts") > 0


def test_a_model_packed_without_a_head_has_none(tmp_path):
    folder = tmp_path / "packed"
    assert cli.main(["pack", str(write_case("qwen3_5", tmp_path / "m")), "-o", str(folder)]) == 0
    with pytest.raises(
        ModelFileError, match="does not have; accepted: a directory that `lanewise pack`"
    ):
        opening.open_model(Settings(model=str(folder), draft="mtp"), 2, LIMIT)


def test_a_head_that_knows_what_comes_is_right_every_time(tmp_path):
    """Of a model that counts through the alphabet, whose head does too."""
    model = family_model("qwen3_5")
    head, tensors = cyclic_tensors(model)
    path = write_directory("qwen3_5", tmp_path / "m", head, tensors, **CONTEXT)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=61)
    requests = [GenerationRequest([7, first], params) for first in (20, 90, 150)]
    with running(str(path), draft="mtp", draft_tokens=4) as engine:
        got = asyncio.run(together(engine, requests))
        accepted, guessed = count(engine, "accepted_tokens"), count(engine, "draft_tokens")
        drafts = count(engine, "drafts")
    for request, outputs in zip(requests, got, strict=True):
        first = request.prompt[-1] + 1
        assert [one.token for one in sampled(outputs)] == list(range(first, first + 61))
    assert accepted == guessed
    # Four guesses a step, but where one was begun before the last token was there.
    assert accepted > 2 * drafts
    assert accepted > 90


def test_a_model_without_a_head_is_refused(tmp_path):
    path = write_case("qwen3_5", tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"does not have; accepted: a file with mtp\.fc"):
        opening.open_model(Settings(model=str(path), draft="mtp"), 2, LIMIT)
    settings = Settings(model=str(path), draft="mtp", speculation=False)
    model, _ = opening.open_model(settings, 2, LIMIT)
    with model:
        assert not model.config.has_mtp


@pytest.mark.parametrize("weights", [None, "attention=q8_0"])
def test_a_head_that_fails_guesses_no_more(weights, tmp_path):
    model = family_model("qwen3_5")
    head, tensors = cyclic_tensors(model)
    head["model.layers.4.eh_proj.weight"][:] = 3e38  # rows become infinite
    path = write_directory("qwen3_5", tmp_path / "m", head, tensors, **CONTEXT)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=20)
    with running(str(path), draft="mtp", weights=weights) as engine:
        outputs = asyncio.run(outputs_of(engine, GenerationRequest([7, 20], params)))
    assert [one.token for one in sampled(outputs)] == list(range(21, 41))
