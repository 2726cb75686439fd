"""What a sentence-transformers folder says about its vectors. Nothing here needs torch.

    modules.json                        which modules follow each other, and where each is kept
    sentence_bert_config.json           the longest sequence, lower-casing
    1_Pooling/config.json               how token vectors become one: booleans until 5, names since
    config_sentence_transformers.json   prompts, similarity, number of dimensions

The folder of a bare BERT has none of them: then nothing is said, and ``pooling`` is None.
Source: sentence-transformers 6.2, Transformer.load_config, Pooling.load_config, BaseModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertcli.checkpoints.scan import (
    TERM_TABLE,
    SentenceModule,
    is_model2vec,
    is_static,
    read_modules,
    read_routes,
    transformer_path,
)
from bertcli.errors import ModelError, UsageError
from bertcli.files.typed_json import NOTHING, JsonObject, is_regular, is_text, read_object
from bertcli.tokenizing.model_files import sentence_limit, sentence_settings

LEGACY = {  # in the order in which their vectors are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
OURS = {key: name.removesuffix("_tokens") for key, name in LEGACY.items()}  # key -> ours
MODES = {name: name.removesuffix("_tokens") for name in LEGACY.values()}  # theirs -> ours

CONFIG = "config_sentence_transformers.json"
MODEL2VEC_TOKENS = 512  # of a text, where a model2vec folder names no limit
COLBERT = "HF_ColBERT"  # the architecture of ColBERT's own folders
SENTENCE, TOKENS = "sentence_embedding", "token_embeddings"  # what modules hand to each other
HINTS = {  # by the option that a model is for
    "": "give --pooling (mean, cls, ...) to take the vectors of the encoder inside",
    "--sparse": "--sparse writes the weights of terms that this model makes",
    "--token-vectors": "--token-vectors gives the vectors of tokens of this model (ColBERT)",
}


@dataclass(frozen=True)
class Sentence:
    """How the model's files specify its vectors; None where they do not."""

    max_length: int | None = None
    lower_case: bool = False  # whatever the tokenizer does
    modules: tuple[str, ...] = ()  # the parts by name, in their order: Transformer, Pooling, ...
    pooling: tuple[str, ...] | None = None  # several are concatenated
    dimension: int | None = None  # of what is pooled
    include_prompt: bool = True  # whether the tokens of a prompt are pooled too
    of_tokens: tuple[SentenceModule, ...] = ()  # that change the vectors of tokens
    of_texts: tuple[SentenceModule, ...] = ()  # that change what is pooled
    unknown: tuple[str, ...] = ()  # the modules that bertcli does not have
    normalize: bool = False  # what they make of it
    dim: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None  # its name
    similarity: str | None = None
    static: str | None = None  # a table of token vectors, as this library writes it
    transformer: str = ""  # where the BERT is kept, seen from the folder
    found_in: str = ""  # the file that names the pooling

    def prompt(self, text: str | None = None, name: str | None = None) -> str:
        """Return the prompt to put before each text: as given, by its name, or the default one.

        Raises UsageError for a name that is not there, or a text and a name together.
        """
        if text is not None and name is not None:
            raise UsageError("--prompt cannot be combined with --prompt-name", "give one of them")
        if text is not None:
            return text
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise UsageError(
                f"this model has no prompt {name!r} (--prompt-name)", f"its prompts: {names}"
            )
        return self.prompts[name]


def read_sentence(folder: Path, *, pooling: str = "auto") -> Sentence:
    """Return what a folder says; ``pooling`` is what the caller asks for instead of its modules.

    Raises ModelError when a file is broken, or, unless another pooling is asked for, when the
    vectors pass through modules that bertcli does not have.
    """
    modules, static = read_modules(folder), is_static(folder)
    transformer = transformer_path(modules)
    inner, settings = sentence_settings(folder / transformer), read_object(folder / CONFIG)
    layers = not static and _gives_layers(folder / transformer, inner)
    of_tokens, of_texts, unknown = _chain(folder, modules, layers)
    if static and unknown:
        names = ", ".join(unknown)
        raise ModelError(f"{folder / 'modules.json'}: unsupported module {names}")
    if modules and not static:
        task = inner.text("transformer_task") or "feature-extraction"
        output = inner.text("module_output_name") or TOKENS
        if task != "feature-extraction":
            unknown.append(f"Transformer for {task}")
        elif output != TOKENS:
            unknown.append(f"Transformer that gives {output}")
    if pooling == "auto" and not static:
        _refuse(unknown, modules, folder)
    prompts, default = _prompts(settings)
    normalize = bool(of_texts) and of_texts[-1].kind == "Normalize"
    sentence = Sentence(
        modules=tuple(module.kind for module in modules),
        of_tokens=tuple(of_tokens),
        of_texts=tuple(of_texts[:-1] if normalize else of_texts),
        unknown=tuple(unknown),
        normalize=normalize,
        dim=settings.whole("truncate_dim", 1),
        prompts=prompts,
        default_prompt=default,
        similarity=settings.text("similarity_fn_name"),
        transformer=transformer,
    )
    if static:  # each text is the mean of its tokens
        library, found_in = "sentence-transformers", "modules.json"
        if is_model2vec(folder):
            raw = read_object(folder / "config.json")
            limit = raw.whole("max_length", 1) if "max_length" in raw else MODEL2VEC_TOKENS
            normalize = raw.switch("normalize") or False
            sentence = replace(sentence, max_length=limit, normalize=normalize)
            library, found_in = "model2vec", "config.json"
        return replace(sentence, pooling=("mean",), static=library, found_in=found_in)
    limit, lower_case = sentence_limit(inner), inner.switch("do_lower_case") or False
    sentence = replace(sentence, max_length=limit, lower_case=lower_case)
    poolings = [module.path for module in modules if module.kind == "Pooling"]
    if not poolings:
        return sentence
    found_in = f"{poolings[-1]}/config.json"  # as in sentence-transformers, the last one decides
    modes, include_prompt, dimension = _pooling(folder / found_in)
    return replace(
        sentence,
        pooling=modes,
        include_prompt=include_prompt,
        dimension=dimension,
        found_in=found_in,
    )


