"""What requests of a batch may be for."""

# At OpenAI's and vLLM's paths.
OPENAI_PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"),
    *("/v1/score", "/v1/rerank", "/v1/classify", "/v1/systemone"),
)
MESSAGES_PATH = "/v1/messages"
PATHS = (*OPENAI_PATHS, MESSAGES_PATH)
