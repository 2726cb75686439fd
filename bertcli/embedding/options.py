"""What a user may choose of how vectors are made, and what a model's folder says otherwise.

    EmbedOptions(pooling="mean+max")       # two poolings, concatenated
    EmbedOptions(pooling="none")           # a vector per token
    EmbedOptions(word_vectors="mean")      # a vector per word

What is read of the folder of a sentence model, which that of a bare BERT has not:

    modules.json                        which modules follow each other, and where each is kept
    sentence_bert_config.json           the longest sequence, lower-casing
    1_Pooling/config.json               how token vectors become one: booleans until 5, names since
    config_sentence_transformers.json   prompts, similarity, number of dimensions

Nothing here needs torch, so a wrong choice is told before a model is looked for.
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

LEGACY = {  # in the order in which their vectors are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODES = {name: name.removesuffix("_tokens") for name in LEGACY.values()}  # theirs -> ours

CONFIG = "config_sentence_transformers.json"
MODEL2VEC_TOKENS = 512  # of a text, where a model2vec folder names no limit
COLBERT = "HF_ColBERT"  # the architecture of ColBERT's own folders
PYLATE_KEYS = (  # settings that only PyLate writes, which named no model_type at first
    *("query_prefix", "document_prefix", "query_length", "document_length"),
    *("do_query_expansion", "attend_to_expansion_tokens", "skiplist_words"),
)
# What modules hand to each other.
SENTENCE, TOKENS, SCORES = "sentence_embedding", "token_embeddings", "scores"

TERM_POOLINGS = ("max", "sum")  # of the weights of a term at the tokens
POOLINGS = tuple(MODES.values())  # these may be concatenated
ALONE = ("auto", "pooler", "none")

LEAST = {  # of what is a whole number
    **dict.fromkeys(("top_terms", "dim", "window", "threads", "batch_tokens"), 1),
    "max_length": 2,
    **dict.fromkeys(("stride", "overlap"), 0),
}


@dataclass(frozen=True)
class EmbedOptions(Compute):
    """What a user may choose. None, or auto, means what the model's folder says."""

    pooling: str = "auto"  # several are joined by "+", as in mean+max
    token_vectors: bool = False  # by another name: pooling none
    word_vectors: Literal["first", "last", "mean", "max"] | None = None
    sparse: bool = False  # weights of terms, by a masked language model
    top_terms: int | None = None  # of a text, those with the largest weights
    layers: tuple[int, ...] = (-1,)
    layer_combine: Literal["mean", "sum", "concat", "stack"] = "mean"
    normalize: bool | None = None
    dim: int | None = None
    # Whether vectors that the folder gives length 1 are cut to dim afterwards: as the folder's own
    # dim means, and truncate_dim of sentence-transformers.
    dim_last: bool = False
    max_length: int | None = None
    on_truncate: Literal["warn", "error", "ignore", "window", "chunk"] = "warn"
    stride: int = 0
    overlap: int = 0  # of chunks
    at: Literal["token", "word", "sentence", "paragraph"] = "token"  # where chunks end
    prompt: str | None = None
    prompt_name: str | None = None
    special_tokens: bool = True
    parse_special: bool = True
    window: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_outside(self, LEAST)
        object.__setattr__(self, "layers", layers_in(self.layers))
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
        if self.on_truncate == "chunk" and self.several:
            kind = self.kind.removesuffix("s")
            raise UsageError(
                f"{option('on_truncate', 'chunk')} makes one vector per chunk, not per {kind}",
                "use bertcli chunk, and embed the chunks",
            )
        if self.sparse:
            if self.pooling not in ("auto", *TERM_POOLINGS):
                raise UsageError(
                    f"{option('sparse')} cannot be combined with {option('pooling', self.pooling)}",
                    f"one of {', '.join(TERM_POOLINGS)}, or auto: the model's",
                )
            others = {
                option("word_vectors"): self.word_vectors,
                option("layers"): self.layers != (-1,),
                option("normalize"): self.normalize,
                option("dim"): self.dim,
            }
            for name in filter(others.get, others):
                raise UsageError(f"{option('sparse')} cannot be combined with {name}")
            return
        for mode in () if self.pooling in ALONE else self.modes:
            if mode not in POOLINGS:
                alone = f"{mode} cannot be joined to others"
                raise UsageError(
                    f"{option('pooling', self.pooling)}: "
                    f"{alone if mode in ALONE else f'unknown {mode!r}'}",
                    f"{', '.join(POOLINGS)}, also joined as in mean+max; or {', '.join(ALONE)}",
                )
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

    @property
    def per_token(self) -> bool:
        """Whether a text has a vector for each of its tokens or words, and not just one."""
        return self.pooling == "none" or self.word_vectors is not None

    @property
    def several(self) -> bool:
        """Whether a text has any number of rows: vectors of its tokens, or weights of terms."""
        return self.per_token or self.sparse

    @property
    def kind(self) -> str:
        """What the rows are of that a text becomes: texts, words, tokens or terms."""
        if self.sparse:
            return "terms"
        return "words" if self.word_vectors else "tokens" if self.per_token else "texts"

    @property
    def modes(self) -> tuple[str, ...]:
        """The poolings whose vectors are concatenated, in this order."""
        return tuple(self.pooling.split("+"))


