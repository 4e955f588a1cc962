"""Commands with models that keep a state: each text has its own, whatever runs beside it."""

import json
import math
import shutil

import pytest

import tiny_models
from family_models import write_case
from lanewise import cli
from lanewise.commands import compare_chat
from lanewise.commands.opening import open_model
from lanewise.commands.perplexity import score_windows
from lanewise.runtime import Session
from lanewise.settings import ModelSettings

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

CONTEXT = {"max_position_embeddings": 512}


@pytest.fixture(scope="module", params=["lfm2", "qwen3_next", "granitemoehybrid"])
def path(request, tmp_path_factory):
    return str(write_case(request.param, tmp_path_factory.mktemp("m") / request.param, **CONTEXT))


def test_windows_of_a_text_are_scored_alike_in_any_batch(path):
    windows = [
        tiny_models.prompt(60)[start : start + n] for start, n in ((0, 50), (9, 20), (3, 41))
    ]
    with open_model(ModelSettings(model=path, threads=1)) as opened:
        scores = set()
        for chunk, batch in ((50, 1), (7, 3), (13, 2)):
            with Session(
                opened.model,
                threads=1,
                blocks=2 * batch,
                max_batch_tokens=chunk * batch,
                max_batch_logits=chunk * batch,
                states=batch,
            ) as session:
                scores.add(score_windows(session, windows, chunk=chunk, batch=batch))
    (score,) = scores
    assert score.tokens == 49 + 19 + 40
    assert math.isfinite(score.nll)


def test_answers_side_by_side_are_those_of_each_alone(path, monkeypatch):
    answers = []
    for sequences in (8, 3, 1):
        monkeypatch.setattr(compare_chat, "SEQUENCES", sequences)
        with open_model(ModelSettings(model=path, threads=1)) as opened:
            answers.append(compare_chat.greedy_answers(opened, 12))
    assert answers[0] == answers[1] == answers[2]
    assert len(set(map(tuple, answers[0]))) > 1


def test_a_model_is_at_no_distance_from_its_copy(path, tmp_path, capsys):
    text, copy = tiny_models.write_text(tmp_path / "text.txt"), tmp_path / "copy"
    shutil.copytree(path, copy)
    options = ["--tokens", "200", "--context", "64", "--prefill", "0", "--decode", "0", "--json"]
    assert cli.main(["compare", path, str(copy), "--file", str(text), *options]) == 0
    one, other = json.loads(capsys.readouterr().out)["models"]
    assert (one["perplexity"], other["kl"], other["top1"]) == (other["perplexity"], 0.0, 1.0)


@pytest.mark.slow
def test_bench_runs_several_sequences(path, capsys):
    options = ["--prefill", "40", "--decode", "3", "--batch", "1,3", "--repeat", "1"]
    assert cli.main(["bench", path, *options, "--threads", "1", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["name"] for one in results] == ["pp40", "tg3", "tg3@3"]
