"""Coding agents as the guide says to set them up, in a home and a project of a test's own."""

import json
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parents[2] / "service" / "lanewise" / "guide" / "agents.md"
PRINTED_URL, PRINTED_MODEL, PRINTED_CONTEXT = "http://127.0.0.1:8000", "my-model", "65536"
PRINTED_KEY = "none"
FIRST_PROMPT, SECOND_PROMPT = "write the tests of parser.py", "run them"
FENCE = re.compile(r"(?:^`([^`\n]+)`[^\n]*:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 60


@dataclass(frozen=True)
class Setup:
    """What the guide prints for an agent."""

    files: Mapping[str, str]  # by their path, which begins with ~/
    variables: Mapping[str, str]
    before: list[str]  # commands that are run once
    first: str
    resumed: str


def printed(title: str) -> Setup:
    """The section of the page with this title."""
    _, _, rest = PAGE.read_text().partition(f"\n## {title}\n")
    section = rest.partition("\n## ")[0]
    files, lines = {}, []
    for path, language, text in FENCE.findall(section):
        if language == "console":
            lines += [line.removeprefix("$ ") for line in text.splitlines()]
        else:
            files[path] = text
    exported = (line.removeprefix("export ") for line in lines if line.startswith("export "))
    *before, first, resumed = (line for line in lines if not line.startswith("export "))
    return Setup(files, dict(one.split("=", 1) for one in exported), before, first, resumed)


@dataclass(frozen=True)
class Kind:
    """An agent: how its program is found, what it may not do in tests, and its tools' names."""

    title: str
    program: tuple[str, ...]  # in place of the command's first word
    quiet: Mapping[str, str] = field(default_factory=dict)  # variables: no telemetry, no updates
    files: Mapping[str, str] = field(default_factory=dict)  # the same as settings
    more: tuple[str, ...] = ()  # behind the command's words
    write: str = ""  # its tool for files, and the names of path and content
    path: str = ""
    content: str = ""
    shell: str = ""  # its tool for commands, and the name of the command
    command: str = ""
    commands: bool = False  # it takes a list of them
    with_command: Mapping[str, object] = field(default_factory=dict)  # what else it must have
    edits: bool = False  # it has no tools: files stand in its model's texts
    resumes: bool = True  # a session goes on without a terminal
    counts: tuple[str, ...] = ()  # words by which it asks for usage, if it does not always
    least_prompt: int = 5000  # tokens that it sends at first, at least
    cached: float = 0.95  # of a second session's prompt, which begins as the first one's
    small_context: int = 0  # in which its first turns have room, and a long result has not
    knows_context: bool = False  # makes room by its settings, not by the server's word
    gives_up: str = ""  # what it says where it has made room and wants more
    wants: frozenset[str] = frozenset()  # what it asks of the network all the same, in vain

    def writes(self, path: Path, content: str) -> tuple[str, dict[str, object]]:
        """A call that writes a file."""
        if not self.write:
            return self.runs(f"printf %s {shlex.quote(content)} > {shlex.quote(str(path))}")
        return self.write, {self.path: str(path), self.content: content}

    def says_file(self, path: Path, content: str, text: str = "") -> dict[str, object]:
        """What a model says that writes a file, and does it."""
        if self.edits:
            return {"text": f"{text}\n\n{path.name}\n```\n{content}\n```"}
        return {"text": text, "calls": [self.writes(path, content)]}

    def runs(self, command: str) -> tuple[str, dict[str, object]]:
        """A call that runs a command."""
        given = [command] if self.commands else command
        return self.shell, {self.command: given, **self.with_command}


@dataclass
class Outside:
    """A proxy that lets nothing out, and what was asked of it."""

    url: str = ""
    hosts: set[str] = field(default_factory=set)


@contextmanager
def closed_proxy() -> Iterator[Outside]:
    """What an agent is given as its way to the network."""
    outside = Outside()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outside.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def refuse() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.settimeout(5)
                    head = client.recv(4096).decode(errors="replace").split()
                    if head:  # CONNECT host:443 HTTP/1.1
                        outside.hosts.add(head[1].removesuffix(":443"))
                        client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        yield outside
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@dataclass
class Agent:
    """An agent that is set up."""

    kind: Kind
    home: Path
    project: Path
    url: str
    model: str
    context: int
    proxy: str

    def __post_init__(self) -> None:
        self._setup = printed(self.kind.title)
        for files in (self._setup.files, self.kind.files):
            for path, text in files.items():
                self._write(Path(path.replace("~", str(self.home), 1)), self._meant(text))
        for line in self._setup.before:
            self._run(shlex.split(self._meant(line))[1:]).check_returncode()

    def _write(self, place: Path, text: str) -> None:
        """Settings that the page prints, and those of tests beside them."""
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            text = json.dumps(json.loads(place.read_text()) | json.loads(text))
        place.write_text(text)

    def _meant(self, text: str) -> str:
        text = text.replace(PRINTED_URL, self.url).replace(PRINTED_MODEL, self.model)
        return text.replace(PRINTED_CONTEXT, str(self.context))

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of this machine but where programs are."""
        variables = {name: self._meant(value) for name, value in self._setup.variables.items()}
        names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            **dict.fromkeys(names, self.proxy),
            **variables,
            **self.kind.quiet,
        }

    def ask(
        self, prompt: str, *more: str, resumed: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the command that the page prints, with another prompt."""
        line, known = self._setup.first, FIRST_PROMPT
        if resumed:
            line, known = self._setup.resumed, SECOND_PROMPT
        words = [prompt if word == known else word for word in shlex.split(self._meant(line))]
        assert prompt in words, f"{self.kind.title}: the page's command has no prompt: {line}"
        return self._run([*words[1:], *self.kind.more, *more])

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.kind.program, *words],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def usage_of(answered: str) -> tuple[int, int]:
    """Tokens of the prompt, and those of them from the cache, as an answer's last usage has it."""

    def last(pattern: str) -> int:
        found = re.findall(pattern, answered)
        return int(found[-1]) if found else 0

    if '"cache_read_input_tokens"' in answered:
        cached = last(r'"cache_read_input_tokens": ?(\d+)')
        return last(r'"input_tokens": ?(\d+)') + cached, cached
    return last(r'"(?:prompt|input)_tokens": ?(\d+)'), last(r'"cached_tokens": ?(\d+)')
