"""Pinned threads and placed memory, with the real library and as the kernel sees them."""

import contextlib
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import topics
from lanewise.commands.selftest import CONFIG, random_checkpoint
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.program import Pooling
from lanewise.loading.pooling.pooled import as_pooled
from lanewise.runtime import Batch, Encoder, Model, NativeError, Session, placing_refusal
from lanewise.runtime.targets import held_bytes
from lanewise.topology import Placement

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

PROMPT = [(5 * i + 1) % CONFIG.vocab_size for i in range(40)]
KV_BLOCKS = 3
CPUS = tuple(sorted(os.sched_getaffinity(0)))


def placement(cpus=(), numa="off", nodes=(), copies=()):
    return Placement(tuple(cpus), "", numa, tuple(nodes), tuple(copies), "")


@contextlib.contextmanager
def session_of(placed, threads=2, blocks=KV_BLOCKS):
    with (
        Model.load(random_checkpoint(TensorType.Q4_0), threads=2, placement=placed) as model,
        Session(
            model, threads=threads, blocks=blocks, max_batch_tokens=40, max_batch_logits=40
        ) as session,
    ):
        yield session


def logits_of(session):
    return session.step(Batch(PROMPT, [0, 40], [0], [[2, 0]], range(40))).copy()


def threads_of_this_process():
    return set(map(int, os.listdir("/proc/self/task")))


@pytest.fixture
def placeable():
    if refused := placing_refusal([0]):
        topics.skip("machine", f"this kernel or container places no memory: {refused}")


def placed_bytes(policy):
    """Bytes in memory of the mappings that have a policy, such as ``interleave:0``."""
    path = Path("/proc/self/numa_maps")
    if not path.exists():
        topics.skip("machine", "this kernel has no numa_maps")
    lines = [line for line in path.read_text().splitlines() if line.split()[1] == policy]
    return sum(
        int(pages) * int(kib) * 1024
        for line in lines
        for pages, kib in re.findall(r"\banon=(\d+).*\bkernelpagesize_kB=(\d+)", line)
    )


@pytest.fixture(scope="module")
def expected():
    with session_of(None) as session:
        return logits_of(session)


def test_threads_stay_on_their_cpus_and_the_caller_does_not(expected):
    before, mine = threads_of_this_process(), os.sched_getaffinity(0)
    cpus = [CPUS[-1], CPUS[0], CPUS[-1]]
    with session_of(placement(cpus), threads=3) as session:
        # The pool that packed the weights is gone; two workers remain, the caller is the third.
        workers = sorted(threads_of_this_process() - before)
        assert [os.sched_getaffinity(thread) for thread in workers] == [{CPUS[0]}, {CPUS[-1]}]
        assert np.array_equal(logits_of(session), expected)
        assert os.sched_getaffinity(0) == mine
    assert threads_of_this_process() == before


def test_threads_of_an_encoder_stay_on_their_cpus():
    checkpoint = random_checkpoint(TensorType.Q4_0)
    as_pooled(checkpoint, Pooling("mean"))
    texts = [np.array(PROMPT, np.uint32)]
    with Model.load(checkpoint) as model, Encoder(model, threads=1) as encoder:
        expected = encoder.run(texts)
    before = threads_of_this_process()
    cpus = [CPUS[-1], CPUS[0], CPUS[-1]]
    with Model.load(checkpoint, threads=2, placement=placement(cpus)) as model:
        with pytest.raises(ValueError, match="threads is 4; accepted: at most 3"):
            Encoder(model, threads=4)
        with Encoder(model, threads=3) as encoder:
            workers = sorted(threads_of_this_process() - before)
            assert [os.sched_getaffinity(thread) for thread in workers] == [{CPUS[0]}, {CPUS[-1]}]
            assert np.array_equal(encoder.run(texts), expected)
    assert threads_of_this_process() == before


def test_caller_is_pinned_during_steps():
    if len(CPUS) < 2:
        topics.skip("machine", "this CPU is the only one: nobody can be seen on another")
    seen, done = set(), threading.Event()
    caller = threading.get_native_id()

    def watch():
        while not done.is_set():
            seen.add(frozenset(os.sched_getaffinity(caller)))

    watcher = threading.Thread(target=watch)
    with session_of(placement([CPUS[1]]), threads=1) as session:
        watcher.start()
        while frozenset({CPUS[1]}) not in seen:
            logits_of(session)
        done.set()
        watcher.join()
    assert seen == {frozenset({CPUS[1]}), frozenset(CPUS)}


@pytest.mark.parametrize(
    ("kind", "weights"), [(TensorType.F32, "q4_0"), (TensorType.F16, None), (TensorType.Q8_0, None)]
)
def test_size_is_known_before_the_model_is_loaded(kind, weights):
    checkpoint = random_checkpoint(kind)
    with Model.load(checkpoint, weights=weights) as model:
        vectors = sum(tensor.n_bytes for tensor in checkpoint.tensors if tensor.rows == 1)
        assert held_bytes(checkpoint, weights) == model.info.packed_bytes + vectors


def test_more_threads_than_the_model_was_placed_for():
    with pytest.raises(ValueError, match="threads is 2; accepted: at most 1, for which the model"):  # noqa: SIM117
        with session_of(placement([CPUS[0]])):
            pass


def test_cpu_outside_the_mask_is_an_error_that_names_it():
    with pytest.raises(NativeError, match=r"session: cpus\[1\] is 4000, must be a CPU in this"):  # noqa: SIM117
        with session_of(placement([CPUS[0], 4000])):
            pass


@pytest.mark.usefixtures("placeable")
def test_node_that_does_not_exist_is_an_error_that_names_it():
    with pytest.raises(NativeError, match=r"numa: nodes\[1\] is 1000, must be a node whose memory"):  # noqa: SIM117
        with session_of(placement(numa="interleave", nodes=(0, 1000))):
            pass
    assert "nodes[0] is 1000" in placing_refusal([1000])


@pytest.mark.usefixtures("placeable")
def test_interleaved_weights_and_cache_as_the_kernel_sees_them(expected):
    assert placed_bytes("interleave:0") == 0
    with session_of(placement(numa="interleave", nodes=(0, 0))) as session:
        weights = placed_bytes("interleave:0")
        assert weights >= session.model.info.packed_bytes
        assert np.array_equal(logits_of(session), expected)
        # Pages of the cache are there when they are written: two blocks of it.
        cache = 2 * session.model.kv_layout("f16").block_bytes
        assert placed_bytes("interleave:0") >= weights + cache
    assert placed_bytes("interleave:0") == 0


@pytest.mark.usefixtures("placeable")
def test_copies_for_two_nodes_change_no_bit(expected):
    """Both lie on node 0, which every host has; tests/native/test_numa.c sees who reads which."""
    cpus, copies = [CPUS[0], CPUS[-1], CPUS[0]], (0, 1, 1)
    with session_of(placement(), threads=3) as session:
        plain = session.model.info
    with session_of(placement(cpus, "replicate", (0, 0), copies), threads=3) as session:
        info = session.model.info
        assert info.packed_bytes == plain.packed_bytes + plain.matrix_bytes
        assert np.array_equal(logits_of(session), expected)
        assert placed_bytes("prefer:0") >= info.packed_bytes
