#ifndef EXPLORER_SCENARIOS_H
#define EXPLORER_SCENARIOS_H

void steps_ahead(void);
void steps_that_fail(void);
void held_draws(void);
void run_litmus(void);

#endif
