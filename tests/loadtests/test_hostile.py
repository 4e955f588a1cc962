"""Hostile requests at a real server, and what the judge of them would say of a bad one."""

import math
import subprocess
import sys

import pytest

from loadtests.exchange import Answer, Record, fault
from loadtests.hostile.__main__ import main
from loadtests.hostile.honest import Answered, Crowd, merged
from loadtests.hostile.run import KINDS, Life, Visit
from loadtests.hostile.tenants import Telling, rank_sum_z
from loadtests.hostile.verdict import Bars, overall, rows_of
from loadtests.hostile.watch import Sight, watching

# The kinds that are quick with the bundled model; all of them take minutes.
QUICK = (
    "numbers",
    "heads",
    "recursion",
    "log lines",
    "adapters",
    "templates",
    "forged log lines",
    "stop strings",
    "fields of heads",
    "template: product",
    "tokenizer: 32 for one, three times",
    "tokenizer: exponential expression",
)
BARS = Bars(memory_limit=1 << 30)


@pytest.mark.e2e
@pytest.mark.native
@pytest.mark.slow
@pytest.mark.thorough
def test_a_server_and_its_honest_clients_survive():
    # A process of its own: it gives way to the server. Times say nothing on a busy machine.
    command = [sys.executable, "-m", "loadtests.hostile", "--rounds", "1", "--tokens", "16"]
    command += ["--kv-memory", "64", "--slack", "40", "--probes", "10"]
    command += [word for kind in QUICK for word in ("--only", kind)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(kind in done.stdout for kind in QUICK)


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "kindness"])
    assert KINDS[0] in capsys.readouterr().err


def life(**given) -> Life:
    found = Life(visits=[Visit("undisturbed", 0.0, 10.0), Visit("numbers", 10.0, 20.0)])
    for name, value in given.items():
        setattr(found, name, value)
    return found


def answered(ended: float, answer: object = "a", error: str | None = None) -> Answered:
    return Answered(0, ended - 1, ended, answer, error, (ended - 1, ended))


def problems(found: Life) -> dict[str, list[str]]:
    return {row.kind: row.problems for row in rows_of(found, BARS)}


def test_an_undisturbed_server_has_no_problem():
    crowd = Crowd([answered(5), answered(15)], ["a"])
    sight = Sight([(t, 0.01) for t in range(20)], [(t, 1 << 20) for t in range(20)], [])
    found = life(crowd=crowd, sight=sight, memory=[100, 104])
    assert problems(found) == {"undisturbed": [], "numbers": []}
    assert overall(found, BARS)[1] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"crowd": Crowd([answered(5), answered(15, "b")], ["a"])}, "from character 1"),
        ({"crowd": Crowd([answered(5), answered(15, None, "status 500")], ["a"])}, "status 500"),
        ({"sight": Sight([(15.0, 0.3)], [], [])}, "300 at worst"),
        ({"sight": Sight([], [], [(15.0, "/health/live: 503")])}, "503"),
        ({"died_of": "numbers"}, "the process ended"),
    ],
)
def test_what_hurts_is_a_problem_of_the_kind_beside_which_it_came(given, said):
    found = problems(life(**given))
    assert found["undisturbed"] == []
    assert said in str(found["numbers"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": [100, 106]}, "+6.0%"),
        ({"sight": Sight([], [(15.0, 2 << 30)], [])}, "2048 MiB of 1024"),
        ({"log": "INFO a\nINFO forged\n"}, "forged line"),
        ({"crowd": Crowd([answered(5), Answered(0, 11, 19, "a", None, (12, 19))], ["a"])}, "6.9"),
    ],
)
def test_a_missed_bar_of_the_whole_life_is_told(given, said):
    assert said in str(overall(life(**given), BARS)[1])


def test_chunks_mean_the_same_however_tokens_were_spread_over_them():
    def event(text: str, end: str = "null") -> bytes:
        return f'{{"choices": [{{"text": "{text}", "finish_reason": {end}}}]}}'.encode()

    split = [event("a"), event("b", '"stop"'), b'{"choices": []}', b"[DONE]"]
    assert merged(split) == merged([event("ab", '"stop"')])
    assert merged(split) != merged([event("ab", '"length"')])


def test_the_rank_sum_test_tells_two_distributions_apart():
    assert rank_sum_z([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 0
    assert rank_sum_z([5.0] * 9, [5.0] * 9) == 0
    # U = 0 of 25: (0 - 12.5) / sqrt(25 * 11 / 12)
    z = rank_sum_z([1.0, 2, 3, 4, 5], [6.0, 7, 8, 9, 10])
    assert math.isclose(z, -12.5 / math.sqrt(25 * 11 / 12))


def test_tenants_that_see_each_other_are_told():
    quiet = Telling([1.0, 2.0] * 9, [1.0, 2.0] * 9, [0] * 18, [0] * 18, [64])
    assert quiet.problems(3.29) == []
    fast = Telling([0.1] * 18, [1.0] * 18, [0] * 18, [0] * 18, [64])
    assert "rank sum" in str(fast.problems(3.29))
    counted = Telling([1.0] * 18, [1.0] * 18, [0] * 17 + [64], [0] * 18, [64])
    assert "cached_tokens up to 64" in str(counted.problems(3.29))
    blind = Telling([1.0] * 18, [1.0] * 18, [0] * 18, [0] * 18, [0])
    assert "sees nothing" in str(blind.problems(3.29))


def test_an_answer_must_be_whole_and_of_a_right_kind():
    error = b'{"error": {"message": "no"}}'
    assert fault(Answer(400, {}, error), (400,)) is None
    assert "500" in str(fault(Answer(500, {}, error), (400,)))
    assert "closed" in str(fault(Answer(0, {}, b""), (400,)))
    assert "Retry-After" in str(fault(Answer(503, {}, error), (200,)))
    assert fault(Answer(503, {"retry-after": "1"}, error), (200,)) is None
    assert "unfinished" in str(fault(Answer(200, {}, b"", complete=False), (200,)))
    assert "error object" in str(fault(Answer(400, {}, b'{"detail": 1}'), (400,)))
    record = Record()
    record.judge("a", Answer(0, {}, b""), (0,))
    assert record.outcomes == {"closed": 1}
    assert not record.problems


def test_a_server_that_is_gone_is_seen():
    with watching(1, 1) as watcher:  # nobody listens on port 1
        sight = watcher.finish()
    assert sight.failures
