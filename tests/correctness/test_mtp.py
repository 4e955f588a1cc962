"""Heads that predict further tokens: against their definition, and the model beside them."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.drafting_heads import Taps
from lanewise.loading.base.program import (
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Rope,
)
from lanewise.loading.base.recurrences import GatedDelta
from lanewise.native.library import NativeError
from lanewise.runtime import RUN_HEAD, RUN_HEAD_AGAIN, Batch, Model, Session, usable_levels
from latent_programs import with_latent_layers
from random_checkpoints import VOCAB, checkpoint, random_weights
from random_programs import random_attention
from tests.golden.reference import prediction
from tests.golden.reference import program as definition
from topics import cases

pytestmark = pytest.mark.native
N_PROGRAMS, PARTS = cases(20, 60), 4
N_TOKENS, N_GUESSES = 40, 3
BLOCKS = 2  # of a sequence
TAPS = Taps((1, 1, 1), 1e-6)
UNKNOWN = -1e29  # logits of tokens that a head does not know are below


def random_model(rng: np.random.Generator, number: int) -> ModelConfig:
    """A model of some layers, with states or without, and a head."""
    heads = [(4, 2, 16), (3, 1, 24), (2, 2, 32)][number % 3]
    # Positions of the head count from the second token on: only distances between them matter.
    attention = replace(random_attention(rng, heads, 1), window=None, position_scale=None)
    state = GatedDelta(taps=4, n_heads=2, value_dim=16, n_key_heads=1, key_dim=16)
    ffns = (
        Gated(int(rng.integers(1, 200))),
        Experts(n=6, n_used=2, size=32, router="softmax", shared_size=32, shared_gate=True),
    )
    layers = [
        Layer(None, ffns[0], state=state)
        if number % 4 and rng.random() < 0.5
        else Layer(replace(attention, window=24 if rng.random() < 0.2 else None), ffns[0])
        for _ in range(int(rng.integers(1, 4)))
    ]
    scale = float(np.float32(rng.uniform(0.5, 2))) if rng.random() < 0.3 else 1.0
    head = Layer(attention, ffns[number % 2], output_scale=scale, mtp=True)
    end = {"logit_scale": 0.5, "logit_softcap": 4.0} if rng.random() < 0.3 else {}
    tied, ropes = bool(rng.random() < 0.5), (Rope(1e4, heads[2] // 2),)
    layers = [Layer(attention, ffns[1]), *layers, head]
    return ModelConfig("random", 64, VOCAB, 256, 1e-5, tied, ropes, tuple(layers), **end)


def with_taps(rng: np.random.Generator, config: ModelConfig) -> ModelConfig:
    """The same model with a head that others made for it."""
    n_layers, layer = config.n_layers - 1, config.layers[-1]
    low = int(rng.integers(1, n_layers + 1))
    outputs = int(rng.choice([0, 1, 19, VOCAB]))
    head = Taps(
        taps=(low, int(rng.integers(1, n_layers + 1)), int(rng.integers(1, n_layers + 1))),
        norm_eps=1e-6,
        fusion_norm=bool(rng.random() < 0.4),
        norm_adds=bool(rng.random() < 0.5),
        own_embedding=bool(rng.random() < 0.5),
        outputs=outputs,
        chooses=outputs in (1, 19) or bool(outputs and rng.random() < 0.5),
    )
    return replace(config, layers=(*config.layers[:-1], replace(layer, head=head)))


def open_session(model: Model, threads: int = 1, float_activations: bool = False) -> Session:
    return Session(
        model,
        threads=threads,
        blocks=4 * BLOCKS,
        states=4,
        max_guesses=N_GUESSES,
        max_batch_tokens=2 * N_TOKENS,
        max_batch_logits=2 * N_TOKENS,
        kv_type="f32",
        float_activations=float_activations,
    )


TABLES = np.arange(4 * BLOCKS, dtype=np.uint32).reshape(4, BLOCKS)


def run_prompt(session: Session, tokens: list[int], chunk: int) -> np.ndarray:
    """All logits of a prompt in chunks, beside another one; the sequence is in place 1."""
    rows = []
    for at in range(0, len(tokens), chunk):
        now = tokens[at : at + chunk]
        n, both = len(now), now[::-1] + now
        batch = Batch(both, [0, n, 2 * n], [at, at], TABLES, range(2 * n), table_rows=[2, 1])
        rows.append(session.step(batch)[n:].copy())
    return np.concatenate(rows)


def predict(
    session: Session, place: int, context: int, tokens: list[int], accepted: int = 0
) -> np.ndarray:
    """Logits of the head behind each of these tokens, one by one, after so many in the cache."""
    rows = []
    for length, token in enumerate(tokens):
        batch = Batch(
            [token],
            [0, 1],
            [context + length],
            TABLES,
            [0],
            table_rows=[place],
            accepted=None if length else [accepted],
            runs=RUN_HEAD_AGAIN if length else RUN_HEAD,
        )
        rows.append(session.step(batch)[0].copy())
    return np.stack(rows)


@pytest.mark.parametrize("part", range(PARTS))
def test_heads_are_what_their_definition_says_and_change_no_bit(part):
    levels, unclear = usable_levels(), 0
    for number in range(part, N_PROGRAMS, PARTS):
        rng = np.random.default_rng(number)
        config = random_model(rng, number)
        if number % 2:
            config = with_taps(rng, config)
        elif number % 3 == 2:
            config = with_latent_layers(rng, config)
        weights = random_weights(rng, config)
        exact = {key: values.astype("f8") for key, values in weights.items()}
        tokens = [int(token) for token in rng.integers(0, VOCAB, N_TOKENS)]
        text, guesses = tokens[:-N_GUESSES], tokens[-N_GUESSES:]
        wanted, margin = prediction.predicted_logits(config, exact, text, guesses)
        model_rows, near = definition.logits_of(config, exact, text)
        without = replace(config, layers=config.layers[:-1])
        plain_weights = {key: v for key, v in weights.items() if key[1] < without.n_layers}
        is_clear = min(margin, near) > 1e-6  # else rounding may choose another expert
        unclear += not is_clear
        first = None
        for i, isa in enumerate(levels):
            chunk = [N_TOKENS, 1, 7][i % 3]
            with (
                Model.load(checkpoint(config, weights), isa=isa) as model,
                open_session(model, threads=1 + i % 3) as session,
            ):
                logits = run_prompt(session, text[:-1], chunk)
                found = predict(session, 1, len(text) - 1, [text[-1], *guesses])
            with (
                Model.load(checkpoint(without, plain_weights), isa=isa) as model,
                open_session(model) as session,
            ):
                assert run_prompt(session, text[:-1], chunk).tobytes() == logits.tobytes()
            assert first is None or found.tobytes() == first.tobytes(), (number, isa, config)
            first = found if first is None else first
            for got, definite in ((found, wanted), (logits, model_rows[:-1])):
                known = definite > UNKNOWN
                assert (got > UNKNOWN).tolist() == known.tolist()
                error = np.abs((got - definite)[known]).max() / np.abs(definite[known]).max()
                assert not is_clear or error < 2e-4, (number, isa, error, config)
    assert unclear <= N_PROGRAMS // PARTS // 5


@pytest.mark.parametrize("taps", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_row_in_the_place_of_an_embedding_reaches_the_head(quantized, taps, tokens):
    """Rows that are embeddings change no bit, others do; positions turn the head's keys as well."""
    rng = np.random.default_rng(11)
    config = random_model(rng, 2)
    if taps:
        config = with_taps(rng, config)
        *layers, last = config.layers
        last = replace(last, head=replace(last.head, own_embedding=False))
        config = replace(config, layers=(*layers, last))
    weights = random_weights(rng, config)
    first, n = 5, 12  # tokens that have rows
    [embedding] = [values for key, values in weights.items() if key[0] is Role.TOKEN_EMBEDDING]
    own = np.stack([embedding[token] for token in tokens[first : first + n]]).astype(np.float32)
    others = own[::-1].copy()

    def run(rows, chunk, shift=0):
        kinds = {"weights": "q8_0"} if quantized else {}
        with (
            Model.load(checkpoint(config, weights), **kinds) as model,
            open_session(model, threads=2) as session,
        ):
            logits = []
            for at in range(0, 30, chunk):
                now = tokens[at : min(at + chunk, 30)]
                begin, end = max(at, first), min(at + len(now), first + n)
                batch = Batch(now, [0, len(now)], [at], TABLES, range(len(now)), table_rows=[1])
                if rows is not None and begin < end:
                    batch.rows = [(begin - at, rows[begin - first : end - first])]
                batch.positions = np.tile(np.arange(at, at + len(now), dtype=np.uint32), (3, 1))
                batch.positions[:, np.arange(at, at + len(now)) >= first + n] += shift
                logits.append(session.step(batch).copy())
            found = []
            for length, token in enumerate(tokens[30:33]):
                batch = Batch([token], [0, 1], [30 + length], TABLES, [0], table_rows=[1])
                batch.runs = RUN_HEAD_AGAIN if length else RUN_HEAD
                batch.positions = np.full((3, 1), 30 + length + shift, np.uint32)
                found.append(session.step(batch)[0].copy())
            return np.concatenate(logits).tobytes(), np.stack(found).tobytes()

    seen = run(others, 30)
    assert run(others, 7) == seen
    assert run(others, 1) == seen
    plain = run(None, 30)
    assert seen[1] != plain[1]
    assert run(others, 30, shift=9)[1] != seen[1]
    if not quantized:
        assert run(own, 30) == plain


