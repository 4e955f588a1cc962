"""Finds the model that a command names: the bundled one, a path, or a Hugging Face repository."""

from __future__ import annotations

import difflib
import fcntl
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from http import HTTPStatus
from importlib import resources
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.checkpoints.gguf_checkpoint import parts_of
from lanewise.loading.checkpoints.hf_checkpoint import family_of
from lanewise.loading.checkpoints.packed_checkpoint import is_packed
from lanewise.loading.checkpoints.small_model import NAME as SMALL
from lanewise.loading.checkpoints.small_model import fetch as fetch_small
from lanewise.loading.families.table import gguf_family
from lanewise.loading.files.gguf import architecture_at
from lanewise.loading.towers.mmproj import MMPROJ

HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(.+))?")
ACCEPTED = (
    "a GGUF file, a Hugging Face directory, org/name or org/name:file.gguf of the hub, such as"
    " Qwen/Qwen3-0.6B"
)
# Names that are no paths; an existing path of that name wins.
DEMO, DEFAULT = "demo", "default"
TOY = (
    "this is the bundled demo model, a toy: it continues texts in the manner of old novels and"
    " follows no instructions"
)
REAL_ONE = f"a real chat model: lanewise serve {SMALL}"

logger = logging.getLogger(__name__)

# Files needed for serving; consolidated and original weights duplicate them.
NEEDED = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    *("vocab.json", "merges.txt", "added_tokens.json", "tekken.json"),  # or tokenizer.json
    *("quantize_config.json", "quant_config.json"),  # older configs of GPTQ and AWQ
    *("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"),
    "[0-9]_*/config.json",  # modules of sentence-transformers
    *("preprocessor_config.json", "processor_config.json"),  # of what reads pictures
    "chat_template*",
    "additional_chat_templates/*",
    "*.safetensors",
    "*.safetensors.index.json",
]
LARGE_BYTES = 16 << 20
MAX_RESUMABLE_BYTES = 45_000_000_000  # above this the hub uses its own transfer protocol
START_BYTES = 1 << 16  # of a GGUF file: writers put its architecture first
START_TIMEOUT_S = 30.0
PROBE_S = 5.0  # seconds that the hub may take to answer
TOLD_EVERY_S = 10.0
NO_TOKEN = "HF_TOKEN is not set or not allowed"
# Weights in subfolders are copies, except modules of sentence-transformers.
NOT_NEEDED = ["consolidated*", "[!0-9]*/*.safetensors", "[0-9][!_]*/*.safetensors", "original/*"]


MAX_BESIDE = 10_000  # at most so many entries are compared with a misspelt name


def resolve_model(argument: str | None) -> Path:
    """Return the path of the model that a command names, downloading it if necessary.

    None is the bundled model. ``default`` is the small chat model, or the bundled one if that
    cannot be had. ModelFileError if there is no model of that name.
    """
    if argument is None:
        return bundled_model()
    if not argument:
        raise ModelFileError(f"the model name is empty; accepted are {ACCEPTED}")
    path = Path(argument).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{argument!r}: cannot be read: {error}") from error
    if exists:
        return path
    if argument in NAMED:
        return NAMED[argument]()
    match = HUB_ID.fullmatch(argument)
    if match is None or (argument.endswith((".gguf", ".safetensors")) and match[2] is None):
        near = _beside(path)
        hint = f"did you mean {near}?" if near else f"accepted are {ACCEPTED}"
        raise ModelFileError(f"{argument}: no such file or directory; {hint}")
    repository, file = match[1], match[2]
    if file is not None and not file.endswith(".gguf"):
        raise ModelFileError(
            f"{argument}: {file!r} is not a GGUF file; after the colon the name of a .gguf file"
            " in the repository is needed"
        )
    return fetch(repository, file)


def _beside(path: Path) -> Path | None:
    """An existing entry beside a missing path with a similar name."""
    try:
        names = [one.name for one in islice(path.parent.iterdir(), MAX_BESIDE)]
    except OSError:
        return None
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return path.with_name(close[0]) if close else None


def bundled_model() -> Path:
    """Return the small model that is part of the package."""
    folder = Path(str(resources.files("lanewise") / "demo"))
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ModelFileError(f"{folder}: this installation has no bundled model; give {ACCEPTED}")
    return found[0]


