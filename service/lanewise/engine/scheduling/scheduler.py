"""Decides how many tokens of each sequence the next step runs; knows token ids and no text."""

from bisect import insort_right
from collections.abc import Callable, Collection, Sequence

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.sequence import Scheduled, State
from lanewise.engine.base.step import Budget, Copies, Step, Turn, by_adapter
from lanewise.engine.kv.held_blocks import HeldBlocks
from lanewise.engine.kv.prefix import Prefix, no_prefix
from lanewise.engine.kv.states import NoStates, states_for
from lanewise.engine.kv.stored_blocks import NoStore
from lanewise.engine.scheduling.background import Background, split
from lanewise.engine.scheduling.grammar_time import STEP_S, held_back, total_s
from lanewise.engine.scheduling.pacing import Pacer, Work
from lanewise.engine.scheduling.room import Room
from lanewise.engine.scheduling.sight import Sight
from lanewise.engine.scheduling.suspects import Suspects
from lanewise.engine.scheduling.waiting import Rank, Shares, WaitingQueue
from lanewise.runtime import BLOCK_TOKENS, DRAWN_BEFORE, NONFINITE, Sampled

MAX_BY_RIGHT = 8  # sequences admitted in one step by preempting others
STEPS_OF_RIGHT = 8
MAX_PASSED = 64  # waiting sequences that one step skips at most, so that its time stays bounded


