"""What goes wrong with cutting a text into tokens."""

from collections.abc import Iterator
from contextlib import contextmanager

from lanewise.loading.base.checkpoint import ModelFileError


class TokenizingError(ModelFileError):
    """A tokenizer fails on a text, or takes more than it may; the message says which."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the model's tokenizer cannot be used: {why}")


@contextmanager
def panics_told() -> Iterator[None]:
    """Have a panic of the library, which is no Exception, be a TokenizingError."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise TokenizingError(str(error)) from None


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of a library in Rust; its class cannot be imported."""
    return type(error).__name__ == "PanicException"
