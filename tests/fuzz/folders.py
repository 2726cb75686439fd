"""Model folders in which something is wrong, and the commands that open them."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from front import json_in, put_json
from model_reference import randomise
from pretrain_folders import prepared
from safetensors.torch import load_file, save_file
from tensorflow_files import convert, write_checkpoint

from bertcli.model_folder.load import save
from bertcli.models import heads
from bertcli.models.config import BertConfig

from . import families
from .craft import PICKLES, evil_pickle, mutated_safetensors, mutated_zip
from .grammar import Command, command
from .values import mutated_bytes, mutated_json, odd

TINY = Path(__file__).parents[2] / "samples" / "tiny-bert"
SETTINGS = json_in(Path(__file__).with_name("settings.json"))
PLAUSIBLE = SETTINGS["plausible"]  # what may stand in the files, beside what the types refuse
INSTANCES = ".instances"  # of pretrain prepare, beside the models
HEADS = {
    "fill-mask": "BertForMaskedLM",
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "answer": "BertForQuestionAnswering",
    "choose": "BertForMultipleChoice",
    "next-sentence": "BertForNextSentencePrediction",
}
SIZES = {**families.SIZES, "vocab_size": 347, "max_position_embeddings": 64}


# --- sound folders ------------------------------------------------------------------------------


def make_sound(root: Path) -> None:
    """Write the folders that are mutated: each format of weights, each kind of tokenizer."""
    for name in (*HEADS.values(), "BertForPreTraining"):
        labels = families.NAMES if name.endswith("Classification") else {}
        config = BertConfig.from_dict({**SIZES, **labels, "pad_token_id": 0})
        save(randomise(getattr(heads, name)(config)), config, root / name)
        shutil.copy(TINY / "vocab.txt", root / name)
        put_files(root / name, SETTINGS["head"])
    _formats(root)
    shutil.copytree(TINY, root / "tiny")
    put_files(shutil.copytree(TINY, root / "sentence"), SETTINGS["sentence"])
    older = shutil.copytree(TINY, root / "older")
    os.replace(older / "config.json", older / "bert_config.json")
    put_files(older, SETTINGS["older"])
    (root / "vocabulary").mkdir()
    shutil.copy(TINY / "vocab.txt", root / "vocabulary")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY).backend_tokenizer
    tokenizer.enable_truncation(48)
    tokenizer.enable_padding(length=48)
    shutil.copytree(TINY, root / "json", ignore=shutil.ignore_patterns("vocab.txt"))
    (root / "json-alone").mkdir()
    for name in ("json", "json-alone"):
        tokenizer.save(str(root / name / "tokenizer.json"))
    families.make_families(root)
    prepared(root / INSTANCES, rows=40)


def put_files(folder: Path, files: dict[str, Any]) -> None:
    """Write files of JSON."""
    for name, value in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        put_json(folder / name, value)


def _formats(root: Path) -> None:
    """Write one model in every format that weights come in."""
    weights = load_file(root / HEADS["fill-mask"] / "model.safetensors")

    def folder(name: str) -> Path:
        without = shutil.ignore_patterns("model.safetensors")
        return Path(shutil.copytree(root / HEADS["fill-mask"], root / name, ignore=without))

    torch.save(weights, folder("zip") / "pytorch_model.bin")
    legacy = folder("legacy") / "pytorch_model.bin"
    torch.save(weights, legacy, _use_new_zipfile_serialization=False)
    for dtype in (torch.float16, torch.float64):
        others = {name: tensor.to(dtype) for name, tensor in weights.items()}
        save_file(others, folder(str(dtype)) / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): one
        for name, one in weights.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    torch.save({"state_dict": old, "epoch": 3}, folder("old-names") / "pytorch_model.bin")
    for suffix, write in (("safetensors", save_file), ("bin", torch.save)):
        sharded, places = folder(f"shards-{suffix}"), {}
        stem = "model" if suffix == "safetensors" else "pytorch_model"
        for number in (1, 2):
            name = f"{stem}-0000{number}-of-00002.{suffix}"
            part = dict(list(weights.items())[number - 1 :: 2])
            write(part, sharded / name)
            places |= dict.fromkeys(part, name)
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        put_json(sharded / f"{stem}.{suffix}.index.json", index)
    google = folder("tensorflow")
    os.replace(google / "config.json", google / "bert_config.json")
    write_checkpoint(google / "bert_model.ckpt", convert(weights))


# --- what is done to them -----------------------------------------------------------------------


def mutate(folder: Path, dice: random.Random) -> None:
    """Break one to three files of a folder, or give it other settings that it could have."""
    settings = sorted(path for path in folder.rglob("*.json") if plain_name(path) in PLAUSIBLE)
    if settings and dice.random() < 0.35:
        for path in dice.sample(settings, dice.choice([1, 1, len(settings)])):
            put_json(path, with_plausible(json_in(path), plain_name(path), dice))
        return
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        files = sorted(path for path in folder.rglob("*") if ordinary(path))
        if not files:
            return
        settings = [path for path in files if path.suffix == ".json"] or files
        path = dice.choice(settings if dice.random() < 0.6 else files)
        kind = dice.random()
        if kind < 0.1:
            replace_file(path, dice)
        elif kind < 0.16:
            add_file(folder, dice)
        elif kind < 0.2:
            other = dice.choice(files)
            contents = path.read_bytes(), other.read_bytes()
            other.write_bytes(contents[0])
            path.write_bytes(contents[1])
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
        new = _mutated_settings(plain_name(path), data, dice)
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


def _mutated_settings(name: str, data: bytes, dice: random.Random) -> bytes:
    try:
        value = json.loads(data)
        if name in PLAUSIBLE and isinstance(value, dict) and dice.random() < 0.5:
            return json.dumps(with_plausible(value, name, dice)).encode()
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


def with_plausible(value: dict[str, Any], name: str, dice: random.Random) -> dict[str, Any]:
    """Return settings of which one to three are others that may stand there."""
    others = PLAUSIBLE[name]
    keys = dice.sample([*others], min(len(others), dice.choice([1, 1, 2, 3])))
    return {**value, **{key: dice.choice(others[key]) for key in keys}}


def mutated_vocabulary(data: bytes, dice: random.Random) -> bytes:
    """Return a vocab.txt with lines that do not belong there."""
    lines = data.split(b"\n")
    at = dice.randrange(len(lines))
    special = dice.choice([b"[CLS]", b"[SEP]", b"[UNK]", b"[PAD]", b"[MASK]"])
    strange = [b"\xff\xfe", b"\xed\xa0\x80", b"a\x00b", b"\x1b]0;x\x07", b"x" * 100_000]
    strange += [b" ", b"\t", b"##", b"a b", b"\xe2\x80\xa8", dice.choice(lines)]
    match dice.randrange(8):
        case 0:
            lines = [line for line in lines if line != special]
        case 1:
            return b"\r\n".join(lines)
        case 2:
            lines[at:at] = [b""] * dice.choice([1, 2, 50])
        case 3:
            lines = lines[:at]
        case 4:
            lines += [b"extra%d" % number for number in range(dice.choice([1, 5, 2000]))]
        case 5:
            return data.decode(errors="replace").encode("utf-16")
        case 6:
            lines = [special.lower() if line == special else line for line in lines]
        case _:
            lines[at] = dice.choice(strange)
    return b"\n".join(lines)


def replace_file(path: Path, dice: random.Random) -> None:
    """Put something else in the place of a file, or nothing."""
    path.unlink()
    links = [path.name, "nowhere", ".", "/dev/null", "/dev/zero", "/proc/self/mem", "/dev/tty"]
    match dice.randrange(9):
        case 0 | 1:
            pass
        case 2:
            path.mkdir()
        case 3:
            os.mkfifo(path)
        case 4:
            with path.open("wb") as file:
                file.write(dice.choice([b"", b"{", b"\x80\x02"]))
                file.truncate(900 << 20)
        case _:
            path.symlink_to(dice.choice(links))


def add_file(folder: Path, dice: random.Random) -> None:
    """Add a file that was not there, or replace it by a short one."""
    further = SETTINGS["further"]
    name = dice.choice([*further, "pytorch_model.bin", "bert_model.ckpt.index", "vocab.txt"])
    path = folder / name
    if path.parent.is_file() or path.is_symlink() or (path.exists() and not path.is_file()):
        return
    path.parent.mkdir(exist_ok=True)
    if name in further:
        text = mutated_json(further[name], dice) if dice.random() < 0.6 else further[name]
        path.write_bytes(str(text).encode(errors="surrogatepass"))
    else:
        path.write_bytes(dice.choice([*PICKLES, str(odd(dice)).encode()]))


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
    if dice.random() < 0.05:
        shutil.copytree(sound / INSTANCES, case / "instances")
        return _training(dice, case)
    return [_opening(dice, name) for _ in range(dice.choice([1, 2, 2, 3]))]


def _opening(dice: random.Random, name: str) -> Command:
    rule = "of-a-folder"
    own = [task for task, kind in HEADS.items() if kind == name]
    if name.startswith("family-"):
        own = [*families.TASKS]
    if name in families.OF_TERMS and dice.random() < 0.4:
        rule = "of-terms"
    elif dice.random() < (0.5 if own else 0.08):
        rule = dice.choice(own or [*HEADS])
    texts = [*TEXTS, HALF] if dice.random() < 0.04 else TEXTS
    opening = command(dice, rule, texts=texts, long="He said so. " * 30)
    ids = JSON_IDS if opening.argv[0] == "decode" else b""
    return opening._replace(argv=[*opening.argv, "-m", "model"], stdin=ids)


def _training(dice: random.Random, case: Path) -> list[Command]:
    """Return runs of pretraining over instances, a model or a checkpoint that may be broken."""
    broken = dice.choice(["instances", "model", "out", "config"])
    argv = command(dice, "pretrain").argv
    config = mutated_json(SIZES, dice) if broken == "config" else json.dumps(SIZES)
    (case / "config.json").write_text(config, errors="surrogatepass")
    if broken == "model":
        return [Command([*argv, "--init", "model", "--steps", "1"])]
    if broken == "instances":
        mutate(case / "instances", dice)
    argv += ["--config", "config.json", "--save-every", "1", "--steps", "2"]

    def spoil(place: Path) -> None:
        if broken == "out" and (place / "out").is_dir():
            mutate(place / "out", dice)

    return [Command(argv, after=spoil), Command([*argv, "--resume"])]
