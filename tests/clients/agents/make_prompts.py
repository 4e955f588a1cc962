"""Adds the prompts and answers of each template to what agents sent: what the replay must give."""

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from agents_again import TEMPLATES, application  # noqa: E402
from data_files import find  # noqa: E402
from recorded_agents import FOLDER, read, write  # noqa: E402


def main() -> None:
    """Rewrite every recorded conversation."""
    for path in sorted(FOLDER.glob("*.jsonl.xz")):
        turns = list(read(path))
        for template in TEMPLATES:
            found = find(f"templates/{template}.jinja")
            assert found is not None, f"{template} is in ../shared/data/templates"
            with application(found.read_text()) as again:
                for i, one in enumerate(turns):
                    outcome, before = again.send(one), turns[i]
                    turns[i] = replace(
                        one,
                        prompts={**before.prompts, template: outcome.prompts},
                        answers={**before.answers, template: outcome.text},
                    )
        write(path, turns)


if __name__ == "__main__":
    main()