def default_model() -> Path:
    """The small chat model, or the bundled one if that cannot be had."""
    try:
        return fetch_small()
    except ModelFileError as error:
        logger.warning("%s; using the bundled demo model", error)
        return bundled_model()


NAMED = {SMALL: fetch_small, DEMO: bundled_model, DEFAULT: default_model}


def is_toy(path: Path) -> bool:
    """Whether it is the bundled toy model, of which users must be told."""
    return path.suffix == ".gguf" and path.resolve() == bundled_model().resolve()


def fetch(repository: str, file: str | None) -> Path:
    """Return the local copy of a repository or of one of its files, downloading missing files.

    HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN and HF_HOME are settings of the hub library.
    """
    # Imported here: the import is slow, and the library reads its environment then.
    from huggingface_hub import constants, errors
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if logging.getLogger().handlers:  # a server's log shows the library's lines already
        logging.getLogger("huggingface_hub").handlers.clear()
    teller: AbstractContextManager[None] = nullcontext()
    if not sys.stderr.isatty():
        disable_progress_bars()
        folder = repo_folder_name(repo_id=repository, repo_type="model")
        teller = told_sizes(repository, Path(constants.HF_HUB_CACHE) / folder)
    problem = None if constants.HF_HUB_OFFLINE else _problem_of(repository)
    only_here = problem is not None  # the library would retry six times, ten seconds each
    try:
        with teller:
            return _fetched(repository, file, only_here)
    except errors.GatedRepoError as error:
        raise _failure(
            repository, "access must first be granted on the hub, and HF_TOKEN be set", error
        ) from error
    except errors.RepositoryNotFoundError as error:
        reason = f"no such repository at {constants.ENDPOINT}, or it is private and {NO_TOKEN}"
        raise _failure(repository, reason, error) from error
    except errors.RemoteEntryNotFoundError as error:
        if file is None:
            raise _without_config(repository) from error
        raise _failure(repository, f"the repository has no file {file!r}", error) from error
    except errors.LocalEntryNotFoundError as error:
        reason = (
            "HF_HUB_OFFLINE is set and the files are not in the local cache"
            if constants.HF_HUB_OFFLINE
            else f"{constants.ENDPOINT} cannot be reached ({problem or 'it stopped answering'}) and"
            " the files are not in the local cache; a local file is named by its path"
        )
        raise ModelFileError(f"{repository}: {reason}") from error
    except ModelFileError:
        raise
    except Exception as error:  # the library's HTTP errors, a full disk, an invalid name
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            reason = f"{constants.ENDPOINT} refuses access: {NO_TOKEN}"
            raise _failure(repository, reason, error) from error
        raise _failure(repository, f"cannot be fetched from {constants.ENDPOINT}", error) from error


def _fetched(repository: str, file: str | None, only_here: bool) -> Path:
    """The local path; errors are the library's."""
    import huggingface_hub

    def get(name: str) -> Path:
        here = only_here
        return Path(huggingface_hub.hf_hub_download(repository, name, local_files_only=here))

    if file is not None:
        parts = [part.as_posix() for part in parts_of(PurePosixPath(file))]
        for part in () if only_here else parts:
            fetch_resumably(repository, part)
        path = [get(part) for part in parts][parts.index(file)]
        if not only_here and (tower := tower_beside(repository, file)) is not None:
            fetch_resumably(repository, tower, is_model=False)
            get(tower)
        return path
    refuse_unsupported(str(get("config.json")))
    return Path(
        huggingface_hub.snapshot_download(
            repository,
            allow_patterns=NEEDED,
            ignore_patterns=NOT_NEEDED,
            local_files_only=only_here,
        )
    )


