"""Which parameters are trained: freezing by pattern."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from trainer.errors import ConfigError
from trainer.section import Section


class FreezeConfig(Section):
    """[freeze]: parameters that are not trained, by shell patterns over their names (`blocks.0.*`)."""

    patterns: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    """Parameters trained although they match `patterns`."""


def freeze(model: nn.Module, config: FreezeConfig) -> list[str]:
    """Switch off the gradient of what is frozen; returns the trained names. A pattern without a match is refused."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in (*config.patterns, *config.unless):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"freeze: the pattern {pattern!r} matches no parameter; "
                f"they are named like {names[0]!r} and {names[-1]!r}"
            )
    trained = []
    for name, parameter in model.named_parameters():
        frozen = any(fnmatchcase(name, p) for p in config.patterns)
        kept = any(fnmatchcase(name, p) for p in config.unless)
        parameter.requires_grad_(not frozen or kept)
        if parameter.requires_grad:
            trained.append(name)
    if not trained:
        raise ConfigError(
            "freeze: every parameter is frozen, nothing is left to train; add patterns to freeze.unless"
        )
    return trained