# --- what a folder says ---


@dataclass(frozen=True)
class Sentence:
    """How the model's files specify its vectors; None where they do not."""

    max_length: int | None = None
    lower_case: bool = False  # whatever the tokenizer does
    modules: tuple[str, ...] = ()  # the parts by name, in their order: Transformer, Pooling, ...
    pooling: tuple[str, ...] | None = None  # several are concatenated
    include_prompt: bool = True  # whether the tokens of a prompt are pooled too
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


def read_sentence(folder: ModelFolder, *, pooling: str = "auto", scores: bool = False) -> Sentence:
    """Return what a folder says; ``pooling`` is what the caller asks for instead of its modules.

    Raises ModelError when a file is broken, or, unless another pooling is asked for, when the
    vectors pass through modules that bertcli does not have, or are the ``scores`` of a
    cross-encoder and not asked for.
    """
    modules = folder.modules
    static = folder.is_static
    transformer = transformer_path(modules)
    inner = folder.part(transformer).sentence_settings
    settings = folder.object(CONFIG)
    of_texts, unknown = _chain(folder, modules)
    poolings = [module.path for module in modules if module.kind == "Pooling"]
    config = folder / "modules.json"
    if static and unknown:
        raise ModelError(f"{config}: unsupported module {', '.join(unknown)}")
    if modules and not static:
        task = inner.text("transformer_task") or "feature-extraction"
        output = inner.text("module_output_name") or TOKENS
        if task != "feature-extraction":
            unknown.append(f"Transformer for {task}")
        elif output != TOKENS:
            unknown.append(f"Transformer that gives {output}")
    if pooling == "auto" and not static:
        hint = (
            f"give {option('pooling')} (mean, cls, ...) to take the vectors of the encoder inside"
        )
        if needed := option_for(folder):
            raise ModelError(f"{folder}: makes no vector of a text", f"give {needed}; or {hint}")
        if modules and is_cross_encoder(folder) and not scores:
            raise ModelError(
                f"{folder}: a cross-encoder, which makes no vector of a text",
                f"bertcli rerank and classify run it; or {hint}",
            )
        if unknown:
            raise ModelError(f"{config}: unsupported module {', '.join(unknown)}", hint)
        if modules and not poolings:
            raise ModelError(f"{config}: has no Pooling module", hint)
    prompts, default = _prompts(settings)
    normalize = bool(of_texts) and of_texts[-1].kind == "Normalize"
    sentence = Sentence(
        modules=tuple(module.kind for module in modules),
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
        library = "sentence-transformers"
        found_in = "modules.json"
        if folder.is_model2vec:
            raw = folder.object("config.json")
            limit = raw.whole("max_length", 1) if "max_length" in raw else MODEL2VEC_TOKENS
            normalize = raw.switch("normalize") or False
            sentence = replace(sentence, max_length=limit, normalize=normalize)
            library = "model2vec"
            found_in = "config.json"
        return replace(sentence, pooling=("mean",), static=library, found_in=found_in)
    limit = sentence_limit(inner)
    lower_case = inner.switch("do_lower_case") or False
    sentence = replace(sentence, max_length=limit, lower_case=lower_case)
    if not poolings:
        return sentence
    found_in = f"{poolings[-1]}/config.json"  # as in sentence-transformers, the last one decides
    modes, include_prompt = _pooling(folder, found_in)
    return replace(sentence, pooling=modes, include_prompt=include_prompt, found_in=found_in)


def _chain(
    folder: ModelFolder, modules: list[SentenceModule]
) -> tuple[list[SentenceModule], list[str]]:
    """Return the modules that change vectors of texts, behind the Pooling; and unknown ones."""
    of_texts: list[SentenceModule] = []
    unknown = []
    kinds = [module.kind for module in modules]
    last = len(kinds) - kinds[::-1].index("Pooling") if "Pooling" in kinds else 0
    for at, module in enumerate(modules):
        match module.kind:
            case "Transformer" | "StaticEmbedding" if at == 0:
                pass
            case "Pooling" | "Dropout":
                pass
            case "Dense" | "Normalize" | "LayerNorm":
                raw = folder.object(f"{module.path}/config.json") if module.path else NOTHING
                ends = ("module_input_name", "module_output_name")
                others = {raw.text(end) or SENTENCE for end in ends} - {SENTENCE}
                if others == {SCORES} and at == len(modules) - 1:  # of a cross-encoder
                    others.clear()
                if others:
                    unknown.append(f"{module.kind} of {', '.join(sorted(others))}")
                elif at < last:
                    unknown.append(f"{module.kind} before Pooling")
                else:
                    of_texts.append(module)
            case other:
                unknown.append(other)
    return of_texts, unknown


def option_for(folder: ModelFolder) -> str:
    """Return the option that a model is for, where it makes no vectors of texts; "" else."""
    routes = folder.routes.values()
    kinds = {module.kind for modules in (folder.modules, *routes) for module in modules}
    if kinds & {"SpladePooling", TERM_TABLE}:
        return option("sparse")
    named = folder.object("config.json").get("architectures") if not kinds else None
    if isinstance(named, list) and COLBERT in named:
        return option("token_vectors")
    late = "MultiVectorMask" in kinds or is_pylate(folder.object(CONFIG), kinds)
    return option("token_vectors") if late else ""


def is_cross_encoder(folder: ModelFolder) -> bool:
    """Return True for a folder that CrossEncoder of sentence-transformers wrote."""
    return folder.object(CONFIG).text("model_type") == "CrossEncoder"


def is_pylate(settings: JsonObject, kinds: Collection[str]) -> bool:
    """Return True for a folder that PyLate wrote.

    ``settings`` are those of config_sentence_transformers.json, ``kinds`` the modules. Source:
    PyLate 1.6, ColBERT._get_model_type; sentence-transformers 6.2, MultiVectorEncoder.
    """
    if "Pooling" in kinds:
        return False
    module_name = settings.text("model_type")
    if module_name is not None:
        return module_name == "ColBERT"
    has_module = any(kind.startswith("pylate.") for kind in kinds)
    return has_module or (bool(kinds) and any(key in settings for key in PYLATE_KEYS))


def _pooling(folder: ModelFolder, name: str) -> tuple[tuple[str, ...], bool]:
    """Return the modes under our names, and whether prompts are pooled."""
    if not is_regular(folder / name):
        raise ModelError(f"{folder / name}: file not found; it sets the pooling")
    raw = folder.object(name)
    if "pooling_mode" in raw:
        modes = raw["pooling_mode"]
        modes = modes if isinstance(modes, list) else [modes]
        if not modes or any(mode not in [*MODES] for mode in modes):
            raise raw.bad("pooling_mode", f"one or more of {', '.join(MODES)}")
    else:
        modes = [mode for key, mode in LEGACY.items() if raw.switch(key)] or ["mean"]
    include = raw.switch("include_prompt")
    return tuple(MODES[name] for name in modes), include is not False


def default_prompt(folder: ModelFolder) -> str:
    """Return the prompt before each text of a cross-encoder; "" where its folder names none."""
    prompts, name = _prompts(folder.object(CONFIG))
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


# --- both together ---


def settled(options: EmbedOptions, sentence: Sentence) -> EmbedOptions:
    """Return the options with what the folder says in place of auto and None.

    What it says of the length and the dimensions of a vector is meant for those of whole texts.
    UsageError for a choice that has no meaning for a table of token vectors.
    """
    prompt = sentence.prompt(options.prompt, options.prompt_name)
    if sentence.static:
        impossible = {
            option("sparse"): options.sparse,
            option("pooling", options.pooling): options.pooling not in ("auto", "mean", "none"),
            f"{option('token_vectors')} or {option('word_vectors')}": options.per_token,
            option("layers"): options.layers != (-1,),
            option("layer_combine"): options.layer_combine != "mean",
            option("dtype", options.dtype): options.dtype not in ("auto", "float32"),
            option("device", options.device): options.device not in ("auto", "cpu"),
        }
        for what in filter(impossible.get, impossible):
            raise UsageError(
                f"{what} is not possible: this model is a table of token vectors, not an encoder",
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
    dim_last = options.dim_last or (options.dim is None and sentence.dim is not None)
    return replace(
        options,
        pooling=pooling,
        normalize=sentence.normalize if options.normalize is None else options.normalize,
        dim=options.dim or sentence.dim,
        dim_last=dim_last and not options.normalize,
        prompt=prompt,
    )


def prepared(
    records: Sequence[Record], prompt: str, *, lower: bool, most: int | None = None
) -> Sequence[Record]:
    """Return records with the prompt before each text, all of it in lower case if asked for.

    Of strings as many characters are left as ``most`` says; words that came split are not cut.
    """
    if not (prompt or lower or most):
        return records

    def change(text: Text) -> Text:
        if isinstance(text, list):
            return [word.lower() for word in text] if lower else text
        return (text.lower() if lower else text)[:most]

    block = RecordBatch.of(records)
    words = prompt.split()
    texts = [[*words, *text] if isinstance(text, list) else prompt + text for text in block.texts]
    pairs = block.pairs and [None if pair is None else change(pair) for pair in block.pairs]
    return replace(block, texts=list(map(change, texts)), pairs=pairs)


def layers_in(value: Any, name: str = "layers") -> tuple[int, ...]:
    """Return the layers that are named: by a number, several, or a text as on the command line.

    Raises UsageError for anything else.
    """
    try:
        if isinstance(value, int):
            return (value,)
        return tuple(map(int, value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        raise UsageError(
            f"{option(name)} {value} is not a list of numbers", "for example -1 or 0,-2,-1"
        ) from None


def refuse_format(form: str, options: EmbedOptions) -> None:
    """Raise UsageError for a format that does not hold what texts become."""
    file_format = FORMATS[form]
    if options.per_token and not file_format.can_hold(Holds.SEVERAL_VECTORS):
        raise UsageError(
            f"{form} holds one vector per row, and each text has several",
            "use -f jsonl, parquet or npy",
        )
    if options.sparse and not file_format.can_hold(Holds.TERMS):
        raise UsageError(
            f"{option('sparse')}: weights of terms cannot be written as {form}",
            f"one of {', '.join(names_of(Holds.TERMS))}",
        )


def refuse_stream(form: str, precision: str) -> None:
    """Raise OutputError for a format or precision that depends on all rows together."""
    if not FORMATS[form].is_streamed:
        raise OutputError(f"{form} cannot go to a pipe", "use -o FILE")
    if precision in RANGED:
        raise OutputError(f"{option('precision', precision)} cannot go to a pipe", "use -o FILE")
