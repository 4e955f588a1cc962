"""``lanewise chat``: talk with a model in the terminal."""

import base64
import difflib
import json
import mimetypes
import re
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanewise.commands.chat_client import ChatClient, ChatError, Numbers
from lanewise.commands.chat_input import line_editing, read_text
from lanewise.commands.chat_server import flags_of, own_server
from lanewise.loading.checkpoints.hub import DEFAULT
from lanewise.settings import ChatSettings, SettingsError

Turn = dict[str, Any]
MAX_IMAGE = 64 << 20  # bytes; servers have limits of their own
FAINT, PLAIN = "\x1b[2m", "\x1b[0m"
CLEAR_LINE = "\r\x1b[K"
# Controls but for the line feed and the tab, what turns the direction of writing, lone surrogates.
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

ADDRESS = re.compile(r"[\w.-]+:\d{1,5}(/\S*)?")
# What /set knows: fields of requests that a person may want to change.
FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words"),
    *("reasoning_effort", "include_reasoning", "thinking_token_budget", "chat_template_kwargs"),
    *("response_format", "structured_outputs", "ignore_eos", "priority", "cache_salt"),
)

HELP = '''\
  Enter sends; \\ at the end of a line, or """ before and after, for several lines
  Ctrl-C stops an answer; Ctrl-D or /quit leaves
  /image [FILE]        an image that goes with the next message; alone: none does
  /system [TEXT]       what the model is told first; alone: shows it
  /set [NAME [VALUE]]  a field of requests, such as temperature 0.2; alone: shows them
  /retry               another answer to the last message
  /new                 forget the conversation
  /save FILE           write it down: JSON if FILE ends so, else text
  /help                this'''


def run(settings: ChatSettings) -> int:
    """Talk until the input ends; 1 if the only answer asked for failed."""
    with _server(settings) as client:
        model, notice = _model_of(client, settings)
        chat = Chat(client, model, settings)
        if not sys.stdin.isatty():
            return chat.answer_all(sys.stdin.read())
        if notice:
            print(f"{CLEAR_LINE if sys.stderr.isatty() else ''}{printable(notice)}")
        chat.talk()
    return 0


def _model_of(client: ChatClient, settings: ChatSettings) -> tuple[str, str | None]:
    """The name of the model to talk with, and what the server has users told of it."""
    asked = next(iter(settings.served_model_name), None)
    models = client.models() if asked is None or _is_url(settings.model) else []
    if asked is None and not models:
        raise ChatError(f"{client.url} serves no model")
    found = next((one for one in models if asked in (None, one.get("id"))), {})
    notice = found.get("notice")
    return asked or str(found.get("id")), None if notice is None else str(notice)


def _is_url(model: str | None) -> bool:
    return (model or "").startswith(("http://", "https://"))


def _server(settings: ChatSettings) -> AbstractContextManager[ChatClient]:
    if settings.model is not None and _is_url(settings.model):
        return nullcontext(ChatClient(settings.model, next(iter(settings.api_key), None)))
    named = settings.model or DEFAULT
    if ADDRESS.fullmatch(named) and not Path(named).exists():
        raise ChatError(f"{named}: no such file or directory; did you mean http://{named}?")
    return own_server(flags_of(replace(settings, model=named)), _say_progress)


def _say_progress(message: str) -> None:
    """The server's last word, until the next one takes its place."""
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        sys.stderr.write(f"{CLEAR_LINE}{FAINT}{printable(message)[: columns - 1]}{PLAIN}")
        sys.stderr.flush()


