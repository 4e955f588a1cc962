"""Engines with a store: same answers as without, and what was computed once is read."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.kv.store_parts import name_of_state
from lanewise.runtime import BLOCK_TOKENS
from lanewise.store.block_files import BlockFiles, files_of
from toy import ToyAdapter
from toy_server import CONFIG, make_engine, metric, outputs_of

LONG = "the same long beginning of all these texts, again and again. " * 5
SETTINGS = {"n_blocks": 64, "max_model_len": 1024}


def request(prompt=LONG, **more) -> GenerationRequest:
    return GenerationRequest(
        list(prompt.encode()), SamplingParams(seed=1, max_tokens=40), **({"choice": 0} | more)
    )


class Watched(BlockFiles):
    """A store that can be slow, broken, or full."""

    def __init__(self, root):
        super().__init__(root, b"toy", most_bytes=1 << 20)
        self.gate = threading.Event()
        self.gate.set()
        self.n_read = 0
        self.error: OSError | None = None
        self.read_error: Exception | None = None

    def read(self, key, into):
        self.gate.wait()
        self.n_read += 1
        if self.read_error is not None:
            raise self.read_error
        return super().read(key, into)

    def write(self, key, data):
        self.gate.wait()
        if self.error is not None:
            raise self.error
        super().write(key, data)


@pytest.fixture
def start(run_engine, tmp_path):
    """Starts an engine with a store in the test's folder, and returns both when it is open."""

    def run(**changes):
        files = Watched(tmp_path / "store")
        engine, runner = make_engine(
            replace(CONFIG, **(SETTINGS | changes)), open_store=lambda: files
        )
        run_engine(engine, runner)
        wait_until(lambda: engine._store._files is files)
        return engine, files

    return run


def wait_until(condition, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def answer(engine, *requests):
    """The tokens of each, and how many of their prompts' tokens were found."""
    outputs = asyncio.run(outputs_of(engine, *requests))
    return [
        ([one.sampled.token for one in of_one if one.sampled], of_one[-1].cached_tokens)
        for of_one in outputs
    ]


def is_quiet(engine):
    return engine._store._writer.is_idle


def stored(start, one=None, **changes):
    """What an engine answers that has stored all blocks of the request."""
    engine, _ = start(**changes)
    expected = answer(engine, one or request())
    wait_until(lambda: is_quiet(engine))
    return expected


N_FULL = (len(LONG.encode()) - 1) // BLOCK_TOKENS


def test_after_a_restart_a_prompt_is_read_and_its_answer_is_the_same(start, run_engine):
    without, _ = run_engine(*make_engine(replace(CONFIG, **SETTINGS)))
    expected = answer(without, request())
    first, files = start()
    assert answer(first, request()) == expected
    wait_until(lambda: is_quiet(first))
    assert files.n_read == 0
    second, files = start()
    assert answer(second, request()) == [(expected[0][0], N_FULL * BLOCK_TOKENS)]
    assert files.n_read == N_FULL
    # in memory by now
    assert answer(second, request())[0][1] >= N_FULL * BLOCK_TOKENS
    assert files.n_read == N_FULL


def test_what_is_not_written_yet_is_written_when_the_server_stops(start, run_engine):
    first, _ = start()
    expected = answer(first, request())
    first.stop()
    second, _ = start()
    assert answer(second, request()) == [(expected[0][0], N_FULL * BLOCK_TOKENS)]


def test_windows_need_their_last_blocks_only(start, run_engine):
    windows = {"windows": (None, 2 * BLOCK_TOKENS), "n_blocks": 128}
    without, _ = run_engine(*make_engine(replace(CONFIG, **(SETTINGS | windows))))
    expected = answer(without, request())
    assert stored(start, **windows) == expected
    second, files = start(**windows)
    (again,) = answer(second, request())
    assert again[0] == expected[0][0]
    assert again[1] > 0
    assert 0 < files.n_read < 2 * N_FULL


def test_a_longer_text_goes_on_where_a_stored_one_ends(start):
    stored(start)
    second, _ = start()
    longer = request(LONG + "And one more thing, which nobody has said before, comes here.")
    (there,) = answer(second, longer)
    assert there[1] == len(LONG.encode()) // BLOCK_TOKENS * BLOCK_TOKENS
    third, _ = start(prefix_cache=False)
    assert answer(third, longer)[0][0] == there[0]


def test_tenants_do_not_share_what_is_stored(start):
    stored(start, request(cache_salt="one"))
    second, files = start()
    assert answer(second, request(cache_salt="other"))[0][1] == 0
    assert files.n_read == 0
    assert answer(second, request(cache_salt="one"))[0][1] == N_FULL * BLOCK_TOKENS


@pytest.mark.parametrize("broken", range(N_FULL))
def test_a_spoiled_file_ends_the_beginning_that_is_read(start, broken):
    first, files = start()
    expected = answer(first, request())
    wait_until(lambda: is_quiet(first))
    sequence_keys = keys_of(request())
    name = files.name_of(sequence_keys[broken])
    (path,) = [file.path for file in files_of(files.root) if file.path.stem == name]
    path.write_bytes(path.read_bytes()[:-1])
    second, _ = start()
    (again,) = answer(second, request())
    assert again == (expected[0][0], broken * BLOCK_TOKENS)


def keys_of(one: GenerationRequest) -> list[bytes]:
    from lanewise.engine.base.sequence import Scheduled

    scheduled = Scheduled(one)
    return [scheduled.block_key(index) for index in range(N_FULL)]


def test_others_run_while_one_waits_for_its_blocks(start):
    expected = stored(start)
    second, files = start()
    second._store._reader.seconds_to_compute = lambda n_tokens, n_before: 3600.0
    files.gate.clear()
    waiting = []
    thread = threading.Thread(target=lambda: waiting.extend(answer(second, request())))
    thread.start()
    wait_until(lambda: second._store.is_reading)
    assert len(answer(second, request("something else"))[0][0]) == 40
    assert not waiting
    files.gate.set()
    thread.join()
    assert waiting == [(expected[0][0], N_FULL * BLOCK_TOKENS)]


def test_a_store_that_hangs_delays_no_step(start, run_engine):
    """While it neither reads nor writes, others take the steps that they take without a store."""
    settings = replace(CONFIG, **SETTINGS)
    without, runner = run_engine(*make_engine(settings))
    others = [request(f"{number} is something else") for number in range(3)]
    expected = [answer(without, one) for one in others]
    n_steps = len(runner.batches)
    stored(start)
    second, files = start()
    second._store._reader.seconds_to_compute = lambda n_tokens, n_before: 3600.0
    files.gate.clear()
    thread = threading.Thread(target=lambda: answer(second, request()))
    thread.start()
    wait_until(lambda: second._store.is_reading)
    assert [answer(second, one) for one in others] == expected
    assert len(second._runner.batches) == n_steps
    files.gate.set()
    thread.join()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("no such")])
