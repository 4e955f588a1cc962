"""What models that compare tokens are tried on."""

QUERIES = [
    "where is the river?",
    "plays",
    "Replay ranked embeddings - it can't count the houses that it takes over wide fields, slowly",
]
DOCUMENTS = [
    "The river rises slowly over wide fields.",
    "nobody counts - it's e-mail!",
    "-.",
    "unbelievable playing 2024 " * 5,
]
