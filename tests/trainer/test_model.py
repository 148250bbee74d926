"""The small GPT: what a document's logits depend on, and how it starts."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from trainer.model import GPT, ModelConfig, within_documents

CONFIG = ModelConfig(layers=2, heads=2, width=16)


def positions(*lengths: int) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


def test_a_packed_document_has_the_logits_of_the_document_alone() -> None:
    torch.manual_seed(0)
    model = GPT(CONFIG, vocab_size=50)
    lengths = (5, 1, 9, 3)
    ids = torch.randint(0, 50, (1, sum(lengths)))
    packed = model(ids, positions(*lengths))
    begin = 0
    for length in lengths:
        alone = model(ids[:, begin : begin + length], positions(length))
        torch.testing.assert_close(packed[:, begin : begin + length], alone, atol=1e-6, rtol=1e-5)
        begin += length


def test_attention_is_causal_and_within_documents() -> None:
    mask = within_documents(positions(2, 2))[0, 0].int().tolist()
    assert mask == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_initialisation_depends_on_the_seed_alone() -> None:
    def digest(seed: int) -> float:
        torch.manual_seed(seed)
        return sum(float(p.detach().double().sum()) for p in GPT(CONFIG, vocab_size=50).parameters())

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_a_first_loss_is_that_of_a_uniform_guess() -> None:
    torch.manual_seed(0)
    logits = GPT(CONFIG, vocab_size=1000)(torch.randint(0, 1000, (4, 32)), positions(32).repeat(4, 1))
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(0, 1000, (128,)))
    assert abs(entropy.item() - torch.log(torch.tensor(1000.0)).item()) < 0.1


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValidationError, match="multiple of 2 x heads = 8"):
        ModelConfig(heads=4, width=18)
