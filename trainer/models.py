"""Building the model that [model] names: a small GPT of ours, or a causal model of the ecosystem."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from trainer.errors import ConfigError
from trainer.model import GPT, ModelConfig


def build(config: ModelConfig, vocab_size: int, *, recompute: bool) -> nn.Module:
    """The model in fp32, its random parts drawn from torch's current generator.

    It is called with `input_ids` and `position_ids`, and attends within the documents that the latter delimit.
    `recompute` switches activation checkpointing on. Raises ConfigError where there is no such model, or where its
    vocabulary is smaller than the corpus's `vocab_size`.
    """
    if config.path is None:
        model = GPT(config, vocab_size)
        model.recompute = recompute
        return model
    return _hugging_face(config.path, vocab_size, recompute=recompute)


def _hugging_face(path: Path, vocab_size: int, *, recompute: bool) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError("model.kind = 'hf' needs transformers: pip install 'headrace[hf]'") from error
    if not path.exists():
        raise ConfigError(
            f"model.path {path}: no such file or directory; expected a config.json or a model's directory"
        )
    try:
        shape = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"model.path {path}: not a model's configuration: {error}") from error
    # Training keeps no keys and values, and with a cache transformers does not tell packed documents apart.
    shape.use_cache = False
    if path.is_dir() and any(path.glob("*.safetensors")):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            config=shape,
            dtype="float32",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    elif path.is_dir() and (other := [*path.glob("*.bin"), *path.glob("*.pt")]):
        raise ConfigError(
            f"model.path {path}: {other[0].name} is a pickle, which is not loaded; convert the weights to safetensors"
        )
    else:
        model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # unannotated there
            shape, trust_remote_code=False
        )
    rows = (
        embeddings.num_embeddings
        if isinstance(embeddings := model.get_input_embeddings(), nn.Embedding)
        else 0
    )
    if rows < vocab_size:
        raise ConfigError(
            f"model.path {path}: its vocabulary has {rows} entries, the corpus was packed with {vocab_size}: "
            "pack it with the model's own tokenizer"
        )
    if recompute:
        model.activation_checkpointing_enable()
    model.train()
    return model
