"""Synthetic sentences for language models: which half of the vocabulary has more of the tokens?"""

from __future__ import annotations

import torch
from flwr.app import Context
from torch.utils.data import TensorDataset

VOCABULARY, LENGTH, EXAMPLES = 64, 13, 64


def sentences(seed: int, count: int = EXAMPLES) -> TensorDataset:
    """Tokens of shape ``(count, LENGTH)``, and 1 where more than half are of the upper half."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (count, LENGTH), generator=rng)
    return TensorDataset(
        tokens, ((tokens >= VOCABULARY // 2).sum(1) > LENGTH // 2).long()
    )


def my_sentences(context: Context) -> TensorDataset:
    """A client's own."""
    return sentences(1 + int(context.node_config["partition-id"]))