@pytest.fixture(params=["its own", "taps"])
def model(request):
    rng = np.random.default_rng(11)
    config = random_model(rng, 2)
    if request.param == "taps":
        config = with_taps(rng, config)
    assert any(layer.state is not None for layer in config.layers)
    with Model.load(checkpoint(config, random_weights(rng, config))) as model:
        yield model


@pytest.fixture
def tokens() -> list[int]:
    return [int(token) for token in np.random.default_rng(12).integers(0, VOCAB, N_TOKENS)]


def test_a_head_goes_on_behind_guesses_that_came_true(model, tokens):
    with open_session(model) as session:
        run_prompt(session, tokens[:30], 30)
        wanted = predict(session, 1, 30, tokens[30:33])
    for right in range(N_GUESSES + 1):
        with open_session(model, threads=2) as session:
            run_prompt(session, tokens[: 29 - right], 10)
            guesses = [*tokens[30 - right : 30], 1, 2, 3]
            ran = [tokens[29 - right], *guesses[:N_GUESSES]]
            first, n = 29 - right, len(ran)
            session.step(
                Batch(ran, [0, n], [first], TABLES, [0], table_rows=[1], guesses=[N_GUESSES])
            )
            found = predict(session, 1, 30, tokens[30:33], accepted=right)
            assert found.tobytes() == wanted.tobytes(), right
            # Its own keys and values are written over, whatever it guessed.
            predict(session, 1, 30, [5, 6, 7], accepted=right)
            batch = Batch([tokens[30]], [0, 1], [30], TABLES, [0], table_rows=[1], accepted=[right])
            session.step(batch)
            again = predict(session, 1, 31, tokens[31:34])
        with open_session(model) as session:
            run_prompt(session, tokens[:31], 31)
            assert again.tobytes() == predict(session, 1, 31, tokens[31:34]).tobytes()


