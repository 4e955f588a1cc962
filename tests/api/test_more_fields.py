"""Fields of vLLM's: words that never come, ends of prompts, and what prompts were worth."""

import re

import openai
import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
ASK = {"prompt": "abc", "max_tokens": 80, "temperature": 1.5, "seed": 4, "return_token_ids": True}


def answered(client, path, body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client, path, body):
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def ids_of(client, **change):
    return answered(client, COMPLETIONS, ASK | change)["choices"][0]["token_ids"]


def occurs(part, whole):
    return any(whole[i : i + len(part)] == part for i in range(len(whole)))


@pytest.mark.parametrize("n_tokens", [1, 2, 3])
def test_bad_words_never_come(client, tokenizer, n_tokens):
    free = ids_of(client, ignore_eos=True)
    for place in range(10, 70):
        banned = free[place : place + n_tokens]
        word = tokenizer.decode(banned, skip_special=False)
        if word.strip() == word and tokenizer.encode_inside(word) == banned:
            break
    else:
        raise AssertionError("no part of the answer can be said in a text")
    assert not occurs(banned, free[:place])
    found = ids_of(client, bad_words=[word], ignore_eos=True)
    assert not occurs(banned, found)
    before = place + n_tokens - 1
    assert found[:before] == free[:before], "only what would complete the word is not drawn"
    stream = ASK | {"bad_words": [word], "ignore_eos": True, "stream": True}
    with client.stream("POST", COMPLETIONS, json=stream) as response:
        lines = "".join(response.iter_lines())
    whole = answered(client, COMPLETIONS, ASK | {"bad_words": [word], "ignore_eos": True})
    assert lines.count('"token_ids"') == len(whole["choices"][0]["token_ids"])


def test_words_that_do_not_come_anyway_change_nothing(client):
    assert ids_of(client, bad_words=["never said"]) == ids_of(client)


def test_bad_words_and_a_form(client):
    found = {True: set(), False: set()}
    for i in range(12):
        body = ASK | {"guided_regex": "[ab]{5}", "prompt": f"a{i}"}
        for words in (["ab"], []):
            said = answered(client, COMPLETIONS, body | {"bad_words": words})
            found[bool(words)].add(said["choices"][0]["text"])
    assert all(re.fullmatch("b*a*", text) and len(text) == 5 for text in found[True])
    assert any("ab" in text for text in found[False])
    form = {"guided_choice": ["ab"]}
    error = refused(client, COMPLETIONS, ASK | form | {"bad_words": ["ab"]})
    assert "bad_words" in error["message"]
    assert refused(client, CHAT, {"messages": HELLO, "bad_words": [""]})["param"] == "bad_words[0]"
    many = {"messages": HELLO, "bad_words": ["a"] * 10_000}
    assert refused(client, CHAT, many)["param"] == "bad_words"


def test_only_the_end_of_a_prompt_is_kept(client):
    prompt = list(range(100, 160))
    body = ASK | {"prompt": prompt, "max_tokens": 4}
    for most, kept in ((7, prompt[-7:]), (60, prompt), (500, prompt), (-1, prompt)):
        answer = answered(client, COMPLETIONS, body | {"truncate_prompt_tokens": most})
        [choice] = answer["choices"]
        assert choice["prompt_token_ids"] == kept
        assert answer["usage"]["prompt_tokens"] == len(kept)
        same = answered(client, COMPLETIONS, body | {"prompt": kept})["choices"][0]
        assert choice["token_ids"] == same["token_ids"]
    echoed = answered(client, COMPLETIONS, body | {"truncate_prompt_tokens": 2, "echo": True})
    assert len(echoed["choices"][0]["text"]) < 20
    error = refused(client, COMPLETIONS, body | {"truncate_prompt_tokens": 513})
    assert error["param"] == "truncate_prompt_tokens"
    assert "1 to 512" in error["message"]


def test_the_end_of_a_prompt_that_is_too_long(client):
    long = [{"role": "user", "content": "so long " * 100}]
    body = {"messages": long, "max_tokens": 20}
    assert "maximum context length" in refused(client, CHAT, body)["message"]
    usage = answered(client, CHAT, body | {"truncate_prompt_tokens": -1})["usage"]
    assert usage["prompt_tokens"] == 512 - 20


def test_log_probabilities_of_a_prompt_in_vllms_form(client, server):
    body = ASK | {"prompt": "in the end", "max_tokens": 3}
    legacy = answered(client, COMPLETIONS, body | {"echo": True, "logprobs": 2})["choices"][0]
    wanted = legacy["logprobs"]["token_logprobs"][: len(legacy["prompt_token_ids"])]
    more = {"echo": True, "logprobs": 1, "prompt_logprobs": 3, "n": 2}
    choices = answered(client, COMPLETIONS, body | more)["choices"]
    for choice in choices:
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        assert len(rest) + 1 == len(choice["prompt_token_ids"]) == len(wanted)
        for token, scores, score in zip(
            choice["prompt_token_ids"][1:], rest, wanted[1:], strict=True
        ):
            own = scores[str(token)]
            assert own["logprob"] == score
            assert own["decoded_token"] == server.state.tokenizer.token_text(token)
            assert next(iter(scores)) == str(token)
            assert 3 <= len(scores) <= 4
            ranked = sorted(one["rank"] for one in scores.values() if one["rank"] is not None)
            assert ranked == [1, 2, 3]
        shown = [top for top in choice["logprobs"]["top_logprobs"] if top]
        assert all(1 <= len(top) <= 2 for top in shown), "as many as logprobs says, and its own"


def test_log_probabilities_of_a_conversation(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        ask = {"model": "toy", "messages": HELLO, "max_tokens": 2}
        answer = sdk.chat.completions.create(**ask, extra_body={"prompt_logprobs": 0})
        found = answer.model_extra["prompt_logprobs"]
        assert len(found) == answer.usage.prompt_tokens
        assert all(len(scores) == 1 for scores in found[1:])
        assert "prompt_logprobs" not in sdk.chat.completions.create(**ask).model_extra
        with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
            sdk.chat.completions.create(**ask, extra_body={"prompt_logprobs": 0}, stream=True)
