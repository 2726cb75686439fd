"""Model folders in which something is wrong, and the commands that open them."""

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from model_reference import randomise
from pretrain_folders import prepared
from safetensors.torch import load_file, save_file

from . import families
from .craft import PICKLES, evil_pickle, mutated_safetensors, mutated_zip
from .plausible import PLAUSIBLE
from .values import mutated_bytes, mutated_json, odd, typed

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = SAMPLES / "tiny-bert"
INSTANCES = ".instances"  # of pretrain prepare, beside the models
HEADS = {
    "fill-mask": "BertForMaskedLM",
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "answer": "BertForQuestionAnswering",
    "choose": "BertForMultipleChoice",
    "next-sentence": "BertForNextSentencePrediction",
}
SIZES = {
    "vocab_size": 347,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}
ADDED = {"content": "[NEW]", "lstrip": False, "normalized": False, "special": True}


class Command(NamedTuple):
    """What a case runs: arguments, stdin, where the output goes, if to a file, and what is next."""

    argv: list[str]
    stdin: bytes = b""
    output: str = ""
    after: Callable[[Path], None] | None = None  # done with the folder of the case before the next
    env: Mapping[str, str] = {}


# --- sound folders ------------------------------------------------------------------------------


def make_sound(root: Path) -> None:
    """Write the folders that are mutated: each format of weights, each kind of tokenizer."""
    root.mkdir(parents=True, exist_ok=True)
    for name in HEADS.values():
        _with_head(root / name, name)
    _with_head(root / "BertForPreTraining", "BertForPreTraining")
    shutil.copytree(TINY, root / "tiny")
    masked = root / "BertForMaskedLM"
    for name, write in FORMATS.items():
        shutil.copytree(masked, root / name)
        weights = load_file(root / name / "model.safetensors")
        (root / name / "model.safetensors").unlink()
        write(root / name, weights)
    _sentence(root / "sentence")
    _tokenizers(root)
    _older(root / "older")
    families.make_families(root)
    prepared(root / INSTANCES, rows=40)


def _with_head(folder: Path, name: str) -> None:
    from bertcli.checkpoints.load import save
    from bertcli.models import heads
    from bertcli.models.config import BertConfig

    labels = {"num_labels": 3} if "Classification" in name and "Pair" not in name else {}
    config = BertConfig.from_dict({**SIZES, **labels})
    save(randomise(getattr(heads, name)(config)), config, folder)
    path = folder / "config.json"
    known = json.loads(path.read_text())
    if labels:
        known["id2label"] = {"0": "O", "1": "B-PER", "2": "I-PER"}
        known["label2id"] = {label: int(at) for at, label in known["id2label"].items()}
    path.write_text(json.dumps({**known, "model_type": "bert", "pad_token_id": 0}))
    _vocabulary(folder)


def _vocabulary(folder: Path) -> None:
    shutil.copy(TINY / "vocab.txt", folder)
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": 64,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "unk_token": "[UNK]",
        "cls_token": {"content": "[CLS]", "special": True},
        "clean_up_tokenization_spaces": True,
        "added_tokens_decoder": {"0": {**ADDED, "content": "[PAD]"}},
        "additional_special_tokens": [],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "mask", "unk")
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(special))


def _sharded(folder: Path, weights: dict[str, torch.Tensor], suffix: str, write: Any) -> None:
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    places = {}
    for number in (1, 2):
        name = f"{stem}-0000{number}-of-00002.{suffix}"
        part = dict(list(weights.items())[number - 1 :: 2])
        write(part, folder / name)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


