"""How a model that answers yes or no is asked about a query and a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from lanewise.loading.base.checkpoint import ModelFileError

INSTRUCT = re.compile(r"(?<=<Instruct>: )[^\n]+")
# Where the first control token begins, behind which a text's tokens end; without one, its length.
FirstControl = Callable[[str], int]


class JudgedPairs(NamedTuple):
    """What is fixed in a template, and what is written around an instruction and two texts.

    It is cut where no token reaches across: before a space, behind a line break, at a control
    token. What a request has is cut into tokens in between, as it is in the whole.
    """

    fixed: tuple[str, str, str]  # before, between and after the texts
    before_instruction: str
    instruction: str  # the usual one; none: it is not asked by one
    before_query: str
    after_query: str
    before_document: str
    after_document: str

    @classmethod
    def of(cls, template: str, source: str, first_control: FirstControl) -> JudgedPairs:
        """Cut a template with {query} and {document}; ModelFileError without them, in order."""
        head, has_query, rest = template.partition("{query}")
        between, has_document, tail = rest.partition("{document}")
        if not (has_query and has_document):
            raise ModelFileError(
                f"{source}: the template for pairs is {template[:80]!r}…; {{query}} and then"
                " {document} are needed in it"
            )
        found = INSTRUCT.search(head)
        if found and first_control(head[found.start() :]) < len(head) - found.start():
            found = None  # an instruction is text up to the query, where no control token is
        before = head[: found.start()] if found else head
        fixed = before.rstrip(" ")
        middle = between.strip()
        end = first_control(tail)
        return cls(
            (fixed, middle, tail[end:]),
            before[len(fixed) :],
            found.group() if found else "",
            head[found.end() :] if found else "",
            between[: len(between) - len(between.lstrip())],
            between[len(between.rstrip()) :],
            tail[:end],
        )

    def texts(
        self, pairs: Iterable[tuple[str, str]], instruction: str | None = None
    ) -> list[tuple[str, str]]:
        """The two texts of each pair that stand between what is fixed.

        A query of megabytes may have thousands of documents: equal ones are one text.
        """
        asked = instruction if instruction and self.instruction else self.instruction
        before = f"{self.before_instruction}{asked}{self.before_query}"
        first = cache(lambda query: f"{before}{query}{self.after_query}")
        return [
            (first(query), f"{self.before_document}{document}{self.after_document}")
            for query, document in pairs
        ]
