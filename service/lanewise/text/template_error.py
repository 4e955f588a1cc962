"""What goes wrong with a chat template."""

from lanewise.told import told


class ChatTemplateError(Exception):
    """A chat template cannot be compiled, or refuses these messages; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(told(message))  # the template's own words are in it


class TextTooLongError(ChatTemplateError):
    """A chat template makes more of these messages than any context holds."""