def _tensorflow(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    from tensorflow_files import convert, write_checkpoint

    os.replace(folder / "config.json", folder / "bert_config.json")
    write_checkpoint(folder / "bert_model.ckpt", convert(weights))


def _in_numbers(dtype: torch.dtype) -> Callable[[Path, dict[str, torch.Tensor]], None]:
    return lambda folder, found: save_file(
        {name: one.to(dtype) for name, one in found.items()}, folder / "model.safetensors"
    )


def _old_names(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write names of former times, and buffers that nobody needs."""
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): one
        for name, one in weights.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    torch.save({"state_dict": old, "epoch": 3}, folder / "pytorch_model.bin")


FORMATS: dict[str, Callable[[Path, dict[str, torch.Tensor]], None]] = {
    "zip": lambda folder, found: torch.save(found, folder / "pytorch_model.bin"),
    "legacy": lambda folder, found: torch.save(
        found, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False
    ),
    "shards": lambda folder, found: _sharded(folder, found, "safetensors", save_file),
    "bins": lambda folder, found: _sharded(folder, found, "bin", torch.save),
    "tensorflow": _tensorflow,
    "half": _in_numbers(torch.float16),
    "double": _in_numbers(torch.float64),
    "old-names": _old_names,
}


def _sentence(folder: Path) -> None:
    shutil.copytree(TINY, folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False}
    pooling |= {"pooling_mode_mean_tokens": True, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    inner = {"max_seq_length": 32, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(inner))
    outer = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None}
    outer |= {"similarity_fn_name": "cosine", "truncate_dim": None, "__version__": {"torch": "2"}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(outer))


def _tokenizers(root: Path) -> None:
    """Write a folder with a vocab.txt alone, and some with a tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    (root / "vocabulary").mkdir()
    shutil.copy(TINY / "vocab.txt", root / "vocabulary")
    tokens = (TINY / "vocab.txt").read_text("utf-8").split("\n")[:-1]
    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokens.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made.enable_truncation(48)
    made.enable_padding(length=48)
    shutil.copytree(TINY, root / "json")
    (root / "json" / "vocab.txt").unlink()
    made.save(str(root / "json" / "tokenizer.json"))
    (root / "json-alone").mkdir()
    made.save(str(root / "json-alone" / "tokenizer.json"))


def _older(folder: Path) -> None:
    """Write a folder with everything that is read where newer files are missing."""
    shutil.copytree(TINY, folder)
    os.replace(folder / "config.json", folder / "bert_config.json")
    (folder / "added_tokens.json").write_text(json.dumps({"[NEW]": 346}))
    special = {"additional_special_tokens": ["[NEW]"], "mask_token": {**ADDED, "content": "[MASK]"}}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))


# --- what is done to them -----------------------------------------------------------------------


def mutate(folder: Path, dice: random.Random) -> None:
    """Break one to three files of a folder, or give it other settings that it could have."""
    settings = sorted(path for path in folder.rglob("*.json") if plain_name(path) in PLAUSIBLE)
    if settings and dice.random() < 0.35:
        for path in dice.sample(settings, dice.choice([1, 1, len(settings)])):
            known = PLAUSIBLE[plain_name(path)]
            path.write_text(json.dumps(with_plausible(json.loads(path.read_text()), known, dice)))
        return
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        files = sorted(path for path in folder.rglob("*") if ordinary(path))
        if not files:
            return
        kinds = [path for path in files if path.suffix == ".json"] or files
        path = dice.choice(kinds if dice.random() < 0.6 else files)
        kind = dice.random()
        if kind < 0.1:
            replace_file(path, dice)
        elif kind < 0.16:
            add_file(folder, dice)
        elif kind < 0.2:
            swap(path, dice.choice(files))
        else:
            mutate_file(path, dice)


