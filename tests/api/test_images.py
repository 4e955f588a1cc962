"""Images in all dialects, around a toy that sees: what is asked, counted, cached and refused."""

import base64
import json
import socket
import threading

import pytest

from pictures import encoded, picture, png
from toy_server import RunningServer, toy_server
from toy_tokenizer import toy_tokenizer
from toy_tower import NAMES, ToyTower, toy_eyes

PLACEHOLDER = toy_tokenizer(NAMES).encode("<image>", add_bos=False, parse_special=True)[0]


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64_of(data)}"


ONE, OTHER = png(40, 30, 1), png(40, 30, 2)  # of each five views with four rows


@pytest.fixture(scope="module")
def tower() -> ToyTower:
    return ToyTower()


@pytest.fixture(scope="module")
def seeing(tower: ToyTower):
    with toy_server(more_special=NAMES, tower=tower, see=toy_eyes(PLACEHOLDER)) as running:
        yield running


def chat(*parts: object, **more: object) -> dict:
    content = [one if isinstance(one, dict) else {"type": "text", "text": one} for one in parts]
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0}
    return asked | more


def image(data: bytes, **more: str) -> dict:
    return {"type": "image_url", "image_url": {"url": data_url(data), **more}}


def answer_of(running: RunningServer, body: dict) -> tuple[str, int]:
    answer = running.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    return made["choices"][0]["message"]["content"], made["usage"]["prompt_tokens"]


def test_answers_depend_on_the_image_and_on_its_place(seeing):
    first = answer_of(seeing, chat(image(ONE), "What is it?"))
    assert answer_of(seeing, chat(image(ONE), "What is it?")) == first
    other = answer_of(seeing, chat(image(OTHER), "What is it?"))
    behind = answer_of(seeing, chat("What is it?", image(ONE)))
    assert len({first[0], other[0], behind[0]}) == 3
    assert first[1] == other[1] == behind[1]
    # Another file with the same pixels is the same image.
    bmp = encoded(picture(40, 30, 1), "BMP")
    assert answer_of(seeing, chat(image(bmp), "What is it?")) == first
    body = chat(image(ONE), "What is it?")
    made = seeing.client.post("/v1/chat/completions", json=body).json()
    assert made["usage"]["prompt_tokens_details"]["image_tokens"] == 5 * 4
    both = answer_of(seeing, chat(image(ONE), image(OTHER), "What is it?"))
    turned = answer_of(seeing, chat(image(OTHER), image(ONE), "What is it?"))
    assert both[0] != turned[0]
    assert both[1] - first[1] == 5 * 4 + len("\n\n\n") + 4 * 2 + 3  # rows, lines and names


def test_an_answer_has_what_room_images_leave(seeing):
    """As many tokens as the context holds behind all rows of an image, and no more."""
    body = chat(image(ONE), image(OTHER), "What is it?", ignore_eos=True)
    del body["max_tokens"]
    made = seeing.client.post("/v1/chat/completions", json=body).json()
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["usage"]["total_tokens"] == 512
    n_prompt = made["usage"]["prompt_tokens"]
    exact = body | {"max_tokens": 512 - n_prompt}
    again = seeing.client.post("/v1/chat/completions", json=exact).json()
    assert again["choices"][0]["message"] == made["choices"][0]["message"]
    padded = chat(image(ONE), image(OTHER), "What is it?" + "a" * (512 - n_prompt), max_tokens=1)
    answer = seeing.client.post("/v1/chat/completions", json=padded)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    padded = chat(image(ONE), image(OTHER), "What is it?" + "a" * (511 - n_prompt), max_tokens=1)
    assert answer_of(seeing, padded)[1] == 511


