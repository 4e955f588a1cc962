"""Speculation: guessed tokens run after the last one, and are kept as far as they come true.

A step reads all weights, whether it has one row or eight, so a few guesses cost little where few
sequences decode. A guess counts only if it is the token that is drawn at its place: answers are the
same as without speculation, bit for bit. Each step runs the guesses that give most tokens per
second. That follows from how often guesses of their kind came true in this sequence, and from the
measured time of steps with so many rows. A sequence whose guesses keep failing gets none, and is
tried again now and then.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Step, Turn
from lanewise.engine.guessing.draft_model import Drafter, Reader, settle
from lanewise.engine.guessing.drafter_chance import FIRST_CHANCE, FORGETTING_RATE, DrafterChance
from lanewise.engine.guessing.prompt_lookup import Expected, PromptLookup
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.engine.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

# The kind of a guess, by how many tokens before it match an earlier place. First chances are rather
# too high: what is never tried is never measured.
KIND_OF_LENGTH = (0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4)  # the last entry also for longer matches
LAST_LENGTH = len(KIND_OF_LENGTH) - 1
DRAFTED = 5  # the kind of guesses by a draft model or the model's own head
FIRST_CHANCES = (0.2, 0.35, 0.5, 0.65, 0.8, FIRST_CHANCE)
LEARNING_RATE = 0.12
# Guesses below this chance are not weighed once a likelier one was not worth its row.
UNLIKELY = 0.1
MIN_GAIN = 1.04  # least gain in tokens per second; less is within the error of measurement
# With many sequences, waiting for guesses also makes the time between tokens uneven.
MIN_GAIN_OF_MANY = 1.1
TRUST_RATE, RECOVERY_RATE = 0.05, 1 / 250  # how fast trust in expected gains falls, recovers
FIRST_WAIT_S, WAIT_RATE = 0.003, 0.1  # delay of a step not begun ahead, with many rows
MAX_SEARCHED = 8  # sequences searched in a step, in turns; promising ones come on top
WORTHLESS = 0.85  # if even a guess this likely would not pay, none is looked for


@dataclass(slots=True)
class Guess:
    """Tokens that may come next in one sequence."""

    tokens: list[int]
    kinds: list[int]
    chances: list[float]  # that each comes true together with all before it

    def worth(self, count: int) -> float:
        """The expected number of its first ``count`` tokens that come true."""
        return sum(self.chances[:count])


class Guesser:
    """Makes the guesses of one sequence and learns how often they come true."""

    __slots__ = (
        *("_chances", "_drafter", "_expected", "_lookup", "_most", "is_fed", "promise", "reader"),
    )

    def __init__(
        self,
        lookup: PromptLookup,
        most: int,
        expected: Expected | None = None,
        drafter: DrafterChance | None = None,
    ) -> None:
        self._lookup = lookup
        self._expected = expected
        self._drafter = drafter or DrafterChance()
        self._chances = list(FIRST_CHANCES)
        self._chances[DRAFTED] = self._drafter.value
        self._most = most
        self.promise: list[float] = []  # chances of its last guess, if it was worth its rows
        self.reader: Reader | None = None  # of the draft model
        # False: a head gets nothing of the answer, so that steps need not make it, nor is it asked.
        self.is_fed = True

    def most(self, sequence: Scheduled) -> int:
        """Tokens that may be guessed now: the sequence's last possible token is always drawn."""
        return min(self._most, sequence.request.params.max_tokens - sequence.n_output - 1)

    def chance(self, kind: int) -> float:
        """The probability that one guess of this kind comes true."""
        return self._chances[kind]

    def guess(self, sequence: Scheduled) -> Guess | None:
        """The tokens after an earlier occurrence of the text's end, or of the expected answer."""
        most = self.most(sequence)
        if most < 1:
            return None
        tokens = sequence.tokens
        if sequence.n_pending:
            tokens = tokens[: -sequence.n_pending]
        found, length = self._found(tokens, most)
        if not length:
            return None
        kinds, chances, chance = [], [], 1.0
        for n_alike in range(length, length + len(found)):
            kind = KIND_OF_LENGTH[min(n_alike, LAST_LENGTH)]
            chance *= self._chances[kind]
            kinds.append(kind)
            chances.append(chance)
        return Guess(found, kinds, chances)

    def _found(self, tokens: list[int], most: int) -> tuple[list[int], int]:
        """Tokens that may follow, and the length of the match before them."""
        place, length = self._lookup.find(tokens)
        if self._expected is not None:
            there, alike = self._expected.find(tokens)
            if alike and alike >= length:
                return self._expected.tokens[there : there + most], alike
        found = tokens[place : place + most] if length else []
        while length and len(found) < most:  # the match overlaps its own end: a loop
            found += found[: most - len(found)]
        return found, length

    def learn(self, guess: Guess, n_run: int, n_true: int) -> None:
        """Learn that ``n_run`` guessed tokens were run and the first ``n_true`` came true."""
        for place, kind in enumerate(guess.kinds[: min(n_run, n_true + 1)]):
            came = 1.0 if place < n_true else 0.0
            self._chances[kind] += LEARNING_RATE * (came - self._chances[kind])
            if kind == DRAFTED:
                self._drafter.learn(came)

    def pass_over(self, kind: int) -> None:
        """Note that a guess of this kind was not worth its row."""
        self._chances[kind] += FORGETTING_RATE * (FIRST_CHANCES[kind] - self._chances[kind])
        if kind == DRAFTED:
            self._drafter.pass_over()