def ordinary(path: Path) -> bool:
    """Tell whether this is a file that was not replaced yet."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 10 << 20


def mutate_file(path: Path, dice: random.Random) -> None:
    """Change the contents of a file, as its format makes likely."""
    data = path.read_bytes()
    if dice.random() < 0.2:
        new = mutated_bytes(data, dice, head=1000)
    elif path.suffix == ".json":
        new = _mutated_json_file(plain_name(path), data, dice)
    elif path.suffix == ".txt":
        new = mutated_vocabulary(data, dice)
    elif path.suffix == ".safetensors":
        new = mutated_safetensors(data, dice) if len(data) > 8 else b"\1"
    elif path.suffix == ".bin" and data[:2] == b"PK":
        new = mutated_zip(data, dice)
    elif path.suffix == ".bin":
        new = evil_pickle(data[:3000], dice) + (data[3000:] if dice.random() < 0.5 else b"")
    else:
        new = mutated_bytes(data, dice, head=200)
    path.write_bytes(new)


def _mutated_json_file(name: str, data: bytes, dice: random.Random) -> bytes:
    try:
        value = json.loads(data)
        if name in PLAUSIBLE and isinstance(value, dict) and dice.random() < 0.5:
            return json.dumps(with_plausible(value, PLAUSIBLE[name], dice)).encode()
        text = mutated_json(value, dice).encode(errors="surrogatepass")
    except (ValueError, RecursionError):
        return mutated_bytes(data, dice)
    kind = dice.random()
    if kind < 0.02:
        return b"\xef\xbb\xbf" + text
    return text.decode().encode("utf-16") if kind < 0.04 else text


def plain_name(path: Path) -> str:
    """Return the name of a file under which PLAUSIBLE has its settings."""
    if path.parent.name == "1_Pooling":
        return "1_Pooling/config.json"
    return path.name.replace("bert_config", "config")


def with_plausible(
    value: dict[str, Any], known: dict[str, list[Any]], dice: random.Random
) -> dict[str, Any]:
    """Return settings of which one to three are others that may stand there."""
    for key in dice.sample([*known], dice.choice([1, 1, 2, 3])):
        value = {**value, key: dice.choice(known[key])}
    return value


def mutated_vocabulary(data: bytes, dice: random.Random) -> bytes:
    """Return a vocab.txt with lines that do not belong there."""
    lines = data.split(b"\n")
    at = dice.randrange(len(lines))
    special = [b"[CLS]", b"[SEP]", b"[UNK]", b"[PAD]", b"[MASK]"]
    match dice.randrange(11):
        case 0:
            lines[at] = dice.choice(lines)
        case 1:
            lines = [line for line in lines if line != dice.choice(special)]
        case 2:
            return b"\r\n".join(lines)
        case 3:
            lines[at] = dice.choice([b"\xff\xfe", b"\xed\xa0\x80", b"a\x00b", b"\x1b]0;x\x07"])
        case 4:
            lines[at:at] = [b""] * dice.choice([1, 2, 50])
        case 5:
            lines = lines[:at]
        case 6:
            lines += [b"extra%d" % number for number in range(dice.choice([1, 5, 2000]))]
        case 7:
            lines[at] = dice.choice([b"x" * 100_000, b" ", b"\t", b"##", b"a b", b"\xe2\x80\xa8"])
        case 8:
            return data.decode(errors="replace").encode("utf-16")
        case 9:
            which = dice.choice(special)
            lines = [which.lower() if line == which else line for line in lines]
        case 10:
            dice.shuffle(lines)
    return b"\n".join(lines)


def replace_file(path: Path, dice: random.Random) -> None:
    """Put something else in the place of a file, or nothing."""
    path.unlink()
    match dice.randrange(9):
        case 0 | 1:
            pass
        case 2:
            path.mkdir()
        case 3:
            path.symlink_to(path.name)
        case 4:
            path.symlink_to("nowhere")
        case 5:
            os.mkfifo(path)
        case 6:
            with path.open("wb") as file:
                file.write(dice.choice([b"", b"{", b"\x80\x02"]))
                file.truncate(900 << 20)
        case 7:
            path.symlink_to(dice.choice(["/dev/null", "/dev/zero", "/proc/self/mem", "/dev/tty"]))
        case 8:
            path.symlink_to(".")


FURTHER = {
    "added_tokens.json": {"[NEW]": 347, "word": 348},
    "special_tokens_map.json": {"mask_token": "[MASK]", "additional_special_tokens": ["[X]"]},
    "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.T"}],
    "1_Pooling/config.json": {"pooling_mode_cls_token": True},
    "sentence_bert_config.json": {"max_seq_length": 24},
    "config_sentence_transformers.json": {"prompts": {"a": "b"}},
    "tokenizer_config.json": {"do_lower_case": False, "model_max_length": 24},
    "config.json": {"model_type": "bert", "max_position_embeddings": 24},
    "bert_config.json": {"max_position_embeddings": 24, "hidden_size": 32},
    "model.safetensors.index.json": {"weight_map": {"a": "model-00001-of-00001.safetensors"}},
    "pytorch_model.bin.index.json": {"weight_map": {"a": "../x.bin"}},
    "tokenizer.json": {"version": "1.0", "model": {"type": "WordPiece", "vocab": {"a": 0}}},
    "generation_config.json": {"a": 1},
}


def add_file(folder: Path, dice: random.Random) -> None:
    """Add a file that was not there, or replace it by a short one."""
    name = dice.choice([*FURTHER, "pytorch_model.bin", "bert_model.ckpt.index", "vocab.txt"])
    path = folder / name
    if path.parent.is_file() or path.is_symlink() or (path.exists() and not path.is_file()):
        return
    path.parent.mkdir(exist_ok=True)
    if name in FURTHER:
        value = FURTHER[name]
        text = json.dumps(value) if dice.random() < 0.4 else mutated_json(value, dice)
        path.write_bytes(text.encode(errors="surrogatepass"))
    else:
        path.write_bytes(dice.choice([*PICKLES, str(odd(dice)).encode()]))


def swap(one: Path, other: Path) -> None:
    """Give two files each other's names."""
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


