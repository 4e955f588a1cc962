"""The llama.cpp side of a plan beside what others have published of it on Graviton.

Of these, the figures of pull request 18458 and c6g's of issue 27086 are what the rates were set by;
the others were in sight, and not fitted to. Those of 18458 are one machine with more and more
threads: what they cost each other must be right.
"""

import pytest

from lanewise.planning.machines import find_instance, machine_of
from lanewise.planning.steps import decode_size, prompt_size, step_time
from published_models import GPT_OSS_20B, LLAMA_2_7B, LLAMA_3_2_1B, QWEN_2_5_1_5B

PROMPT, CONTEXT = 512, 64  # of llama-bench: pp512, and the middle of tg128

# instance, model, threads, tokens per second
PROMPTS = [
    # ggml-org/llama.cpp pull request 18458, Graviton3, Q4_0
    ("c7g.4xlarge", LLAMA_3_2_1B, 1, 84.5),
    ("c7g.4xlarge", LLAMA_3_2_1B, 2, 167.0),
    ("c7g.4xlarge", LLAMA_3_2_1B, 4, 327.0),
    ("c7g.4xlarge", LLAMA_3_2_1B, 8, 568.0),
    ("c7g.4xlarge", LLAMA_3_2_1B, 16, 1017.0),
    # issue 27086, -fa off, Q4_0
    ("c6g.4xlarge", QWEN_2_5_1_5B, 16, 440.9),
    ("c7g.4xlarge", QWEN_2_5_1_5B, 16, 615.4),
    ("c8g.4xlarge", QWEN_2_5_1_5B, 16, 854.2),
]
DECODES = [
    ("c7g.4xlarge", LLAMA_3_2_1B, 1, 20.5),
    ("c7g.4xlarge", LLAMA_3_2_1B, 2, 37.0),
    ("c7g.4xlarge", LLAMA_3_2_1B, 4, 68.0),
    ("c7g.4xlarge", LLAMA_3_2_1B, 8, 105.0),
    ("c7g.4xlarge", LLAMA_3_2_1B, 16, 137.0),
    # pull request 28141, Graviton3E, MXFP4
    ("c7g.16xlarge", GPT_OSS_20B, 4, 23.0),
    ("c7g.16xlarge", GPT_OSS_20B, 16, 66.0),
    ("c7g.16xlarge", GPT_OSS_20B, 32, 76.0),
    # pull request 5780, r7g.16xlarge, Q4_0
    ("r7g.16xlarge", LLAMA_2_7B, 64, 31.6),
]
WITHIN, SCALING_WITHIN = 0.35, 0.15


def predicted(name, work, threads, size):
    machine = machine_of(find_instance(name), "llama.cpp", threads=threads)
    return size.rows / step_time(machine, work, size).seconds


@pytest.mark.parametrize(("name", "work", "threads", "published"), PROMPTS)
def test_prompts_are_as_fast_as_published(name, work, threads, published):
    assert predicted(name, work, threads, prompt_size(PROMPT)) == pytest.approx(
        published, rel=WITHIN
    )


@pytest.mark.parametrize(("name", "work", "threads", "published"), DECODES)
def test_decode_is_as_fast_as_published(name, work, threads, published):
    assert predicted(name, work, threads, decode_size(1, CONTEXT)) == pytest.approx(
        published, rel=WITHIN
    )


@pytest.mark.parametrize(
    ("rows", "size"), [(PROMPTS, prompt_size(PROMPT)), (DECODES, decode_size(1, CONTEXT))]
)
def test_more_threads_of_one_machine_are_as_much_faster_as_published(rows, size):
    one_machine = [row for row in rows if row[:2] == ("c7g.4xlarge", LLAMA_3_2_1B)]
    assert [threads for _, _, threads, _ in one_machine] == [1, 2, 4, 8, 16]
    for name, work, threads, published in one_machine:
        here = predicted(name, work, threads, size)
        assert here == pytest.approx(published, rel=SCALING_WITHIN), threads
