"""Open models with any engine, for vectors and for every task. Nothing here needs torch.

    spec = ModelSpec(folder, Compute(dtype="bfloat16"))
    runtime = open_runtime(spec, lambda: open_tokenizer(folder))
    vectors = result_of(runtime.run(Tokens.of(rows), finish))   # encoded texts

Only this module combines a tokenizer, a config, weights and a device, and chooses the engine, by
the user's options and the machine. Invalid options are rejected before the weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bertcli.engines.compute import OpenvinoError, gpu_possible, openvino_installed
from bertcli.engines.engine import Engine, ModelSpec, Runtime
from bertcli.errors import LOG, ModelError, UsageError, option
from bertcli.model_folder.files import STATIC, TERM_TABLE
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.records.batch import CHARACTERS, FIRST_CHARACTERS
from bertcli.tokenizing.batch import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.versions import install_command, require_torch

# --- opening ---


def open_runtime(spec: ModelSpec, tokenizer: Callable[[], Tokenizer]) -> Runtime:
    """Open a model with the requested engine, on each requested device.

    ``tokenizer`` is called while the first engine loads. Raises ModelError for a folder that is not
    a complete model of this class, UsageError for an option that this model or this machine does
    not support.
    """
    if spec.kind in (STATIC, TERM_TABLE):
        from bertcli.engines.static_engine import open_static

        engine: Engine = open_static(spec, tokenizer())
    else:
        engine = open_engine(spec, tokenizer)
    places = ", ".join(engine.places)
    LOG.detail(f"model: {spec.folder}; runs on {places}, threads {engine.threads}")
    engines = [engine]
    for place in engine.places[1:]:
        compute = replace(spec.compute, backend=engine.backend, device=place)
        engines.append(open_engine(replace(spec, compute=compute), tokenizer))
    return Runtime(spec, tokenizer(), engines)


def open_engine(spec: ModelSpec, meanwhile: Callable[[], object]) -> Engine:
    """Open a model on the first requested device. Raises as `open_runtime` does.

    backend auto is OpenVINO on a CPU if it is installed and supports the options, else torch.
    """
    backend = spec.compute.backend
    reason = option("backend", "torch") if backend == "torch" else ""
    if backend == "auto":
        reason = _not_openvino(spec)
        LOG.detail(f"backend: torch ({reason})" if reason else "backend: openvino")
    if not reason:
        from bertcli.engines.openvino_engine import open_compiled

        try:
            return open_compiled(spec, meanwhile)
        except OpenvinoError as failed:
            if backend == "openvino" or spec.compute.dtype == "int8":
                raise
            LOG.warn(
                f"{failed.marked}; torch runs the model instead ({option('backend', 'torch')})"
            )
    if spec.compute.dtype == "int8":
        raise UsageError(
            f"{option('dtype', 'int8')} is not possible: OpenVINO computes it, on a CPU ({reason})",
            f"leave that out, or use {option('dtype', 'float32')}"
            if openvino_installed()
            else f"{install_command('int8')}, or use {option('dtype', 'float32')}",
        )
    require_torch(f"running the model ({reason})" if reason else "running the model")
    from bertcli.engines.torch_engine import open_torch

    return open_torch(spec)


def _not_openvino(spec: ModelSpec) -> str:
    """Return why OpenVINO cannot run this model here; "" if it can."""
    compute = spec.compute
    if not openvino_installed():
        return "OpenVINO is not installed"
    if reason := compute.beyond_openvino:
        return reason
    if compute.device == "auto" and compute.dtype != "int8" and gpu_possible():
        from bertcli.engines.torch_engine import available_devices

        if (best := available_devices()[0]) != "cpu":
            return f"device {best}"
    return ""


# --- size of a window ---

COMMITTED = 1 << 18  # characters of a window for a small model: about ten seconds of CPU time
SMALL_MODEL = 6 * 384**2  # layers times the square of the width, of all-MiniLM-L6-v2


def window_characters(runtime: Runtime) -> int:
    """Return the characters of a window, which is committed at once: about ten seconds on a CPU.

    They depend on the model alone, so a resumed run has the same windows.
    """
    if runtime.engine.places[0] != "cpu":
        return CHARACTERS
    if runtime.spec.kind in (STATIC, TERM_TABLE):
        return COMMITTED
    size = runtime.config.num_hidden_layers * runtime.config.hidden_size**2
    return max(FIRST_CHARACTERS, COMMITTED * SMALL_MODEL // max(size, SMALL_MODEL))


# --- tokenizer and limits ---


def token_limit(
    config: BertConfig, tokenizer: Tokenizer, asked: int | None, meant: int | None = None
) -> int:
    """Return the maximum tokens of a text: ``asked``, else the folder's ``meant``, else what fits.

    Raises UsageError if ``asked`` is more than the model has positions.
    """
    fits = config.most_tokens
    if asked is not None and asked > fits:
        raise UsageError(
            f"{option('max_length', asked)} is more than the {fits} positions of this model",
            f"give at most {fits}",
        )
    return asked or min(meant or tokenizer.limit or fits, fits)


def open_tokenizer(
    folder: ModelFolder, *, kind: str = "", parse_special: bool = True, extra: bool = False
) -> Tokenizer:
    """Load the tokenizer of a model. Raises ModelError if the model cannot take its tokens.

    It returns the same columns as in transformers, with token types or without. With ``extra``, it
    also returns ids of extra embeddings.
    """
    tokenizer = Tokenizer.load(folder, parse_special=parse_special)
    for message in tokenizer.warnings:
        LOG.warn(message)
    if kind in (STATIC, TERM_TABLE):
        return tokenizer
    config = folder.config
    if not extra:
        refuse_extra(folder, config)
    # Some checkpoints have a tokenizer with more tokens than embeddings: tokens were added without
    # resizing the model. transformers loads them, and fails at the first such token.
    tokenizer.refuse_beyond(config.vocab_size, folder)
    tokenizer.reads_types = "token_type_ids" in tokenizer.model_inputs
    if tokenizer.reads_types:
        _refuse_types(tokenizer.core.encode("a").type_ids, config, f"{folder}: a text")
    return tokenizer


def refuse_extra(folder: ModelFolder, config: BertConfig) -> None:
    """Raise ModelError for a model that needs ids of extra embeddings."""
    if config.extra_embeddings:
        names = ", ".join(config.extra_embeddings)
        fields = ", ".join(config.fields_of_extra.values())
        raise ModelError(
            f"{folder}: the model has extra embeddings ({names}), and needs ids of words in the "
            f"field {fields}, which this command does not read",
            "embed, classify, tag, fill-mask, next-sentence, evaluate, train and inspect read it",
        )


def refuse_pairs(batch: Sequence[Encoded], config: BertConfig) -> None:
    """Raise ModelError for a pair if the model has no embeddings for its token types."""
    for item in batch:
        _refuse_types(item.columns["token_type_ids"], config, f"{item.record.where}: a text pair")


def _refuse_types(types: Sequence[int], config: BertConfig, what: str) -> None:
    last = max(types, default=0)
    if not config.takes_types(last):
        raise ModelError(
            f"{what} has token type {last}, but the model has {config.type_vocab_size} of them "
            "(type_vocab_size)",
            "give single texts, or a model that was trained on pairs, with its own tokenizer",
        )
