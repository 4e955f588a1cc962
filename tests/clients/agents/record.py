"""Records what each agent sends, for ``tests/api/test_recorded_agents.py``: review the diff.

Run by the Python of .venv/clients-agents, then by that of .venv, which adds the prompts.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from agent_turns import work  # noqa: E402
from coding_agent_kinds import KINDS  # noqa: E402
from coding_agents import Agent, closed_proxy  # noqa: E402
from recorded_agents import FOLDER, recorded, write  # noqa: E402
from scripted_clients import NAME, scripted_server, write_model  # noqa: E402

TEMPLATE = ROOT / "tests" / "data" / "templates" / "Qwen-Qwen2.5-7B-Instruct.jinja"


def main() -> None:
    """Record all agents, or those whose titles are given."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "model", TEMPLATE)
        with closed_proxy() as outside, scripted_server(folder / "server", model) as server:
            for title in sys.argv[1:] or KINDS:
                home, project = folder / title / "home", folder / title / "project"
                home.mkdir(parents=True)
                project.mkdir()
                kind = KINDS[title]
                agent = Agent(kind, home, project, server.url, NAME, server.context, outside.url)
                places = {
                    str(project): "/home/lanewise/project",
                    str(home): "/home/lanewise",
                    str(folder): "/tmp/user",
                    str(ROOT): "/opt",
                    server.url: "http://127.0.0.1:8000",
                }
                turns = recorded(work(agent, server), places)
                write(FOLDER / f"{title.lower().replace(' ', '-')}.jsonl.xz", turns)


if __name__ == "__main__":
    main()
