"""Write checkpoints in TensorFlow's format without TensorFlow."""

import re

import torch

DTYPES = {torch.float32: 1, torch.int64: 9, torch.float16: 19}


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def number(key, value):
    return varint(key << 3) + varint(value)


def message(key, content):
    return varint(key << 3 | 2) + varint(len(content)) + content


def block(entries, compressed=False):
    """Return a block of a table. Keys share prefixes, except for every third one."""
    out, restarts, before = b"", [], b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % 3:
            while shared < min(len(before), len(key)) and before[shared] == key[shared]:
                shared += 1
        else:
            restarts.append(len(out))
        own = key[shared:]
        out += varint(shared) + varint(len(own)) + varint(len(value)) + own + value
        before = key
    ends = b"".join(place.to_bytes(4, "little") for place in [*restarts, len(restarts)])
    return out + ends, bytes([compressed]) + b"\0\0\0\0"  # the checksum is never checked


def table(entries, size, compressed=False):
    out, index = b"", []
    for start in range(0, len(entries), size):
        some = entries[start : start + size]
        body, trailer = block(some, compressed)
        index.append((some[-1][0], varint(len(out)) + varint(len(body))))
        out += body + trailer
    footer = varint(0) + varint(0)
    body, trailer = block(index)
    footer += varint(len(out)) + varint(len(body))
    return out + body + trailer + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def write_checkpoint(prefix, variables, *, shards=1, endian=0, compressed=False):
    """Write PREFIX.index and PREFIX.data-*, like tf.train.Saver."""
    data = [b""] * shards
    header = number(1, shards) + number(2, endian) + message(3, number(1, 1))
    entries = [(b"", header)]
    for index, (name, tensor) in enumerate(sorted(variables.items())):
        shard, content = index % shards, tensor.contiguous().numpy().tobytes()
        shape = b"".join(message(2, number(1, size)) for size in tensor.shape)
        entry = number(1, DTYPES[tensor.dtype]) + message(2, shape) + number(3, shard)
        entry += number(4, len(data[shard])) + number(5, len(content))
        entries.append((name.encode(), entry + varint(6 << 3 | 5) + b"\1\2\3\4"))
        data[shard] += content
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(entries, 7, compressed))
    for shard, content in enumerate(data):
        name = f"{prefix.name}.data-{shard:05}-of-{shards:05}"
        prefix.with_name(name).write_bytes(content)


def google(name):
    """Return the name in Google's code for a name of transformers, independently of names.py."""
    if name.startswith("classifier") or name.startswith("qa_outputs"):
        place = "cls/squad/" if name.startswith("qa") else ""
        return place + ("output_weights" if name.endswith("weight") else "output_bias")
    if name == "cls.predictions.bias":
        return "cls/predictions/output_bias"
    if name.startswith("cls.seq_relationship"):
        return "cls/seq_relationship/output_" + ("bias" if name.endswith("bias") else "weights")
    name = re.sub(r"layer\.(\d+)", r"layer_\1", name)
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")
    name = re.sub(r"embeddings\.weight$", "embeddings", name)
    return re.sub(r"\.weight$", ".kernel", name).replace(".", "/")


def convert(weights):
    variables = {}
    for name, tensor in weights.items():
        theirs = google(name)
        variables[theirs] = tensor.T if theirs.endswith("/kernel") else tensor
    return variables
