"""Images through clients as their makers publish them: each gets transformers' own answer.

Tokens of prompts are those that transformers' image processor makes, with the text around them.
"""

import base64
import binascii

import anthropic
import litellm
import ollama
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

PNG = "image/png"
COLD = {"temperature": 0}  # which Anthropic's package has no name for any more
CALL_ID = "call00001"  # nine characters, as some templates want it


@pytest.fixture(params=[0, 1, 2], ids=["an image", "another", "two images"])
def asked(request, seeing):
    """A question about one or two images."""
    return seeing["asked"][request.param]


def url_of(image: str) -> str:
    return f"data:{PNG};base64,{image}"


def parts_of(asked: dict) -> list[dict]:
    """Content in the words of OpenAI."""
    images = [
        {"type": "image_url", "image_url": {"url": url_of(image)}} for image in asked["images"]
    ]
    return [*images, {"type": "text", "text": asked["asked"]}]


def blocks_of(asked: dict) -> list[dict]:
    """The same in the words of Anthropic."""
    sources = [{"type": "base64", "media_type": PNG, "data": image} for image in asked["images"]]
    images = [{"type": "image", "source": source} for source in sources]
    return [*images, {"type": "text", "text": asked["asked"]}]


@pytest.fixture(scope="module")
def openai_sdk(seeing):
    with openai.OpenAI(base_url=seeing["base_url"], api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def anthropic_sdk(seeing):
    with anthropic.Anthropic(base_url=seeing["url"], auth_token="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def ollama_client(seeing):
    return ollama.Client(host=seeing["url"])


def test_openai(openai_sdk, seeing, asked):
    ask = {"model": seeing["model"], "temperature": 0}
    messages = [{"role": "user", "content": parts_of(asked)}]
    made = openai_sdk.chat.completions.create(
        **ask, messages=messages, max_tokens=asked["n_tokens"]
    )
    assert made.choices[0].message.content == asked["text"]
    assert made.usage.prompt_tokens == asked["n_prompt"]
    images = [{"type": "input_image", "image_url": url_of(image)} for image in asked["images"]]
    content = [*images, {"type": "input_text", "text": asked["asked"]}]
    answer = openai_sdk.responses.create(
        **ask, input=[{"role": "user", "content": content}], max_output_tokens=asked["n_tokens"]
    )
    assert answer.output_text == asked["text"]
    assert answer.usage.input_tokens == asked["n_prompt"]


def test_anthropic(anthropic_sdk, seeing, asked):
    messages = [{"role": "user", "content": blocks_of(asked)}]
    ask = {"model": seeing["model"], "messages": messages}
    assert anthropic_sdk.messages.count_tokens(**ask).input_tokens == asked["n_prompt"]
    ask |= {"max_tokens": asked["n_tokens"], "extra_body": COLD}
    whole = anthropic_sdk.messages.create(**ask)
    with anthropic_sdk.messages.stream(**ask) as stream:
        streamed = stream.get_final_message()
    for made in (whole, streamed):
        assert made.content[0].text == asked["text"]
        usage = made.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == asked["n_prompt"]


def test_anthropic_in_results_of_tools(anthropic_sdk, openai_sdk, seeing):
    """No image is dropped: the answer is that to the same conversation in OpenAI's words."""
    alone, _, two = seeing["asked"]
    texts, counts = [], []
    for asked in (alone, two):
        use = {"type": "tool_use", "id": CALL_ID, "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": CALL_ID, "content": blocks_of(asked)}
        messages = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        ask = {"model": seeing["model"], "messages": messages}
        counts.append(anthropic_sdk.messages.count_tokens(**ask).input_tokens)
        made = anthropic_sdk.messages.create(**ask, max_tokens=6, extra_body=COLD)
        texts.append(made.content[0].text)
        assert made.usage.input_tokens + made.usage.cache_read_input_tokens == counts[-1]
        call = {"id": CALL_ID, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [
            messages[0],
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": CALL_ID, "content": parts_of(asked)},
        ]
        same = openai_sdk.chat.completions.create(
            model=seeing["model"], messages=messages, max_tokens=6, temperature=0
        )
        assert same.choices[0].message.content == texts[-1]
        assert same.usage.prompt_tokens == counts[-1]
    # All that differs are the images and what is said.
    assert counts[1] - counts[0] == two["n_prompt"] - alone["n_prompt"]
    assert texts[0] != texts[1]


def test_anthropics_errors_name_the_image(anthropic_sdk, seeing):
    blocks = blocks_of({"images": ["JVBERi0xLjc="], "asked": "What is it?"})  # a PDF
    messages = [{"role": "user", "content": blocks}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].source"):
        anthropic_sdk.messages.create(model=seeing["model"], messages=messages, max_tokens=4)


def test_ollama(ollama_client, seeing, asked, tmp_path):
    """Bytes, base64 and names of files are what its users give it."""
    data = [binascii.a2b_base64(image) for image in asked["images"]]
    files = [tmp_path / f"{number}.png" for number in range(len(data))]
    for path, content in zip(files, data, strict=True):
        path.write_bytes(content)
    options = {"temperature": 0, "num_predict": asked["n_tokens"], "repeat_penalty": 1}
    for images in (data, asked["images"], files):
        message = ollama.Message(
            role="user",
            content=asked["asked"],
            images=[ollama.Image(value=image) for image in images],
        )
        made = ollama_client.chat(seeing["model"], [message], options=options)
        assert made.message.content == asked["text"]
        assert made.prompt_eval_count == asked["n_prompt"]
    *parts, last = ollama_client.generate(
        seeing["model"], asked["asked"], images=data, options=options, stream=True
    )
    assert "".join(part.response for part in [*parts, last]) == asked["text"]
    assert last.prompt_eval_count == asked["n_prompt"]
    assert "vision" in ollama_client.show(seeing["model"]).capabilities


@pytest.fixture(scope="module")
def chat(seeing):
    """LangChain's chat model."""
    return ChatOpenAI(
        base_url=seeing["base_url"],
        api_key="none",
        model=seeing["model"],
        max_retries=0,
        temperature=0,
        stream_usage=True,
    )


def test_langchain(chat, asked):
    """Parts of OpenAI, and blocks of its own."""
    own = [{"type": "image", "base64": image, "mime_type": PNG} for image in asked["images"]]
    for content in (parts_of(asked), [*own, {"type": "text", "text": asked["asked"]}]):
        made = chat.invoke([HumanMessage(content)], max_tokens=asked["n_tokens"])
        assert made.content == asked["text"]
        assert made.usage_metadata["input_tokens"] == asked["n_prompt"]
    first, *rest = chat.stream([HumanMessage(parts_of(asked))], max_tokens=asked["n_tokens"])
    streamed = sum(rest, first)
    assert streamed.content == asked["text"]
    assert streamed.usage_metadata["input_tokens"] == asked["n_prompt"]


def test_langchain_in_results_of_tools(chat, seeing):
    made = []
    for asked in seeing["asked"]:
        called = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": CALL_ID}])
        result = ToolMessage(parts_of(asked), tool_call_id=CALL_ID)
        made.append(chat.invoke([HumanMessage("Look."), called, result], max_tokens=6))
    counts = [one.usage_metadata["input_tokens"] for one in made]
    expected = [asked["n_prompt"] for asked in seeing["asked"]]
    assert [n - counts[0] for n in counts] == [n - expected[0] for n in expected]
    assert len({one.content for one in made}) == 3


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic", "ollama_chat"])
def test_litellm(seeing, asked, provider):
    """Whichever API it is told that the server has."""
    bases = {"anthropic": seeing["url"], "ollama_chat": seeing["url"]}
    more = {"repeat_penalty": 1} if provider == "ollama_chat" else {}
    made = litellm.completion(
        model=f"{provider}/{seeing['model']}",
        api_base=bases.get(provider, seeing["base_url"]),
        api_key="none",
        messages=[{"role": "user", "content": parts_of(asked)}],
        max_tokens=asked["n_tokens"],
        temperature=0,
        num_retries=0,
        **more,
    )
    assert made.choices[0].message.content == asked["text"]
    assert made.usage.prompt_tokens == asked["n_prompt"]


def test_pydantic_ai(seeing, asked):
    provider = OpenAIProvider(base_url=seeing["base_url"], api_key="none")
    agent = Agent(OpenAIChatModel(seeing["model"], provider=provider))
    images = [BinaryContent(base64.b64decode(image), media_type=PNG) for image in asked["images"]]
    made = agent.run_sync(
        [*images, asked["asked"]],
        model_settings={"max_tokens": asked["n_tokens"], "temperature": 0},
    )
    assert made.output == asked["text"]
    assert made.usage.input_tokens == asked["n_prompt"]
