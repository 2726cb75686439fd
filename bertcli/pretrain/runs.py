"""A whole run: begin or go on, train, evaluate, keep checkpoints, leave a model.

    CKPT/config.json, model.safetensors, tokenizer files    the result, there when it is whole
    CKPT/log.jsonl, loss.svg                                how it went
    CKPT/checkpoint-STEP/                                   what --resume goes on from
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch

from bertcli.errors import InputError, ModelError, OutputError, UsageError
from bertcli.model import checkpoint
from bertcli.model.config import BertConfig
from bertcli.model.heads import BertForPreTraining
from bertcli.model.surgery import initialise
from bertcli.pretrain import configuration, plot
from bertcli.pretrain.batches import held_out
from bertcli.pretrain.checkpoints import (
    Checkpoints,
    State,
    put_model,
    put_moments,
    read_moments,
    read_state,
)
from bertcli.pretrain.evaluation import HeldOut, commonest_word
from bertcli.pretrain.log import Log
from bertcli.pretrain.loop import Step, Training
from bertcli.pretrain.optimizer import moments, remember
from bertcli.pretrain.options import Options
from bertcli.pretrain.ranks import Ranks
from bertcli.pretrain.reading import Instances
from bertcli.vectors.journal import as_json, refuse_changes
from bertcli.vectors.lock import locked
