"""The settings of a sentence-transformers directory: pooling, dense heads, prompts, limits.

``modules.json`` lists the steps that a text goes through. An unknown module or field refuses the
directory, as vectors without it would be almost right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields, read_object, read_text
from lanewise.loading.base.sentences import COSINE, DenseModule, SentenceModel
from lanewise.loading.pooling.late_interaction import (
    MASK,
    check_kinds,
    files_of_tokens,
    normalizes,
    read_token_vectors,
    with_prefixes,
)

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"
MODEL_CONFIG = "sentence_bert_config.json"
# Alternatives with the same fields; newer versions write the first.
MODEL_CONFIGS = (MODEL_CONFIG, "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
FLAG = "pooling_mode_"
# The kinds of pooling in 1_Pooling/config.json, with flags and without.
POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last"}
POOLINGS |= {"cls": "cls", "mean": "mean"}
JUDGE = ["Transformer", "LogitScore"]  # modules of a model that scores by possible next tokens
SQRT = "mean_sqrt_len_tokens"  # a mean divided by another number, equal after normalization
ACTIVATIONS = {
    "Identity": "identity",
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
}
SIMILARITIES = (COSINE, "dot", "euclidean", "manhattan")
OF_TOKENS = ("maxsim", "meanmaxsim", "MaxSim")  # similarities of models that compare tokens
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "model_args": ({},),
    "tokenizer_args": ({},),
    "config_args": ({},),
    "processor_args": ({},),
    "model_kwargs": ({},),
    "tokenizer_kwargs": ({},),
    "config_kwargs": ({},),
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "unpad_inputs": (False, True),  # we do not pad
    "modality_config": (
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
}


def read_sentence_model(path: Path) -> SentenceModel | None:
    """Read a directory's settings; None without ``modules.json``, and for judges.

    ModelFileError for unknown modules and fields.
    """
    if not (path / MODULES).is_file():
        return None
    modules = _modules(path)
    kinds = [kind for kind, _ in modules]
    if kinds == JUDGE:
        return None
    order = ["Transformer", "Pooling", *["Dense"] * kinds.count("Dense")]
    late = kinds not in (order, [*order, "Normalize"])
    if late:
        check_kinds(kinds, str(path / MODULES))
    if modules[0][1] != path:
        raise ModelFileError(
            f"{path / MODULES}: the Transformer is in {modules[0][1].name}; accepted: in the folder"
            " itself, as newer versions of sentence-transformers save it"
        )
    normalize = normalizes(kinds) if late else kinds[-1] == "Normalize"
    model, config = _fields(path, MODEL_CONFIGS), _fields(path, (CONFIG,))
    tokens = None
    if late:
        mask = next((folder for kind, folder in modules if kind == MASK), None)
        tokens = read_token_vectors(kinds, mask, model, config)
    max_tokens, lower_case = _read_model_config(model)
    prompts, default, similarity = _read_config(config, OF_TOKENS if late else ())
    if late:
        prompts = with_prefixes(prompts, config)
        pooling = "none"
    else:
        pooling = _read_pooling(modules[1][1], normalize, has_prompts=any(prompts.values()))
    return SentenceModel(
        pooling=pooling,
        normalize=normalize,
        dense=tuple(_read_dense(folder, late) for kind, folder in modules if kind == "Dense"),
        max_tokens=max_tokens,
        lower_case=lower_case,
        prompts=prompts,
        default_prompt=default,
        similarity=similarity,
        tokens=tokens,
    )


def read_logit_score(path: Path) -> tuple[int, int] | None:
    """Return the token ids of yes and no if a directory scores texts by them; else None.

    ModelFileError unless there are two tokens and the usual instruction.
    """
    modules = _modules(path) if (path / MODULES).is_file() else []
    if [kind for kind, _ in modules] != JUDGE:
        return None
    source = modules[1][1] / "config.json"
    fields = Fields(read_object(source), str(source))
    fields.ignore("module_input_name")
    yes, no = (fields.integer(f"{name}_token_id", least=0) for name in ("true", "false"))
    fields.refuse_unread()
    _, default, _ = _read_config(_fields(path, (CONFIG,)), ignored=("activation_fn",))
    if default is not None:
        raise ModelFileError(
            f"{path / CONFIG}: default_prompt_name is {default!r}; null is needed for a model that"
            " scores texts: requests give the instruction"
        )
    return yes, no


def files_of(sentences: SentenceModel) -> dict[str, Any]:
    """Return the JSON files with these settings, by name; dense heads' weights are elsewhere."""
    kinds = ["Transformer", *["Dense"] * len(sentences.dense)]
    kinds.insert(1, "Pooling") if sentences.tokens is None else kinds.append(MASK)
    kinds += ["Normalize"] if sentences.normalize else []
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    mask, of_tokens = ({}, {}) if sentences.tokens is None else files_of_tokens(sentences.tokens)
    torch = {name: f"torch.nn.{python}" for python, name in ACTIVATIONS.items()}
    files: dict[str, Any] = {
        MODULES: [
            {"idx": index, "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ],
        MODEL_CONFIG: {
            "max_seq_length": sentences.max_tokens,
            "do_lower_case": sentences.lower_case,
            **of_tokens,
        },
        CONFIG: {
            "prompts": dict(sentences.prompts),
            "default_prompt_name": sentences.default_prompt,
            "similarity_fn_name": sentences.similarity,
        },
    }
    of_dense = [path for path, kind in zip(paths, kinds, strict=True) if kind == "Dense"]
    for path, kind in zip(paths, kinds, strict=True):
        if kind == "Pooling":
            flag = next(key for key, name in POOLINGS.items() if name == sentences.pooling)
            files[f"{path}/config.json"] = {FLAG + flag: True}
        if kind == MASK:
            files[f"{path}/config.json"] = mask
    for path, dense in zip(of_dense, sentences.dense, strict=True):
        files[f"{path}/config.json"] = {
            "in_features": dense.inputs,
            "out_features": dense.outputs,
            "bias": dense.bias,
            "activation_function": torch[dense.activation],
        }
    return files


def _modules(path: Path) -> list[tuple[str, Path]]:
    """The kind and folder of each module, in order."""
    source = path / MODULES
    try:
        listed = json.loads(read_text(source))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{source}: not valid JSON: {error}") from error
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ModelFileError(f"{source}: a list of objects is needed")
    found: list[tuple[str, Path]] = []
    for index, one in enumerate(listed):
        fields = Fields(one, f"{source}: module {index}")
        fields.ignore("idx", "name", "kwargs")
        folder = path / fields.text("path")
        if not _is_inside(folder, path):
            raise fields.fail("path", "a folder in this one")
        found.append((fields.text("type").rpartition(".")[2], folder))
        fields.refuse_unread()
    return found


def _is_inside(folder: Path, path: Path) -> bool:
    try:
        return folder.resolve().is_relative_to(path.resolve())
    except (RuntimeError, ValueError):  # a loop of links, or an invalid name
        return False


def _read_pooling(folder: Path, normalize: bool, has_prompts: bool) -> str:
    fields = Fields(read_object(folder / "config.json"), str(folder / "config.json"))
    fields.ignore("word_embedding_dimension", "embedding_dimension")
    if not fields.flag("include_prompt", default=True) and has_prompts:
        raise fields.fail("include_prompt", "true: prompts are pooled with their texts")
    chosen = [
        key.removeprefix(FLAG)
        for key in fields.values
        if key.startswith(FLAG) and fields.flag(key, default=False)
    ]
    if fields.is_set("pooling_mode"):
        chosen.append(fields.text("pooling_mode"))
    fields.refuse_unread()
    if chosen == [SQRT] and normalize:
        return "mean"
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise ModelFileError(
            f"{fields.source}: the pooling is {' and '.join(chosen) or 'none'}; accepted: one of"
            " cls_token, mean_tokens and lasttoken"
        )
    return POOLINGS[chosen[0]]


def _read_dense(folder: Path, late: bool) -> DenseModule:
    """Read a module's config.json; with ``late`` its inputs are rows of tokens in any case."""
    fields = Fields(read_object(folder / "config.json"), str(folder / "config.json"))
    accepted = ["sentence_embedding", *(["token_embeddings"] if late else [])]
    name = "activation_function"
    activation = fields.text(name, default="torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise fields.fail(name, f"one of {', '.join(ACTIVATIONS)} of torch.nn")
    for name in ("module_input_name", "module_output_name"):
        if fields.text(name, default=accepted[0]) not in accepted:
            raise fields.fail(name, " or ".join(accepted))
    if fields.flag("use_residual", default=False):
        raise fields.fail("use_residual", "false")
    module = DenseModule(
        folder=folder,
        inputs=fields.integer("in_features"),
        outputs=fields.integer("out_features"),
        bias=fields.flag("bias", default=True),
        activation=ACTIVATIONS[activation],
    )
    fields.refuse_unread()
    return module


def _fields(path: Path, names: Sequence[str]) -> Fields:
    """The first of these files that exists; no fields if none does."""
    source = next((path / name for name in names if (path / name).is_file()), None)
    return Fields({} if source is None else read_object(source), str(source or path / names[0]))


def _read_model_config(fields: Fields) -> tuple[int | None, bool]:
    """The most tokens of a text, and whether texts are lower-cased."""
    has_limit = fields.is_set("max_seq_length")
    limit = fields.integer("max_seq_length") if has_limit else None
    lower_case = fields.flag("do_lower_case", default=False)
    _refuse_unread(fields)
    return limit, lower_case


def _read_config(
    fields: Fields, more: tuple[str, ...] = (), ignored: tuple[str, ...] = ()
) -> tuple[dict[str, str], str | None, str]:
    """The prompts by name, the name of the default one, and the similarity function."""
    fields.ignore("__version__", "model_type", *ignored)
    prompts = fields.raw("prompts") or {}
    if not isinstance(prompts, Mapping) or not all(map(_is_text, prompts.values())):
        raise fields.fail("prompts", "an object of strings")
    default = fields.text("default_prompt_name") if fields.is_set("default_prompt_name") else None
    if default is not None and default not in prompts:
        raise fields.fail("default_prompt_name", f"one of {', '.join(prompts) or 'no prompts'}")
    similarity = fields.text("similarity_fn_name", default=COSINE)
    if similarity not in (accepted := (*SIMILARITIES, *more)):
        raise fields.fail("similarity_fn_name", f"one of {', '.join(accepted)}")
    _refuse_unread(fields)
    return dict(prompts), default, similarity


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _refuse_unread(fields: Fields) -> None:
    for key in fields.unread():
        if fields.values[key] not in NEUTRAL.get(key, ()):
            raise fields.unknown(key)
