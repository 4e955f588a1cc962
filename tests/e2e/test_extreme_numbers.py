"""Numbers at and beyond every edge of their fields, through the real library: 200 or 400."""

import math
import sys

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import metric

pytestmark = [pytest.mark.e2e, pytest.mark.native]

FLOATS = (
    *("temperature", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
INTEGERS = (
    *("max_tokens", "min_tokens", "top_k", "seed", "n", "best_of", "logprobs"),
    *("priority", "speculative.n_max"),
)
TINY = sys.float_info.min
FLOAT32_MAX = 3.4028234663852886e38
EDGES = [0.0, 5e-324, TINY, 1e-46, 1.4e-45, 1e-38, 1.2e-38, 1e-5, 0.01, 1.0, 2.0, 100.0]
EDGES += [math.nextafter(edge, to) for edge in (0.01, 1.0, 2.0, 100.0) for to in (0, math.inf)]
EDGES += [FLOAT32_MAX, 3.5e38, 1e300, sys.float_info.max]
WHOLE = [0, 1, 2, 20, 21, 127, 128, 2**15, 2**16]
WHOLE += [2**bits + more for bits in (31, 32, 63, 64) for more in (-1, 0)] + [10**400]

floats = st.sampled_from(EDGES + [-edge for edge in EDGES]) | st.floats(
    allow_nan=False, allow_infinity=False
)
integers = st.sampled_from(WHOLE + [-number for number in WHOLE]) | st.integers()
ids = st.sampled_from([0, 1, 4095, 4096, 2**31, 2**32 - 1, 2**32, -1]) | st.integers(0, 5000)
fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(FLOATS, floats),
        **dict.fromkeys(INTEGERS, integers),
        "logit_bias": st.dictionaries(ids.map(str), floats, max_size=3),
        "stop_token_ids": st.lists(ids, max_size=3),
        "allowed_token_ids": st.lists(ids, max_size=3),
    },
)


@pytest.fixture(scope="module")
def status(url):
    """The status that a request with some fields gets."""
    with httpx.Client(base_url=url, timeout=120) as client:

        def ask(body: dict) -> int:
            body = {"prompt": "A dark night, a dark", "max_tokens": 2, "seed": 1} | body
            return client.post("/v1/completions", json=body).status_code

        yield ask


@pytest.mark.parametrize("field", FLOATS)
def test_each_float_at_each_edge(status, field):
    for value in EDGES:
        for signed in (value, -value):
            assert status({field: signed}) in (200, 400), signed
    assert status({field: 1e300}) == 400


@pytest.mark.parametrize("field", INTEGERS)
def test_each_integer_at_each_edge(status, field):
    for value in WHOLE:
        for signed in (value, -value):
            assert status({field: signed}) in (200, 400), signed


def test_a_penalty_that_is_zero_in_single_precision_is_refused_and_no_step_fails(status, url):
    for value in (5e-324, 1e-46, 1e-38, 0.00999):
        assert status({"repetition_penalty": value}) == 400
    for value in (0.01, 100):
        assert status({"repetition_penalty": value}) == 200
    assert 'lanewise_step_errors_total{engine="0"' in httpx.get(f"{url}/metrics").text
    assert metric(url, "lanewise_step_errors_total") == 0


def test_a_request_that_no_token_may_follow_is_told_so_and_no_step_fails(url):
    stuck = {"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 2}
    with httpx.Client(base_url=url, timeout=120) as client:
        body = {"prompt": "A dark night, a dark", "max_tokens": 2} | stuck
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("no token may come next")
    assert metric(url, "lanewise_step_errors_total") == 0


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=fields)
def test_numbers_together(status, body):
    assert status(body) in (200, 400)
