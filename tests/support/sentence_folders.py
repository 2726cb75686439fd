"""Sentence models with random weights, written by sentence-transformers."""

import warnings
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from torch import nn

SAMPLE = Path(__file__).parents[2] / "samples" / "tiny-bert"


def shaken(module, seed=0):
    """Return the module with random weights, so that errors are visible."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for one in module.parameters():
            one.copy_(torch.randn_like(one) * 0.5)
    return module


def dense(size, out, activation=None, seed=0, **options):
    given = nn.Identity() if activation is None else activation
    return shaken(st.Dense(size, out, activation_function=given, **options), seed)


def sentence_model(*behind, **options):
    """Return a sentence model with the sample's BERT, followed by these modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bert = st.Transformer(str(SAMPLE))
        return SentenceTransformer(modules=[bert, *behind], device="cpu", **options)


def saved(model, folder, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(str(folder), **options)
    return folder
