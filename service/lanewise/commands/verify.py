"""``lanewise verify``: checks the receipt of an answer, by drawing its tokens again.

First the signature and the digests are checked, then whether the model is the one that the receipt
names, and at last whether the model, asked as the receipt says, draws these tokens. The CPU, the
number of threads and what else was answered at the time make no difference.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from lanewise.commands.opening import Opened, open_model
from lanewise.commands.progress import steps_bar
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.request import Grammar as EngineGrammar
from lanewise.engine.redrawing import Difference, first_difference
from lanewise.engine.steps.jobs import JobMaker
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.receipts.identity import files_digest, identity_of
from lanewise.receipts.signing import check_signed, read_public_key
from lanewise.receipts.statement import (
    Drawing,
    Grammar,
    ModelIdentity,
    Receipt,
    ReceiptError,
    parse,
)
from lanewise.runtime import BLOCK_TOKENS, Adapter, NativeError, Session
from lanewise.settings import SettingsError, VerifySettings
from lanewise.text.answers.bad_words import CleanGrammar
from lanewise.text.chat_template import ChatTemplate
from lanewise.text.grammar import GrammarCompiler, GrammarError, GrammarSource
from lanewise.text.tokenizer import Tokenizer

STEP_TOKENS = 512
STEP_DRAWS = 128  # each holds a row of logits
MAX_RECEIPT_BYTES = 64 << 20


def run(settings: VerifySettings) -> int:
    """Check every receipt in a file; the status is 0 if all are right."""
    receipts = _read(settings)
    trusted = None if settings.public_key is None else _public_key(settings.public_key)
    wrong = 0
    with Models(settings) as models:
        for place, receipt in enumerate(receipts):
            report = verified(models, receipt, trusted)
            wrong += not report["verified"]
            if settings.json:
                print(json.dumps(report))
            else:
                _tell(report, place if len(receipts) > 1 else None)
    return 1 if wrong else 0


def _tell(report: dict[str, Any], place: int | None) -> None:
    name = "receipt" if place is None else f"receipt {place}"
    if not report["verified"]:
        print(f"{name}: NOT VERIFIED: {report['problem']}")
        return
    print(
        f"{name}: verified: {report['answer_tokens']} tokens drawn again behind"
        f" {report['prompt_tokens']} by {report['model']}"
    )
    note = "" if report["trusted"] else "; no --public-key says whose key that is"
    print(f"signed with the public key {report['public_key']}{note}")


def _read(settings: VerifySettings) -> list[Receipt]:
    """The receipts in a file: one, or an answer's."""
    if settings.receipt is None:
        raise SettingsError("receipt: not given; accepted: a file with a receipt or an answer")
    path = Path(settings.receipt)
    with path.open("rb") as file:
        text = file.read(MAX_RECEIPT_BYTES + 1)
    if len(text) > MAX_RECEIPT_BYTES:
        raise SettingsError(f"receipt: {path}: accepted: at most {MAX_RECEIPT_BYTES >> 20} MiB")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"receipt: {path}: not JSON: {error}") from None
    items = found.get("receipts") if isinstance(found, dict) else found
    items = items if isinstance(items, list) and items else [found]
    try:
        return [parse(json.dumps(item)) for item in items]
    except ReceiptError as error:
        raise SettingsError(
            f"receipt: {path}: {error}; accepted: a receipt, or an answer with `receipts`"
        ) from None


def _public_key(file: str) -> str:
    try:
        return read_public_key(Path(file))
    except OSError as error:
        raise SettingsError(f"public_key: {file}: {error.strerror}") from None
    except ReceiptError as error:
        raise SettingsError(f"public_key: {error}") from None


def verified(models: "Models", receipt: Receipt, trusted: str | None) -> dict[str, Any]:
    """What is to be said of a receipt, which must be signed by ``trusted`` if that is given."""
    model = receipt.statement.model
    report = {
        "verified": True,
        "id": receipt.statement.id,
        "model": model.name,
        "prompt_tokens": len(receipt.prompt_tokens),
        "answer_tokens": len(receipt.answer_tokens),
        "public_key": receipt.public_key,
        "trusted": trusted is not None,
    }
    try:
        check_signed(receipt, trusted)
        difference = _difference(models.of(receipt.statement.model), receipt)
    except (ReceiptError, GrammarError, NativeError, ValueError) as error:
        return report | {"verified": False, "problem": str(error)}
    if difference is None:
        return report
    place, token, drawn = difference
    instead = "nothing may come there" if drawn is None else f"the model draws {drawn}"
    problem = f"answer_tokens[{place}] is {token}; {instead}"
    return report | {"verified": False, "problem": problem, "place": place, "drawn": drawn}


class Loaded(NamedTuple):
    """A model as a server had it, and what belongs to it."""

    opened: Opened
    tokenizer: Tokenizer
    adapter: Adapter | None
    identity: ModelIdentity


