"""Load tests against any server that speaks the OpenAI API."""
