"""The ``lanewise`` command: parses arguments, runs one command, turns errors into one line."""

import argparse
import dataclasses
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TextIO

from lanewise import __version__
from lanewise.commands.completing import completion
from lanewise.commands.registration import Command
from lanewise.host import HostError, default_threads, garbage_left_alone
from lanewise.settings import (
    BatchSettings,
    BenchSettings,
    ChatSettings,
    CompareSettings,
    ComputeSettings,
    ConfigSettings,
    DoctorSettings,
    FamiliesSettings,
    InspectSettings,
    ListSettings,
    PackSettings,
    PerplexitySettings,
    PlanSettings,
    PullSettings,
    RemoveSettings,
    Settings,
    SettingsError,
    SourceSettings,
    StoreSettings,
    UsageSettings,
    VerifySettings,
    add_arguments,
    resolve_with_sources,
    unknown_flags,
    unknown_variables,
)
from lanewise.settings.groups import ESSENTIAL
from lanewise.told import told
from lanewise_quantizer.cli import QUANTIZE

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

DESCRIPTION = "Serve large language models from CPUs over the OpenAI API."
EPILOG = """\
Each setting is a flag, an environment variable LANEWISE_... and a key of the YAML file given with
--config, in this order of precedence. MODEL is a GGUF file, a Hugging Face folder, org/name or
org/name:file.gguf of the hub, smollm2 (a small chat model) or demo (the bundled toy)."""


COMMANDS = {
    "serve": Command(
        Settings,
        "lanewise.server.start",
        "serve a model over the OpenAI API",
        example="Qwen/Qwen3-0.6B --port 8080 --kv-memory 4GiB",
    ),
    "chat": Command(
        ChatSettings,
        "lanewise.commands.chat",
        "talk with a model or a server in the terminal",
        usage="[MODEL | http://HOST:PORT] [--SETTING VALUE …]",
        example='http://localhost:8000 --system "You are brief."',
    ),
    "batch": Command(
        BatchSettings,
        "lanewise.commands.batch",
        "answer a file of requests without a server",
        usage="INPUT.jsonl -o OUTPUT.jsonl [--model MODEL] [--SETTING VALUE …]",
        example="requests.jsonl -o answers.jsonl --model Qwen/Qwen3-0.6B",
        positional="input",
    ),
    "config": Command(
        ConfigSettings,
        "lanewise.commands.config",
        "print the settings of serve and where each came from",
        example="--config /etc/lanewise/config.yaml",
        shows_sources=True,
    ),
    "bench": Command(
        BenchSettings,
        "lanewise.commands.bench",
        "measure speed and the limits of this machine",
        example="model.gguf --batch 1,8,16 --repeat 5",
    ),
    "perplexity": Command(
        PerplexitySettings,
        "lanewise.commands.perplexity",
        "score a text and hash all its logits",
        usage="[MODEL] --file TEXT [--SETTING VALUE …]",
        example="model.gguf --file wiki.txt",
    ),
    "compare": Command(
        CompareSettings,
        "lanewise.commands.compare",
        "compare quantized models with the original",
        usage="ORIGINAL MODEL … [--file TEXT] [--SETTING VALUE …]",
        example="original.gguf q8_0.gguf q4_0.gguf --file wiki.txt",
    ),
    "doctor": Command(
        DoctorSettings,
        "lanewise.commands.doctor",
        "say what this machine can do and what is wrong with it",
        usage="[MODEL] [--kernels] [--json]",
        example="model.gguf",
    ),
    "plan": Command(
        PlanSettings,
        "lanewise.commands.plan",
        "predict speed, memory and cost for so many users, here or on a cloud's machine",
        usage="[MODEL] [--instance NAME | --itl MS | --ttft MS | --bench FILE] [--users N,…]",
        example="model.gguf --users 32 --itl 200 --ttft 2000 --arch arm",
    ),
    "pack": Command(
        PackSettings,
        "lanewise.commands.pack",
        "write a model that loads without being packed",
        usage="MODEL -o DIR [--weights TYPE]",
        example="model.gguf -o packed",
    ),
    "quantize": QUANTIZE,
    "inspect": Command(
        InspectSettings,
        "lanewise.commands.inspect",
        "list the tensors of a model and their bits",
        usage="[MODEL] [--check] [--outliers] [--json]",
        example="model.gguf --check",
    ),
    "families": Command(
        FamiliesSettings,
        "lanewise.commands.families",
        "list the model families that are read",
        usage="[--json]",
        example="--json",
        shows_sources=True,
    ),
    "pull": Command(
        PullSettings,
        "lanewise.commands.pull",
        "download a model and print where it lies",
        usage="MODEL",
        example="Qwen/Qwen3-0.6B",
    ),
    "list": Command(
        ListSettings,
        "lanewise.commands.downloads",
        "list the models that were downloaded, and their sizes",
        usage="[--json]",
        example="--json",
    ),
    "rm": Command(
        RemoveSettings,
        "lanewise.commands.removal",
        "delete a model that was downloaded",
        usage="MODEL",
        example="Qwen/Qwen3-0.6B",
        shows_sources=True,
    ),
    "store": Command(
        StoreSettings,
        "lanewise.commands.store",
        "list, check or trim the prompts that servers keep on disk",
        usage="--kv-store DIR [--trim SIZE] [--verify]",
        example="--kv-store /var/lib/lanewise/kv --trim 5GiB",
    ),
    "usage": Command(
        UsageSettings,
        "lanewise.commands.usage",
        "print what keys have used, by day and model",
        usage="--data-dir DIR [--first-day DAY] [--last-day DAY] [--format csv|json]",
        example="--data-dir /var/lib/lanewise/data --first-day 2026-11-01",
    ),
    "verify": Command(
        VerifySettings,
        "lanewise.commands.verify",
        "draw a signed answer again and say whether it is what the model gives",
        usage="RECEIPT --model MODEL [--public-key FILE] [--json]",
        example="answer.json --model model.gguf --public-key public.pem",
        positional="receipt",
    ),
}
EXAMPLES = """\
examples:
  lanewise serve smollm2                     serve a small chat model, downloaded once
  lanewise chat http://localhost:8000        talk with it
  lanewise plan MODEL --users 32 --itl 200   find a machine for 32 users

MODEL is a GGUF file, a Hugging Face folder, or org/name or org/name:file.gguf of the hub.
`lanewise COMMAND --help` says more of one; the guide is at /guide of a running server."""


