"""all-MiniLM-L6-v2: a text has the same bits alone, among 512, and beside a chat, at all levels."""

import hashlib
import threading

import numpy as np
import pytest

import topics
from data_files import data
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Batch, Model, Session, usable_levels
from opened_models import opened_encoder
from real_models import NoModelError, minilm

pytestmark = [
    pytest.mark.native,
    pytest.mark.slow,
    pytest.mark.real_model,
    pytest.mark.usefixtures("library"),
]

# Lengths as sentences have, every sixteenth up to a page.
LENGTHS = [3 + n * n % 11 if n % 32 else 3 + n % 193 for n in range(512)]
SOME = range(0, 512, 37)  # run alone
GOLDEN = {
    "f32": "1bcd0fc53cfba47c",
    "q8_0": "af354f6ca910d521",
}


@pytest.fixture(scope="module")
def directory():
    try:
        return minilm()
    except NoModelError as error:
        topics.skip("real model", str(error))


@pytest.fixture(scope="module")
def chat():
    """Steps of a model that writes, one after the other until the tests end; their count."""
    path = data("models/stories260K-f32.gguf")
    steps, over, wrong = [0], threading.Event(), []
    batch = Batch([1, 5, 9, 40, 7, 3], [0, 6], [0], [[0]], [5])

    def talk(session: Session) -> None:
        first = session.step(batch)[0].tobytes()
        while not over.is_set():
            wrong.extend([steps[0]] * (session.step(batch)[0].tobytes() != first))
            steps[0] += 1

    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint) as model,
        Session(model, threads=1, blocks=1, max_batch_tokens=8, max_batch_logits=1) as session,
    ):
        thread = threading.Thread(target=talk, args=(session,))
        thread.start()
        yield steps
        over.set()
        thread.join()
    assert wrong == []


def text_of(number: int) -> np.ndarray:
    words = [(number * 977 + i * i * 31) % 28000 + 1000 for i in range(LENGTHS[number] - 2)]
    return np.array([101, *words, 102], np.uint32)


@pytest.mark.parametrize("weights", GOLDEN)
def test_one_text_one_answer(weights, directory, chat):
    texts = [text_of(number) for number in range(512)]
    begun = chat[0]
    with opened_encoder(directory, weights=weights, max_tokens=sum(LENGTHS)) as encoder:
        together = encoder.run(texts)
        alone = np.concatenate([encoder.run([texts[number]]) for number in SOME])
    assert alone.tobytes() == together[SOME].tobytes()
    assert hashlib.sha256(together.tobytes()).hexdigest()[:16] == GOLDEN[weights]
    assert chat[0] > begun
    for number, isa in enumerate(usable_levels()):
        few = SOME if isa == "scalar" else range(512)
        with opened_encoder(directory, isa, 1 + number % 3, weights) as encoder:
            found = encoder.run([texts[text] for text in few])
        assert found.tobytes() == together[few].tobytes(), isa
