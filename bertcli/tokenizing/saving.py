"""A tokenizer as the files of a model's folder, which transformers loads as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertcli.errors import OutputError
from bertcli.files.atomic import own_folder, put_files
from bertcli.files.jsonl import to_json
from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer

WHOLE = "tokenizer.json"
KEPT = (  # settings of one class or another
    "tokenizer_class",
    "bos_token",
    "eos_token",
    "add_prefix_space",
    "trim_offsets",
    "do_lower_case",
    "keep_accents",
    "split_by_punct",
    "model_input_names",
)


def write_tokenizer(tokenizer: LoadedTokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; each appears whole.

    Raises OutputError when the folder cannot be written.
    """
    files = {
        WHOLE: tokenizer.core.to_str(pretty=True),
        "tokenizer_config.json": to_json(_settings(tokenizer)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with own_folder(folder / "saving") as temporary:
            for name, text in files.items():
                (temporary / name).write_text(text, encoding="utf-8")
            put_files(temporary, folder, last=WHOLE)
    except OSError as failed:
        reason = failed.strerror or failed
        raise OutputError(f"{folder}: the tokenizer cannot be written: {reason}") from failed


def _settings(tokenizer: LoadedTokenizer) -> dict[str, Any]:
    """Return what transformers does not read in tokenizer.json."""
    core, ids = tokenizer.core, tokenizer.special_ids()
    roles = {role: token for role, token in tokenizer.roles.items() if token in ids}
    added = core.get_added_tokens_decoder().values()
    more = [token.content for token in added if token.special]
    normalizer: Any = core.normalizer
    names = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
        "clean_text": "clean_text",
    }
    return {
        "tokenizer_class": tokenizer.kind.name,
        **{key: tokenizer.settings[key] for key in KEPT if key in tokenizer.settings},
        **roles,
        "extra_special_tokens": [token for token in more if token not in roles.values()],
        **{
            name: getattr(normalizer, own)
            for name, own in names.items()
            if hasattr(normalizer, own)
        },
        **({} if tokenizer.limit is None else {"model_max_length": tokenizer.limit}),
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        **(
            {}
            if tokenizer.clean_up is None
            else {"clean_up_tokenization_spaces": tokenizer.clean_up}
        ),
    }
