"""Options that determine vectors, and the defaults that a model folder sets for them.

    EmbedOptions(pooling="mean+max")       # two poolings, concatenated
    EmbedOptions(pooling="none")           # a vector per token
    EmbedOptions(word_vectors="mean")      # a vector per word

Files of a sentence model's folder that are read here (a bare BERT has none of them):

    modules.json                        the modules in order, and the folder of each
    sentence_bert_config.json           the maximum sequence length, lower-casing
    1_Pooling/config.json               the pooling: booleans until version 5, names since
    config_sentence_transformers.json   prompts, similarity, number of dimensions

This module does not import torch: invalid options are rejected before a model is looked up.
Source: sentence-transformers 6.2, Transformer.load_config, Pooling.load_config, BaseModel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bertcli.engines.compute import Compute
from bertcli.errors import ModelError, OutputError, UsageError, option
from bertcli.formats.precision import RANGED
from bertcli.formats.registry import FORMATS, Holds, names_of
from bertcli.io.typed_json import (
    NOTHING,
    JsonObject,
    is_regular,
    is_text,
)
from bertcli.keywords import refuse_outside
from bertcli.model_folder.files import TERM_TABLE, SentenceModule, transformer_path
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.tokenizer_files import sentence_limit
from bertcli.records.batch import RecordBatch
from bertcli.records.record import Record, Text

LEGACY_POOLING_KEYS = {  # key -> name; their vectors are concatenated in this order
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# name in sentence-transformers -> our name
POOLING_NAMES = {name: name.removesuffix("_tokens") for name in LEGACY_POOLING_KEYS.values()}

SENTENCE_CONFIG = "config_sentence_transformers.json"
MODEL2VEC_TOKENS = 512  # limit of a text if a model2vec folder sets none
COLBERT = "HF_ColBERT"  # the architecture of ColBERT's own folders
PYLATE_KEYS = (  # settings that only PyLate writes; its first versions wrote no model_type
    *("query_prefix", "document_prefix", "query_length", "document_length"),
    *("do_query_expansion", "attend_to_expansion_tokens", "skiplist_words"),
)
# Names of the values that modules pass to each other.
TEXT_VECTORS = "sentence_embedding"
TOKEN_VECTORS = "token_embeddings"
SCORES = "scores"

TERM_POOLINGS = ("max", "sum")  # how the weights of a term at all tokens are combined
POOLINGS = tuple(POOLING_NAMES.values())  # these may be concatenated
SINGLE_POOLINGS = ("auto", "pooler", "none")  # these may not
CHUNK_POOLINGS = ("mean", "max", "mean_sqrt_len", "weightedmean")  # of the tokens of a chunk

LEAST_VALUES = {  # of each integer option
    **dict.fromkeys(("top_terms", "dim", "window", "threads", "batch_tokens"), 1),
    "max_length": 2,
    **dict.fromkeys(("stride", "overlap"), 0),
}


@dataclass(frozen=True)
class EmbedOptions(Compute):
    """The options of an embedding. None, or "auto", means the setting of the model folder."""

    pooling: str = "auto"  # several are joined by "+": mean+max
    token_vectors: bool = False  # same as pooling="none"
    word_vectors: Literal["first", "last", "mean", "max"] | None = None
    sparse: bool = False  # term weights by a masked language model
    top_terms: int | None = None  # keep the terms with the largest weights of each text
    layers: tuple[int, ...] = (-1,)
    layer_combine: Literal["mean", "sum", "concat", "stack"] = "mean"
    normalize: bool | None = None
    dim: int | None = None
    # True: a model that normalizes its vectors does so before they are truncated to dim, as with
    # the folder's own dim and with truncate_dim of sentence-transformers.
    dim_last: bool = False
    max_length: int | None = None
    on_truncate: Literal["warn", "error", "ignore", "window", "chunk", "late-chunk"] = "warn"
    stride: int = 0
    overlap: int = 0  # tokens shared by consecutive chunks
    at: Literal["token", "word", "sentence", "paragraph"] = "token"  # where chunks end
    prompt: str | None = None
    prompt_name: str | None = None
    special_tokens: bool = True
    parse_special: bool = True
    window: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_outside(self, LEAST_VALUES)
        object.__setattr__(self, "layers", parse_layers(self.layers))
        if self.token_vectors:
            if self.pooling not in ("auto", "none"):
                raise UsageError(
                    f"{option('token_vectors')} cannot be combined with "
                    f"{option('pooling', self.pooling)}"
                )
            if self.word_vectors:
                raise UsageError(
                    f"{option('token_vectors')} cannot be combined with {option('word_vectors')}"
                )
            object.__setattr__(self, "pooling", "none")
        if self.makes_chunks and self.has_several_rows:
            unit = self.row_unit.removesuffix("s")
            raise UsageError(
                f"{option('on_truncate', self.on_truncate)} makes one vector per chunk, "
                f"not per {unit}",
                "use bertcli chunk, and embed the chunks",
            )
        if self.sparse:
            if self.pooling not in ("auto", *TERM_POOLINGS):
                raise UsageError(
                    f"{option('sparse')} cannot be combined with {option('pooling', self.pooling)}",
                    f"one of {', '.join(TERM_POOLINGS)}, or auto: the model's",
                )
            incompatible = {
                option("word_vectors"): self.word_vectors,
                option("layers"): self.layers != (-1,),
                option("normalize"): self.normalize,
                option("dim"): self.dim,
            }
            for name in filter(incompatible.get, incompatible):
                raise UsageError(f"{option('sparse')} cannot be combined with {name}")
            return
        self._refuse_unknown_poolings()
        if self.top_terms is not None:
            raise UsageError(f"{option('top_terms')} requires {option('sparse')}")
        if self.pooling == "pooler" and len(self.layers) > 1:
            raise UsageError(
                f"{option('pooling', 'pooler')} takes one layer",
                f"it was trained on the last one, {option('layers', -1)}",
            )
        if self.word_vectors and self.pooling not in ("auto", "none"):
            raise UsageError(
                f"{option('word_vectors')} cannot be combined with "
                f"{option('pooling', self.pooling)}",
                f"{option('word_vectors', self.word_vectors)} says how; leave out "
                f"{option('pooling')}",
            )

    def _refuse_unknown_poolings(self) -> None:
        """Raise UsageError for an unknown pooling, and for one that cannot be concatenated."""
        if self.pooling in SINGLE_POOLINGS:
            return
        for mode in self.modes:
            if mode in POOLINGS:
                continue
            problem = f"unknown {mode!r}"
            if mode in SINGLE_POOLINGS:
                problem = f"{mode} cannot be joined to others"
            raise UsageError(
                f"{option('pooling', self.pooling)}: {problem}",
                f"{', '.join(POOLINGS)}, also joined as in mean+max; or "
                f"{', '.join(SINGLE_POOLINGS)}",
            )

    @property
    def makes_chunks(self) -> bool:
        """True if long texts are divided into chunks with one vector each."""
        return self.on_truncate in ("chunk", "late-chunk")

    @property
    def per_token(self) -> bool:
        """True if a text has a vector per token or word instead of a single vector."""
        return self.pooling == "none" or self.word_vectors is not None

    @property
    def has_several_rows(self) -> bool:
        """True if a text has a variable number of rows: token or word vectors, or term weights."""
        return self.per_token or self.sparse

    @property
    def row_unit(self) -> str:
        """What a row belongs to: "texts", "words", "tokens" or "terms"."""
        if self.sparse:
            return "terms"
        if self.word_vectors:
            return "words"
        return "tokens" if self.per_token else "texts"

    @property
    def modes(self) -> tuple[str, ...]:
        """The names of the poolings, in the order in which their vectors are concatenated."""
        return tuple(self.pooling.split("+"))


# --- settings of a folder ---


@dataclass(frozen=True)
class SentenceSettings:
    """The settings of a sentence model's folder; None for a value that the files do not set."""

    max_length: int | None = None
    lower_case: bool = False  # applied before the tokenizer
    modules: tuple[str, ...] = ()  # names in order: Transformer, Pooling, ...
    pooling: tuple[str, ...] | None = None  # several are concatenated
    include_prompt: bool = True  # True: the tokens of a prompt are pooled too
    of_texts: tuple[SentenceModule, ...] = ()  # modules that transform pooled vectors
    unknown: tuple[str, ...] = ()  # unsupported modules
    normalize: bool = False  # True: the model normalizes its vectors
    dim: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None  # a key of prompts
    similarity: str | None = None
    static: str | None = None  # for a table of token vectors: the library that wrote it
    transformer: str = ""  # path of the BERT, relative to the folder
    found_in: str = ""  # the file that sets the pooling

    def prompt(self, text: str | None = None, name: str | None = None) -> str:
        """Return the prompt of each text: ``text``, the prompt of this name, or the default.

        Raises UsageError for an unknown name, or a text and a name together.
        """
        if text is not None and name is not None:
            raise UsageError(
                f"{option('prompt')} cannot be combined with {option('prompt_name')}",
                "give one of them",
            )
        if text is not None:
            return text
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise UsageError(
                f"this model has no prompt {name!r} ({option('prompt_name')})",
                f"its prompts: {names}",
            )
        return self.prompts[name]


