"""The OpenAI HTTP API: schemas, text and streaming around the engine."""
