"""What every endpoint needs: the engine, the tokenizer and what the server is called."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from weakref import WeakValueDictionary

from lanewise.api.batches.runner import BatchRules, Runner
from lanewise.api.observing.caller import Caller
from lanewise.api.observing.scrapes import Scrapes
from lanewise.api.observing.tracing import Tracer
from lanewise.api.shared.budgets import TextBudgets
from lanewise.api.shared.compiling import GrammarService
from lanewise.api.shared.images import Eyes
from lanewise.api.shared.receipt_issuer import ReceiptIssuer
from lanewise.api.shared.request_budgets import RequestBudgets
from lanewise.api.shared.response_store import ResponseStore
from lanewise.api.shared.spending import Spending
from lanewise.api.shared.workers import Workers
from lanewise.engine.base.adapters import Adapters, LoadedAdapter
from lanewise.engine.encoding import EncoderEngine
from lanewise.engine.engine import Engine
from lanewise.records.database import Database
from lanewise.records.files import FileStore
from lanewise.sandbox.pool import Counters, Sandbox
from lanewise.sandbox.templates import TemplateService
from lanewise.text.answers.budget import ThinkingControl
from lanewise.text.chat_template import ChatTemplate
from lanewise.text.grammar import GrammarCompiler
from lanewise.text.pooled_text import PooledText
from lanewise.text.sampling_defaults import SamplingDefaults
from lanewise.text.tokenizer import Tokenizer


class Phase(Enum):
    """Where the server is in its life."""

    WARMING_UP = "warming up"
    READY = "ready"
    DRAINING = "shutting down"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What clients are told of the model beside its name."""

    architecture: str = "unknown"
    n_weights: int = 0
    n_bytes: int = 0  # of the weights in memory
    notice: str | None = None  # what users must be told of it


@dataclass(slots=True)
class ServerState:
    """Shared by all requests; made once."""

    engine: Engine | EncoderEngine
    tokenizer: Tokenizer
    names: tuple[str, ...]  # of the model; the first where a request says none
    version: str
    fingerprint: str  # changes when the same request may give another answer
    chat_template: ChatTemplate | None
    see: Callable[[Sandbox], Eyes] | None = None  # of a model that sees images
    pooling: PooledText | None = None  # of a model that is pooled, whose engine encodes
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    card: ModelCard = field(default_factory=ModelCard)
    max_body_bytes: int = 8 << 20
    request_budgets: RequestBudgets = field(default_factory=RequestBudgets)
    api_keys: tuple[str, ...] = ()
    share_prefix_cache: bool = False  # among API keys; else each is a tenant of its own
    admin_keys: tuple[str, ...] = ()
    allow_high_priority: bool = False  # to all; administrators may always
    step_timeout_s: float = 0.0  # a longer step makes the server not ready; 0 = any
    adapters: Adapters | None = None  # LoRA adapters, which requests name as their model
    # The directory of an adapter that administrators' requests may load, by what they call it;
    # without this none can be loaded or unloaded.
    locate_adapter: Callable[[str], Path | None] | None = None
    tracer: Tracer | None = None  # None: traces are off
    issuer: ReceiptIssuer | None = None  # None: no receipts are given
    spending: Spending | None = None  # None: what keys use is not counted
    records: Database | None = None  # of data_dir; None: nothing is kept
    files: FileStore | None = None  # there
    batch_rules: BatchRules = field(default_factory=BatchRules)
    batches: Runner | None = None  # runs those of data_dir; the application makes it
    created: int = field(default_factory=lambda: int(time.time()))
    phase: Phase = Phase.WARMING_UP
    failure: str | None = None  # why the server will never be ready, or never again
    warming: asyncio.Task[None] | None = None  # the request after which it is
    tried_again: float = 0.0  # when the server last sent one because all others had failed
    workers: Workers = field(default_factory=Workers)
    budgets: TextBudgets = field(default_factory=TextBudgets)
    responses: ResponseStore = field(default_factory=ResponseStore)
    # Of the answers whose reasoning their clients may end, by client and answer.
    thinking_controls: WeakValueDictionary[tuple[int, str], ThinkingControl] = field(
        default_factory=WeakValueDictionary
    )
    sandbox: Sandbox = field(init=False)
    scrapes: Scrapes = field(init=False)
    grammars: GrammarService = field(init=False)
    templates: TemplateService = field(init=False)
    eyes: Eyes | None = field(init=False)

    def __post_init__(self) -> None:
        metrics = self.engine.metrics
        counters = Counters(
            grammars=metrics.sandbox_grammars,
            templates=metrics.sandbox_templates,
            images=metrics.sandbox_images,
            workers=metrics.sandbox_workers,
            restarts=metrics.sandbox_restarts,
        )
        self.sandbox = self.budgets.sandbox(self.max_model_len, counters)
        compiler = GrammarCompiler(self.tokenizer, self.engine.config.vocab_size)
        self.grammars = GrammarService(compiler, self.sandbox, self.budgets.grammar_cache_memory)
        self.templates = TemplateService(self.sandbox)
        self.eyes = None if self.see is None else self.see(self.sandbox)
        self.scrapes = Scrapes(self.engine.metrics.render)

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.engine.max_model_len

    @property
    def generator(self) -> Engine:
        """The engine of a model that writes text; endpoints without one are never called."""
        assert isinstance(self.engine, Engine)
        return self.engine

    @property
    def encoder(self) -> EncoderEngine:
        """The engine of a model that is pooled; endpoints without one are never called."""
        assert isinstance(self.engine, EncoderEngine)
        return self.engine

    @property
    def pooled(self) -> PooledText:
        """What belongs to its texts; as before."""
        assert self.pooling is not None
        return self.pooling

    @property
    def model_name(self) -> str:
        """The model's first name."""
        return self.names[0]

    @property
    def model_names(self) -> list[str]:
        """What requests may name: the model by all its names, then its adapters."""
        adapters = [] if self.adapters is None else self.adapters.all()
        return [*self.names, *(adapter.name for adapter in adapters)]

    def canonical_name(self, name: str | None) -> str:
        """The one name that a model or adapter has in reports, of those that requests say."""
        for one in ("" if name is None else name, (name or "").removesuffix(":latest")):
            if self.adapter_named(one) is not None:
                return one
        return self.model_name

    def tenant_of(self, caller: Caller) -> str:
        """The tenant of a caller: its requests find the cached prefixes of the same tenant only."""
        return "" if self.share_prefix_cache else caller.tenant

    def adapter_named(self, name: str) -> LoadedAdapter | None:
        """The adapter of this name."""
        return None if self.adapters is None else self.adapters.find(name)