def read_sentence_settings(
    folder: ModelFolder, *, pooling: str = "auto", scores: bool = False
) -> SentenceSettings:
    """Return the settings of a folder.

    ``pooling`` other than "auto" replaces the modules of the folder. With ``scores``, a
    cross-encoder is accepted.

    Raises ModelError for a broken file; with "auto" also for unsupported modules, for a model that
    has no text vectors, and for a cross-encoder without ``scores``.
    """
    modules = folder.modules
    static = folder.is_static
    transformer = transformer_path(modules)
    inner = folder.subfolder(transformer).sentence_settings
    settings = folder.json_object(SENTENCE_CONFIG)
    of_texts, unknown = _modules_after_pooling(folder, modules)
    poolings = [module.path for module in modules if module.class_name == "Pooling"]
    modules_file = folder / "modules.json"
    if static and unknown:
        raise ModelError(f"{modules_file}: unsupported module {', '.join(unknown)}")
    if modules and not static:
        task = inner.text("transformer_task") or "feature-extraction"
        output = inner.text("module_output_name") or TOKEN_VECTORS
        if task != "feature-extraction":
            unknown.append(f"Transformer for {task}")
        elif output != TOKEN_VECTORS:
            unknown.append(f"Transformer that gives {output}")
    if pooling == "auto" and not static:
        hint = (
            f"give {option('pooling')} (mean, cls, ...) to take the vectors of the encoder inside"
        )
        _refuse_without_text_vectors(folder, hint, scores=scores)
        if unknown:
            raise ModelError(f"{modules_file}: unsupported module {', '.join(unknown)}", hint)
        if modules and not poolings:
            raise ModelError(f"{modules_file}: has no Pooling module", hint)
    prompts, default = _read_prompts(settings)
    normalize = bool(of_texts) and of_texts[-1].class_name == "Normalize"
    sentence = SentenceSettings(
        modules=tuple(module.class_name for module in modules),
        of_texts=tuple(of_texts[:-1] if normalize else of_texts),
        unknown=tuple(unknown),
        normalize=normalize,
        dim=settings.integer("truncate_dim", 1),
        prompts=prompts,
        default_prompt=default,
        similarity=settings.text("similarity_fn_name"),
        transformer=transformer,
    )
    if static:
        return _with_static_settings(sentence, folder)
    limit = sentence_limit(inner)
    lower_case = inner.switch("do_lower_case") or False
    sentence = replace(sentence, max_length=limit, lower_case=lower_case)
    if not poolings:
        return sentence
    found_in = f"{poolings[-1]}/config.json"  # as in sentence-transformers, the last one decides
    modes, include_prompt = _read_pooling(folder, found_in)
    return replace(sentence, pooling=modes, include_prompt=include_prompt, found_in=found_in)


