"""Arguments of transformers: translated to our names, or rejected with what to write instead.

    model(input_ids, attention_mask=mask, output_attentions=True)
    BertModel(config, add_pooling_layer=False)
    BertModel.from_pretrained(name, num_labels=3, output_hidden_states=True)

Calls are translated to the names of `BertModel.states` and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from bertcli.errors import UsageError
from bertcli.models.attention import (
    Attend,
    Recording,
    cached,
    head_masked,
    masked,
    padded,
)
from bertcli.models.config import BertConfig
from bertcli.models.outputs import LOSS, PastKeyValues

# --- names ---

OUR_NAMES: Mapping[str, str] = {  # argument of transformers -> our argument
    "input_ids": "ids",
    "inputs_embeds": "ids",
    "attention_mask": "keep",
    "token_type_ids": "types",
    "position_ids": "at",
    "add_pooling_layer": "pooler",
    "torch_dtype": "dtype",
    "local_files_only": "offline",
}
ALTERNATIVES: Mapping[str, str] = {  # unsupported argument of transformers -> advice
    "labels": f"write loss = {LOSS}",
    "masked_lm_labels": f"write loss = {LOSS}",
    "lm_labels": f"write loss = {LOSS}",
    "next_sentence_label": "write torch.nn.functional.cross_entropy(scores, next_sentence_label)",
    "next_sentence_labels": "write torch.nn.functional.cross_entropy(scores, next_sentence_labels)",
    "start_positions": "write torch.nn.functional.cross_entropy(output.start_logits, starts)",
    "end_positions": "write torch.nn.functional.cross_entropy(output.end_logits, ends)",
    "output_all_encoded_layers": "write output_hidden_states=True, then output.hidden_states[1:]",
    "keep_multihead_output": "write output_attentions=True, then output.attentions",
    "past_key_value": "write past_key_values=output.past_key_values",
    "device_map": "write device='cuda'",
    "cache_dir": "set the environment variable HF_HOME",
    "state_dict": "write model.load_state_dict(state_dict) after loading",
    "from_tf": "leave it out: files of TensorFlow are recognised",
    "from_flax": "convert the model with transformers first",
}
# Arguments of calls, not of constructors and loaders.
CALL_ONLY = (
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "head_mask",
    "past_key_values",
    "encoder_hidden_states",
    "encoder_attention_mask",
)
# Options of `from_pretrained` that are accepted without effect.
IGNORED_OPTIONS = (
    "attn_implementation",
    "low_cpu_mem_usage",
    "trust_remote_code",
    "use_safetensors",
    "ignore_mismatched_sizes",
)
POSITIONAL_ARGUMENTS = ("ids", "keep", "types", "at", "extra", "kernels", "memories")
# Config fields that do not affect the weights.
FREE_FIELDS = (
    "other",
    "architectures",
    "id2label",
    "label2id",
    "problem_type",
    "use_cache",
    "structure",
)
KERNELS_ADVICE = "kernels record, mask heads and cache themselves: leave kernels= out"
FLAGS = (
    "output_attentions",
    "output_hidden_states",
    "return_dict",
)  # both in the config and in calls


def refusal(problem: str, advice: str) -> UsageError:
    """Return an error whose message includes the advice, because Python does not show hints."""
    return UsageError(f"{problem}: {advice}", advice)


def refuse_foreign(arguments: Mapping[str, Any], owner: str) -> None:
    """Raise UsageError, with advice, for an unsupported argument of transformers."""
    for name in arguments:
        if name in ALTERNATIVES:
            raise refusal(f"{owner} takes no {name}", ALTERNATIVES[name])


# --- calls ---


def call_arguments(
    config: BertConfig, inputs: Sequence[Any], keywords: Mapping[str, Any], owner: str
) -> dict[str, Any]:
    """Return the arguments of a call under our names, with defaults from the config.

    ``inputs`` are the positional arguments. Raises UsageError for unsupported arguments, and for
    likely mistakes: masks with values other than 0 and 1, token types instead of a mask.
    """
    keywords = {name: value for name, value in keywords.items() if value is not None}
    refuse_foreign(keywords, owner)
    if len(inputs) > len(POSITIONAL_ARGUMENTS):
        count = len(POSITIONAL_ARGUMENTS)
        raise TypeError(f"{owner} takes {count} arguments by position: {POSITIONAL_ARGUMENTS}")
    arguments = dict(zip(POSITIONAL_ARGUMENTS, inputs, strict=False))
    for name, value in keywords.items():
        our_name = OUR_NAMES.get(name, name)
        if arguments.get(our_name) is not None:
            raise refusal(f"{owner} got {name} and another value for it", "give one of the two")
        arguments[our_name] = value
    _check_is_tensor(arguments.get("ids"), owner)
    if keywords.get("position_ids") is not None or "at" in POSITIONAL_ARGUMENTS[: len(inputs)]:
        _check_positions(config)
    _check_cross_attention(arguments)
    if not torch.compiler.is_compiling():  # values are unknown during compilation
        for name in ("keep", "encoder_attention_mask"):
            _check_mask(arguments.get(name))
        if len(inputs) > 1:
            _refuse_types_for_mask(arguments["ids"], arguments["keep"], config.pad_token_id)
    if not config.is_decoder and "past_key_values" in arguments:
        advice = f"write {owner}(BertConfig(is_decoder=True))"
        raise refusal("past_key_values are of a decoder", advice)
    flags: dict[str, Any] = {
        "output_attentions": config.output_attentions,
        "output_hidden_states": config.output_hidden_states,
        "use_cache": config.use_cache,
    }
    arguments = flags | arguments
    arguments["use_cache"] &= config.is_decoder  # an encoder has no cache
    if "kernels" in arguments:
        for name in ("output_attentions", "head_mask", "past_key_values"):
            if name in keywords:
                raise refusal(f"{owner} got kernels and {name}", KERNELS_ADVICE)
        arguments |= {"output_attentions": False, "use_cache": False}
    return arguments


def _check_is_tensor(ids: Any, owner: str) -> None:
    """Raise UsageError, with advice, for ids that are not a tensor."""
    if isinstance(ids, Tensor):
        return
    if ids is None:
        raise refusal(f"{owner} needs input_ids or inputs_embeds", "write model(input_ids)")
    advice = "write model(**batch)" if isinstance(ids, Mapping) else "write torch.tensor(input_ids)"
    raise refusal(f"{owner} takes a tensor, not a {type(ids).__name__}", advice)


def _check_positions(config: BertConfig) -> None:
    """Raise UsageError for position_ids if the model's positions do not count from 0."""
    title = config.family.title
    first = config.structure.first_position
    if not config.structure.absolute_positions:
        advice = "leave them out"
        raise refusal(f"{title} has relative positions, which position_ids do not change", advice)
    if first:
        advice = f"write at=position_ids - {first}, which is 0 for the first token of a text"
        raise refusal(f"position_ids of {title} count from {first}", advice)


