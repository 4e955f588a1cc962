"""The commands, programs and links of Markdown pages."""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """What stands in a fence; ``why`` it cannot be run here, if it cannot."""

    kind: str
    text: str
    why: str | None

    def commands(self) -> list[str]:
        """Each command with the lines that it goes on in; a line without ``$`` may be output."""
        found: list[str] = []
        goes_on = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(line[2:])
            elif goes_on and found:
                found[-1] += f"\n{line}"
            else:
                continue
            goes_on = line.endswith("\\") or found[-1].count("'") % 2 == 1
        return found


def blocks(path: Path) -> list[Block]:
    """The fences of a page."""
    return [
        Block(found["kind"], found["text"], found["why"])
        for found in FENCE.finditer(path.read_text(encoding="utf-8"))
    ]


def links(path: Path) -> list[str]:
    """Where the links of a page lead."""
    return LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8")))


def table_cells(path: Path) -> list[str]:
    """The cells of a page's tables."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    return [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