def _refuse_without_text_vectors(folder: ModelFolder, hint: str, *, scores: bool) -> None:
    """Raise ModelError for a model of other vectors, or for a cross-encoder without ``scores``."""
    if required := required_option(folder):
        raise ModelError(f"{folder}: has no text vectors", f"give {required}; or {hint}")
    if folder.modules and is_cross_encoder(folder) and not scores:
        raise ModelError(
            f"{folder}: a cross-encoder, which has no text vectors",
            f"bertcli rerank and classify run it; or {hint}",
        )


def _with_static_settings(sentence: SentenceSettings, folder: ModelFolder) -> SentenceSettings:
    """Return the settings with those of a table, whose text vectors are means of token vectors."""
    sentence = replace(sentence, pooling=("mean",))
    if not folder.is_model2vec:
        return replace(sentence, static="sentence-transformers", found_in="modules.json")
    config = folder.json_object("config.json")
    limit = config.integer("max_length", 1) if "max_length" in config else MODEL2VEC_TOKENS
    normalize = config.switch("normalize") or False
    return replace(
        sentence,
        max_length=limit,
        normalize=normalize,
        static="model2vec",
        found_in="config.json",
    )


def _modules_after_pooling(
    folder: ModelFolder, modules: list[SentenceModule]
) -> tuple[list[SentenceModule], list[str]]:
    """Return the modules after Pooling that transform text vectors, and unsupported modules."""
    of_texts: list[SentenceModule] = []
    unknown = []
    names = [module.class_name for module in modules]
    after_pooling = len(names) - names[::-1].index("Pooling") if "Pooling" in names else 0
    for index, module in enumerate(modules):
        match module.class_name:
            case "Transformer" | "StaticEmbedding" if index == 0:
                pass
            case "Pooling" | "Dropout":
                pass
            case "Dense" | "Normalize" | "LayerNorm":
                values = _other_values(folder, module)
                if values == {SCORES} and index == len(modules) - 1:  # of a cross-encoder
                    values.clear()
                if values:
                    unknown.append(f"{module.class_name} of {', '.join(sorted(values))}")
                elif index < after_pooling:
                    unknown.append(f"{module.class_name} before Pooling")
                else:
                    of_texts.append(module)
            case name:
                unknown.append(name)
    return of_texts, unknown