class Scheduler:
    """Shares each step's tokens, rows of logits and KV blocks among sequences.

    Every step has all decodes, except some with slow grammars (``grammar_time``). The remaining
    budget, or the part that the pacer allows, goes to prompts one after another: by priority, then
    by what their clients have received, then the one finished soonest (``Shares``). When blocks run
    out the least important sequence is preempted, among equals the one admitted last. It gives up
    its blocks, returns first of its client and is computed again. The first sequence is never
    preempted; the pool holds one sequence of maximum length, so it always ends. A client or request
    with more than its share of places or blocks gives some up for one that waits with less
    (``Room``).

    Sequences in the background get what all others leave: rows that hardly lengthen a step, places
    and blocks that are free. They are preempted for any other that lacks a place or a block.

    A failed guess was never counted as computed, so the token in its place has all keys and values
    that it needs. A sequence whose next block is being computed by a running one lets others pass
    until then. So a common prefix is computed once even if many requests with it come together.

    Where layers have a recurrent state, a failed step has spoiled the states of its sequences. They
    are computed again from a snapshot or from the start, and the tokens of the failed step run
    alone (``Suspects``).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        pacer: Pacer | None = None,
        sight: Sight | None = None,
        store: NoStore | None = None,
        states: NoStates | None = None,
    ) -> None:
        self._config, self._pool = config, pool
        self._pacer, self._sight = pacer, sight
        self.pictures = config.pictures
        self._windows = config.kv_windows
        self.states = states or states_for(config)
        self._suspects = Suspects()
        self.blocks = HeldBlocks(
            pool,
            self._windows,
            max_seqs=config.max_seqs,
            max_model_len=config.max_model_len,
            prefix_cache=config.prefix_cache,
            states=self.states,
            store=store,
        )
        self._shares = Shares()
        self._background = Background(config, pacer, self._shares)
        self._room = Room(pool, self.blocks, self._shares)
        self.waiting = WaitingQueue(self._shares)
        self.running: list[Scheduled] = []  # by priority, then in the order they were admitted
        # Whether one that waits has a right to start is asked after changes and every few steps.
        self._has_changed, self._look_again_at = False, 0

    def add(self, sequence: Scheduled) -> None:
        """Put a new sequence into the queue."""
        self._has_changed = True
        self._shares.enter(sequence)
        self.waiting.add(sequence)

    def finish(self, sequence: Scheduled) -> None:
        """Remove a sequence in any state, and free its blocks."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            del sequence.tokens[len(sequence.tokens) - sequence.n_pending :]
            sequence.n_pending = 0
            if sequence.n_ahead == 0:  # no running step writes to its blocks
                self.blocks.release(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
            self.blocks.store.leave(sequence)
        self._has_changed = True
        self._suspects.leave(sequence)
        if self._sight is not None:
            self._sight.leave(sequence)
        self._shares.leave(sequence)
        sequence.state = State.FINISHED

    def schedule(self) -> Step:
        """The next step: decodes first, then prompts."""
        self._shares.note_step()
        cut = self._cut if self.states.exist else None
        budget = self._budget(cut)
        preempted = self._make_room()
        if self._suspects and (suspect := self._suspects.next_alone(self.running)):
            return self._step_of(suspect, preempted)
        admitted, gave_way = ([], []) if preempted else self._admit_by_right()
        prompts: list[Scheduled] = []
        held = self._held_back()
        n_others = split(self.running)
        for sequence in self.running[:n_others]:
            if not sequence.is_decoding:
                prompts.append(sequence)
            elif sequence not in held:
                budget.spend_on(sequence)
        prompts.sort(key=self._shares.rank)
        budget.n_decodes = len(budget.turns)
        if self._pacer is not None and (prompts or self.waiting):
            context = prompts[0].n_cached if prompts else 0
            decodes = self.work_of(budget.turns)
            budget.leave(self._pacer.spare_tokens(decodes, self._windows.seen(context)))
        for sequence in prompts:
            if not preempted:
                admitted += self._admit(budget, before=self._shares.rank(sequence))
            self._pace(budget, sequence)
            budget.spend_on(sequence)
        if not preempted:
            admitted += self._admit(budget)
        tokens, n_turns, rows = budget.tokens, len(budget.turns), 0
        if len(self.running) > n_others or self.waiting.is_background:
            self._background.add(budget, self.running, held, self.work_of(budget.turns))
            if not preempted:
                admitted += self._admit(budget, background=True)
            # What the background may have is no limit for the guesses of others.
            rows = sum(turn.count for turn in budget.turns[n_turns:])
            budget.tokens = max(0, tokens - rows)
        turns, gone, behind = by_adapter(budget.turns), preempted + gave_way, rows if n_turns else 0
        return Step(turns, gone, admitted, budget.tokens, budget.logits, behind)

    def _held_back(self) -> Collection[Scheduled]:
        """Decoding sequences that this step leaves out, as their grammars would take too long."""
        constrained = [one for one in self.running if one.grammar_s and one.is_decoding]
        if total_s(constrained) <= STEP_S:
            return ()
        within_s = STEP_S
        if self._pacer is not None:
            work = Work()
            for one in self.running:
                if one.is_decoding:
                    work.add(one.uncached_len, one.n_cached, self._windows.widest)
            within_s = max(within_s, self._pacer.cost.seconds(work))
        return held_back(constrained, within_s)

    def _pace(self, budget: Budget, sequence: Scheduled) -> None:
        """Set the budget for a prompt after others: each of its tokens attends to all before it."""
        turns = budget.turns
        if self._pacer is None or len(turns) == budget.n_decodes:
            return
        decodes = self.work_of(turns[: budget.n_decodes])
        beside = self.work_of(turns[budget.n_decodes :])
        context = self._windows.seen(sequence.n_cached)
        budget.leave(self._pacer.spare_tokens(decodes, context, beside))

    def _step_of(self, sequence: Scheduled, preempted: list[Scheduled]) -> Step:
        """A step of one sequence alone."""
        budget = self._budget(self.states.cut)
        budget.spend_on(sequence)
        return Step(budget.turns, preempted)

    def _budget(self, cut: Callable[[Scheduled, int], int] | None) -> Budget:
        config, whole = self._config, self.pictures.see_ahead
        return Budget(config.max_step_tokens, config.max_step_logits, cut, whole_pictures=whole)

    def _cut(self, sequence: Scheduled, count: int) -> int:
        """How many of its next ``count`` tokens a sequence with a state may run in this step."""
        if self._suspects:
            count = self._suspects.cut(sequence, count)
        if count > 1:
            count = self.states.cut(sequence, count)
        return count

    def take_copies(self) -> Copies:
        """The copies that the next step makes first, each returned once."""
        return Copies(self.blocks.take_copies(), self.states.snapshots.take_copies())

    def give_back(self, copies: Copies) -> None:
        """Queue copies again for the next step: the step that took them did nothing."""
        self.blocks.give_back(copies.blocks)
        self.states.snapshots.give_back(list(copies.states))

    def pace_drafts(self, step: Step) -> None:
        """Leave to guesses what a step of its decodes can spare, less the prompts that it has."""
        if self._pacer is not None:
            decodes = [turn for turn in step.turns if turn.ends_in_draw and turn.count == 1]
            spare = self._pacer.spare_guesses(self.work_of(decodes), step.n_tokens)
            step.tokens_left = min(step.tokens_left, spare)

    @property
    def may_guess(self) -> bool:
        """Whether steps may have guesses: not while a faulty sequence is looked for."""
        return not self._suspects

    def reserve_draft(self, step: Step, turn: Turn, wanted: int) -> int:
        """Reserve blocks for guessed tokens after a decode; returns for how many.

        Guesses end before the last token that the sequence may have. They never cause a preemption,
        in this step or the next: one free block for each running sequence stays free.
        """
        sequence = turn.sequence
        n_groups = self.blocks.n_groups
        spare = max(0, self._pool.n_free // n_groups - len(self.running))
        room = sequence.n_room + spare * BLOCK_TOKENS - len(sequence.tokens)
        count = min(wanted, step.tokens_left, step.logits_left, room)
        if count <= 0:
            return 0
        self.blocks.give(sequence, len(sequence.tokens) + count)
        step.tokens_left -= count
        step.logits_left -= count
        return count

    @property
    def can_plan_ahead(self) -> bool:
        """Whether the next step can be planned while one runs.

        Only if no sequence may have to be preempted, none is suspected of a failure and none waits
        for rows of pictures, which are made between steps.
        """
        if self._suspects or (self._sight is not None and self._sight.is_working):
            return False
        n_groups = self.blocks.n_groups
        wanted = sum(
            max(n_groups, self.blocks.n_missing(one, len(one.tokens))) for one in self.running
        )
        return wanted <= self._pool.n_free and self._next_by_right() is None

    def begin(self, step: Step) -> None:
        """Note that a step has begun: the next one is planned as if its draws were done."""
        n_draws = 0
        for turn in step.turns:
            sequence = turn.sequence
            sequence.advance(turn.count)
            turn.end = sequence.n_cached
            turn.n_told, sequence.n_accepted = sequence.n_accepted, 0
            sequence.n_ahead += 1
            if turn.ends_in_draw:
                sequence.tokens.append(DRAWN_BEFORE + n_draws)
                sequence.n_pending += 1
                n_draws += 1
            self.states.reach(turn, turn.end)

    def take_back(self, step: Step) -> None:
        """Undo ``begin`` for a step that failed and after which no other was begun."""
        for turn in step.turns:
            sequence = turn.sequence
            sequence.n_cached -= turn.count
            if not self._has_left(sequence) and turn.ends_in_draw:
                sequence.tokens.pop()
                sequence.n_pending -= 1
            turn.end = None
            sequence.n_accepted = turn.n_told
            self.states.drop(turn)

    def lose_states(self, turns: Sequence[Turn], *, failed: bool) -> None:
        """Preempt a step's sequences, whose states are spoiled, to compute them again.

        If the step ``failed``, the tokens that it ran for each sequence then run alone. No other
        step may be running.
        """
        turns = [turn for turn in turns if turn.sequence.state is State.RUNNING]
        if failed:
            self._suspects.add(turns)
        lost = {turn.sequence for turn in turns}
        for sequence in [one for one in reversed(self.running) if one in lost]:
            self._preempt(sequence)
        self._has_changed = True

    def record(self, step: Step, results: Sequence[Sequence[Sampled]]) -> None:
        """Note that a step has run: append the drawn tokens to their sequences.

        ``results`` come from ``batching.results_of``. A step begun ahead has reserved a place for
        each token, after which the next step may be planned already.
        """
        for turn, result in zip(step.turns, results, strict=True):
            sequence, drawn = turn.sequence, result[len(turn.scored) :]
            if turn.error is not None and turn.error.status == NONFINITE:
                self.blocks.hide(sequence)  # the keys and values may be NaN too
            if turn.end is None:
                turn.n_accepted = max(0, len(drawn) - 1)
                sequence.tokens += [one.token for one in drawn]
                sequence.advance(turn.n_computed)
                end = turn.end = sequence.n_cached
                self.states.reach(turn, end)
            else:
                end = turn.end
                if drawn and sequence.state is not State.FINISHED:
                    sequence.tokens[end] = drawn[0].token
                    sequence.n_pending -= 1
                if self._has_left(sequence):
                    self.states.drop(turn)
                    continue
            self._note_share(turn, end)
            if sequence.rows:
                sequence.forget_rows(end)
            self.blocks.note_computed(sequence, end)
            self.states.note_computed(turn, end)
            self._suspects.note_computed(sequence, end)

    def _note_share(self, turn: Turn, end: int) -> None:
        """Count a turn's tokens for its client, but none computed again after a preemption."""
        sequence = turn.sequence
        first = max(end - turn.n_computed, sequence.n_counted)
        of_prompt = max(0, min(end, sequence.n_admitted) - first)
        sequence.n_counted = max(sequence.n_counted, end + turn.ends_in_draw)
        self._shares.note(sequence, of_prompt, 1 + turn.n_accepted if turn.ends_in_draw else 0)

    def _has_left(self, sequence: Scheduled) -> bool:
        """Note that one step fewer runs with a sequence; returns whether the sequence has ended."""
        sequence.n_ahead -= 1
        if sequence.state is not State.FINISHED:
            return False
        if sequence.n_ahead == 0:
            self.blocks.release(sequence)
        return True

    def work_of(self, turns: Sequence[Turn]) -> Work:
        """The size of a step with these turns."""
        work, widest = Work(), self._windows.widest
        for turn in turns:
            work.add(turn.count + len(turn.draft), turn.sequence.n_cached, widest)
        return work

    def _make_room(self) -> list[Scheduled]:
        """Give running sequences the blocks they may need; preempt the last ones if need be."""
        preempted: list[Scheduled] = []
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            missing = self.blocks.n_missing(sequence, len(sequence.tokens))
            if missing <= self._pool.n_free:
                if missing > 0:
                    self.blocks.give(sequence, len(sequence.tokens))
                position += 1
            else:
                preempted.append(self.running[-1])
                self._preempt(self.running[-1])
        return preempted

    def _admit_by_right(self) -> tuple[list[Scheduled], list[Scheduled]]:
        """Start waiting sequences for which others, with more than their share, must be preempted.

        Returns the sequences started and the sequences preempted.
        """
        admitted: list[Scheduled] = []
        gave_way: list[Scheduled] = []
        if any(one.n_ahead for one in self.running):
            return admitted, gave_way
        while len(admitted) < MAX_BY_RIGHT and (found := self._next_by_right()):
            sequence, victims = found
            self.waiting.remove(sequence)
            for victim in victims:
                self._preempt(victim)
            gave_way += victims
            # A preempted sequence may have held blocks of the prefix found before.
            self._start(sequence, self.blocks.find_prefix(sequence) or no_prefix(self._windows))
            admitted.append(sequence)
            self._has_changed = True
        return admitted, gave_way

    def _next_by_right(self) -> tuple[Scheduled, list[Scheduled]] | None:
        """A waiting sequence with a right to start, and the ones that give way to it; or None."""
        n_steps = self._shares.n_steps
        if not self.waiting or (not self._has_changed and n_steps < self._look_again_at):
            return None
        sequence = self.waiting.pop(self.running)
        self.waiting.put_back(sequence)
        prefix = self.blocks.find_prefix(sequence)
        victims = [] if prefix is None else self._room.who_gives_way(sequence, prefix, self.running)
        # Sequences that give way may hold blocks of its prefix.
        if victims and self._has_rows(sequence, 0):
            return sequence, victims
        self._has_changed = False
        self._look_again_at = n_steps + STEPS_OF_RIGHT
        return None

    def _preempt(self, sequence: Scheduled) -> None:
        self.running.remove(sequence)
        self.blocks.release(sequence)
        sequence.state = State.WAITING
        sequence.n_cached = 0
        sequence.n_preempted += 1
        self.waiting.put_back(sequence)

    def _admit(
        self, budget: Budget, before: Rank | None = None, *, background: bool = False
    ) -> list[Scheduled]:
        """Start waiting sequences while there is room; only those that rank before ``before``.

        They are in the ``background``, when no others wait, or they are the others.
        """
        admitted: list[Scheduled] = []
        passed: list[Scheduled] = []
        # A finished sequence keeps its row while a step with it runs.
        while self.waiting and self.blocks.free_rows and budget.is_left:
            if self.waiting.is_background is not background:
                break
            sequence = self.waiting.pop(self.running)
            if before is not None and self._shares.rank(sequence) >= before:
                passed.append(sequence)
                break
            prefix = self.blocks.find_prefix(sequence)
            if prefix is not None and self._room.lacks_blocks(sequence, prefix, len(self.running)):
                passed.append(sequence)
                break
            if prefix is None or not self._has_rows(sequence, prefix.n_cached):
                passed.append(sequence)
                if len(passed) > MAX_PASSED:
                    break
                continue
            self._start(sequence, prefix)
            admitted.append(sequence)
            if not background:
                self._pace(budget, sequence)
            budget.spend_on(sequence)
        for sequence in reversed(passed):
            self.waiting.put_back(sequence)
        return admitted

    def _has_rows(self, sequence: Scheduled, n_cached: int) -> bool:
        """Whether all pictures behind a sequence's first tokens have been seen by a tower."""
        if self._sight is None or not sequence.request.pictures:
            return True
        return self._sight.is_ready(sequence, n_cached)

    def _start(self, sequence: Scheduled, prefix: Prefix) -> None:
        self._shares.note_started(sequence)
        self.blocks.begin(sequence, prefix)
        sequence.n_admitted = len(sequence.tokens)
        if sequence.n_preempted == 0:
            sequence.n_reused = sequence.n_cached
        sequence.state = State.RUNNING
        insort_right(self.running, sequence, key=lambda one: one.request.priority)
