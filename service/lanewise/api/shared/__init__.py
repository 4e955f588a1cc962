"""What requests share: budgets, threads, templates, grammars, stored answers."""
