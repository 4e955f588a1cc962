"""``lanewise compare --chat`` and ``--tasks``: answers and scores beside the original's."""

import json
import os
import sys

import pytest

from lanewise import cli
from lanewise.commands.chat_client import Numbers
from lanewise.commands.chat_server import own_server
from lanewise.commands.compare_chat import common_prefix, greedy_answers
from lanewise.commands.compare_tasks import score_of
from lanewise.commands.opening import open_model
from lanewise.loading.checkpoints.hub import bundled_model
from lanewise.settings import BenchSettings
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.text import HELD_OUT, PROMPTS, documents, plain_text

native = pytest.mark.usefixtures("library")
QUICK = ["--tokens", "64", "--prefill", "0", "--decode", "0", "--threads", "1", "--json"]
# lm-eval as it is used here: it asks the server for what it needs and writes a file of results.
# A shell begins it: Python's path may have spaces.
STUB = """#!/bin/sh
''':'
exec "{python}" "$0" "$@"
'''
import argparse, json, os, sys, urllib.request
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("model", "model_args", "tasks", "output_path", "limit"):
    parser.add_argument("--" + name)
asked = parser.parse_args()
told = dict(pair.split("=", 1) for pair in asked.model_args.split(","))
assert asked.model == "local-completions" and told["tokenizer_backend"] == "remote", asked

def ask(url, body=None):
    request = urllib.request.Request(url, body and json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request) as answer:
        return json.load(answer)

assert told["auth_token"] == os.environ["OPENAI_API_KEY"]
base = told["base_url"].removesuffix("/v1/completions")
length = ask(base + "/tokenizer_info")["max_model_len"]
assert int(told["max_length"]) == length, (told, length)
body = {{"model": told["model"], "prompt": "It was a dark night, and", "max_tokens": 1,
        "echo": True, "logprobs": 1, "temperature": 0}}
found = ask(told["base_url"], body)["choices"][0]["logprobs"]["token_logprobs"]
total = sum(value for value in found[:-1] if value is not None)
if asked.tasks == "failing":
    sys.exit(3)
results = {{"alias": asked.tasks, "sample_len": 7, "acc,none": total, "acc_stderr,none": 0.5,
           "acc_norm,none": 2 * total, "acc_norm_stderr,none": "N/A"}}
folder = Path(asked.output_path, told["model"])
folder.mkdir()
if asked.tasks != "silent":
    written = {{"results": {{task: results for task in asked.tasks.split(",")}}, "n": asked.limit}}
    (folder / "results_2026-01-01T00-00-00.json").write_text(json.dumps(written))
"""


@pytest.fixture(scope="module")
def coarse(tmp_path_factory, library):
    """The bundled model in fewer bits."""
    output = tmp_path_factory.mktemp("quantized") / "coarse"
    options = ["--format", "cb3", "--calibrate", "none", "--check-tokens", "0"]
    assert cli.main(["quantize", str(bundled_model()), "-o", str(output), *options]) == 0
    return output


@pytest.fixture
def lm_eval(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "lm_eval"
    program.write_text(STUB.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def compare(capsys, *arguments):
    capsys.readouterr()
    assert cli.main(["compare", *map(str, arguments), *QUICK]) == 0
    return json.loads(capsys.readouterr().out)


def test_prompts_are_of_their_own():
    prompts = [document.messages for document in documents(PROMPTS)]
    assert len(prompts) == len({message["content"] for (message,) in prompts}) >= 40
    known = plain_text() + "".join(document.plain for document in documents(HELD_OUT))
    assert not [message for (message,) in prompts if message["content"] in known]


def test_a_prefix_ends_where_answers_differ():
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0


@pytest.mark.native
@pytest.mark.e2e
@native
def test_answers_are_those_of_the_server():
    settings = BenchSettings(model=str(bundled_model()), threads=1)
    with open_model(settings, 512) as opened:
        answers = greedy_answers(opened, 6)
        tokenizer = Tokenizer.from_files(opened.checkpoint.tokenizer)
    with own_server([str(bundled_model()), "--threads", "1"], lambda _: None) as client:
        (model,) = client.models()
        name = model["id"]
        for document, answer in list(zip(documents(PROMPTS), answers, strict=True))[::9]:
            body = {"model": name, "messages": list(document.messages)}
            body |= {"temperature": 0, "max_tokens": 6}
            pieces = client.stream(body, Numbers())
            assert "".join(piece.text for piece in pieces) == tokenizer.decode(answer)


@pytest.mark.native
@pytest.mark.slow
@native
def test_answers_are_compared_with_the_originals(coarse, capsys):
    report = compare(capsys, bundled_model(), coarse, "--chat", "--chat-tokens", "6")
    assert report["file"] == "bundled"  # none was given
    first, second = report["models"]
    assert first["chat_same"] == 1
    assert 0 < first["chat_prefix"] == first["chat_tokens"] <= 6
    assert 0 <= second["chat_same"] < 1
    assert second["chat_prefix"] < second["chat_tokens"] == first["chat_tokens"]
    assert first["scores"] is second["scores"] is None


@pytest.mark.native
@pytest.mark.e2e
@pytest.mark.usefixtures("library", "lm_eval")
def test_tasks_are_scored_through_a_server_of_each_model(coarse, capsys):
    tasks = ["--tasks", "one,two", "--tasks-limit", "5"]
    report = compare(capsys, bundled_model(), coarse, *tasks)
    scores = [row["scores"] for row in report["models"]]
    assert scores[0].keys() == scores[1].keys() == {"one", "two"}
    values = [found["one"]["value"] for found in scores]
    assert values[0] < 0
    assert values[1] < 0
    assert values[0] != values[1]
    assert scores[0]["one"] == {"metric": "acc_norm", "value": values[0], "error": None}


@pytest.mark.native
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("task", "message"),
    [("failing", "lm_eval ended with status 3"), ("silent", "has written no results*.json")],
)
@pytest.mark.usefixtures("library", "lm_eval")
def test_an_lm_eval_that_fails_is_told(coarse, capsys, task, message):
    arguments = [str(bundled_model()), str(coarse), *QUICK, "--tasks", task]
    assert cli.main(["compare", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_without_lm_eval_nothing_is_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["compare", "a", "b", "--tasks", "hellaswag"]) == 2
    assert "--tasks: the program lm_eval is not installed; python -m pip" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"acc,none": 0.5, "acc_stderr,none": 0.1, "f1,none": 0.3}, ("acc", 0.5, 0.1)),
        ({"alias": "x", "odd,flexible": 3, "odd_stderr,flexible": "N/A"}, ("odd", 3.0, None)),
    ],
)
def test_the_best_known_metric_is_shown(result, expected):
    score = score_of("task", result)
    assert (score.metric, score.value, score.error) == expected
