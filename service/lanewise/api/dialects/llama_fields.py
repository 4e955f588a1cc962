"""Fields that llama.cpp's server and Ollama share, in our terms."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from lanewise.api.generation.ask import Sampling
from lanewise.api.schemas import Penalty, Strict, Strings

# Options that would change how tokens are drawn, and the values at which they change nothing.
NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "min_keep": (0,),
    "mirostat": (0,),
    "n_indent": (0,),
    "samplers": (),
    "t_max_predict_ms": (0, -1),
    "tfs_z": (1,),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}
# Options that belong to those, or say how to compute and not what.
WITHOUT_EFFECT = {
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("dynatemp_exponent", "mirostat_tau", "mirostat_eta", "xtc_threshold", "penalize_newline"),
    *("numa", "num_batch", "num_gpu", "num_keep", "num_thread", "main_gpu", "low_vram", "f16_kv"),
    *("n_keep", "n_discard", "n_cache_reuse", "sse_ping_interval"),
    *("logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only"),
}
UNSAID: tuple[Any, ...] = (False, "", [], {})


def _whole(value: Any) -> Any:
    """Some clients write every number with a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class LlamaSampling(Strict):
    """How tokens are drawn. What is not said is as the model's makers want it."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=-1, lt=2**31, description="0 and -1 switch it off.")
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    repeat_last_n: Whole | None = Field(None, description="Penalties see the whole text.")
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Whole = Field(-1, ge=-(2**63), le=2**64 - 1, description="-1: another one each time.")
    stop: str | Strings = Field(default_factory=list)

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: str | list[str]) -> list[str]:
        stops = stop if isinstance(stop, list) else [stop]
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        return stops

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return self.stop if isinstance(self.stop, list) else [self.stop]

    def sampling(self, logit_bias: Mapping[str, float] | None = None) -> Sampling:
        """How tokens are drawn, in our terms."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=logit_bias or {},
            seed=None if self.seed == -1 else self.seed,
        )

    def notices(self, before: str = "") -> Iterator[str]:
        """What is not done of what is asked for; ``before`` comes before the names of fields."""
        last_n, penalty = self.repeat_last_n, self.repeat_penalty
        if last_n not in (None, -1) and penalty not in (None, 1):
            yield f"{before}repeat_last_n: penalties see the whole text here"
        for name, value in (self.model_extra or {}).items():
            is_neutral = value is None or (name in NEUTRAL and value in (*NEUTRAL[name], *UNSAID))
            if name not in WITHOUT_EFFECT and not is_neutral:
                yield f"{before}{name[:60]}: not known here, and not used"
