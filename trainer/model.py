"""A small GPT: rotary positions, pre-norm blocks, attention within documents.

Axis letters: B rows, T positions, D width, H heads, K head width, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.section import Section

ROPE_BASE = 10_000.0
"""Su et al. 2021, "RoFormer": the base of the geometric series of rotation frequencies."""


class ModelConfig(Section):
    """[model]: which model is trained. The vocabulary of the small GPT comes from the corpus."""

    kind: Literal["gpt", "hf"] = "gpt"
    """gpt: ours, of the shape below. hf: a causal model of Hugging Face, from `path`."""
    path: Path | None = None
    """For hf: a directory with config.json, its weights (safetensors) taken where there are any; or a config file
    alone, which begins from random weights. No code in it is run."""
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)
    width: int = Field(default=256, ge=2)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _fits_together(self) -> ModelConfig:
        if (self.kind == "hf") != (self.path is not None):
            raise ValueError(
                "model.path names a Hugging Face model: give it with model.kind = 'hf', and only there"
            )
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of 2 x heads = {2 * self.heads} (rotary positions turn pairs), "
                f"got {self.width}"
            )
        return self


def within_documents(position_ids_BT: Tensor) -> Tensor:
    """Which positions attend to which: causal, and only within the document that `position_ids` delimit.

    True is "may attend", shape (B, 1, T, T). Each position 0 begins a document.
    """
    document_BT = (position_ids_BT == 0).cumsum(1)
    same_BTT = document_BT[:, :, None] == document_BT[:, None, :]
    return (same_BTT & torch.ones_like(same_BTT[0]).tril())[:, None]


def rotations(position_ids_BT: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each (B, 1, T, K / 2)."""
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32, device=position_ids_BT.device)
    angles = position_ids_BT[:, None, :, None] * ROPE_BASE ** (-pairs / head_width)
    return angles.cos(), angles.sin()


def rotate(x_BHTK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x_BHTK.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x_BTD: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(x_BTD).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y_BHTK = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        y_BTD: Tensor = self.out(y_BHTK.transpose(1, 2).reshape(B, T, D))
        return y_BTD


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attended: Tensor = self.dropout(self.attention(self.attention_norm(x_BTD), mask, cos, sin))
        x_BTD = x_BTD + attended
        thought: Tensor = self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        return x_BTD + thought


class GPT(nn.Module):
    """A decoder whose output head is tied to its embedding. Initialised from torch's current generator."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.recompute = False
        """Activation checkpointing: each block's inside is computed again in backward instead of kept."""
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Residual branches start smaller, so that the sum over layers keeps its scale (Radford et al. 2019).
                residual = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * config.layers) ** 0.5 if residual else 0.02)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Logits (B, T, V) of the next token, from ids and positions (B, T)."""
        mask = within_documents(position_ids)
        cos, sin = rotations(position_ids, self.head_width)
        x_BTD = self.embedding(input_ids)
        for block in self.blocks:
            if self.recompute and self.training:
                # Non-reentrant: gradients come block by block, so that their reduction still hides behind backward.
                x_BTD = checkpoint(block, x_BTD, mask, cos, sin, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, mask, cos, sin)
        return F.linear(self.norm(x_BTD), self.embedding.weight)
