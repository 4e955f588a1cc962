"""Delays draws in a step when the grammars of all sequences would take too long together.

The time of one grammar is bounded in ``constraint.py``. But the grammars of many clients add up,
and every sequence of a step waits for their sum.
"""

from collections.abc import Collection, Iterable

from lanewise.engine.base.sequence import Scheduled

# Time that the grammars of one step may take together; a step that is longer allows as much time as
# it takes itself. 64 sequences with ordinary grammars take less.
STEP_S = 0.02


def total_s(sequences: Iterable[Scheduled]) -> float:
    """The expected grammar time of these sequences' next tokens: what their last tokens took."""
    return sum([sequence.grammar_s for sequence in sequences])


def held_back(decodes: Collection[Scheduled], within_s: float) -> set[Scheduled]:
    """Return which of these sequences, which all have a grammar, must draw in a later step.

    All have equal shares, and what light grammars leave goes to the heavier ones: a light grammar
    never waits for a heavy one. Sequences that need more than their share take turns, at least one
    in each step.
    """
    by_cost = sorted(decodes, key=lambda one: one.grammar_s)
    n_light, left_s = 0, within_s
    for sequence in by_cost:
        if sequence.grammar_s > left_s / (len(by_cost) - n_light):
            break
        n_light += 1
        left_s -= sequence.grammar_s
    held = set()
    for sequence in sorted(by_cost[n_light:], key=lambda one: -one.n_held):
        if left_s > 0:
            left_s -= sequence.grammar_s
            sequence.n_held = 0
        else:
            sequence.n_held += 1
            held.add(sequence)
    return held