def _check_cross_attention(arguments: Mapping[str, Any]) -> None:
    states = arguments.get("encoder_hidden_states")
    if states is None and arguments.get("encoder_attention_mask") is not None:
        advice = "write encoder_hidden_states=encoder(ids).last_hidden_state"
        raise refusal(
            "encoder_attention_mask is the mask of encoder_hidden_states, which are missing", advice
        )
    if states is not None and not isinstance(states, Tensor):
        advice = "write encoder_hidden_states=output.last_hidden_state"
        raise refusal(f"encoder_hidden_states are a {type(states).__name__}", advice)


def _check_mask(mask: Any) -> None:
    if mask is None or (isinstance(mask, Tensor) and mask.dtype == torch.bool):
        return
    if not isinstance(mask, Tensor):
        advice = "write torch.tensor(attention_mask)"
        raise refusal(f"an attention mask is a tensor, not a {type(mask).__name__}", advice)
    wrong = mask[(mask != 0) & (mask != 1)]
    if len(wrong):
        advice = (
            "write 1 for a token and 0 for padding; for a mask that is added to scores, mask == 0"
        )
        raise refusal(f"an attention mask has the value {wrong[0].item():g}", advice)


def _refuse_types_for_mask(ids: Tensor, mask: Tensor | None, padding: int | None) -> None:
    """Raise UsageError for a positional mask that hides the first token of a text.

    It is probably token types, which were the second argument before 2019.
    """
    if mask is None or ids.is_floating_point() or mask.shape != ids.shape or not ids.numel():
        return
    first_ids = ids[..., 0]
    hides_token = mask[..., 0] == 0
    if padding is not None:
        hides_token &= first_ids != padding
    if hides_token.any():
        advice = "write token_type_ids=..., attention_mask=..."
        raise refusal(
            "the second argument is the attention mask, and hides the first token of a text", advice
        )


# --- kernels of a call ---


