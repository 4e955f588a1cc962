"""What goes wrong with a chat template."""


class ChatTemplateError(Exception):
    """A chat template cannot be compiled, or refuses these messages; the message says why."""