def _chain(
    folder: Path, modules: list[SentenceModule], layers: bool
) -> tuple[list[SentenceModule], list[SentenceModule], list[str]]:
    """Return the modules that change vectors of tokens and of texts, and names of unknown ones.

    Those of texts are behind the last Pooling, which starts a text's vector anew. ``layers`` tells
    whether the first module gives the states of all layers.
    """
    of_tokens: list[SentenceModule] = []
    of_texts: list[SentenceModule] = []
    unknown, kinds = [], [module.kind for module in modules]
    last = len(kinds) - kinds[::-1].index("Pooling") if "Pooling" in kinds else 0
    for at, module in enumerate(modules):
        subject, before = SENTENCE, at < last
        match module.kind:
            case "Transformer" | "StaticEmbedding" if at == 0:
                continue
            case "Pooling" | "Dropout":
                continue
            case "WeightedLayerPooling" if before:  # it takes the states of layers: nothing else
                of_tokens[:] = [module] if layers else of_tokens
                continue
            case "Dense" | "Normalize":
                subject = _subject(folder, module.path)
            case "LayerNorm":
                pass
            case other:
                unknown.append(other)
                continue
        if subject == TOKENS and before:
            of_tokens.append(module)
        elif subject != SENTENCE:
            unknown.append(f"{module.kind} of {subject}")
        elif not before:
            of_texts.append(module)
        elif "Pooling" not in kinds[:at]:
            unknown.append(f"{module.kind} before Pooling")
    return of_tokens, of_texts, unknown


def _subject(folder: Path, place: str) -> str:
    """Return what a module takes, and gives another of in its place."""
    raw = read_object(folder / place / "config.json") if place else NOTHING
    source = raw.text("module_input_name") or SENTENCE
    target = raw.text("module_output_name") or source
    return source if source == target else f"{source} as {target}"


def _gives_layers(folder: Path, inner: JsonObject) -> bool:
    """Tell whether sentence-transformers would give the states of all layers to modules."""
    changed = (inner.object(key) for key in ("config_kwargs", "config_args"))
    for raw in (*changed, read_object(folder / "config.json")):
        if "output_hidden_states" in raw:
            return bool(raw.switch("output_hidden_states"))
    return False


def _refuse(unknown: list[str], modules: list[SentenceModule], folder: Path) -> None:
    option, config = option_for(folder), folder / "modules.json"
    if not modules and option:
        raise ModelError(
            f"{folder / 'config.json'}: {COLBERT} makes no vector of a text",
            "--token-vectors gives those of its tokens; --pooling (mean, cls, ...) takes the "
            "vectors of the encoder inside",
        )
    hint = HINTS[option]
    if unknown:
        raise ModelError(f"{config}: unsupported module {', '.join(unknown)}", hint)
    if modules and "Pooling" not in {module.kind for module in modules}:
        raise ModelError(f"{config}: has no Pooling module", hint)


def option_for(folder: Path) -> str:
    """Return the option that a model is for, where it makes no vectors of texts; "" else."""
    routes = read_routes(folder).values()
    kinds = {module.kind for modules in (read_modules(folder), *routes) for module in modules}
    if kinds & {"SpladePooling", TERM_TABLE}:
        return "--sparse"
    named = read_object(folder / "config.json").get("architectures") if not kinds else None
    if isinstance(named, list) and COLBERT in named:
        return "--token-vectors"
    late = any(kind == "MultiVectorMask" or kind.startswith("pylate.") for kind in kinds)
    return "--token-vectors" if late else ""


def _pooling(path: Path) -> tuple[tuple[str, ...], bool, int | None]:
    """Return the modes in our words, whether prompts are pooled, and the width of a token."""
    if not is_regular(path):
        raise ModelError(f"{path}: file not found; it sets the pooling")
    raw = read_object(path)

    def holds(named: Any) -> bool:
        return _listed(named) != [] and all(is_text(n) and n in MODES for n in _listed(named))

    if "pooling_mode" in raw:
        modes = _listed(raw.needed("pooling_mode", holds, f"one or more of {', '.join(MODES)}"))
    else:
        modes = [mode for key, mode in LEGACY.items() if raw.switch(key)] or ["mean"]
    include = raw.switch("include_prompt")
    keys = ("embedding_dimension", "word_embedding_dimension")  # since 6, and before
    dimension = next((width for key in keys if (width := raw.whole(key, 1))), None)
    return tuple(MODES[name] for name in modes), include is not False, dimension


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def default_prompt(folder: Path) -> str:
    """Return the prompt before each text of a cross-encoder; "" where its folder names none."""
    prompts, name = _prompts(read_object(folder / CONFIG))
    return prompts[name] if name else ""


def _prompts(raw: JsonObject) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default one."""
    prompts = raw.object("prompts")
    prompts.check_keys(is_text, "names as keys")
    texts = {name: prompts.text(name) or "" for name in prompts}
    default = raw.text("default_prompt_name")
    if default is not None and default not in texts:
        raise ModelError(
            f"{raw.source}: default_prompt_name is {default!r}, which is none of the prompts",
            f"available: {', '.join(texts) or 'none'}",
        )
    return texts, default
