"""Open models with any engine, for vectors and for every task. Nothing here needs torch.

    spec = ModelSpec(folder, Compute(dtype="bfloat16"))
    runtime = open_runtime(spec, lambda: open_tokenizer(folder))
    vectors = result_of(runtime.run(PackedTokens.of(rows), reduction))  # encoded texts

Only this module combines a tokenizer, a config, weights and a device, and chooses the engine, by
the user's options and the machine. Invalid options are rejected before the weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bertcli.engines.compute import OpenvinoError, gpu_possible, openvino_installed
from bertcli.engines.engine import AdaptiveRuntime, Engine, ModelSpec, Runtime
from bertcli.errors import LOG, ModelError, UsageError, option
from bertcli.model_folder.files import STATIC, TERM_TABLE
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.records.batch import CHARACTERS, FIRST_CHARACTERS
from bertcli.tokenizing.batch import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.versions import install_command, require_torch

# --- opening ---


def open_runtime(spec: ModelSpec, load_tokenizer: Callable[[], Tokenizer]) -> Runtime:
    """Open a model with the requested engine, on each requested device.

    ``load_tokenizer`` is called while the first engine loads. Raises ModelError for a folder that
    is not a complete model of this class, UsageError for an option that this model or this machine
    does not support.
    """
    if spec.architecture in (STATIC, TERM_TABLE):
        from bertcli.engines.static_engine import open_static

        engine: Engine = open_static(spec, load_tokenizer())
    else:
        engine = open_engine(spec, load_tokenizer)
    devices = ", ".join(engine.devices)
    LOG.detail(f"model: {spec.folder}; runs on {devices}, threads {engine.threads}")
    engines = [engine, *engine.parallel_engines()]
    for device in engine.devices[1:]:
        compute = replace(spec.compute, backend=engine.backend, device=device)
        engines.append(open_engine(replace(spec, compute=compute), load_tokenizer))
    is_adaptive = spec.compute.parallel == "auto" and len(engines) == 1 and engine.threads > 1
    return (AdaptiveRuntime if is_adaptive else Runtime)(spec, load_tokenizer(), engines)


def open_engine(spec: ModelSpec, meanwhile: Callable[[], object]) -> Engine:
    """Open a model on the first requested device. Raises as `open_runtime` does.

    backend auto is OpenVINO on a CPU if it is installed and supports the options, else torch.
    OpenVINO calls ``meanwhile`` while it compiles the model.
    """
    backend = spec.compute.backend
    reason = option("backend", "torch") if backend == "torch" else ""
    if backend == "auto":
        reason = _why_not_openvino(spec)
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
        remedy = "leave that out" if openvino_installed() else install_command("int8")
        raise UsageError(
            f"{option('dtype', 'int8')} is not possible: OpenVINO computes it, on a CPU ({reason})",
            f"{remedy}, or use {option('dtype', 'float32')}",
        )
    require_torch(f"running the model ({reason})" if reason else "running the model")
    from bertcli.engines.torch_engine import open_torch

    return open_torch(spec)


def _why_not_openvino(spec: ModelSpec) -> str:
    """Return why OpenVINO cannot run this model here; "" if it can."""
    compute = spec.compute
    if not openvino_installed():
        return "OpenVINO is not installed"
    if compute.unsupported_by_openvino:
        return compute.unsupported_by_openvino
    if compute.device == "auto" and compute.dtype != "int8" and gpu_possible():
        from bertcli.engines.torch_engine import available_devices

        fastest = available_devices()[0]
        if fastest != "cpu":
            return f"device {fastest}"
    return ""


# --- size of a window ---

WINDOW_CHARACTERS = 1 << 18  # for a small model: about ten seconds of CPU time
SMALL_MODEL_SIZE = 6 * 384**2  # layers times the square of the width, of all-MiniLM-L6-v2


def window_characters(runtime: Runtime) -> int:
    """Return the characters of a window, which is committed at once: about ten seconds on a CPU.

    They depend on the model alone, so a resumed run has the same windows.
    """
    if runtime.engine.devices[0] != "cpu":
        return CHARACTERS
    if runtime.spec.architecture in (STATIC, TERM_TABLE):
        return WINDOW_CHARACTERS
    size = runtime.config.num_hidden_layers * runtime.config.hidden_size**2
    relative_size = max(size, SMALL_MODEL_SIZE)
    return max(FIRST_CHARACTERS, WINDOW_CHARACTERS * SMALL_MODEL_SIZE // relative_size)


# --- tokenizer and limits ---


def token_limit(
    config: BertConfig,
    tokenizer: Tokenizer,
    requested: int | None,
    folder_limit: int | None = None,
) -> int:
    """Return the maximum tokens of a text.

    That is ``requested``, else ``folder_limit``, else the tokenizer's limit, else all positions of
    the model. Raises UsageError if ``requested`` is more than the model has positions.
    """
    positions = config.most_tokens
    if requested is not None and requested > positions:
        raise UsageError(
            f"{option('max_length', requested)} is more than the {positions} positions of this "
            "model",
            f"give at most {positions}",
        )
    return requested or min(folder_limit or tokenizer.limit or positions, positions)


def open_tokenizer(
    folder: ModelFolder,
    *,
    architecture: str = "",
    parse_special: bool = True,
    reads_extra_ids: bool = False,
) -> Tokenizer:
    """Load the tokenizer of a model. Raises ModelError if the model cannot take its tokens.

    It returns the same columns as in transformers, with token types or without. A model with extra
    embeddings is refused unless the caller ``reads_extra_ids``.
    """
    tokenizer = Tokenizer.load(folder, parse_special=parse_special)
    for message in tokenizer.warnings:
        LOG.warn(message)
    if architecture in (STATIC, TERM_TABLE):
        return tokenizer
    config = folder.config
    if not reads_extra_ids:
        refuse_extra_embeddings(folder, config)
    # Some checkpoints have a tokenizer with more tokens than embeddings: tokens were added without
    # resizing the model. transformers loads them, and fails at the first such token.
    tokenizer.refuse_beyond(config.vocab_size, folder)
    tokenizer.reads_types = "token_type_ids" in tokenizer.model_inputs
    if tokenizer.reads_types:
        _refuse_types(tokenizer.core.encode("a").type_ids, config, f"{folder}: a text")
    return tokenizer


def refuse_extra_embeddings(folder: ModelFolder, config: BertConfig) -> None:
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


def _refuse_types(token_types: Sequence[int], config: BertConfig, text: str) -> None:
    """Raise ModelError for a token type without embedding; ``text`` says whose it is."""
    largest = max(token_types, default=0)
    if not config.takes_types(largest):
        raise ModelError(
            f"{text} has token type {largest}, but the model has {config.type_vocab_size} of them "
            "(type_vocab_size)",
            "give single texts, or a model that was trained on pairs, with its own tokenizer",
        )