def test_a_copy_of_a_place_takes_the_head_along(model, tokens):
    with open_session(model) as session:
        run_prompt(session, tokens[:31], 31)
        wanted = predict(session, 1, 31, tokens[31:33])
    with open_session(model) as session:
        run_prompt(session, tokens[:30], 30)
        tables = TABLES.copy()
        tables[3] = tables[1]  # the same blocks, another place
        batch = Batch([tokens[30]], [0, 1], [30], tables, [0], [3], state_copies=[(1, 3)])
        session.step(batch)
        rows = [
            Batch([tokens[31]], [0, 1], [31], tables, [0], [3], runs=RUN_HEAD),
            Batch([tokens[32]], [0, 1], [32], tables, [0], [3], runs=RUN_HEAD_AGAIN),
        ]
        found = [session.step(one)[0].copy() for one in rows]
        assert np.stack(found).tobytes() == wanted.tobytes()


def test_several_sequences_have_their_own_rows(model, tokens):
    """And one that ends before the others changes nothing."""
    with open_session(model) as session:
        alone = []
        for text in (tokens[:20], tokens[20:33]):
            run_prompt(session, text[:-1], 40)
            alone.append(predict(session, 1, len(text) - 1, [text[-1], 3, 9]))
    with open_session(model, threads=2) as session:
        texts = (tokens[:19], tokens[20:32])
        both = [*texts[0], *texts[1]]
        session.step(Batch(both, [0, 19, 31], [0, 0], TABLES, [18, 30], table_rows=[3, 0]))
        found = []
        for length, (now, run) in enumerate(
            [((tokens[19], tokens[32]), RUN_HEAD), ((3, 3), RUN_HEAD_AGAIN)]
        ):
            contexts = [19 + length, 12 + length]
            batch = Batch(now, [0, 1, 2], contexts, TABLES, [0, 1], [3, 0], runs=run)
            found.append(session.step(batch).copy())
        last = Batch([9], [0, 1], [14], TABLES, [0], [0], runs=RUN_HEAD_AGAIN)
        found_last = session.step(last)[0].copy()
    assert [row[0].tobytes() for row in found] == [row.tobytes() for row in alone[0][:2]]
    assert [row[1].tobytes() for row in found] == [row.tobytes() for row in alone[1][:2]]
    assert found_last.tobytes() == alone[1][2].tobytes()


@pytest.mark.parametrize("first", [True, False])
def test_a_sequence_without_tokens_keeps_its_row(model, tokens, first):
    """That of the last guess that a batch without tokens of its own says was right, if it does."""
    with open_session(model) as session:
        run_prompt(session, tokens[:20], 20)
        wanted = predict(session, 1, 20, tokens[20:22])
    for accepted in (0, 2):
        with open_session(model) as session:
            text, guesses = [*tokens[:20], 5], [accepted + 1]  # the last one is wrong
            session.step(Batch(text, [0, 21], [0], TABLES, [0], [1], guesses=guesses))
            starts, places = ([0, 0, 3], [1, 2]) if first else ([0, 3, 3], [2, 1])
            contexts, right = ([20, 0], [accepted, 0]) if first else ([0, 20], [0, accepted])
            session.step(Batch([7, 8, 9], starts, contexts, TABLES, [2], places, accepted=right))
            assert predict(session, 1, 20, tokens[20:22]).tobytes() == wanted.tobytes()