# --- commands -----------------------------------------------------------------------------------

TEXTS = ["I love NLP!", "The film was [MASK].", "", "word " * 90, "\u4e00\U0001f600 \x07 e\u0301"]
HALF = "\udcff \ud800"
LINES = "\n".join(TEXTS).encode() + b"\n"
JSON_IDS = b'{"input_ids":[101,5,7,102]}\n{"input_ids":[]}\n{"input_ids":[346,0]}\n'


def build(seed: int, sound: Path, case: Path) -> list[Command]:
    """Make the folder of a case, in ``case``, and return what is run over it."""
    dice = random.Random(f"folder {seed}")
    names = sorted(path.name for path in sound.iterdir() if path.name != INSTANCES)
    name = dice.choice(names)
    shutil.copytree(sound / name, case / "model", symlinks=True)
    mutate(case / "model", dice)
    (case / "corpus.txt").write_bytes(LINES)
    (case / "documents.txt").write_text("A word.\nAnother one.\n\nA third.\nThe film was good.\n")
    chosen = [_command(dice, name) for _ in range(dice.choice([1, 2, 2, 3]))]
    if dice.random() < 0.05:
        shutil.copytree(sound / INSTANCES, case / "instances")
        return _training(dice, case)
    return [each._replace(argv=[*each.argv, "-m", "model"]) for each in chosen]


def _training(dice: random.Random, case: Path) -> list[Command]:
    """Return runs of pretraining over instances, a model or a checkpoint that may be broken."""
    broken = dice.choice(["instances", "model", "out", "config"])
    argv = ["pretrain", "run", "instances", "--batch-size", "2", "-q", "-o", "out"]
    if broken == "config":
        (case / "config.json").write_text(mutated_json(SIZES, dice), errors="surrogatepass")
        return [Command([*argv, "--config", "config.json", "--steps", "1"], output="out")]
    if broken == "model":
        return [Command([*argv, "--init", "model", "--steps", "1"], output="out")]
    if broken == "instances":
        mutate(case / "instances", dice)
    (case / "config.json").write_text(json.dumps(SIZES))
    argv += ["--config", "config.json", "--save-every", "1"]

    def spoil(where: Path) -> None:
        if broken == "out":
            mutate(where / "out", dice)

    first = Command([*argv, "--steps", "2"], output="out", after=spoil)
    return [first, Command([*argv, "--steps", "2", "--resume"], output="out")]


