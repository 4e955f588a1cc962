"""The ``lanewise`` command: parses arguments, runs one command, turns errors into one line."""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from lanewise import __version__
from lanewise.commands.registration import Command
from lanewise.host import HostError, default_threads, garbage_left_alone
from lanewise.settings import (
    BenchSettings,
    ChatSettings,
    CompareSettings,
    ComputeSettings,
    ConfigSettings,
    DoctorSettings,
    FamiliesSettings,
    InspectSettings,
    PackSettings,
    PerplexitySettings,
    PlanSettings,
    PullSettings,
    Settings,
    SettingsError,
    SourceSettings,
    add_arguments,
    resolve_with_sources,
    unknown_flags,
    unknown_variables,
)
from lanewise.told import told
from lanewise_quantizer.cli import QUANTIZE

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

DESCRIPTION = "Serve large language models from CPUs over the OpenAI API."
EPILOG = (
    "Every setting is a flag, an environment variable LANEWISE_... and a key of the YAML file "
    "given with --config, in this order of precedence. MODEL is a GGUF file, a Hugging Face "
    "folder, or org/name or org/name:file.gguf of the hub; without it the bundled model is used."
)


COMMANDS = {
    "serve": Command(Settings, "lanewise.server.start", "serve a model over the OpenAI API"),
    "chat": Command(
        ChatSettings, "lanewise.commands.chat", "talk with a model or a server in the terminal"
    ),
    "config": Command(
        ConfigSettings,
        "lanewise.commands.config",
        "print the settings of serve and where each came from",
        shows_sources=True,
    ),
    "bench": Command(
        BenchSettings, "lanewise.commands.bench", "measure speed and the limits of this machine"
    ),
    "perplexity": Command(
        PerplexitySettings, "lanewise.commands.perplexity", "score a text and hash all its logits"
    ),
    "compare": Command(
        CompareSettings, "lanewise.commands.compare", "compare quantized models with the original"
    ),
    "doctor": Command(
        DoctorSettings, "lanewise.commands.doctor", "say what this machine can do, test its kernels"
    ),
    "plan": Command(
        PlanSettings,
        "lanewise.commands.plan",
        "predict speed, memory and cost for so many users here or on a cloud's machine",
    ),
    "pack": Command(
        PackSettings, "lanewise.commands.pack", "write a model that loads without being packed"
    ),
    "quantize": QUANTIZE,
    "inspect": Command(
        InspectSettings, "lanewise.commands.inspect", "list the tensors of a model and their bits"
    ),
    "families": Command(
        FamiliesSettings, "lanewise.commands.families", "list the model families that are read"
    ),
    "pull": Command(
        PullSettings, "lanewise.commands.pull", "download a model and print where it lies"
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="lanewise", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"lanewise {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        about = command.help[0].upper() + command.help[1:] + "."
        sub = commands.add_parser(
            name,
            help=command.help,
            description=about,
            epilog=EPILOG,
            usage=f"lanewise {name} [MODEL] [--SETTING VALUE …]",
            allow_abbrev=False,
        )
        if command.settings is CompareSettings:
            about = "models to compare, the original first"
            sub.add_argument("positional_models", metavar="MODEL", nargs="*", help=about)
        else:
            sub.add_argument("positional_model", metavar="MODEL", nargs="?", help="same as --model")
        add_arguments(sub, command.settings)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status of the process."""
    parser = build_parser()
    _check_command(parser, sys.argv[1:] if arguments is None else arguments)
    found, others = parser.parse_known_args(arguments)
    flags = vars(found)
    command = COMMANDS[flags.pop("command")]
    if others:
        parser.error(unknown_flags(command.settings, others))
    for sentence in unknown_variables(os.environ):
        print(f"lanewise: warning: {sentence}", file=sys.stderr)
    # pydantic would search all installed packages for plugins at every start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    config = flags.pop("config")
    positional = flags.pop("positional_model", None)
    several = flags.pop("positional_models", [])
    try:
        if positional is not None:
            if "model" in flags:
                both = f"{flags['model']!r} beside MODEL {positional!r}"
                raise SettingsError(f"--model: {both}; accepted: one of them")
            flags["model"] = positional
        if several:
            flags["models"] = [*several, *flags.get("models", [])]
        settings, sources = resolve_with_sources(command.settings, flags, os.environ, config)
        _set_up_blas(_threads_of(settings) if command.multiplies else 1)
        with garbage_left_alone():
            module = importlib.import_module(command.module)
        extra = (sources,) if command.shows_sources else ()
        return module.run(settings, *extra) or 0
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # `lanewise bench | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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


NO_THREAD = "can't start new thread"  # Python's words, of a RuntimeError
LIMITS = "raise what limits this process: pids or memory of its control group, ulimit -u, ulimit -v"

# What vLLM, llama.cpp and Ollama call them.
RENAMED = {"run": "chat", "show": "inspect", "benchmark": "bench", "convert": "pack"}


def _check_command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Say which command may be meant by the word in its place, if that is none."""
    word = arguments[0] if arguments else "-"
    if word.startswith("-") or word in COMMANDS:
        return
    if word in RENAMED:
        parser.error(f"{word} is not a command; here it is {RENAMED[word]}")
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"accepted: {', '.join(COMMANDS)}"
    parser.error(f"{word} is not a command; {hint}")


def _threads_of(settings: SourceSettings) -> int:
    asked = settings.threads if isinstance(settings, ComputeSettings) else None
    return asked or default_threads().threads


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
    from lanewise.loading.checkpoint import ModelFileError
    from lanewise.runtime import NativeError

    return isinstance(error, ChatError | ModelFileError | NativeError)


def _fail(message: str, status: int) -> int:
    print("lanewise: " + told(" ".join(message.split("\n"))), file=sys.stderr)
    return status
