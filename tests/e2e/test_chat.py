"""``lanewise chat`` in a terminal, with a server of its own and with others."""

import base64
import json
import os
import re
import signal
import stat
import subprocess
import sys

import pytest

from lanewise.commands.chat import Screen, printable
from pictures import png
from processes import children, is_gone
from serving import wait_for
from terminal import Terminal, terminal
from toy_server import toy_server
from toy_tokenizer import toy_tokenizer
from toy_tower import NAMES, ToyTower, toy_eyes

COMMAND = [sys.executable, "-m", "lanewise", "chat"]
OWN = [*COMMAND, "demo", "--threads", "1", "--max-tokens", "16"]
# As a shell does with what it starts in the background.
IGNORING = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
LONG = '/set structured_outputs {"regex": "[a-z ]{400}"}'  # no answer ends by chance
# No rate where a busy machine let the whole answer arrive at once.
NUMBERS = (
    r"\[16 tokens, (?:[\d.]+ tokens/s, )?first after \d+ ms,"
    r" prompt (\d+), (\d+) of them cached"
)


def say(chat: Terminal, text: str, after: str = ">>> ") -> None:
    """Type a line once the program asks for one."""
    chat.wait_for(after)
    chat.type(text + "\r")


def test_a_conversation_with_a_model_of_its_own(tmp_path):
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    with terminal(OWN, environment) as chat:
        # The toy is called one, with what is to be done about it.
        chat.wait_for("This is the bundled demo model, a toy.*lanewise serve smollm2")
        chat.wait_for(r"lanewise-demo-q8_0 at http://127.0.0.1:\d+; /help")
        [server] = children(chat.process.pid)

        say(chat, LONG)
        say(chat, "It was a dark night.")
        prompt = int(chat.wait_for(NUMBERS)[1])
        say(chat, '"""')
        say(chat, "One.", after=r"\.\.\. ")
        say(chat, 'Two."""', after=r"\.\.\. ")
        longer, cached = map(int, chat.wait_for(NUMBERS).groups())
        assert longer > prompt
        assert cached > 0
        say(chat, "Three\\")
        say(chat, "four.", after=r"\.\.\. ")
        chat.wait_for(NUMBERS)
        say(chat, "/retry")
        chat.wait_for(NUMBERS)
        say(chat, "/system You are a book.")
        chat.wait_for("You are a book.\r\n")
        say(chat, "/set seed 3")
        chat.wait_for('"seed": 3')

        say(chat, f"/save {tmp_path}/talk.json")
        chat.wait_for("written: ")
        saved = json.loads((tmp_path / "talk.json").read_text())
        said = [turn["content"] for turn in saved["messages"] if turn["role"] == "user"]
        assert said == ["It was a dark night.", "One.\nTwo.", "Three\nfour."]
        assert saved["messages"][0] == {"role": "system", "content": "You are a book."}
        assert [turn["role"] for turn in saved["messages"][1:]] == ["user", "assistant"] * 3
        say(chat, f"/save {tmp_path}/talk.txt")
        chat.wait_for("written: ")
        assert "user:\nOne.\nTwo.\n\nassistant:\n" in (tmp_path / "talk.txt").read_text()

        say(chat, "/sistem x")
        chat.wait_for(r"did you mean /system\?")
        say(chat, "/set temperature -1")
        say(chat, "And?")
        chat.wait_for("lanewise: temperature: .*greater than or equal to 0")
        say(chat, "/set temprature 0")
        chat.wait_for(r"did you mean temperature\?")
        say(chat, "/new")
        chat.wait_for("forgotten")
        say(chat, "/set temperature 0")
        say(chat, "It was a dark night.")
        chat.wait_for(NUMBERS)
        chat.wait_for(">>> ")
        chat.interrupt("Ctrl-D or /quit leaves")
        chat.wait_for(">>> ")
        chat.type("\x04")
        assert chat.process.wait(60) == 0
        wait_for(lambda: is_gone(server), "the end of the server")
    history = tmp_path / "lanewise" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with terminal(OWN, environment) as chat:
        say(chat, LONG)
        say(chat, "\x1b[A\x1b[A")
        chat.wait_for("It was a dark night.")
        chat.wait_for(NUMBERS)
        [server] = children(chat.process.pid)
        os.kill(chat.process.pid, signal.SIGKILL)
        wait_for(lambda: is_gone(server), "the end of the server whose chat was killed")


