"""The forms in which model families answer: reasoning, content and calls, and grammars of them."""
