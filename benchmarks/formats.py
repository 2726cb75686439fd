"""Number formats on a CPU, whole processes: a file of texts in, a file of vectors out.

    python benchmarks/formats.py texts.txt --work /tmp/formats [--rounds 5] [--threads 2]

Beside bertcli: OpenVINO with the model that transformers has, in 8 bits by NNCF's defaults, which
is what sentence-transformers asks of optimum-intel (which does not go with transformers 5), and
ONNX Runtime. Their processes import nothing but what runs the model: kinder than their own front
ends. They sort by length and have batches of 32, as sentence-transformers has. Processes run in
turn; a time is the median. The cosines are those to float32 of the same texts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from exported import bertcli_folder, fused_file, openvino_file

PEER = """
import sys
from pathlib import Path
sys.modules["openvino_telemetry"] = None
import numpy as np
from tokenizers import Tokenizer
kind, graph, tokenizer, source, target, limit, threads = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer)
tokenizer.enable_truncation(int(limit))
tokenizer.no_padding()
if kind == "openvino":
    from openvino import Core
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": int(threads)}
    request = Core().compile_model(graph, "CPU", settings).create_infer_request()
    infer = lambda ids, keep: request.infer([ids, keep])[0]
else:
    from onnxruntime import InferenceSession, SessionOptions
    options = SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    infer = lambda ids, keep: session.run(None, {"ids": ids, "keep": keep})[0]
lines = Path(source).read_text("utf-8").splitlines()
rows = [found.ids for found in tokenizer.encode_batch_fast(lines)]
order = sorted(range(len(rows)), key=lambda at: -len(rows[at]))
vectors = None
for start in range(0, len(order), 32):
    some = order[start : start + 32]
    ids = np.zeros((len(some), len(rows[some[0]])), "int64")
    keep = np.zeros_like(ids)
    for at, row in enumerate(some):
        ids[at, : len(rows[row])], keep[at, : len(rows[row])] = rows[row], 1
    found = infer(ids, keep)
    if vectors is None:
        vectors = np.empty((len(rows), found.shape[1]), "float32")
    vectors[some] = found / np.linalg.norm(found, axis=1, keepdims=True)
np.save(target, vectors)
"""


def contestants(model: Path, texts: Path, work: Path, threads: int) -> dict[str, list[str]]:
    """Return the command of each contestant that is installed; it writes its file of vectors."""
    ends = [str(model / "tokenizer.json"), str(texts)]
    commands = {
        f"bertcli {dtype}": [
            *("-m", "bertcli", "embed", "-q", "--overwrite", "-i", str(texts)),
            *(
                "-m",
                str(bertcli_folder(model, work, dtype)),
                "--backend",
                "openvino",
                "--dtype",
                dtype,
                "--threads",
                str(threads),
            ),
            *("--normalize", "--on-truncate", "ignore", "--max-length", "256", "-o"),
        ]
        for dtype in ("float32", "bfloat16", "int8")
    }
    peers = {f"OpenVINO {kind}": ("openvino", kind) for kind in ("float32", "int8")}
    if find_spec("onnxruntime") and find_spec("onnx"):
        peers |= {f"ONNX Runtime {kind}": ("onnxruntime", kind) for kind in ("float32", "int8")}
    for name, (kind, precision) in peers.items():
        made = openvino_file if kind == "openvino" else fused_file
        graph = made(model, work, quantized=precision == "int8")
        commands[name] = ["-c", PEER, kind, graph, *ends]
    return commands


def run(command: list[str], target: Path, threads: int) -> float:
    """Run a process that writes vectors, and return its seconds."""
    ends = [str(target)]
    if command[0] == "-c":
        ends += ["256", str(threads)]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *command, *ends],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        cwd=Path(__file__).parents[1],
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    from bertcli.model_folder.files import MODEL_FILES
    from bertcli.model_folder.find import find_model
    from bertcli.model_folder.hub_cache import DEFAULT_MODEL

    model = find_model(DEFAULT_MODEL, files=MODEL_FILES).path
    commands = contestants(model, given.texts.resolve(), given.work, given.threads)
    targets = {name: given.work / f"{name.replace(' ', '.')}.npy" for name in commands}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(given.rounds + 1):  # the first makes what is kept, and is not counted
        for name, command in commands.items():
            took = run(command, targets[name], given.threads)
            if turn:
                seconds[name].append(took)
    report(seconds, targets)


def report(seconds: dict[str, list[float]], targets: dict[str, Path]) -> None:
    exact = np.load(targets["bertcli float32"])
    ours = seconds["bertcli int8"]
    print("contestant              median s  times of bertcli int8  worst cosine  mean cosine")
    for name, taken in seconds.items():
        ratio = statistics.median(one / mine for one, mine in zip(taken, ours, strict=True))
        cosines = (np.load(targets[name]) * exact).sum(1)
        print(
            f"{name:22} {statistics.median(taken):9.2f} {ratio:23.2f} "
            f"{cosines.min():13.4f} {cosines.mean():12.5f}"
        )


if __name__ == "__main__":
    main()