class Chat:
    """A conversation, and what is typed about it."""

    def __init__(self, client: ChatClient, model: str, settings: ChatSettings) -> None:
        self._client = client
        self._model = model
        self._system = settings.system
        self._turns: list[Turn] = []
        self._images: list[dict[str, Any]] = []  # of the next message
        self._fields: dict[str, Any] = {}
        for name in ("temperature", "max_tokens"):
            if (value := getattr(settings, name)) is not None:
                self._fields[name] = value
        self._commands: dict[str, Callable[[str], None]] = {
            "/image": self._add_image,
            "/system": self._set_system,
            "/set": self._set_field,
            "/retry": self._retry,
            "/new": self._forget,
            "/save": self._save,
            "/help": lambda _: print(HELP),
        }

    def answer_all(self, text: str) -> int:
        """Answer one message, and say nothing else; the exit status."""
        if not text.strip():
            raise SettingsError("standard input: empty; accepted: a message")
        self._turns = [{"role": "user", "content": text}]
        return 0 if self._answer(shows_numbers=False) else 1

    def talk(self) -> None:
        """Answer what is typed until the input ends."""
        # Ctrl-C is meant for this program, even if the shell that started it ignores the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        clear = CLEAR_LINE if sys.stderr.isatty() else ""
        print(f"{clear}{printable(self._model)} at {self._client.url}; /help says what there is")
        with line_editing([*self._commands, "/quit"]):
            while True:
                try:
                    if not self._take(read_text()):
                        return
                except KeyboardInterrupt:  # at the prompt, or too late for an answer
                    print("\nCtrl-D or /quit leaves")
                except EOFError:
                    print()
                    return

    def _take(self, text: str) -> bool:
        """Do what was typed; False to leave."""
        if text.strip() in ("/quit", "/exit", "/bye"):
            return False
        if text.startswith("/"):
            self._command(text)
        elif text.strip():
            self._say(text)
        return True

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name in self._commands:
            self._commands[name](rest.strip())
            return
        close = difflib.get_close_matches(name, self._commands, n=1)
        hint = f"did you mean {close[0]}?" if close else "/help says what there is"
        print(f"{printable(name)} is no command; {hint}; a blank before it sends it")

    def _say(self, text: str) -> None:
        content: Any = text
        if self._images:
            content = [*self._images, {"type": "text", "text": text}]
        self._answer_to([*self._turns, {"role": "user", "content": content}])
        if self._turns and self._turns[-1]["role"] == "assistant":
            self._images = []

    def _add_image(self, name: str) -> None:
        """Have a file go with the next message; without a name, none."""
        if not name:
            self._images = []
            print("no image goes with the next message; /image FILE attaches one")
            return
        path = Path(name).expanduser()
        try:
            if path.stat().st_size > MAX_IMAGE:
                print(f"{path}: more than {MAX_IMAGE >> 20} MiB")
                return
            data = base64.b64encode(path.read_bytes()).decode()
        except OSError as error:
            print(f"{path}: {error.strerror}")
            return
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        url = {"url": f"data:{kind};base64,{data}"}
        self._images.append({"type": "image_url", "image_url": url})
        print(f"{path} goes with the next message, {len(self._images)} in all")

    def _retry(self, _: str) -> None:
        turns = list(self._turns)
        while turns and turns[-1]["role"] != "user":
            turns.pop()
        if turns:
            self._answer_to(turns)
        else:
            print("there is no message to answer again")

    def _answer_to(self, turns: list[Turn]) -> None:
        """Go on with these turns; whatever goes wrong, those that were stay."""
        before, self._turns = self._turns, turns
        is_answered = False
        try:
            is_answered = self._answer()
        finally:
            if not is_answered:
                self._turns = before

    def _messages(self) -> list[Turn]:
        system: list[Turn] = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *self._turns]

    def _answer(self, *, shows_numbers: bool = True) -> bool:
        """Print the next message as it comes and keep it; False after an error, which is said."""
        body = {"model": self._model, "messages": self._messages(), **self._fields}
        numbers, screen, text = Numbers(), Screen(), ""
        try:
            for piece in self._client.stream(body, numbers):
                screen.show(piece.reasoning, faint=True)
                screen.show(piece.text)
                text += piece.text
        except KeyboardInterrupt:
            numbers.reason = "stopped"
        except ChatError as error:
            screen.end()
            print(f"lanewise: {printable(str(error))}", file=sys.stderr)
            return False
        screen.end()
        for warning in numbers.warnings:
            print(screen.faint(f"[the server warns: {printable(warning)}]"), file=sys.stderr)
        self._turns.append({"role": "assistant", "content": text})
        if shows_numbers:
            print(screen.faint(f"[{'stopped, ' * (numbers.reason == 'stopped')}{numbers}]"))
        return True

    def _set_system(self, text: str) -> None:
        self._system = text or self._system
        print(printable(self._system) if self._system else "none; /system TEXT sets it")

    def _set_field(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if name and name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"accepted: {', '.join(FIELDS)}"
            print(f"{printable(name)} is no field that /set knows; {hint}")
            return
        if name and not value.strip():
            self._fields.pop(name, None)
        elif name:
            try:
                self._fields[name] = json.loads(value)
            except ValueError:
                self._fields[name] = value.strip()
        print(json.dumps(self._fields, ensure_ascii=False))

    def _forget(self, _: str) -> None:
        self._turns.clear()
        print("forgotten")

    def _save(self, name: str) -> None:
        if not name:
            print("/save needs a file's name")
            return
        path = Path(name).expanduser()
        if path.suffix == ".json":
            content = {"model": self._model, **self._fields, "messages": self._messages()}
            text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        else:
            turns = (f"{turn['role']}:\n{_text_of(turn)}\n" for turn in self._messages())
            text = "\n".join(turns)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            print(f"{path}: {error.strerror}")
        else:
            print(f"written: {path}")


def _text_of(turn: Turn) -> str:
    """What a turn says, with a word for each image."""
    content = turn["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "[image]") for part in content)


class Screen:
    """Prints an answer in pieces; what is faint is so only where that can be seen."""

    def __init__(self) -> None:
        self._styled = sys.stdout.isatty()
        self._is_faint = False
        self._last = "\n"

    def faint(self, text: str) -> str:
        """The text, faint on a terminal."""
        return f"{FAINT}{text}{PLAIN}" if self._styled else text

    def show(self, text: str, *, faint: bool = False) -> None:
        """Print a piece; thoughts, which are faint, and the answer are paragraphs."""
        text = printable(text)
        if not text:
            return
        if self._is_faint and not faint:
            print("\n")
        self._is_faint = faint
        print(self.faint(text) if faint else text, end="", flush=True)
        self._last = text[-1]

    def end(self) -> None:
        """Begin a new line, unless one has begun."""
        if self._last != "\n":
            print(flush=True)


def printable(text: str) -> str:
    """The text without what would move the cursor or set colours: a model may write anything."""
    return HARMFUL.sub("\ufffd", text.replace("\r", ""))