@pytest.mark.parametrize("starter", [[], IGNORING])
def test_ctrl_c_stops_the_answer_alone(tmp_path, starter):
    with toy_server(api_keys=("secret",)) as server:
        server.runner.delay_s = 0.02
        command = [*starter, *COMMAND, f"{server.url}/v1/", "--api-key", "secret"]
        with terminal(command, {"XDG_STATE_HOME": str(tmp_path)}) as chat:
            chat.wait_for(f"toy at {server.url}/v1/")
            say(chat, LONG)
            chat.wait_for('"structured_outputs": ')
            say(chat, "the")
            chat.wait_for(r"the\s+[a-z]+")
            chat.type("\x03")
            chat.wait_for(r"\[stopped, \d+ tokens, ")
            server.wait_until(lambda: server.state.engine.unfinished == 0)
            say(chat, '/set structured_outputs {"choice": ["yes"]}')
            say(chat, "the")
            chat.wait_for(r"\syes\r\n")
            say(chat, "/quit")
            assert chat.process.wait(60) == 0


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], input=text, capture_output=True, text=True)


def test_a_message_from_a_pipe_gets_its_answer_and_nothing_else(url):
    done = run(url, "--max-tokens", "8", "--temperature", "0", text="Once upon a time\n")
    again = run(url, "--max-tokens", "8", "--temperature", "0", text="Once upon a time\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == again.stdout
    assert re.fullmatch(r"[^\[]+\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:1"], "lanewise: http://127.0.0.1:1: Connection refused\n"),
        (["http://"], "lanewise: http://: no host; accepted: http://HOST:PORT\n"),
        (["/no/such.gguf"], "lanewise: /no/such.gguf: "),
        (["localhost:1"], "no such file or directory; did you mean http://localhost:1?"),
        (["--temperature", "3"], "--temperature: '3' cannot be used; accepted: a number from 0"),
    ],
)
def test_what_cannot_be_talked_with_is_one_line(arguments, message):
    done = run(*arguments, text="x")
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_tls_where_there_is_none_is_said(url):
    done = run(url.replace("http://", "https://"), text="x")
    assert done.returncode == 1
    assert done.stderr.endswith(f"there is no TLS; did you mean {url}?\n")


def test_warnings_of_the_server_are_shown(tmp_path):
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    with toy_server() as server, terminal([*COMMAND, server.url], environment) as chat:
        say(chat, "/set max_tokens 4")
        say(chat, "/set reasoning_effort high")
        say(chat, "the")
        chat.wait_for("the server warns: .*reasoning_effort")


def test_a_wrong_key_is_said(tmp_path):
    with toy_server(api_keys=("secret",)) as server:
        done = run(server.url, "--api-key", "other", text="x")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "lanewise: the API key is missing or wrong\n"


def test_no_answer_moves_the_cursor():
    assert printable("a\x1b[2Jb\x9b\r\nc\td \u202ee") == "a�[2Jb�\nc\td �e"
    assert printable("né 👩\u200d💻\u00a0日") == "né 👩\u200d💻\u00a0日"


def test_a_piece_may_be_a_return_alone(capsys):
    """Which is not shown, as in the middle of a text."""
    screen = Screen()
    for piece in ("a", "\r", "\n", "b", "\r"):
        screen.show(piece)
    screen.end()
    assert capsys.readouterr().out == "a\nb\n"


def test_an_image_goes_with_the_next_message(tmp_path):
    eyes = toy_eyes(toy_tokenizer(NAMES).encode("<image>", add_bos=False, parse_special=True)[0])
    (tmp_path / "a.png").write_bytes(png(40, 30))
    with (
        toy_server(more_special=NAMES, tower=ToyTower(), see=eyes) as server,
        terminal([*COMMAND, server.url, "--max-tokens", "4"], {"HOME": str(tmp_path)}) as chat,
    ):
        say(chat, "/image none.png")
        chat.wait_for("none.png: No such file")
        say(chat, "/image ~/a.png")
        chat.wait_for("a.png goes with the next message, 1 in all")
        say(chat, "What is it?")
        # Five views of four rows, and what is around them.
        with_image = int(chat.wait_for(r"\[.*prompt (\d+), \d+ of them cached")[1])
        url = f"data:image/png;base64,{base64.b64encode(png(40, 30)).decode()}"
        content = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "What is it?"},
        ]
        counted = server.client.post(
            "/tokenize", json={"messages": [{"role": "user", "content": content}]}
        )
        assert with_image == counted.json()["count"] > 40
        say(chat, "/save ~/said.txt")
        chat.wait_for("written")
        say(chat, "/quit")
    assert "user:\n[image]\nWhat is it?" in (tmp_path / "said.txt").read_text()