def test_a_store_that_fails_costs_only_computing(start, error):
    ((expected, _),) = stored(start)
    second, files = start()
    files.read_error = error
    files.error = OSError(5, "Input/output error")
    assert answer(second, request()) == [(expected, 0)]
    assert metric(second, "lanewise_kv_store_blocks_total", result="missed") == 1
    wait_until(lambda: is_quiet(second))
    files.read_error = files.error = None
    assert answer(second, request("another text. " * 20))[0][1] == 0
    wait_until(lambda: second._pool.n_used == 0)


def test_a_store_that_is_too_slow_is_not_waited_for(start):
    expected = stored(start)
    second, files = start()
    second._store._reader.seconds_to_compute = lambda n_tokens, n_before: 0.01
    files.gate.clear()
    assert answer(second, request()) == [(expected[0][0], 0)]
    files.gate.set()
    wait_until(lambda: not second._store.is_reading)


def test_a_request_that_is_given_up_while_it_waits_leaves_nothing(start):
    stored(start)
    second, files = start()
    second._store._reader.seconds_to_compute = lambda n_tokens, n_before: 3600.0
    files.gate.clear()

    async def give_up():
        async with second.submit([request()]):
            await asyncio.to_thread(wait_until, lambda: second._store.is_reading)

    asyncio.run(give_up())
    wait_until(lambda: not second._store.is_reading)
    files.gate.set()
    wait_until(lambda: second._pool.n_used == 0)
    assert not second._store._reader._asked


def test_a_full_disk_costs_only_what_is_not_stored(start, caplog):
    engine, files = start()
    files.error = OSError(28, "No space left on device")
    before = answer(engine, request())
    wait_until(lambda: is_quiet(engine))
    assert caplog.text.count("cannot be written") == 1
    assert list(files_of(files.root)) == []
    assert answer(engine, request())[0][0] == before[0][0]
    wait_until(lambda: engine._pool.n_used == 0)


def test_a_small_pool_is_not_held_by_writing(start):
    """Blocks are written when there are enough free ones; sequences are never short of any."""
    engine, _ = start(n_blocks=20, max_model_len=600, max_seqs=2, max_step_tokens=8)
    texts = [request(f"{number} " + LONG) for number in range(4)]
    results = [answer(engine, one)[0][0] for one in texts]
    together = asyncio.run(outputs_of(engine, *texts))
    again = [[one.sampled.token for one in of_one if one.sampled] for of_one in together]
    assert again == results
    wait_until(lambda: engine._pool.n_used == 0)


def test_a_store_that_cannot_be_opened_is_told_of(run_engine, caplog):
    def fail():
        raise OSError(13, "Permission denied")

    engine, _ = run_engine(*make_engine(replace(CONFIG, **SETTINGS), open_store=fail))
    assert len(answer(engine, request())[0][0]) == 40
    wait_until(lambda: "there is no KV store" in caplog.text)
    assert len(engine._store._writer._blocks) <= CONFIG.n_blocks


