"""Receipts of a real server, which ``lanewise verify`` checks by drawing the answers again."""

import base64
import json
import subprocess
import sys

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from lanewise.commands import verify
from lanewise.receipts.signing import Signer
from lanewise.receipts.statement import Statement, parse, tokens_of
from lanewise.runtime import usable_levels
from lanewise.settings import VerifySettings
from lora_files import lora_config, lora_tensors, write_adapter
from serving import lanewise_server
from tiny_models import tiny_model, write_hf

pytestmark = [pytest.mark.e2e, pytest.mark.native]

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ASK = {"prompt": "It was a dark night and", "max_tokens": 40, "seed": 11, "receipt": True}
ASKED = {
    "plain": {},
    "two with penalties": {"n": 2, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "cold": {"temperature": 0, "prompt_logprobs": 1},
    "narrow": {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "min_tokens": 30},
    "biased": {"logit_bias": {"40": 3, "41": -100}, "stop_token_ids": [44]},
    "regex": {"guided_regex": r"[a-z ]{20} (yes|no), said the king\. [a-z]+"},
    "regex with scores": {"guided_regex": r"[a-z ]{9}, said the king\.", "logprobs": 2},
    "schema": {"guided_json": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    "bad words": {"bad_words": ["the", "a"], "frequency_penalty": 0.2},
    "long": {"prompt": "It was. " * 150, "max_tokens": 200, "ignore_eos": True},
    "best": {"n": 1, "best_of": 3},
}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key.pem"
    path.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


@pytest.fixture(scope="module")
def receipts(key_file):
    """Of each request above its receipts; all are answered together, some with guesses."""
    with lanewise_server("demo", "--receipts", str(key_file)) as url:
        found = {}
        for name, more in ASKED.items():
            answer = httpx.post(f"{url}/v1/completions", json=ASK | more, timeout=120)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["receipts"]) == len(answer.json()["choices"])
            found[name] = answer.json()["receipts"]
        lines = httpx.post(
            f"{url}/v1/completions", json=ASK | {"stream": True}, timeout=120
        ).text.splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        [found["stream"]] = [chunk["receipts"] for chunk in chunks if "receipts" in chunk]
        told = httpx.post(f"{url}/v1/completions", json=ASK | {"receipt": False}, timeout=120)
        assert "receipts" not in told.json()
    return found


def verified(receipt, **settings):
    """What the command says of a receipt."""
    said = VerifySettings(**{"model": "demo"} | settings)
    with verify.Models(said) as models:
        return verify.verified(models, receipt, Signer(KEY).public_key)


def signed_again(receipt, changes=None, **members):
    """A receipt with another statement, signed as if it were true."""
    said = receipt.statement.model_dump() | members
    for path, value in (changes or {}).items():
        part, name = path.split(".")
        said[part] = said[part] | {name: value}
    prompt, answer = receipt.prompt_tokens, receipt.answer_tokens
    return Signer(KEY).sign(Statement.model_validate(said), prompt, answer)


@pytest.mark.parametrize("name", [*ASKED, "stream"])
def test_receipts_are_true(receipts, name):
    for number, one in enumerate(receipts[name]):
        level = usable_levels()[number % len(usable_levels())]
        report = verified(parse(json.dumps(one)), isa=level, threads=1 + number % 2)
        assert report["verified"], report.get("problem")
        assert report["answer_tokens"] > 1


def test_a_stream_and_a_whole_answer_have_the_same_tokens(receipts):
    [plain], [stream] = receipts["plain"], receipts["stream"]
    assert plain["answer_tokens"] == stream["answer_tokens"]
    assert plain["statement"]["drawing"] == stream["statement"]["drawing"]


@pytest.mark.parametrize("name", ["plain", "regex", "schema", "bad words"])
def test_another_token_is_named(receipts, name):
    receipt = parse(json.dumps(receipts[name][0]))
    for place in (0, len(receipt.answer_tokens) // 2, len(receipt.answer_tokens) - 1):
        answer = list(receipt.answer_tokens)
        answer[place] ^= 1
        false = receipt.model_copy(update={"answer_tokens": answer})
        report = verified(signed_again(false, answer=tokens_of(answer)))
        assert not report["verified"]
        assert report["place"] == place
        assert report["drawn"] in (receipt.answer_tokens[place], None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model.files_sha256": "0" * 64}, "model.files_sha256"),
        ({"model.program_sha256": "0" * 64}, "model.program_sha256"),
        ({"model.weights": "q4_0"}, "model.weights: q4_0; loaded as --weights says, it is q8_0"),
        ({"model.numerics": 2}, "model.numerics"),
        ({"model.template": "0" * 32}, "model.template"),
        ({"model.adapter_sha256": "0" * 64}, "model.adapter_sha256"),
        ({"drawing.seed": "12"}, "answer_tokens"),
        ({"drawing.choice": 1}, "answer_tokens"),
        ({"drawing.temperature": 0.0}, "answer_tokens"),
        ({"drawing.top_k": 1}, "answer_tokens"),
        ({"drawing.max_tokens": 39}, "answer_tokens: 40; drawing.max_tokens is 39"),
        ({"drawing.frequency_penalty": 2.0}, "answer_tokens"),
        ({"drawing.stop_token_ids": [*range(200)]}, "nothing may come there"),
        ({"drawing.bad_words": [" "]}, "answer_tokens"),
    ],
    ids=str,
)
def test_another_statement_is_not_verified(receipts, changes, problem):
    receipt = parse(json.dumps(receipts["plain"][0]))
    report = verified(signed_again(receipt, changes))
    assert not report["verified"]
    assert problem in report["problem"]


def test_a_longer_answer_than_was_given_is_not_verified(receipts):
    receipt = parse(json.dumps(receipts["schema"][0]))
    answer = [*receipt.answer_tokens, 65]
    longer = receipt.model_copy(update={"answer_tokens": answer})
    report = verified(signed_again(longer, answer=tokens_of(answer)))
    assert report["place"] == len(answer) - 1


def test_the_command_reads_an_answer(receipts, tmp_path):
    file = tmp_path / "answer.json"
    file.write_text(json.dumps({"receipts": receipts["two with penalties"]}))
    command = [sys.executable, "-m", "lanewise", "verify", str(file), "--model", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "receipt 1: verified: 40 tokens drawn again behind 7" in done.stdout
    assert "no --public-key says whose key that is" in done.stdout
    false = receipts["plain"][0] | {"signature": base64.b64encode(bytes(64)).decode()}
    file.write_text(json.dumps(false))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "NOT VERIFIED: signature" in done.stdout
    for text in ("{", "[1]", '{"receipts": 1}'):
        file.write_text(text)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2
        assert str(file) in done.stderr


def test_an_adapter_and_a_conversation(key_file, tmp_path):
    made = tiny_model("llama2")
    model, lora = write_hf(made, tmp_path / "model"), tmp_path / "lora"
    write_adapter(lora, lora_tensors(made, rank=4, seed=4), lora_config(4, 8))
    ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "receipt": True}
    options = ("--receipts", str(key_file), "--lora", f"sql={lora}", "--max-model-len", "64")
    with lanewise_server(str(model), *options) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=ask | {"model": "sql"}, timeout=120)
        [receipt] = [parse(json.dumps(one)) for one in answer.json()["receipts"]]
        body = {"input": "hi", "max_output_tokens": 20, "receipt": True, "stream": True}
        lines = httpx.post(f"{url}/v1/responses", json=body, timeout=120).text.splitlines()
    [response] = json.loads(lines[-2].removeprefix("data: "))["response"]["receipts"]
    settings = {"model": str(model), "weights": None}
    report = verified(receipt, **settings, lora=str(lora))
    assert report["verified"], report.get("problem")
    assert "model.adapter_sha256" in verified(receipt, **settings)["problem"]
    report = verified(parse(json.dumps(response)), **settings)
    assert report["verified"], report.get("problem")


def test_a_server_without_a_key_says_so(receipts):
    with lanewise_server("demo") as url:
        answer = httpx.post(f"{url}/v1/completions", json=ASK, timeout=120)
    assert answer.status_code == 200
    assert "receipts" not in answer.json()
    assert "no key for receipts" in answer.headers["x-lanewise-warning"]


def test_a_key_that_cannot_be_used_is_refused_at_start(tmp_path):
    for name, text in (("missing", None), ("text", "no key")):
        file = tmp_path / name
        if text is not None:
            file.write_text(text)
        command = [sys.executable, "-m", "lanewise", "serve", "demo", "--receipts", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2
        assert f"receipts: {file}" in done.stderr