def test_every_dialect_says_the_same(seeing):
    wanted = answer_of(seeing, chat(image(ONE), "What is it?"))
    plain = {"type": "image_url", "image_url": data_url(ONE)}
    assert answer_of(seeing, chat(plain, "What is it?")) == wanted
    post = seeing.client.post
    parts = [
        {"type": "input_image", "image_url": data_url(ONE)},
        {"type": "input_text", "text": "What is it?"},
    ]
    asked = {"input": [{"role": "user", "content": parts}], "temperature": 0}
    made = post("/v1/responses", json=asked | {"max_output_tokens": 6}).json()
    assert made["output"][0]["content"][0]["text"] == wanted[0]
    assert made["usage"]["input_tokens"] == wanted[1]
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(ONE)}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    asked = {"model": "toy", "messages": [{"role": "user", "content": blocks}]}
    made = post("/v1/messages", json=asked | {"max_tokens": 6, "temperature": 0}).json()
    assert made["content"][0]["text"] == wanted[0]
    usage = made["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == wanted[1]
    options = {"temperature": 0, "num_predict": 6, "repeat_penalty": 1}
    for picture_of in (base64_of(ONE), data_url(ONE)):
        message = {"role": "user", "content": "What is it?", "images": [picture_of]}
        asked = {"model": "toy", "messages": [message], "stream": False, "options": options}
        made = post("/api/chat", json=asked).json()
        assert (made["message"]["content"], made["prompt_eval_count"]) == wanted
    asked = {"model": "toy", "prompt": "What is it?", "images": [base64_of(ONE)]}
    made = post("/api/generate", json=asked | {"stream": False, "options": options}).json()
    assert (made["response"], made["prompt_eval_count"]) == wanted


def test_results_of_tools_may_have_images(seeing):
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "call00001", "type": "function", "function": function}
    asked = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": [image(ONE)]},
    ]
    with_one = answer_of(seeing, chat() | {"messages": asked})
    asked[2] = asked[2] | {"content": [image(OTHER)]}
    with_other = answer_of(seeing, chat() | {"messages": asked})
    assert with_one[0] != with_other[0]
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(ONE)}
    blocks = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call00001", "name": "look", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call00001",
                    "content": [{"type": "image", "source": source}],
                }
            ],
        },
    ]
    body = {"model": "toy", "messages": blocks, "max_tokens": 6, "temperature": 0}
    made = seeing.client.post("/v1/messages", json=body).json()
    assert made["content"][0]["text"] == with_one[0]
    items = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "call00001", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "call00001",
            "output": [{"type": "input_image", "image_url": data_url(ONE)}],
        },
    ]
    body = {"input": items, "max_output_tokens": 6, "temperature": 0}
    made = seeing.client.post("/v1/responses", json=body).json()
    assert made["output"][0]["content"][0]["text"] == with_one[0]
    # What is kept of it is seen again.
    more = {"previous_response_id": made["id"], "input": "And now?", "max_output_tokens": 2}
    assert seeing.client.post("/v1/responses", json=more).json()["usage"]["input_tokens"] > 40


def test_counting_counts_images(seeing, tower):
    n_done = tower.n_done
    fresh = png(40, 30, 77)
    asked = chat(image(fresh), "What is it?")
    counted = seeing.client.post("/tokenize", json={"messages": asked["messages"]}).json()["count"]
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(fresh)}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    body = {"model": "toy", "messages": [{"role": "user", "content": blocks}]}
    answer = seeing.client.post("/v1/messages/count_tokens", json=body)
    assert answer.json()["input_tokens"] == counted
    parts = [
        {"type": "input_image", "image_url": data_url(fresh)},
        {"type": "input_text", "text": "What is it?"},
    ]
    body = {"input": [{"role": "user", "content": parts}]}
    answer = seeing.client.post("/v1/responses/input_tokens", json=body)
    assert answer.json()["input_tokens"] == counted
    assert tower.n_done == n_done  # no tower has run for that
    assert answer_of(seeing, asked)[1] == counted
    assert tower.n_done == n_done + 5
    low = answer_of(seeing, chat(image(fresh, detail="low"), "What is it?"))
    assert low[1] < counted


