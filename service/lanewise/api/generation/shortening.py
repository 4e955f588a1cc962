"""Conversations without their oldest messages, for contexts that have no room for all."""

from collections.abc import Sequence

from lanewise.api.conversations import Message

SYSTEM = ("system", "developer")


def shorter(messages: Sequence[Message]) -> list[list[Message]]:
    """What is left when more and more of the oldest messages are dropped, the shortest last.

    What the conversation begins with as its system's stays, and so does the last message of a user.
    Turns before that go as wholes; then the calls after it, each with its results.
    """
    roles = [message.role for message in messages]
    first = next((i for i, role in enumerate(roles) if role not in SYSTEM), len(roles))
    users = [i for i in range(first, len(roles)) if roles[i] == "user"]
    head = list(messages[:first])
    made = [[*head, *messages[start:]] for start in users if start > first]
    last = users[-1] if users else first - 1
    asked = [*head, *messages[last : last + 1]] if users else head
    answers = [i for i in range(last + 1, len(roles)) if roles[i] == "assistant"]
    return made + [[*asked, *messages[start:]] for start in answers[1:]]
