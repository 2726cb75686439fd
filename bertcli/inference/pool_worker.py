"""What a process of a fleet does: batches in, vectors out, until its parent is gone."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any

import torch
from torch import Tensor

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.errors import BertcliError
from bertcli.files.system_calls import ignore_terminal
from bertcli.hub import ModelFolder
from bertcli.inference.devices import use_threads
from bertcli.inference.encoder import Tokens


def work(line: Connection, folder: ModelFolder, options: EmbedOptions, threads: int) -> None:
    """Load the model and answer each batch with its vectors, until the parent ends this process."""
    ignore_terminal()
    jobs: Queue[tuple[list[Tokens], EmbedOptions]] = Queue()
    answers: Queue[tuple[str, Any]] = Queue()
    threading.Thread(target=_receive, args=(line, jobs), daemon=True).start()
    threading.Thread(target=_send, args=(line, answers), daemon=True).start()
    use_threads(threads)
    try:
        embedder = Embedder.open(folder, options)
        embedder.encoder.warn = lambda message: answers.put(("warning", message))
        answers.put(("ready", None))
        while True:
            batch, asked = jobs.get()
            if asked != embedder.options:
                embedder = replace(embedder, options=asked)
            answers.put(("vectors", _arrays(embedder.pooled(batch))))
    except BertcliError as error:
        answers.put(("error", error))
        threading.Event().wait()  # the parent reads it, and ends this process


def _arrays(vectors: list[Tensor]) -> Any:
    """Return the vectors as they are sent fastest: as one array where they have one shape."""
    if len({vector.shape for vector in vectors}) == 1:
        return torch.stack(vectors).numpy()
    return [vector.numpy() for vector in vectors]


def _receive(line: Connection, jobs: Queue[tuple[list[Tokens], EmbedOptions]]) -> None:
    """Read at all times, so that the parent never waits; end with the parent."""
    try:
        while True:
            jobs.put(line.recv())
    except (EOFError, OSError):
        os._exit(1)


def _send(line: Connection, answers: Queue[tuple[str, Any]]) -> None:
    """Write beside the work, as the parent may be busy with the disk."""
    try:
        while True:
            line.send(answers.get())
    except OSError:
        os._exit(1)