def test_words_of_users_are_no_images(seeing):
    named = chat(image(ONE), "What is <image> and <row_1_col_1>?")
    said, n_tokens = answer_of(seeing, named)
    assert n_tokens == answer_of(seeing, chat(image(ONE), "What is"))[1] + len(
        " <image> and <row_1_col_1>?"
    )
    assert answer_of(seeing, chat("<image>"))[1] < 20
    assert said


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("data:image/png;base64,", "empty_image_file", "no bytes"),
        ("data:image/png;base64,%%%", "invalid_base64_image", "no base64"),
        ("data:image/png", "invalid_image_url", "without a comma"),
        ("file:///etc/passwd", "invalid_image_url", "accepted: data: URLs"),
        ("https://example.org/a.png", "invalid_image_url", "fetches no images"),
        (data_url(b"%PDF-1.7"), "invalid_image_format", "accepted: JPEG"),
        (data_url(ONE[:-30]), "image_parse_error", "cannot be read"),
        (data_url(png(2000, 600)[:60000]), "image_too_large", "2000 x 600 pixels"),
        (data_url(bytes(70000)), "image_file_too_large", "70000 bytes; accepted: at most 65536"),
    ],
)
def test_an_image_that_cannot_be_used_is_named_by_its_place(seeing, url, code, says):
    asked = chat("Look:", {"type": "image_url", "image_url": {"url": url}})
    answer = seeing.client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[1].image_url.url"
    assert error["code"] == code
    assert says in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (
            "/v1/messages",
            {
                "model": "toy",
                "max_tokens": 5,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "a"},
                            {"type": "image", "source": {"type": "base64", "data": "!"}},
                        ],
                    }
                ],
            },
            "messages[0].content[1].source: ",
        ),
        (
            "/v1/responses",
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": "data:;base64,!"}],
                    }
                ]
            },
            "input[0].content[0].image_url: ",
        ),
        (
            "/api/chat",
            {"model": "toy", "messages": [{"role": "user", "content": "a", "images": ["!"]}]},
            "messages[0].images[0]: ",
        ),
        ("/api/generate", {"model": "toy", "prompt": "a", "images": ["!"]}, "images[0]: "),
    ],
)
def test_every_dialect_names_the_place(seeing, path, body, place):
    answer = seeing.client.post(path, json=body)
    assert answer.status_code == 400
    assert place in answer.text
    assert "base64" in answer.text


def test_base64_of_all_kinds_is_read(seeing):
    wanted = answer_of(seeing, chat(image(ONE), "a"))
    text = base64_of(ONE)
    lines = "\n".join(text[i : i + 60] for i in range(0, len(text), 60))
    safe = text.replace("+", "-").replace("/", "_").rstrip("=")
    percent = "".join(f"%{byte:02X}" for byte in ONE)
    for url in (
        f"DATA:image/png;charset=utf-8;BASE64,{lines}",
        f"data:;base64,{safe}",
        f"data:text/plain;base64,{text}",  # what it is called does not count
        f"data:image/png,{percent}",
    ):
        part = {"type": "image_url", "image_url": {"url": url}}
        assert answer_of(seeing, chat(part, "a")) == wanted


def test_too_many_images_and_images_of_others_are_refused(seeing):
    def error_of(body: dict) -> dict:
        answer = seeing.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]

    assert "5 images are too many" in error_of(chat(*[image(ONE)] * 5))["message"]
    for role in ("system", "assistant"):
        messages = [{"role": role, "content": [image(ONE)]}, *chat("a")["messages"]]
        assert error_of(chat() | {"messages": messages})["param"] == "messages[0].content"
    assert error_of(chat(image(ONE), prompt_logprobs=1))["param"] == "prompt_logprobs"
    cut = error_of(chat(image(ONE), "a", truncate_prompt_tokens=20))
    assert cut["param"] == "truncate_prompt_tokens"
    long = error_of(chat(*[image(ONE)] * 4, "a" * 400))
    assert long["code"] == "context_length_exceeded"


def test_of_an_animation_the_client_is_told(seeing):
    frames = [picture(40, 30, seed) for seed in range(3)]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    answer = seeing.client.post("/v1/chat/completions", json=chat(image(gif)))
    assert answer.status_code == 200
    assert "only the first is read" in answer.headers["x-lanewise-warning"]


def test_llama_completions_have_images_where_their_marks_are(seeing):
    def ask(text: str, *data: str) -> dict:
        prompt = {"prompt_string": text, "multimodal_data": list(data)}
        body = {"prompt": prompt, "n_predict": 6, "temperature": 0, "repeat_penalty": 1}
        return seeing.client.post("/completion", json=body).json()

    said = "<s><|user|><__media__>What is it?</s><|assistant|>"
    content, n_tokens = answer_of(seeing, chat(image(ONE), "What is it?"))
    made = ask(said.removeprefix("<s>"), base64_of(ONE))
    assert (made["content"], made["tokens_evaluated"]) == (content, n_tokens)
    assert ask(said, base64_of(OTHER))["content"] != content
    for text, data, wrong in (
        (said, ["!"], "multimodal_data[0]"),
        ("a", [base64_of(ONE)], "1 images for 0"),
        ("<image><__media__>", [base64_of(ONE)], "<image> stands for an image"),
    ):
        assert wrong in ask(text, *data)["error"]["message"]