def _command(dice: random.Random, name: str) -> Command:
    head = next((task for task, kind in HEADS.items() if kind == name), None)
    if name.startswith("family-"):
        head = dice.choice([*families.TASKS])
    if head and dice.random() < 0.5:
        return _task(head, dice)
    kind = dice.random()
    if kind < 0.2:
        more = typed(dice, "", "--stats", "--tokens", "--offsets", "--count", "-f table")
        pads = typed(dice, "", "", "--padding max_length", "--truncation")
        return Command(["tokenize", *_texts(dice), *more, *pads])
    if kind < 0.28:
        more = typed(dice, "", "--as tokens", "--skip-special-tokens")
        return Command(["decode", *more], JSON_IDS)
    if kind < 0.55:
        views = ["--json", "--tree", "--tensors", "--config", "--tokenizer", "--verify", ""]
        view = dice.choice(views)
        return Command(["inspect", *([view] if view else [])])
    if kind < 0.62:
        suffix = dice.choice(["html", "svg", "png", "json", "pdf"])
        out = dice.choice([[], ["-o", f"out.{suffix}"]])
        return Command(["inspect", "--attention", TEXTS[0], *out], output=out[1] if out else "")
    if kind < 0.82:
        return _embed(dice, name)
    if kind < 0.88:
        more = typed(dice, "", "--vectors out.npy")
        if name in families.OF_TERMS:
            more = dice.choice([more, ["--sparse"], ["--token-vectors"]])
        return Command(["similar", "a word", "--corpus", "corpus.txt", *more], output="out.npy")
    if kind < 0.92:
        return Command(
            ["pretrain", "prepare", "documents.txt", "--max-length", "16", "-o", "out"],
            output="out",
        )
    return _task(dice.choice([*HEADS]), dice)


def _texts(dice: random.Random) -> list[str]:
    """Return texts, seldom with one that is none."""
    return [*TEXTS, HALF] if dice.random() < 0.04 else TEXTS


def _embed(dice: random.Random, name: str) -> Command:
    several = [["--token-vectors"], ["--word-vectors", "mean"], ["--word-vectors", "first"]]
    pooled = [["--pooling", how] for how in ("cls", "mean", "max", "pooler", "mean+max")]
    more = dice.choice([[], [], *several, *pooled])
    if name in families.OF_TERMS and dice.random() < 0.6:
        more = typed(dice, "--sparse", "--sparse --top-terms 3", "--token-vectors")
    if name in ("sentence", *families.OF_TERMS) or dice.random() < 0.04:
        more = [*more, *typed(dice, "", "--prompt-name query")]
    more += typed(dice, "", "", "--dtype int8", "--dtype bfloat16")
    more += typed(dice, "", "", "--layers -2,-1", "--layers 0", "--max-length 8")
    more += typed(dice, "", "", "", "--normalize", "--batch-tokens 7")
    if dice.random() < 0.6:
        return Command(["embed", *_texts(dice), *more])
    out = "out." + dice.choice(["npy", "npz", "safetensors", "jsonl", "parquet", "csv"])
    return Command(["embed", *more, "-o", out], LINES, out)


def _task(name: str, dice: random.Random) -> Command:
    match name:
        case "fill-mask":
            given = ["The film was [MASK].", *dice.choice([[], ["--targets", "good,word,\u4e00"]])]
        case "classify":
            more = typed(dice, "", "--scores all", "--top-k 2", "--logits")
            given = [*_texts(dice), *more]
        case "tag":
            how = dice.choice(["none", "simple", "first", "average", "max"])
            given = [*_texts(dice), "--aggregation", how]
        case "answer":
            given = ["--question", "Who?", "--context", "He said so. " * 30]
        case "choose":
            given = ["She opened the door.", "She went in.", "It was a fish."]
        case _:
            given = ["It rains.", "--pair", "The sky is grey."]
    return Command([name, *given])
