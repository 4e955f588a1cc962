"""``/v1/responses``: OpenAI's newer form, of items, whose answers can be kept and gone on from."""
