"""The simulation of many cores beside what has been published of one machine with more and more."""

import re
import subprocess

import pytest

import native_build
import topics

pytestmark = [pytest.mark.native, pytest.mark.slow]

# Graviton3 with llama.cpp, Llama-3.2-1B Q4_0 (ggml-org/llama.cpp pull request 18458): tokens a
# second of a prompt of 512 and of decode. Of its parameters, one core's speeds are those of one
# thread; the bandwidth of 16 of 64 cores and the part that does not become faster with threads are
# set by 16 threads.
PUBLISHED = {4: (327.0, 68.0), 8: (568.0, 105.0), 16: (1017.0, 137.0)}
ALONE = 84.5
GRAVITON3 = ("--gmac", "82", "--gemv", "1000", "--core", "15.6", "--bandwidth", "124")
SERIAL = ("--serial", "0.02")
WITHIN = 0.15
LINE = re.compile(r"(\S+) +(\d+) threads +prompt of 512 +([\d.]+) ms.*?decode at 0 +([\d.]+) ms")
STREAMS = re.compile(
    r"(\S+) +96 threads, (\d+) streams behind 1024 tokens: ([\d.]+) ms.*\n"
    r" +layers' products ([\d.]+) ms \(computing alone ([\d.]+)\), head ([\d.]+) \([\d.]+\), "
    r"attention ([\d.]+), the rest ([\d.]+);.*\n"
    r" +weights and cache [\d.]+ GB: reading them alone ([\d.]+) ms"
)
CONTEXTS = re.compile(r"decode at (\d+) +([\d.]+) ms")


def simulated(*options):
    if not native_build.is_possible():
        topics.skip("native", "no cmake or gcc to build the simulation with")
    command = [native_build.programs() / "simulate_cores", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line]


def test_more_cores_of_graviton3_are_as_much_faster_as_published():
    found = {}
    for line in simulated(*GRAVITON3, *SERIAL):
        model, threads, prompt_ms, decode_ms = LINE.match(line).groups()
        if model == "llama-1b":
            found[int(threads)] = (float(prompt_ms), float(decode_ms))
    assert 1e3 / found[1][1] == pytest.approx(20.5, rel=WITHIN)
    for threads, (prompt, decode) in PUBLISHED.items():
        assert found[1][0] / found[threads][0] == pytest.approx(prompt / ALONE, rel=WITHIN), threads
        assert 1e3 / found[threads][1] == pytest.approx(decode, rel=WITHIN), threads


def test_one_sequence_has_attention_for_all_cores():
    models = [dict(CONTEXTS.findall(line)) for line in simulated("--threads", "96")]
    assert len(models) == 4
    for decode_ms in models:
        # Before attention had stages, 1,024 tokens made steps up to 2.5 times as long.
        assert float(decode_ms["1024"]) < 1.2 * float(decode_ms["0"])


def test_a_step_of_many_sequences_is_the_sum_of_its_parts_and_no_faster_than_its_bounds():
    took = {}
    for n in (24, 96):
        found = STREAMS.findall("\n".join(simulated("--threads", "96", "--streams", str(n))))
        assert len(found) == 4
        for name, streams, *figures in found:
            whole, products, computing, head, attention, rest, reading = map(float, figures)
            assert int(streams) == n
            assert products + head + attention + rest == pytest.approx(whole, rel=0.01)
            assert products >= computing
            assert whole >= reading
            took[name, n] = whole
    for name in ("llama-1b", "llama-8b"):
        assert took[name, 24] < took[name, 96] < 4 * took[name, 24]