def build_parser(shows_all: bool = False) -> argparse.ArgumentParser:
    """The parser of all commands; its help of servers has all settings, or those that matter."""
    parser = argparse.ArgumentParser(
        prog="lanewise",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        usage="lanewise COMMAND …",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"lanewise {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands"
    )
    for name, command in COMMANDS.items():
        about = command.help[0].upper() + command.help[1:] + "."
        is_short = not shows_all and issubclass(command.settings, Settings)
        more = f"\n`lanewise {name} --help-all` shows all settings." if is_short else ""
        sub = commands.add_parser(
            name,
            help=command.help,
            description=about,
            epilog=f"example:\n  lanewise {name} {command.example}\n\n{EPILOG}{more}",
            usage=f"lanewise {name} {command.usage}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.add_argument("--help-all", action=HelpAll, nargs=0, help=argparse.SUPPRESS)
        _add_positional(sub, command)
        names = [item.name for item in dataclasses.fields(command.settings)]
        names = [*ESSENTIAL] if is_short else names
        # MODEL says the same.
        add_arguments(sub, command.settings, [one for one in names if one != "model"])
    for name, about in OTHER_COMMANDS.items():
        commands.add_parser(name, help=about)
    return parser


OTHER_COMMANDS = {
    "completion": "print completion for a shell: bash or zsh",
    "help": "print this, or the help of a command",
}


class HelpAll(argparse.Action):
    """Prints the help with all settings."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """As argparse calls it."""
        del namespace, values, option_string
        print_help(parser.prog.split()[-1], shows_all=True)
        parser.exit()


def print_help(name: str | None, shows_all: bool = False) -> None:
    """Print the help of a command, or of all."""
    parser = build_parser(shows_all)
    if name is None:
        parser.print_help()
        return
    parser.parse_args([name, "--help"])


def _add_positional(sub: argparse.ArgumentParser, command: Command) -> None:
    if command.settings is CompareSettings:
        sub.add_argument("positional_models", metavar="MODEL", nargs="*", help=argparse.SUPPRESS)
    else:  # a command that takes none says so itself
        sub.add_argument("positional_model", metavar="MODEL", nargs="?", help=argparse.SUPPRESS)


def _without_command(arguments: Sequence[str]) -> bool:
    """Answer what is no command with settings; False where there is one."""
    word = arguments[0] if arguments else "help"
    if word not in OTHER_COMMANDS:
        return False
    if word == "completion":
        print(completion(build_parser(shows_all=True), arguments[1:]))
    else:
        named = next((one for one in arguments[1:] if one in COMMANDS), None)
        if arguments[1:] and named is None:
            _check_command(build_parser(), arguments[1:])
        print_help(named)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status of the process."""
    parser = build_parser()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _check_command(parser, arguments)
        if _without_command(arguments):
            return 0
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    except BrokenPipeError:
        _drop(sys.stdout)
        return EXIT_ERROR
    found, others = parser.parse_known_args(arguments)
    flags = vars(found)
    name = flags.pop("command")
    command = COMMANDS[name]
    if others:
        parser.error(unknown_flags(command.settings, others))
    for sentence in unknown_variables(os.environ):
        print(f"lanewise: warning: {sentence}", file=sys.stderr)
    config = flags.pop("config")
    positional = flags.pop("positional_model", None)
    several = flags.pop("positional_models", [])

    def run() -> int:
        if positional is not None:
            said = command.positional
            if said in flags:
                both = f"{flags[said]!r} beside {said.upper()} {positional!r}"
                raise SettingsError(f"--{said}: {both}; accepted: one of them")
            flags[said] = positional
        if several:
            flags["models"] = [*several, *flags.get("models", [])]
        settings, sources = resolve_with_sources(command.settings, flags, os.environ, config)
        module = get_ready(name, _threads_of(settings) if command.multiplies else 1)
        extra = (sources,) if command.shows_sources else ()
        return module.run(settings, *extra) or 0

    try:
        return guarded(run)
    finally:
        if name == "serve":
            _end_logs()


def guarded(work: Callable[[], int]) -> int:
    """The exit status of a command's work; errors that are for users become one line."""
    try:
        return work()
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # `lanewise bench | head` has read enough
        _drop(sys.stdout)
        return EXIT_ERROR
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_ERROR)
    except Exception as error:
        if isinstance(error, MemoryError) or NO_THREAD in str(error):
            return _fail(f"{str(error) or 'there is no memory'} ({LIMITS})", EXIT_ERROR)
        if not _is_for_users(error):
            raise
        return _fail(str(error), EXIT_ERROR)


