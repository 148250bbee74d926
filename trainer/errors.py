"""What can go wrong in a run.

TrainerError
├── ConfigError        exit 2   the configuration, or the data and model it names, cannot be trained
│   └── ChangedConfig  exit 2   a resume under another configuration that would break exactness
└── TrainingFailed     exit 1   the run itself went wrong (a loss that is not finite, …)
"""

from __future__ import annotations

from typing import ClassVar


class TrainerError(Exception):
    exit_code: ClassVar[int] = 1


class ConfigError(TrainerError):
    exit_code = 2


class ChangedConfig(ConfigError):
    pass


class TrainingFailed(TrainerError):
    pass