GuesserOf = Callable[[Scheduled], Guesser | None]


@dataclass(slots=True)
class Guesses:
    """The guesses of one step, and what is expected of them."""

    tried: list[tuple[Turn, Guesser, Guess]] = field(default_factory=list)
    expected_pace: float = 0.0  # tokens per second; 0 without guesses
    background_rows: int = 0  # of the step, which are no tokens of that pace
    draft_s: float = 0.0  # time that the draft model took


class Speculator:
    """Decides which guesses each step runs."""

    def __init__(self, most: int, draft: Drafter | None = None) -> None:
        self._most = most  # guessed tokens of one sequence in one step
        self._draft = draft
        self._drafter = DrafterChance()
        self._wait_s = FIRST_WAIT_S
        self._trust = 1.0  # measured gain of steps with guesses / expected gain
        self._next_searched = 0  # place in the list of decodes
        self.costs = RowCosts()

    def guessers(self, requests: Sequence[GenerationRequest]) -> list[Guesser | None]:
        """A guesser for each sequence that wants one; sequences of one prompt share its index."""
        lookups: dict[int, PromptLookup] = {}
        texts: dict[int, Expected] = {}
        made: list[Guesser | None] = []
        for request in requests:
            most = self._most if request.max_draft is None else min(request.max_draft, self._most)
            if most == 0 or request.params.max_tokens < 2:
                made.append(None)
                continue
            lookup = lookups.get(id(request.prompt))
            if lookup is None:
                lookup = PromptLookup(request.prompt, request.params.max_tokens)
                lookups[id(request.prompt)] = lookup
            else:
                lookup = lookup.copy()
            expected = None
            if request.expected:
                if id(request.prompt) not in texts:
                    texts[id(request.prompt)] = Expected(request.prompt, request.expected)
                expected = texts[id(request.prompt)]
            guesser = Guesser(lookup, most, expected, self._drafter)
            may_sleep = self._draft is not None and self._draft.may_sleep
            guesser.is_fed = not may_sleep or self._drafter.is_to_be_tried()
            made.append(guesser)
        return made

    def skips_head(self, step: Step, guesser_of: GuesserOf) -> bool:
        """Whether no guesses of a head follow the tokens of a step, all of answers."""
        if self._draft is None or not self._draft.may_sleep:
            return False
        skips, is_kept = True, False
        for turn in step.turns:
            guesser = guesser_of(turn.sequence)
            is_fed = not self._drafter.is_asleep if guesser is None else guesser.is_fed
            is_decode = turn.count == 1 and turn.ends_in_draw
            skips &= is_decode and not is_fed
            is_kept |= is_decode and guesser is not None and guesser.is_fed
        if is_kept:
            self._drafter.note_step()
        return skips

    def wants(self, step: Step, guesser_of: GuesserOf) -> bool:
        """Whether a step should wait for the last tokens, so that guesses can follow them.

        Few sequences always wait, since each token counts. For many the wait, in which nothing is
        computed, may be a good part of a step; they are searched for repeats while steps run.
        """
        if not self._could_pay(step):
            return False
        decodes = self._decodes(step, guesser_of)
        if self._draft is not None or 0 < len(decodes) <= MAX_SEARCHED:
            return True
        chances = [chance for _, guesser in decodes for chance in guesser.promise]
        chances.sort(reverse=True)
        return self._least_chance(step, chances, many=True)[0] <= 1

    def search(self, step: Step, guesser_of: GuesserOf) -> None:
        """Find sequences whose text repeats itself, while the next step runs."""
        if not self._could_pay(step):
            return
        price = self._tokens_of_a_row(step)
        for turn, guesser in self._searched(self._decodes(step, guesser_of)):
            guess = guesser.guess(turn.sequence)
            guesser.promise = []
            if guess is not None:
                if guess.chances[0] > price:
                    guesser.promise = guess.chances
                else:
                    guesser.pass_over(guess.kinds[0])

    def _decodes(self, step: Step, guesser_of: GuesserOf) -> list[tuple[Turn, Guesser]]:
        """The decodes that may have guesses: beside others, none of the background."""
        found = []
        for turn in step.turns:
            if step.background_rows and turn.sequence.request.is_background:
                continue
            if turn.ends_in_draw and turn.count == 1:
                guesser = guesser_of(turn.sequence)
                if guesser is not None:
                    found.append((turn, guesser))
        return found

    def add_guesses(
        self,
        step: Step,
        scheduler: Scheduler,
        guesser_of: GuesserOf,
    ) -> Guesses:
        """Add guesses to the decodes of a step."""
        added = Guesses(background_rows=step.background_rows)
        if step.tokens_left < 1 or step.logits_left < 1 or not self._could_pay(step):
            return added
        decodes = self._decodes(step, guesser_of)
        found: list[tuple[Turn, Guesser, Guess]] = []
        for turn, guesser in self._searched(decodes):
            if guess := guesser.guess(turn.sequence):
                found.append((turn, guesser, guess))
            else:
                guesser.promise = []
        if found or (self._draft is not None and decodes):
            scheduler.pace_drafts(step)
        if found:
            self._add_repeats(step, scheduler, found, added, many=len(decodes) > MAX_SEARCHED)
        if self._draft is not None and decodes:
            self._add_drafted(step, scheduler, self._draft, decodes, added)
        return added

    def learn(self, guesses: Guesses, rows: int, seconds: float) -> list[tuple[int, int]]:
        """Note how long a step took and which of its guesses came true.

        Returns (guessed tokens run, tokens that came true) for each sequence with guesses.
        """
        counts = [(len(turn.draft), turn.n_accepted) for turn, _, _ in guesses.tried]
        if counts:
            true = rows - guesses.background_rows
            true -= sum(n_guessed - n_accepted for n_guessed, n_accepted in counts)
            came = min(1.5, max(0.5, true / seconds / guesses.expected_pace))
            self._trust += TRUST_RATE * (came - self._trust)
        else:
            self._trust += RECOVERY_RATE * (1.0 - self._trust)
        self.costs.note(rows, seconds - guesses.draft_s)
        for turn, guesser, guess in guesses.tried:
            guesser.learn(guess, len(turn.draft), turn.n_accepted)
            if guesser.reader is not None:
                settle(turn.sequence, guesser.reader)
        return counts

    def note_wait(self, rows: int, seconds: float) -> None:
        """Note the delay between two steps of which the second could not be begun ahead."""
        if rows > MAX_SEARCHED:
            self._wait_s += WAIT_RATE * (seconds - self._wait_s)

    def close(self) -> None:
        """Free the draft model, if there is one."""
        if self._draft is not None:
            self._draft.close()

    def _searched(self, decodes: list[tuple[Turn, Guesser]]) -> list[tuple[Turn, Guesser]]:
        """The decodes whose texts are searched now: all if they are few, else some, in turns.

        Between two steps there is no time to search many texts, most of which do not repeat.
        """
        if len(decodes) <= MAX_SEARCHED:
            return decodes
        first = self._next_searched % len(decodes)
        self._next_searched = first + MAX_SEARCHED
        places = range(first, self._next_searched)
        return [
            one
            for place, one in enumerate(decodes)
            if one[1].promise or place in places or place + len(decodes) in places
        ]

    def _add_repeats(
        self,
        step: Step,
        scheduler: Scheduler,
        found: list[tuple[Turn, Guesser, Guess]],
        added: Guesses,
        many: bool,
    ) -> None:
        chances = sorted((one for _, _, guess in found for one in guess.chances), reverse=True)
        usable = chances[: step.tokens_left]
        least, added.expected_pace = self._least_chance(step, usable, many)
        for turn, guesser, guess in found:
            count = sum(chance >= least for chance in guess.chances)
            guesser.promise = guess.chances[:count]
            if count == 0:
                guesser.pass_over(guess.kinds[0])
            elif count := scheduler.reserve_draft(step, turn, count):
                turn.draft = guess.tokens[:count]
                added.tried.append((turn, guesser, guess))

    def _add_drafted(
        self,
        step: Step,
        scheduler: Scheduler,
        draft: Drafter,
        decodes: list[tuple[Turn, Guesser]],
        added: Guesses,
    ) -> None:
        """Let the draft model guess for decodes without a guess, the same number of tokens each."""
        eager = []
        for turn, guesser in decodes:
            most = min(guesser.most(turn.sequence), draft.room(turn.sequence))
            if not turn.draft and most > 0 and guesser.is_fed:
                eager.append((turn, guesser, most))
        chances = [guesser.chance(DRAFTED) for _, guesser, _ in eager]
        longest = max((most for _, _, most in eager), default=0)
        length = self._best_length(step, draft, chances, longest, added)
        asked = []
        for turn, guesser, most in eager:
            if length == 0:
                guesser.pass_over(DRAFTED)
            elif count := scheduler.reserve_draft(step, turn, min(length, most)):
                if guesser.reader is None:
                    guesser.reader = draft.reader(turn.sequence)
                asked.append((turn, guesser, guesser.reader, count))
        if not asked:
            return
        self._drafter.note_use()
        began = time.perf_counter()
        wanted = [(turn.sequence, reader, count) for turn, _, reader, count in asked]
        try:
            drafted = draft.guess(wanted, scheduler.blocks.tables)
        except Exception:
            logger.exception("the draft model failed and is no longer used")
            self._draft = None
            draft.close()
            return
        for (turn, guesser, _, _), tokens in zip(asked, drafted, strict=True):
            if tokens:
                turn.draft = tokens
                chances = [guesser.chance(DRAFTED)] * len(tokens)
                guess = Guess(tokens, [DRAFTED] * len(tokens), chances)
                added.tried.append((turn, guesser, guess))
        added.draft_s = time.perf_counter() - began

    def _best_length(
        self, step: Step, draft: Drafter, chances: list[float], longest: int, added: Guesses
    ) -> int:
        """Guesses of the draft model for each sequence that promise the most tokens per second."""
        if not chances:
            return 0
        if not draft.costs.are_known:
            added.expected_pace = added.expected_pace or self._pace_to_beat(step)
            return 2
        rows = step.n_tokens
        worth = step.n_counted + sum(guess.worth(len(turn.draft)) for turn, _, guess in added.tried)
        best_pace, best = added.expected_pace or self._pace_to_beat(step), 0
        powers = [1.0] * len(chances)
        n_guessed = sum(len(turn.draft) for turn in step.turns)
        for length in range(1, longest + 1):
            powers = [power * chance for power, chance in zip(powers, chances, strict=True)]
            worth += sum(powers)
            run = n_guessed + length * len(chances)
            seconds = self.costs.seconds(rows + run) + draft.seconds(len(chances), length)
            if worth / seconds > best_pace:
                added.expected_pace = best_pace = worth / seconds
                best = length
        return best

    def _pace_to_beat(self, step: Step, gain: float = MIN_GAIN) -> float:
        return gain / self._trust * step.n_counted / self.costs.seconds(step.n_tokens)

    def _could_pay(self, step: Step) -> bool:
        """Whether even an almost certain guess would be worth its row."""
        return self.costs.are_known and self._tokens_of_a_row(step) < WORTHLESS

    def _tokens_of_a_row(self, step: Step) -> float:
        """Tokens that a step of this size gives in the time that one more row takes."""
        rows = step.n_tokens
        now = self.costs.seconds(rows)
        return step.n_counted * (self.costs.seconds(rows + 4) - now) / (4 * now)

    def _least_chance(self, step: Step, chances: list[float], many: bool) -> tuple[float, float]:
        """The lowest chance worth a row, and the tokens per second that this promises.

        Returns (2, 0) if no guess is worth its row. ``chances`` fall. With ``many`` sequences a
        step with guesses begins later than one without. Rows that are no guesses count as a token
        each, so that guesses do not slow prompts; rows of the background beside others do not.
        """
        rows, worth = step.n_tokens, float(step.n_counted)
        wait_s, gain = (self._wait_s, MIN_GAIN_OF_MANY) if many else (0.0, MIN_GAIN)
        best_pace, least, expected = self._pace_to_beat(step, gain), 2.0, 0.0
        for count, chance in enumerate(chances, start=1):
            worth += chance
            pace = worth / (self.costs.seconds(rows + count) + wait_s)
            if pace > best_pace:
                expected = best_pace = pace
                least = chance
            elif chance < UNLIKELY:
                break
        return least, expected