def tower_beside(repository: str, file: str) -> str | None:
    """The smallest mmproj file in the folder of a repository's GGUF file, if it has any.

    That is the one which is used of those beside a model. None, too, if the hub does not list it.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.hf_api import RepoFile

    folder = PurePosixPath(file).parent
    if constants.HF_HUB_OFFLINE or PurePosixPath(file).match(MMPROJ):
        return None
    try:
        within = None if folder == PurePosixPath() else folder.as_posix()
        entries = list(HfApi().list_repo_tree(repository, within))
    except Exception as error:  # the model is there, and reads text without it
        logger.warning("%s: its mmproj files are not known: %s", repository, error)
        return None
    found = [
        (entry.size, entry.path)
        for entry in entries
        if isinstance(entry, RepoFile)
        and PurePosixPath(entry.path).parent == folder
        and PurePosixPath(entry.path).match(MMPROJ)
    ]
    return min(found)[1] if found else None


def _problem_of(repository: str) -> str | None:
    """Why the hub does not answer, after two tries; None if it answers, even with a refusal."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    problem = None
    for _ in range(2):
        try:
            url = f"{constants.ENDPOINT}/api/models/{repository}"
            status = get_session().head(url, timeout=PROBE_S).status_code
        except Exception as error:  # of any HTTP library
            problem = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            continue
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return None
        problem = f"it answers with status {status}"
    return problem


@contextmanager
def told_sizes(name: str, folder: Path) -> Iterator[None]:
    """Log the downloaded size every ten seconds if no progress bar is shown."""
    ended = threading.Event()

    def size() -> int:
        return sum(one.lstat().st_size for one in folder.glob("blobs/*"))

    def tell() -> None:
        before = size()
        while not ended.wait(TOLD_EVERY_S):
            with suppress(OSError):  # a file was renamed meanwhile
                now = size()
                rate = (now - before) / TOLD_EVERY_S
                logger.warning(
                    "downloading %s: %.1f MiB, %.1f MiB/s", name, now / 2**20, rate / 2**20
                )
                before = now

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def refuse_unsupported(config: str) -> None:
    """Raise ModelFileError if a config.json is of no supported family."""
    fields = Fields(read_object(Path(config)), config)
    if not is_packed(fields):
        family_of(fields)


def _without_config(repository: str) -> ModelFileError:
    return ModelFileError(
        f"{repository}: the repository has no config.json; for a repository of GGUF files give"
        f" {repository}:file.gguf"
    )


def fetch_resumably(repository: str, file: str, is_model: bool = True) -> None:
    """Download one large file into the hub library's cache, resuming an earlier download.

    ModelFileError for a model's GGUF file of an unsupported family, before the download. The
    library itself would restart a file from the beginning. What this function cannot do is left to
    the library, which then raises its own errors.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if constants.HF_HUB_OFFLINE:
        return
    try:
        found = get_hf_file_metadata(hf_hub_url(repository, file))
    except Exception:  # the library will fail too, and knows the cache
        return
    if found.etag is None or found.size is None or found.size < LARGE_BYTES:
        return
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    blob = Path(constants.HF_HUB_CACHE) / folder / "blobs" / found.etag
    if blob.exists():
        return
    headers = build_hf_headers()
    if urlsplit(found.location).netloc != urlsplit(constants.ENDPOINT).netloc:
        headers.pop("authorization", None)  # other storage must not see the token
    partial = blob.with_name(blob.name + ".part")
    if is_model and not partial.exists():
        refuse_unsupported_start(found.location, headers, f"{repository}:{file}")
    if found.size > MAX_RESUMABLE_BYTES:
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as sink:
        try:
            fcntl.flock(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process is downloading it
            return
        http_get(
            found.location,
            sink,
            resume_size=sink.tell(),
            headers=headers,
            expected_size=found.size,
            displayed_filename=file,
        )
        sink.flush()
        partial.replace(blob)


def refuse_unsupported_start(url: str, headers: dict[str, str], name: str) -> None:
    """Raise ModelFileError if the start of a GGUF file names no supported family.

    Without an answer here, the check is made on the whole file.
    """
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    span = {"range": f"bytes=0-{START_BYTES - 1}"}
    try:
        answer = get_session().get(url, headers=headers | span, timeout=START_TIMEOUT_S)
    except Exception:
        return
    if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
        return
    architecture = architecture_at(answer.content)
    if architecture is not None:
        gguf_family(architecture, name)


def _failure(repository: str, reason: str, error: Exception) -> ModelFileError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = f" ({lines[0][:200]})" if lines else ""
    return ModelFileError(f"{repository}: {reason}{detail}")