def _other_values(folder: ModelFolder, module: SentenceModule) -> set[str]:
    """Return the names of the values that a module takes or returns, other than text vectors."""
    config = folder.json_object(f"{module.path}/config.json") if module.path else NOTHING
    keys = ("module_input_name", "module_output_name")
    return {config.text(key) or TEXT_VECTORS for key in keys} - {TEXT_VECTORS}


def required_option(folder: ModelFolder) -> str:
    """Return the option required by a model without text vectors; "" for other models.

    It is ``sparse`` for a sparse model and ``token_vectors`` for late interaction.
    """
    routes = folder.routes.values()
    names = {module.class_name for modules in (folder.modules, *routes) for module in modules}
    if names & {"SpladePooling", TERM_TABLE}:
        return option("sparse")
    architectures = folder.json_object("config.json").get("architectures") if not names else None
    if isinstance(architectures, list) and COLBERT in architectures:
        return option("token_vectors")
    if "MultiVectorMask" in names or is_pylate(folder.json_object(SENTENCE_CONFIG), names):
        return option("token_vectors")
    return ""


def is_cross_encoder(folder: ModelFolder) -> bool:
    """Return True for a folder written by CrossEncoder of sentence-transformers."""
    return folder.json_object(SENTENCE_CONFIG).text("model_type") == "CrossEncoder"


def is_pylate(settings: JsonObject, module_names: Collection[str]) -> bool:
    """Return True for a folder written by PyLate.

    ``settings`` is config_sentence_transformers.json. Source: PyLate 1.6, ColBERT._get_model_type;
    sentence-transformers 6.2, MultiVectorEncoder.
    """
    if "Pooling" in module_names:
        return False
    encoder_class = settings.text("model_type")
    if encoder_class is not None:
        return encoder_class == "ColBERT"
    if any(name.startswith("pylate.") for name in module_names):
        return True
    return bool(module_names) and any(key in settings for key in PYLATE_KEYS)


def _read_pooling(folder: ModelFolder, file_name: str) -> tuple[tuple[str, ...], bool]:
    """Return the pooling modes under our names, and True if prompts are pooled."""
    if not is_regular(folder / file_name):
        raise ModelError(f"{folder / file_name}: file not found; it sets the pooling")
    config = folder.json_object(file_name)
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        if not isinstance(modes, list):
            modes = [modes]
        if not modes or any(mode not in [*POOLING_NAMES] for mode in modes):
            raise config.bad("pooling_mode", f"one or more of {', '.join(POOLING_NAMES)}")
    else:
        modes = [mode for key, mode in LEGACY_POOLING_KEYS.items() if config.switch(key)]
    include_prompt = config.switch("include_prompt")
    return tuple(POOLING_NAMES[mode] for mode in modes or ["mean"]), include_prompt is not False


def default_prompt(folder: ModelFolder) -> str:
    """Return the default prompt of a cross-encoder; "" if its folder sets none."""
    prompts, name = _read_prompts(folder.json_object(SENTENCE_CONFIG))
    return prompts[name] if name else ""


