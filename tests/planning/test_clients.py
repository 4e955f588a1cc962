"""Clients of an imaginary server: what they see of steps whose times are known."""

import pytest

from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.scheduling.pacing import Pacer, Work
from lanewise.planning.clients import Server, Traffic, simulate
from lanewise.planning.report import Asked, experienced_pacer, server_seconds
from lanewise.planning.steps import StepTime, decode_size
from lanewise.planning.work import WHOLE

CONFIG = SchedulerConfig(max_seqs=64, max_step_tokens=512, max_step_logits=512, max_model_len=1024)


def server(pacer=None, n_blocks=4000):
    return Server(CONFIG, n_blocks, pacer)


def by_rows(size):
    return StepTime(bandwidth=0.010, arithmetic=0.001 * size.rows)


def test_one_client_waits_for_its_prompt_and_then_for_each_token():
    outcome = simulate(1, Traffic(200, 11, request_s=0.05), server(), by_rows)
    assert outcome.first_token_s == pytest.approx(0.05 + 0.210)
    assert outcome.between_tokens_s == pytest.approx(0.011)
    assert outcome.requests_s == pytest.approx(1 / (0.210 + 10 * 0.011 + 0.05), rel=0.1)
    assert outcome.tokens_s == pytest.approx(11 * outcome.requests_s)
    assert (outcome.limit, outcome.preempted) == ("arithmetic", 0)
    assert sum(outcome.shares.values()) == pytest.approx(1)


def test_a_long_prompt_takes_several_steps():
    outcome = simulate(1, Traffic(900, 2), server(), by_rows)
    assert outcome.first_token_s == pytest.approx(0.522 + 0.398)


def test_many_share_what_is_read_once():
    alone, together = (simulate(n, Traffic(16, 64), server(), by_rows) for n in (1, 8))
    assert together.tokens_s > 3 * alone.tokens_s
    assert together.between_tokens_s > alone.between_tokens_s


def test_a_target_keeps_prompts_from_holding_up_the_others():
    traffic = Traffic(400, 30)
    free, paced = (simulate(8, traffic, server(one), by_rows) for one in (None, Pacer(0.05)))
    assert paced.between_tokens_s < free.between_tokens_s
    assert paced.first_token_p95_s > free.first_token_p95_s


def test_without_room_for_all_conversations_memory_is_the_limit():
    few = server(n_blocks=2 * 1024 // 16)
    assert simulate(2, Traffic(500, 500), few, by_rows).preempted == 0
    crowded = simulate(16, Traffic(100, 500), few, by_rows)
    assert crowded.preempted > 0
    assert crowded.limit == "memory"


def test_what_most_of_the_time_goes_to_is_the_limit():
    outcome = simulate(1, Traffic(8, 50), server(), by_rows)
    assert outcome.limit == "bandwidth"
    assert outcome.shares["bandwidth"] == pytest.approx(10 / 11, abs=0.05)


def test_a_server_has_more_to_do_for_more_tokens_and_for_models_that_fill_the_caches():
    one, eight = (server_seconds(decode_size(n, 100), 1e6) for n in (1, 8))
    assert 0 < one < eight
    assert server_seconds(decode_size(1, 100), 1e9) > 2 * one


def test_requests_that_are_sent_together_are_read_one_after_the_other():
    at_once, apart = (simulate(4, Traffic(8, 40, 0, s), server(), by_rows) for s in (0, 0.1))
    assert at_once.first_token_p95_s == pytest.approx(0.010 + 0.032)
    assert apart.first_token_p95_s > 0.2


def test_the_pacer_of_a_plan_knows_what_steps_take():
    asked = Asked((1,), 128, 64, 192, "lanewise", None, 64, 512, 256, 0.17, 0)
    pacer = experienced_pacer(asked, WHOLE, by_rows)
    for rows in (1, 16, 100, 512):
        work = Work()
        work.add(rows, 0)
        assert pacer.cost.seconds(work) == pytest.approx(0.010 + 0.001 * rows, rel=0.1)