class LayerKernels:
    """The attention kernels of one call, one per layer, with recording, head masks and a cache.

    `attentions` and `past_key_values` are complete after all layers have run.
    """

    def __init__(
        self,
        layers: int,
        direction: Callable[[Attend], Attend],
        *,
        head_mask: Tensor | None = None,
        past_key_values: PastKeyValues | None = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ) -> None:
        """Create kernels for `layers` layers; `head_mask` is [H] or [layers, H]."""
        self.direction = direction
        self.use_cache = use_cache or past_key_values is not None
        self.maps: list[Tensor] | None = [] if output_attentions else None
        self.head_masks: Sequence[Tensor] = ()
        if head_mask is not None:
            self.head_masks = head_mask.expand(layers, head_mask.shape[-1]).unbind()
        self.pasts: list[list[Tensor]] = [[] for _ in range(layers)]
        if past_key_values is not None:
            self.pasts = [[x.transpose(1, 2) for x in pair] for pair in past_key_values]
        self.past_length = self.pasts[0][0].shape[1] if layers and self.pasts[0] else 0
        self.cross_maps: list[Tensor] | None = None
        self.presents: list[list[Tensor]] = [[] for _ in range(layers)]

    def __call__(self, keep: Tensor | None) -> list[Attend]:
        """Return the kernels for the mask `keep`."""
        base = padded(keep) if self.maps is None else Recording(self.maps, keep)
        kernels = [masked(keep, self.direction, base) for _ in self.presents]
        if self.head_masks:
            kernels = list(map(head_masked, kernels, self.head_masks))
        if self.use_cache:
            kernels = list(map(cached, kernels, self.pasts, self.presents))
        return kernels

    def cross_kernel(self, keep: Tensor | None) -> Attend:
        """Return the kernel of cross-attention to the tokens of a mask [B, S], for all layers."""
        if self.maps is None:
            return padded(keep)
        self.cross_maps = []
        return Recording(self.cross_maps, keep)

    @property
    def cross_attentions(self) -> tuple[Tensor, ...] | None:
        """The maps of each layer's cross-attention, [B, H, Lq, S], or None."""
        return None if self.cross_maps is None else tuple(self.cross_maps)

    @property
    def attentions(self) -> tuple[Tensor, ...] | None:
        """The maps of each layer, [B, H, Lq, Lk]; None if they are not recorded."""
        return None if self.maps is None else tuple(self.maps)

    @property
    def past_key_values(self) -> PastKeyValues | None:
        """Keys and values of each layer, past and new, each [B, H, L, D]; None without a cache."""
        if not self.use_cache:
            return None
        return tuple((k.transpose(1, 2), v.transpose(1, 2)) for k, v in self.presents)


# --- constructors and loading ---


def constructor_pooler(pooler: bool, keywords: Mapping[str, Any], owner: str) -> bool:
    """Return True if the model gets a pooler, given the other arguments of its constructor.

    Raises UsageError, with the line to write, for arguments of calls and of configs.
    """
    refuse_foreign(keywords, owner)
    for name, value in keywords.items():
        if OUR_NAMES.get(name) == "pooler":
            pooler = bool(value)
        elif name in CALL_ONLY:
            advice = f"write model({name}=...)"
            raise refusal(f"{owner} is made of a config", advice)
        elif name in FLAGS or name in ("use_cache", "num_labels"):
            advice = f"write {owner}(BertConfig({name}={value!r}))"
            raise refusal(f"{owner} is made of a config", advice)
        else:
            raise TypeError(f"{owner} has no argument {name!r}")
    return pooler


def loading_options(
    keywords: Mapping[str, Any], config: BertConfig | None, owner: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of `bertcli.load`, and the flags of the config.

    ``keywords`` are the arguments of `from_pretrained`. `num_labels`, `id2label` and the labels of
    `config` set the labels of the head, which is initialised at random if the folder has none of
    that size. Raises UsageError, with the line to write, for an unsupported option.
    """
    refuse_foreign(keywords, owner)
    options: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    if config is not None:
        flags = {name: config.other[name] for name in FLAGS if name in config.other}
        if config.id2label:
            options["labels"] = config.labels(config.num_labels)
    for name, value in keywords.items():
        if value is None or name in (*IGNORED_OPTIONS, "label2id", "num_labels"):
            continue
        if name in CALL_ONLY:
            advice = f"write model({name}=...)"
            raise refusal(f"{owner}.from_pretrained takes no {name}", advice)
        if name in (*FLAGS, "use_cache"):
            flags[name] = value
        elif name == "id2label":
            options["labels"] = [str(label) for _, label in sorted(value.items())]
        elif OUR_NAMES.get(name, name) == "dtype":
            if value != "auto":
                options["dtype"] = getattr(torch, value) if isinstance(value, str) else value
        else:
            options[OUR_NAMES.get(name, name)] = value
    label_count = keywords.get("num_labels")
    if label_count is not None and len(options.get("labels", ())) != label_count:
        options["labels"] = [f"LABEL_{index}" for index in range(label_count)]
    if "labels" in options:
        options.setdefault("fresh", True)
    return options, flags


def refuse_other_config(config: BertConfig, loaded: BertConfig, owner: str) -> None:
    """Raise UsageError if `config=` differs from that of the folder, which was loaded."""
    names = []
    for entry in fields(BertConfig):
        differs = getattr(config, entry.name) != getattr(loaded, entry.name)
        if differs and entry.name not in FREE_FIELDS:
            names.append(entry.name)
    if names:
        listing = ", ".join(names)
        advice = f"leave config= out, or write {owner}(config) for a model without trained weights"
        raise refusal(f"config= has another {listing} than the folder", advice)