class Models:
    """The model that receipts are checked with; one load serves all that were made alike."""

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._key: tuple[str, int | None] | None = None
        self._loaded: Loaded | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def of(self, said: ModelIdentity) -> Loaded:
        """The model that a receipt names; ReceiptError if it is another one."""
        key = (said.kv_cache_dtype, said.max_model_len)
        if self._loaded is None or key != self._key:
            self._stack.close()
            self._loaded = None  # also if the next cannot be loaded
            self._key, self._loaded = key, self._load(said)
        for name, here in self._loaded.identity:
            if name != "name" and here != getattr(said, name):
                raise ReceiptError(f"model.{name}: {getattr(said, name)}; {_here(name)} {here}")
        return self._loaded

    def _load(self, said: ModelIdentity) -> Loaded:
        settings = replace(self._settings, kv_cache_dtype=said.kv_cache_dtype)
        opened = self._stack.enter_context(open_model(settings, said.max_model_len))
        tokenizer = Tokenizer.from_files(opened.checkpoint.tokenizer)
        adapter, digest = None, None
        if settings.lora is not None:
            digest = files_digest([Path(settings.lora)])
            adapter = self._stack.enter_context(open_adapter_of(opened, settings.lora))
        template = _template(settings, tokenizer)
        identity = identity_of(opened.model, opened.kv_type, said.max_model_len, template, digest)
        return Loaded(opened, tokenizer, adapter, identity)


def _here(name: str) -> str:
    hints = {
        "weights": "loaded as --weights says, it is",
        "adapter_sha256": "as --lora says, it is",
        "template": "as the model or --chat-template says, it is",
    }
    return hints.get(name, "here it is")


@contextmanager
def open_adapter_of(opened: Opened, path: str) -> Iterator[Adapter]:
    """An adapter of a model, loaded; ReceiptError if it cannot be used."""
    try:
        files = open_adapter(Path(path), opened.model.config)
        try:
            adapter = Adapter.load(opened.model, files)
        finally:
            files.close()
    except (ModelFileError, OSError) as error:
        raise SettingsError(f"lora: {error}") from None
    try:
        yield adapter
    finally:
        adapter.close()


def _template(settings: VerifySettings, tokenizer: Tokenizer) -> str | None:
    template = tokenizer.chat_template
    if settings.chat_template is not None:
        text = Path(settings.chat_template).read_text(encoding="utf-8")
        template = ChatTemplate({"default": text}, tokenizer.special_tokens)
    return None if template is None else template.digest


def _difference(loaded: Loaded, receipt: Receipt) -> Difference | None:
    """Where the answer is not what the model draws."""
    opened, tokenizer, adapter, _ = loaded
    statement, prompt, answer = receipt.statement, receipt.prompt_tokens, receipt.answer_tokens
    vocab_size = opened.model.config.vocab_size
    _check_tokens(prompt, answer, statement.drawing, vocab_size)
    request = GenerationRequest(
        prompt,
        params_of(statement.drawing),
        statement.drawing.choice,
        grammar=_grammar(statement.grammar, statement.drawing.bad_words, tokenizer, vocab_size),
    )
    n_tokens = len(prompt) + len(answer)
    n_blocks = -(-(len(prompt) + statement.drawing.max_tokens) // BLOCK_TOKENS)
    config = EngineConfig(
        n_blocks=n_blocks,
        max_model_len=len(prompt) + statement.drawing.max_tokens,
        vocab_size=vocab_size,
        unused_ids=tokenizer.unused_ids,
    )
    job = JobMaker(config, None).make([request]).jobs[0]
    with (
        Session(
            opened.model,
            threads=opened.threads,
            blocks=-(-n_tokens // BLOCK_TOKENS),
            max_batch_tokens=STEP_TOKENS,
            max_batch_logits=STEP_DRAWS,
            kv_type=opened.kv_type,
            states=1,
            max_adapter_rank=0 if adapter is None else adapter.rank,
        ) as session,
        steps_bar("verifying") as bar,
    ):
        task = bar.add_task("tokens", total=n_tokens)
        return first_difference(
            session,
            job,
            answer,
            max_tokens=STEP_TOKENS,
            max_draws=STEP_DRAWS,
            adapter=adapter,
            progress=lambda n_run: bar.update(task, completed=n_run),
        )


def _check_tokens(
    prompt: Sequence[int], answer: Sequence[int], drawing: Drawing, vocab_size: int
) -> None:
    if not prompt:
        raise ReceiptError("prompt_tokens: accepted: at least one")
    if len(answer) > drawing.max_tokens:
        raise ReceiptError(
            f"answer_tokens: {len(answer)}; drawing.max_tokens is {drawing.max_tokens}"
        )
    for name, tokens in (("prompt_tokens", prompt), ("answer_tokens", answer)):
        if tokens and max(tokens) >= vocab_size:
            raise ReceiptError(f"{name}: {max(tokens)}; accepted: less than {vocab_size}")


def params_of(drawing: Drawing) -> SamplingParams:
    """How tokens were drawn, in the engine's terms."""
    said = drawing.model_dump(exclude={"choice", "bad_words"})
    said["seed"] = int(drawing.seed)
    said["logit_bias"] = tuple(drawing.logit_bias)
    allowed = drawing.allowed_token_ids
    said["allowed_token_ids"] = None if allowed is None else tuple(allowed)
    said["stop_token_ids"] = frozenset(drawing.stop_token_ids)
    return SamplingParams(**said)


def _grammar(
    said: Grammar | None, bad_words: Sequence[str], tokenizer: Tokenizer, vocab_size: int
) -> EngineGrammar | None:
    grammar = None
    if said is not None:
        source = GrammarSource(said.kind, said.text, said.before)
        grammar = GrammarCompiler(tokenizer, vocab_size).compile(source)
    if not bad_words:
        return grammar
    return CleanGrammar(grammar, bad_words, tokenizer, vocab_size)