def test_what_cannot_be_asked_of_a_head_is_refused(model, tokens):
    good = {"token_ids": [1], "query_start": [0, 1], "context_lens": [5], "logit_rows": [0]}
    two = {"token_ids": [1, 2], "query_start": [0, 2], "logit_rows": [1]}
    cases = [
        ({"runs": 3}, "runs is 3, must be 0 to 2"),
        ({"context_lens": [0]}, "sequence 0 has 1 tokens behind 0"),
        (two, "sequence 0 has 2 tokens behind 5"),
        ({"logit_rows": []}, "0 rows of logits and 0 copies of states"),
        ({"state_copies": [(0, 1)]}, "1 rows of logits and 1 copies of states"),
        ({"rows": [(0, np.zeros((1, 64), np.float32))]}, "rows must be NULL for a prediction head"),
        ({"accepted": [1]}, "1 guesses of sequence 0 are accepted, its place remembers 0"),
    ]
    with open_session(model) as session:
        run_prompt(session, tokens[:5], 5)
        for changes, message in cases:
            given = {**good, "block_tables": TABLES, "runs": RUN_HEAD} | changes
            with pytest.raises(NativeError, match=message):
                session.step(Batch(**given))
        session.step(Batch(**good, block_tables=TABLES, runs=RUN_HEAD))
    plain = replace(model.config, layers=model.config.layers[:-1])
    weights = random_weights(np.random.default_rng(1), plain)
    with (
        Model.load(checkpoint(plain, weights)) as other,
        open_session(other) as session,
        pytest.raises(NativeError, match="must be 0: the model has no prediction head"),
    ):
        session.step(Batch(**good, block_tables=TABLES, runs=RUN_HEAD))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: (layers[-1], *layers[:-1]), "layer 0: mtp is 1, must be 0"),
        (lambda layers: (*layers, layers[-1]), "mtp is 1, must be 0"),
        (lambda layers: (*layers[:-1], replace(layers[-1], ffn=None)), "must be 0 but with an FFN"),
        (
            lambda layers: (
                *layers[:-1],
                replace(layers[-1], attention=replace(layers[-1].attention, window=4)),
            ),
            "must be 0 but with attention to all",
        ),
        (
            lambda layers: (*layers[:-1], replace(layers[-1], head=replace(TAPS, taps=(1, 2, 9)))),
            "head: taps is 9, must be 1 to",
        ),
        (
            lambda layers: (*layers[:-1], replace(layers[-1], head=replace(TAPS, outputs=5))),
            "head: outputs is 5, must be 37",
        ),
        (
            lambda layers: (*layers[:-1], replace(layers[-1], mtp=False, head=TAPS)),
            "head: n_taps is 3, must be 0",
        ),
    ],
)
def test_heads_that_the_library_does_not_have_are_refused(model, change, message):
    config = replace(model.config, layers=change(model.config.layers))
    with pytest.raises(NativeError, match=message):
        Model.load(checkpoint(config, {}))


@pytest.mark.parametrize("taps", [False, True])
def test_quantized_heads_are_the_same_at_every_level(tokens, taps):
    rng, kind = np.random.default_rng(3), gguf.GGMLQuantizationType.Q8_0
    config = random_model(rng, 2)
    if taps:
        config = with_taps(rng, config)
    weights = {
        key: gguf.dequantize(gguf.quantize(values, kind), kind)
        if values.ndim > 1 and values.shape[-1] % 32 == 0
        else values
        for key, values in random_weights(rng, config).items()
    }
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, _ = prediction.predicted_logits(config, exact, tokens[:38], tokens[38:])
    errors, first = [], None
    for is_exact in (True, False):
        for i, isa in enumerate(usable_levels()):
            with (
                Model.load(checkpoint(config, weights), weights="q8_0", isa=isa) as model,
                open_session(model, threads=1 + i % 3, float_activations=is_exact) as session,
            ):
                run_prompt(session, tokens[:37], [1, 7, 37][i % 3])
                found = predict(session, 1, 37, tokens[37:])
            assert is_exact or first is None or found.tobytes() == first.tobytes(), isa
            first = None if is_exact else found
            known = wanted > UNKNOWN
            errors.append(np.abs((found - wanted)[known]).max() / np.abs(wanted[known]).max())
    each = len(errors) // 2
    assert max(errors[:each]) < 1e-5 < max(errors[each:]) < 0.1