def test_llama_completions_have_images_beside_their_prompts(seeing):
    def ask(prompt: object, *images: tuple[bytes, int], path: str = "/completion", **more) -> dict:
        data = [{"data": base64_of(data), "id": number} for data, number in images]
        body = {"prompt": prompt, "image_data": data, "n_predict": 6, "temperature": 0}
        return seeing.client.post(path, json=body | {"repeat_penalty": 1} | more).json()

    text = "<|user|>{}What is it?</s><|assistant|>"
    made = ask(text.format("[img-7]"), (ONE, 7))
    wanted = answer_of(seeing, chat(image(ONE), "What is it?"))
    assert (made["content"], made["tokens_evaluated"]) == wanted
    # Where they stand is said by their numbers alone, and one may stand in two places.
    wanted = answer_of(seeing, chat(image(OTHER), image(ONE), image(OTHER), "What is it?"))
    made = ask(text.format("[img-2][img-1][img-2]"), (ONE, 1), (OTHER, 2))
    assert (made["content"], made["tokens_evaluated"]) == wanted
    for prompt, images, wrong in (
        ("a [img-3]", [(ONE, 4)], "prompt: [img-3] is no image"),
        ("a", [(ONE, 4)], "image_data[0]: used nowhere; accepted: [img-4]"),
        ("[img-4]", [(ONE, 4), (OTHER, 4)], "image_data[1].id: 4 a second time"),
        ("[img-4]<__media__>", [(ONE, 4)], "image_data: beside <__media__>"),
        (["[img-4]"], [(ONE, 4)], "image_data: beside a prompt that is no string"),
        ("[img-4]", [(b"%PDF-1.7", 4)], "image_data[0].data: "),
    ):
        assert wrong in ask(prompt, *images)["error"]["message"]
    gap = ask("", (ONE, 1), path="/infill", input_prefix="a", input_suffix="b")
    assert gap["error"]["message"] == "image_data: not around a gap; accepted: none"


def test_a_stream_with_a_form(seeing):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
    body = chat(image(ONE), "Is it?", response_format=form, stream=True, max_tokens=20)
    text = ""
    with seeing.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                text += choices[0]["delta"].get("content") or "" if choices else ""
    assert json.loads(text) in ("yes", "no")


def test_a_client_that_leaves_stops_the_tower(seeing, tower):
    tower.gate.clear()
    n_dropped = tower.n_dropped
    body = json.dumps(chat(image(png(40, 30, 99)))).encode()
    host, port = seeing.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(head.encode() + body)
        seeing.wait_until(lambda: tower.current is not None)
    opened = threading.Timer(0.2, tower.gate.set)
    opened.start()
    tower.gate.set()
    seeing.wait_until(lambda: tower.n_dropped > n_dropped or tower.current is None)
    seeing.wait_until(lambda: seeing.state.generator.unfinished == 0)
    opened.join()


def test_a_tower_that_fails_fails_its_request_alone(seeing, tower):
    tower.error = RuntimeError("a row is not finite")
    answer = seeing.client.post("/v1/chat/completions", json=chat(image(png(40, 30, 98))))
    assert answer.status_code == 500
    assert answer_of(seeing, chat(image(png(40, 30, 98))))[1] > 20


def test_catalogues_tell_that_the_model_sees(seeing, client):
    for running, sees in ((seeing.client, True), (client, False)):
        shown = running.get("/v1/models").json()["data"][0]
        assert shown["capabilities"]["vision"] is sees
        assert ("image" in shown["architecture"]["input_modalities"]) is sees
        assert running.get("/props").json()["modalities"]["vision"] is sees
        told = running.post("/api/show", json={"model": "toy"}).json()
        assert ("vision" in told["capabilities"]) is sees


def test_a_model_without_a_tower_says_so(client):
    for body in (chat(image(ONE)), chat({"type": "image_url", "image_url": "http://a/b.png"})):
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "messages[0].content[0].type"
        assert "this model reads text only" in error["message"]
