"""Whose tokens a step draws when the grammars of all of them would take too long together.

One grammar's time has bounds of its own (``constraint.py``); those of many clients add up in a
step, for which everybody waits.
"""

from collections.abc import Collection, Iterable

from lanewise.engine.sequence import Sequence

# What the grammars of a step may take together, or as long as the step itself, if that is longer:
# those of 64 texts with ordinary ones take less.
STEP_S = 0.02


def total_s(sequences: Iterable[Sequence]) -> float:
    """Return what the next tokens of these will take their grammars, by what the last ones took."""
    return sum([sequence.grammar_s for sequence in sequences])


def held_back(decodes: Collection[Sequence], within_s: float) -> set[Sequence]:
    """Return which of these, who all have a grammar, draw in a later step.

    Each has the same share, and what some do not need goes to the others: a light grammar never
    waits for heavy ones. Those that want more than that take turns, at least one in each step.
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
