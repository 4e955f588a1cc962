"""Greedy answers to the bundled prompts, and how alike two models' are."""

from collections.abc import Container, Sequence
from dataclasses import replace

from lanewise.commands.compared import Compared
from lanewise.commands.opening import Opened, warn
from lanewise.commands.progress import steps_bar
from lanewise.runtime import BLOCK_TOKENS, Batch, Session
from lanewise.sandbox.alone import encode_chats
from lanewise.text.chat_template import ChatTemplateError
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.text import PROMPTS, documents

SEQUENCES = 8  # that are answered side by side, which changes no answer

Answers = list[list[int]]


def greedy_answers(opened: Opened, most: int) -> Answers:
    """Return the likeliest tokens behind each prompt, ``most`` at most, without the end token."""
    tokenizer = Tokenizer.from_files(opened.checkpoint.tokenizer)
    prompts = encoded_prompts(tokenizer, opened)
    limit = opened.model.config.context_length
    longest = min(max(map(len, prompts)) + most, limit)
    prompts = [prompt[: longest - 1] for prompt in prompts]
    answers: Answers = []
    with (
        Session(
            opened.model,
            threads=opened.threads,
            blocks=SEQUENCES * -(-longest // BLOCK_TOKENS),
            max_batch_tokens=longest,
            max_batch_logits=SEQUENCES,
            kv_type=opened.kv_type,
            states=SEQUENCES,
        ) as session,
        steps_bar("answering") as bar,
    ):
        task = bar.add_task(opened.checkpoint.name, total=len(prompts))
        for start in range(0, len(prompts), SEQUENCES):
            group = prompts[start : start + SEQUENCES]
            answers += _answered(session, group, tokenizer.eos_ids, most, longest)
            bar.advance(task, len(group))
    return answers


def encoded_prompts(tokenizer: Tokenizer, opened: Opened) -> list[list[int]]:
    """The prompts as the model's chat template has them, or as they are if it has none."""
    found = documents(PROMPTS)
    if tokenizer.chat_template is not None:
        chats = [document.messages for document in found]
        try:
            return encode_chats(
                tokenizer, tokenizer.chat_template, chats, add_generation_prompt=True
            )
        except ChatTemplateError as error:
            warn(f"{opened.checkpoint.path}: prompts are given as they are: {error}")
    texts = [document.messages[0]["content"] for document in found]
    return [tokenizer.encode(text, add_bos=True, parse_special=False) for text in texts]


def _answered(
    session: Session, prompts: Sequence[list[int]], ends: Container[int], most: int, longest: int
) -> Answers:
    """Answer some prompts side by side; each has the blocks, and the state, of its place."""
    per_place = -(-longest // BLOCK_TOKENS)
    blocks = [list(range(i * per_place, (i + 1) * per_place)) for i in range(len(prompts))]
    texts = [list(prompt) for prompt in prompts]
    going = list(range(len(prompts)))
    drawn = []
    for place, prompt in enumerate(prompts):
        batch = Batch(prompt, [0, len(prompt)], [0], blocks, [len(prompt) - 1], [place])
        drawn.append(int(session.step(batch)[0].argmax()))
    while going:
        for place, token in zip(going, drawn, strict=True):
            texts[place].append(token)
        going = [
            place
            for place in going
            if texts[place][-1] not in ends
            and len(texts[place]) < min(len(prompts[place]) + most, longest)
        ]
        if going:
            batch = Batch(
                [texts[place][-1] for place in going],
                range(len(going) + 1),
                [len(texts[place]) - 1 for place in going],
                blocks,
                range(len(going)),
                going,
            )
            drawn = session.step(batch).argmax(axis=1).tolist()
    answers = [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    return [answer[:-1] if answer[-1] in ends else answer for answer in answers]


def with_answers(row: Compared, expected: Answers, found: Answers) -> Compared:
    """The row of a model that answered so where the original answered as expected."""
    pairs = list(zip(expected, found, strict=True))
    return replace(
        row,
        chat_same=sum(one == other for one, other in pairs) / len(pairs),
        chat_prefix=sum(common_prefix(one, other) for one, other in pairs) / len(pairs),
        chat_tokens=sum(map(len, expected)) / len(pairs),
    )


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two answers begin with alike."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
