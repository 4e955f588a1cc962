"""Masks that are filled while the step runs: draws wait for them, whatever becomes of either."""

import asyncio
import itertools
import re
import threading

import pytest

from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.stream import EngineError, EngineStoppedError
from lanewise.engine.drawing import masks
from lanewise.engine.drawing.constraint import Constraint
from lanewise.engine.drawing.masks import MaskFiller
from lanewise.text.grammar import GrammarCompiler, GrammarSource
from toy_server import metric, outputs_of
from toy_tokenizer import toy_tokenizer

TOKENIZER = toy_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size + len(TOKENIZER.unused_ids))


def request(pattern="[ab]{20}", prompt="abc", max_tokens=10):
    grammar = COMPILER.compile(GrammarSource("regex", pattern)) if pattern else None
    params = SamplingParams(seed=1, max_tokens=max_tokens, stop_token_ids=TOKENIZER.eos_ids)
    return GenerationRequest(list(prompt.encode()), params, grammar=grammar)


def text_of(outputs):
    return TOKENIZER.decode([output.sampled.token for output in outputs if output.sampled])


async def together(engine, *requests):
    """The outputs of requests of one sequence each, or what they failed with."""
    asked = [outputs_of(engine, one) for one in requests]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [one if isinstance(one, BaseException) else one[0] for one in answers]


def ask_for_one_step(engine, runner, *requests):
    """The same for requests that begin in one step, in the company of another."""
    runner.gate.clear()

    async def ask():
        company = asyncio.create_task(together(engine, request(None, "company")))
        while not engine.step_age_s():  # noqa: ASYNC110 - the engine is another thread
            await asyncio.sleep(0.001)
        asked = asyncio.create_task(together(engine, *requests))
        while engine.unfinished < 1 + len(requests):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        runner.gate.set()
        ((*_, last),) = await company
        assert last.finish_reason == "length"
        return await asked

    return asyncio.run(ask())


@pytest.fixture
def beside(monkeypatch):
    """No mask is light."""
    monkeypatch.setattr(masks, "LIGHT_S", -1.0)


@pytest.fixture
def during_fill(monkeypatch):
    """Has something done whenever a mask is about to be filled."""
    fill_mask = Constraint.fill_mask

    def install(action):
        def fill(constraint):
            action(constraint)
            fill_mask(constraint)

        monkeypatch.setattr(Constraint, "fill_mask", fill)

    return install


@pytest.mark.usefixtures("beside")
def test_a_step_computes_while_its_mask_is_filled_and_draws_after_it(start, during_fill):
    engine, runner = start()

    n_masks = itertools.count(1)
    during_fill(lambda _: runner.wait_until_computed(next(n_masks)))
    (outputs,) = asyncio.run(together(engine, request()))
    assert re.fullmatch("[ab]{10}", text_of(outputs))
    assert metric(engine, "lanewise_grammar_mask_seconds_total") > 0


@pytest.mark.parametrize("light_s", [-1.0, 60.0])
def test_a_fault_in_a_mask_fails_its_sequence_alone(start, during_fill, monkeypatch, light_s):
    monkeypatch.setattr(masks, "LIGHT_S", light_s)
    engine, runner = start()
    (whole,) = asyncio.run(together(engine, request()))
    seen = []

    def fail_the_first(constraint):
        seen.append(constraint)
        if constraint is seen[0]:
            raise RuntimeError("no mask today")

    during_fill(fail_the_first)
    answers = ask_for_one_step(engine, runner, request(), request())
    # Which of the two comes first is the machine's choice.
    bad, good = sorted(answers, key=lambda one: not isinstance(one, EngineError))
    assert isinstance(bad, EngineError)
    assert "no mask today" in str(bad)
    assert text_of(good) == text_of(whole)
    assert metric(engine, "lanewise_step_errors_total") == 2  # together, and alone
    assert metric(engine, "lanewise_kv_blocks_used") == 0


@pytest.mark.usefixtures("beside")
def test_a_step_that_fails_while_its_masks_are_filled_is_repeated(start, during_fill):
    engine, runner = start()
    (whole,) = asyncio.run(together(engine, request()))
    during_fill(lambda _: threading.Event().wait(0.01))  # longer than it takes a step to fail
    runner.fail_on_token = ord("!")
    good, bad = ask_for_one_step(engine, runner, request(), request(prompt="bad!"))
    assert text_of(good) == text_of(whole)
    assert "layer 0 is not finite" in str(bad)
    assert metric(engine, "lanewise_step_errors_total") == 2  # together, and alone


@pytest.mark.usefixtures("beside")
def test_an_engine_stops_while_a_mask_is_filled(start, during_fill):
    engine, runner = start()
    filling, go_on = threading.Event(), threading.Event()

    def wait(_):
        filling.set()
        assert go_on.wait(10)

    during_fill(wait)

    async def ask():
        asked = asyncio.create_task(together(engine, request("[ab]{400}", max_tokens=400)))
        await asyncio.to_thread(filling.wait, 10)
        stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
        go_on.set()
        await stopping
        return await asked

    (failed,) = asyncio.run(ask())
    assert isinstance(failed, EngineStoppedError)
    assert runner.closed


class HeldDraws:
    """What is held, and on which thread it was released."""

    def __init__(self):
        self.holds = 0
        self.releasers = []

    def hold_draws(self):
        self.holds += 1

    def release_draws(self):
        self.releasers.append(threading.current_thread())


@pytest.mark.parametrize(
    ("has_spare_cpu", "are_here"),
    [(True, [True, True, True, False, False, True]), (False, [True] * 6)],
)
def test_masks_are_filled_beside_the_step_after_one_of_heavy_masks(
    monkeypatch, has_spare_cpu, are_here
):
    clock = [0.0]
    monkeypatch.setattr(masks.time, "thread_time", lambda: clock[0])
    threads = []

    class Mask:
        def __init__(self, seconds):
            self._seconds = seconds

        def fill_mask(self):
            threads.append(threading.current_thread())
            clock[0] += self._seconds

    light, heavy = Mask(masks.LIGHT_S / 4), Mask(2 * masks.LIGHT_S)
    draws = HeldDraws()
    filler = MaskFiller(draws, has_spare_cpu)
    for constraints in ([light], [heavy, light], [], [heavy], [light], [light]):
        filler.begin(constraints)
        filler.end()
    filler.close()
    here = threading.current_thread()
    assert [thread is here for thread in threads] == are_here
    assert draws.holds == len(draws.releasers) == are_here.count(False)
    assert here not in draws.releasers