def _end_logs() -> None:
    """Drop what no full disk has taken: a line that is not logged is no failure of a server."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _drop(stream)


def _drop(stream: TextIO) -> None:
    """Lose what a stream still holds, and what it is given later: there is no way to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


NO_THREAD = "can't start new thread"  # Python's words, of a RuntimeError
LIMITS = "raise what limits this process: pids or memory of its control group, ulimit -u, ulimit -v"

# What vLLM, llama.cpp and Ollama call them.
RENAMED = {"run": "chat", "show": "inspect", "benchmark": "bench", "convert": "pack"}
RENAMED |= {"ls": "list", "remove": "rm", "delete": "rm", "download": "pull"}


def _check_command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Say which command may be meant by the word in its place, if that is none."""
    word = arguments[0] if arguments else "-"
    if word.startswith("-") or word in COMMANDS or word in OTHER_COMMANDS:
        return
    if word in RENAMED:
        parser.error(f"{word} is not a command; here it is {RENAMED[word]}")
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"accepted: {', '.join(COMMANDS)}"
    parser.error(f"{word} is not a command; {hint}")


def _threads_of(settings: SourceSettings) -> int:
    asked = settings.threads if isinstance(settings, ComputeSettings) else None
    return asked or default_threads().threads


def get_ready(name: str, threads: int = 1) -> ModuleType:
    """Import what a command needs, and set before what libraries read then."""
    # pydantic would search all installed packages for plugins at every start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _set_up_blas(threads)
    with garbage_left_alone():
        return importlib.import_module(COMMANDS[name].module)


def _set_up_blas(threads: int) -> None:
    """Give numpy's BLAS, which has yet to be loaded, as many threads as will be used.

    Where it multiplies nothing large it would start a thread per core, each spinning at first.
    After a product its threads spin for 2^26 cycles by default, on cores that lw_fit then wants.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "12")


def _is_for_users(error: Exception) -> bool:
    """Whether the message says what to do; everything else is a bug and keeps its traceback."""
    if isinstance(error, HostError):
        return True
    from lanewise.commands.chat_client import ChatError
    from lanewise.loading.base.checkpoint import ModelFileError
    from lanewise.runtime import NativeError

    return isinstance(error, ChatError | ModelFileError | NativeError)


def _fail(message: str, status: int) -> int:
    print("lanewise: " + told(" ".join(message.split("\n"))), file=sys.stderr)
    return status
