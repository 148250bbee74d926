"""Models of the ecosystem: from a config, from a directory, packed, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from trainer import models
from trainer.engine import logits
from trainer.errors import ConfigError
from trainer.model import ModelConfig

TINY = {
    "gpt2": {
        "model_type": "gpt2",
        **{"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64},
        **{"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    },
    "llama": {
        "model_type": "llama",
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 32},
        **{"intermediate_size": 64, "max_position_embeddings": 64},
        **{"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0},
    },
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def written(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(TINY[kind]))
    return path


def built(path: Path, *, vocab_size: int = 64, recompute: bool = False) -> nn.Module:
    return models.build(ModelConfig(kind="hf", path=path), vocab_size, recompute=recompute)


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_packed_document_has_the_logits_of_the_document_alone(
    tmp_path: Path, kind: str, recompute: bool
) -> None:
    model = built(written(tmp_path, kind), recompute=recompute)
    lengths = (5, 1, 9, 3)
    ids = torch.randint(0, 64, (3, sum(lengths)))
    places = torch.cat([torch.arange(n) for n in lengths])[None].repeat(3, 1)
    packed = logits(model(input_ids=ids, position_ids=places))
    begin = 0
    for length in lengths:
        stretch = slice(begin, begin + length)
        alone = logits(model(input_ids=ids[:, stretch], position_ids=places[:, stretch]))
        torch.testing.assert_close(packed[:, stretch], alone, atol=1e-5, rtol=1e-4)
        begin += length


@pytest.mark.parametrize("kind", TINY)
def test_recomputed_activations_give_the_same_gradients(tmp_path: Path, kind: str) -> None:
    def gradients(recompute: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = built(written(tmp_path, kind), recompute=recompute)
        ids = torch.arange(24).reshape(2, 12)
        logits(model(input_ids=ids, position_ids=torch.arange(12).repeat(2, 1))).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    kept, recomputed = gradients(False), gradients(True)
    assert len(kept) > 10
    for a, b in zip(kept, recomputed, strict=True):
        assert torch.equal(a, b)


def test_weights_come_from_a_directory_where_there_are_any(tmp_path: Path) -> None:
    first = built(written(tmp_path, "llama"))
    assert isinstance(first, transformers.PreTrainedModel)
    first.save_pretrained(tmp_path / "saved")
    torch.manual_seed(99)
    second = built(tmp_path / "saved")
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY["gpt2"]))
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin is a pickle, which is not loaded"):
        built(folder)


def test_a_vocabulary_too_small_for_the_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocabulary has 64 entries, the corpus was packed with 65"):
        built(written(tmp_path, "gpt2"), vocab_size=65)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: no such file or directory"):
        built(tmp_path / "absent")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a model's configuration"):
        built(tmp_path / "odd.json")


def test_code_in_a_model_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "custom"
    folder.mkdir()
    custom = {"model_type": "custom", "auto_map": {"AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(custom))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigError, match="not a model's configuration"):
        built(folder)
    assert not (tmp_path / "ran").exists()