def _read_prompts(config: JsonObject) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default prompt."""
    prompts = config.object("prompts")
    prompts.check_keys(is_text, "names as keys")
    texts = {name: prompts.text(name) or "" for name in prompts}
    default = config.text("default_prompt_name")
    if default is not None and default not in texts:
        raise ModelError(
            f"{config.source}: default_prompt_name is {default!r}, which is none of the prompts",
            f"available: {', '.join(texts) or 'none'}",
        )
    return texts, default


# --- options resolved with a folder ---


def resolve_options(options: EmbedOptions, sentence: SentenceSettings) -> EmbedOptions:
    """Return the options with the settings of the folder in place of "auto" and None.

    Normalization and ``dim`` of the folder apply only to text vectors, not to token vectors.
    Raises UsageError for an option that a table of token vectors does not support.
    """
    prompt = sentence.prompt(options.prompt, options.prompt_name)
    if sentence.static:
        impossible = {
            option("sparse"): options.sparse,
            option("pooling", options.pooling): options.pooling not in ("auto", "mean", "none"),
            f"{option('token_vectors')} or {option('word_vectors')}": options.per_token,
            option("layers"): options.layers != (-1,),
            option("layer_combine"): options.layer_combine != "mean",
            option("on_truncate", "late-chunk"): options.on_truncate == "late-chunk",
            option("dtype", options.dtype): options.dtype not in ("auto", "float32"),
            option("device", options.device): options.device not in ("auto", "cpu"),
        }
        for name in filter(impossible.get, impossible):
            raise UsageError(
                f"{name} is not possible: this model is a table of token vectors, not an encoder",
                "leave it out, or use a model with an encoder",
            )
        options = replace(options, special_tokens=False)
    if options.sparse:
        return replace(options, prompt=prompt)
    if options.per_token:
        return replace(options, pooling="none", normalize=bool(options.normalize), prompt=prompt)
    pooling = options.pooling
    if pooling == "auto":
        pooling = "+".join(sentence.pooling or ("mean",))
    if options.on_truncate == "late-chunk":
        _refuse_pooling_of_one_token(pooling)
    dim_last = options.dim_last or (options.dim is None and sentence.dim is not None)
    return replace(
        options,
        pooling=pooling,
        normalize=sentence.normalize if options.normalize is None else options.normalize,
        dim=options.dim or sentence.dim,
        dim_last=dim_last and not options.normalize,
        prompt=prompt,
    )


def _refuse_pooling_of_one_token(pooling: str) -> None:
    """Raise UsageError for a pooling that takes one token of a text, which a chunk does not have.

    [CLS] or the last token stands for the whole text.
    """
    for mode in pooling.split("+"):
        if mode not in CHUNK_POOLINGS:
            raise UsageError(
                f"{option('on_truncate', 'late-chunk')} pools the tokens of each chunk, and "
                f"{option('pooling', mode)} takes one token of the whole text",
                f"use {option('pooling', 'mean')} (or {', '.join(CHUNK_POOLINGS[1:])}), or "
                f"{option('on_truncate', 'chunk')}",
            )


def prepare_records(
    records: Sequence[Record], prompt: str, *, lower: bool, max_characters: int | None = None
) -> Sequence[Record]:
    """Return records with the prompt before each text; with ``lower``, in lower case.

    Strings are cut to ``max_characters``. Pre-split words are not cut.
    """
    if not (prompt or lower or max_characters):
        return records

    def lower_and_cut(text: Text) -> Text:
        if isinstance(text, list):
            return [word.lower() for word in text] if lower else text
        return (text.lower() if lower else text)[:max_characters]

    batch = RecordBatch.of(records)
    prompt_words = prompt.split()
    texts: list[Text] = [
        [*prompt_words, *text] if isinstance(text, list) else prompt + text for text in batch.texts
    ]
    pairs = batch.pairs and [None if pair is None else lower_and_cut(pair) for pair in batch.pairs]
    return replace(batch, texts=[lower_and_cut(text) for text in texts], pairs=pairs)


def parse_layers(value: Any, name: str = "layers") -> tuple[int, ...]:
    """Return layer numbers from an int, an iterable of ints, or a string such as "-1,-2".

    Raises UsageError for any other value, with ``name`` as the option.
    """
    try:
        if isinstance(value, int):
            return (value,)
        return tuple(map(int, value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        raise UsageError(
            f"{option(name)} {value} is not a list of numbers", "for example -1 or 0,-2,-1"
        ) from None


def refuse_format(file_format: str, options: EmbedOptions) -> None:
    """Raise UsageError for a file format that cannot hold the rows of these options."""
    can_hold = FORMATS[file_format].can_hold
    if options.per_token and not can_hold(Holds.SEVERAL_VECTORS):
        raise UsageError(
            f"{file_format} holds one vector per row, and each text has several",
            "use -f jsonl, parquet or npy",
        )
    if options.makes_chunks and can_hold(Holds.REQUESTS):
        raise UsageError(
            f"{file_format} answers each text with one vector, and "
            f"{option('on_truncate', options.on_truncate)} makes several"
        )
    if options.sparse and not can_hold(Holds.TERMS):
        raise UsageError(
            f"{option('sparse')}: weights of terms cannot be written as {file_format}",
            f"one of {', '.join(names_of(Holds.TERMS))}",
        )


def refuse_stream(file_format: str, precision: str) -> None:
    """Raise OutputError for a file format or precision that requires all rows at once."""
    if not FORMATS[file_format].is_text:
        raise OutputError(f"{file_format} cannot go to a pipe", "use -o FILE")
    if precision in RANGED:
        raise OutputError(f"{option('precision', precision)} cannot go to a pipe", "use -o FILE")