WITH_STATES = {"n_snapshots": 8, "max_seqs": 4}


def test_the_state_of_a_text_survives_a_restart(start, run_engine):
    without, _ = run_engine(*make_engine(replace(CONFIG, **(SETTINGS | WITH_STATES))))
    expected = answer(without, request())
    assert stored(start, **WITH_STATES) == expected
    second, files = start(**WITH_STATES)
    assert answer(second, request()) == [(expected[0][0], N_FULL * BLOCK_TOKENS)]
    assert files.n_read == N_FULL + 1
    wait_until(lambda: metric(second, "lanewise_kv_store_snapshots_total", result="read") == 1)
    assert metric(second, "lanewise_kv_store_blocks_total", result="read") == N_FULL
    # in memory by now
    assert answer(second, request()) == [(expected[0][0], N_FULL * BLOCK_TOKENS)]
    assert files.n_read == N_FULL + 1


def test_where_stored_texts_part_a_state_is_stored_for_the_next_one(start, run_engine):
    system = "what all texts of this test begin with, and a little more than that. " * 4
    first, second, third = (request(system + f"{number} asks " * 20) for number in "123")
    without, _ = run_engine(*make_engine(replace(CONFIG, **(SETTINGS | WITH_STATES))))
    expected = [answer(without, one)[0][0] for one in (second, third)]
    stored(start, first, **WITH_STATES)
    ((tokens, cached),) = stored(start, second, **WITH_STATES)
    assert (tokens, cached) == (expected[0], 0)  # no state where the texts part
    ((tokens, cached),) = stored(start, third, **WITH_STATES)
    assert (tokens, cached) == (expected[1], len(system.encode()) // BLOCK_TOKENS * BLOCK_TOKENS)


def test_a_text_goes_on_behind_a_stored_answer(start):
    ((tokens, _),) = stored(start, long := asked(), **WITH_STATES)
    one = replace(long.params, max_tokens=1)
    after = GenerationRequest([*long.prompt, *tokens], one, choice=0)
    engine, _ = start(**WITH_STATES)
    ((_, cached),) = answer(engine, after)
    assert cached > len(long.prompt) + 400


def asked() -> GenerationRequest:
    params = SamplingParams(seed=1, max_tokens=500)
    return GenerationRequest(list(LONG.encode()), params, choice=0)


@pytest.mark.parametrize("spoiled", ["state", "block"])
def test_a_spoiled_state_or_block_costs_only_computing(start, spoiled):
    ((expected, _),) = stored(start, **WITH_STATES)
    second, files = start(**WITH_STATES)
    key = keys_of(request())[N_FULL - 1]
    name = files.name_of(name_of_state(key) if spoiled == "state" else key)
    (path,) = [file.path for file in files_of(files.root) if file.path.stem == name]
    path.write_bytes(path.read_bytes()[:-1])
    assert answer(second, request()) == [(expected, 0)]
    assert metric(second, "lanewise_kv_store_blocks_total", result="missed") == 1
    wait_until(lambda: is_quiet(second))
    third, _ = start(**WITH_STATES)
    assert answer(third, request()) == [(expected, N_FULL * BLOCK_TOKENS)]


@pytest.mark.parametrize("max_draft", [0, 4])
def test_places_of_snapshots_are_all_free_or_found_when_all_is_done(start, max_draft):
    """With two places, what is read and written takes turns with what steps copy."""
    few = WITH_STATES | {"n_snapshots": 2, "max_draft": max_draft}
    texts = [request(f"{number} " + LONG) for number in range(6)]
    engine, _ = start(**few)
    expected = [answer(engine, one)[0][0] for one in texts]
    wait_until(lambda: is_quiet(engine))
    for _ in range(3):
        check_together(start(**few)[0], texts, expected)


def check_together(engine, texts, expected):
    together = asyncio.run(outputs_of(engine, *texts))
    again = [[one.sampled.token for one in of_one if one.sampled] for of_one in together]
    assert again == expected
    wait_until(lambda: is_quiet(engine) and not engine._store.is_reading)
    snapshots = engine._scheduler.states.snapshots
    places = sorted([*snapshots._free, *snapshots._place_of.values()])
    assert places == [4, 5]
    assert not snapshots._held
    assert engine._pool.n_used == 0


def test_adapters_find_their_own_after_a_restart(start):
    def with_adapter(salt):
        return request(adapter=LoadedAdapter("any", "path", ToyAdapter(salt)))

    stored(start)
    ((expected, cached),) = stored(start, with_adapter(1))
    assert cached == 0
    engine, _ = start()
    assert answer(engine, with_adapter(2))[0][1] == 0
    assert answer(engine, with_adapter(1)) == [(expected, N_FULL * BLOCK_TOKENS)]
