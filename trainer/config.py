"""`run.toml`: one file, typed sections, unknown keys refused with the nearest name."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

import tomli_w
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from pipeline import JSON
from stages.packing import Method
from trainer.engine import CommsConfig
from trainer.errors import ConfigError
from trainer.evaluation import EvalConfig
from trainer.freeze import FreezeConfig
from trainer.model import ModelConfig
from trainer.optim import OptimConfig
from trainer.section import FREE, Free, Section
from trainer.step import Precision


class RunSection(Section):
    """[run]: the run as a whole."""

    dir: Annotated[Path, FREE]
    """The run's folder: its versions, metrics, logs and resolved configuration."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    threads: Annotated[int, FREE] = Field(default=0, ge=0, le=4096)
    """CPU threads of torch; 0 leaves torch's choice. Sums depend on it: a resume under another number warns."""
    device: Annotated[Literal["auto", "cpu", "cuda"], FREE] = "auto"


class DataConfig(Section):
    """[data]: which corpus, cut how."""

    corpus: Annotated[Path, FREE]
    """A folder written by tools.pack. It may move; its content is compared by digest."""
    seq_len: int = Field(default=1024, ge=2, lt=2**31)
    packing: Method = "wrapped"
    """wrapped: documents end to end, no padding; bfd: documents whole where they fit into a row, the rest of a row
    padded; bfd_split: as bfd, but some documents split so that nearly nothing is padded."""


class TrainConfig(Section):
    """[train]: how much. ranks x micro_batch x accumulation must make up global_batch."""

    steps: Annotated[int, FREE] = Field(ge=1)
    """Optimizer steps in all, those before a resume included."""
    global_batch: int = Field(ge=1)
    """Samples of one optimizer step, over all ranks."""
    micro_batch: int = Field(ge=1)
    """Samples of one forward pass on one rank. Another value gives the same batches, and losses equal to rounding."""
    precision: Precision = "fp32"
    """bf16: matrix products in bf16 (autocast); weights, optimizer state, sums and the loss stay in fp32."""
    activation_checkpointing: bool = False
    """Compute each block's inside again in backward instead of keeping it: less memory, about a third more time."""


class CheckpointConfig(Section):
    """[checkpoint]: how often a version is taken. The end of a run always takes one."""

    every_steps: Annotated[int, FREE] = Field(default=100, ge=1)


class LogConfig(Section):
    """[log]: what is said while training. metrics.jsonl has every step."""

    every_steps: Annotated[int, FREE] = Field(default=10, ge=1)
    """Steps between console lines."""
    sample_ids: Annotated[bool, FREE] = False
    """Write the ids of every step's samples into metrics.jsonl."""


class RunConfig(Section):
    run: RunSection
    data: DataConfig
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig
    freeze: FreezeConfig = FreezeConfig()
    comms: CommsConfig = CommsConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    def accumulation(self, world_size: int) -> int:
        """Micro batches per step and rank. Raises ConfigError where they do not make up the global batch."""
        chunk = world_size * self.train.micro_batch
        if self.train.global_batch % chunk:
            below = self.train.global_batch // chunk * chunk
            near = f"{below} or {below + chunk}" if below else f"{chunk}"
            raise ConfigError(
                f"train.global_batch {self.train.global_batch} is no multiple of ranks x micro_batch = "
                f"{world_size} x {self.train.micro_batch}; the nearest that is: {near}"
            )
        return self.train.global_batch // chunk

    def resolved(self, saved: Mapping[str, JSON] | None) -> RunConfig:
        """With what depends on another key filled in, as it is written to the run's folder; paths are absolute.

        `saved` is the configuration of the version that the run goes on from: a default resolved then stays, so
        that a run that is prolonged does not bend the schedule of the steps already taken.
        """
        before = (saved or {}).get("optim")
        held = before.get("decay_steps") if isinstance(before, dict) else None
        steps = self.optim.decay_steps or (held if isinstance(held, int) else self.train.steps)
        return self.model_copy(
            update={
                "run": self.run.model_copy(update={"dir": self.run.dir.absolute()}),
                "data": self.data.model_copy(update={"corpus": self.data.corpus.absolute()}),
                "eval": self.eval.model_copy(
                    update={"corpus": self.eval.corpus and self.eval.corpus.absolute()}
                ),
                "model": self.model.model_copy(
                    update={"path": self.model.path and self.model.path.absolute()}
                ),
                "optim": self.optim.model_copy(update={"decay_steps": steps}),
            }
        )

    def plain(self) -> dict[str, dict[str, JSON]]:
        """As JSON-able data, section by section."""
        data: dict[str, dict[str, JSON]] = self.model_dump(mode="json")
        return data


def load(file: Path) -> RunConfig:
    """The configuration in `file`. Raises ConfigError naming the file and every wrong key."""
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{file}: no such file; expected a TOML configuration like examples/run.toml"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as a configuration: {error}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    config = checked(data, str(file))
    if file.name == "config.toml" and (file.parent / "versions").is_dir():
        # A run's own configuration belongs to the folder that it lies in, also after that was moved or copied.
        config = config.model_copy(update={"run": config.run.model_copy(update={"dir": file.parent})})
    return config


def checked(data: Mapping[str, object], source: str) -> RunConfig:
    """`data` as a RunConfig. Raises ConfigError, naming `source`, every wrong key and the nearest right one."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise refusal(error, source) from error


def refusal(error: ValidationError, source: str) -> ConfigError:
    """Every wrong key of `source` in one message."""
    return ConfigError("\n".join([f"{source}:", *(f"  {_said(each)}" for each in error.errors())]))


def to_toml(config: RunConfig) -> str:
    sections = {
        name: {k: v for k, v in section.items() if v is not None} for name, section in config.plain().items()
    }
    return tomli_w.dumps(sections)


def keys(config: RunConfig) -> Iterator[tuple[str, JSON, bool]]:
    """Every key with its value and whether the weights depend on it."""
    for section, values in config.plain().items():
        fields = type(getattr(config, section)).model_fields
        for key, value in values.items():
            yield f"{section}.{key}", value, not any(isinstance(m, Free) for m in fields[key].metadata)


def every_key() -> Iterator[str]:
    """The names of all keys, as `section.key`."""
    for section, field in RunConfig.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        yield from (f"{section}.{key}" for key in field.annotation.model_fields)


def _said(error: ErrorDetails) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _fields_at(error["loc"][:-1])
        close = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        return f"{name}: no such key; {hint}"
    if error["type"] == "missing":
        return f"{name}: missing"
    message = error["msg"].removeprefix("Value error, ")
    return (
        f"{name}: {message}, got {error['input']!r}" if name and error["type"] != "value_error" else message
    )


def _fields_at(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        for candidate in (annotation, *get_args(annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)
