"""The installed server guesses by default, and every answer is the one without guesses."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from lanewise.loading.checkpoints.hub import resolve_model
from serving import lanewise_server

pytestmark = [pytest.mark.e2e, pytest.mark.native]

# Says everything more than once, so that there is something to guess.
VERSE = "The ship lay in the harbour, and the captain went ashore. The sea was calm that morning. "
PROMPT = VERSE * 3 + "The ship lay"

KINDS = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.7, "seed": 11},
    "truncated": {"temperature": 1.3, "seed": 5, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 0, "repetition_penalty": 1.05, "frequency_penalty": 0.1},
    "bias": {"temperature": 0.5, "seed": 3, "logit_bias": {"11": -5, "13": 1}},
    "min_tokens": {"temperature": 0.6, "seed": 2, "min_tokens": 40},
    "several": {"temperature": 0.6, "seed": 4, "n": 3},
}


def ask(url: str, **body: object) -> list[dict]:
    body = {"prompt": PROMPT, "max_tokens": 60, "logprobs": 3, "return_token_ids": True, **body}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def plain(url: str, **body: object) -> list[dict]:
    return ask(url, **{"speculative.n_max": 0}, **body)


def counter(url: str, name: str) -> float:
    text = httpx.get(url + "/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith(f"vllm:{name}_total")]
    return float(line.split()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_log_probabilities_are_the_same(url, kind):
    assert ask(url, **KINDS[kind]) == plain(url, **KINDS[kind])


def test_guesses_are_made_and_counted_and_a_request_can_refuse_them(url):
    before = counter(url, "spec_decode_num_draft_tokens")
    plain(url, temperature=0)
    assert counter(url, "spec_decode_num_draft_tokens") == before
    for seed in range(3):  # among the first requests of a server guesses are tried in any case
        ask(url, temperature=0.3, seed=seed)
    drafts, tokens = (counter(url, f"spec_decode_num_{n}") for n in ("drafts", "draft_tokens"))
    assert 0 < drafts <= tokens
    assert counter(url, "spec_decode_num_accepted_tokens") <= tokens


def test_a_stop_string_ends_a_text_in_the_middle_of_a_guess(url):
    [whole] = plain(url, temperature=0)
    for start in range(20, 80, 7):
        stop = whole["text"][start : start + 4]
        stopped = ask(url, temperature=0, stop=[stop])
        assert stopped == plain(url, temperature=0, stop=[stop])
        assert stopped[0]["finish_reason"] == "stop"


def test_a_stream_has_an_event_for_each_token(url):
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    assert len(lines) == 40


def test_the_number_of_guesses_is_checked(url):
    body = {"prompt": "x", "max_tokens": 1, "speculative.n_max": -1}
    answer = httpx.post(url + "/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "speculative.n_max"


def test_in_a_crowd_that_is_preempted_too(url):
    asks = [
        {"prompt": PROMPT[: 60 + 9 * i], "temperature": 0.5 * (i % 3), "seed": i, "max_tokens": 150}
        for i in range(10)
    ]
    alone = [plain(url, **one) for one in asks]
    # Room for two of them at their ends.
    arguments = ("--threads", "1", "--max-model-len", "256", "--kv-memory", "2MiB")
    with lanewise_server(*arguments) as small, ThreadPoolExecutor(len(asks)) as pool:
        together = list(pool.map(lambda one: ask(small, **one), asks))
        assert counter(small, "num_preemptions") > 0
    assert together == alone


def test_without_speculation_nothing_is_guessed():
    with lanewise_server("--threads", "1", "--speculation", "off") as url:
        ask(url, temperature=0)
        assert counter(url, "spec_decode_num_drafts") == 0


def test_a_draft_model_changes_no_answer():
    asks = [{**KINDS[kind], "prompt": PROMPT} for kind in ("greedy", "seeded", "several")]
    arguments = ("--threads", "1", "--draft", str(resolve_model(None)))
    with lanewise_server(*arguments) as url:
        for one in asks:
            assert ask(url, **one) == plain(url, **one)


def test_a_draft_model_that_is_not_there(tmp_path):
    absent = str(tmp_path / "absent.gguf")
    command = [sys.executable, "-m", "lanewise", "serve", "--port", "0", "--draft", absent]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode != 0
    assert f"lanewise: draft: {absent}: no such file" in result.stderr
    assert "Traceback" not in result.stderr
