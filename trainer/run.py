"""A run: composed from its configuration, begun or resumed, trained to its end."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from torch import nn

from checkpoint import Checkpointer, Part, Restored, VersionInfo
from pipeline import JSON, Item
from stages.corpus import LocalCorpus, open_corpus
from stages.feed import Feed, FeedSpec, tensor_feed
from trainer import resume as rules
from trainer.config import RunConfig, to_toml
from trainer.environment import differing, environment
from trainer.errors import ConfigError
from trainer.folder import RunFolder, RunLog
from trainer.freeze import freeze
from trainer.loop import Batch, Progress, train
from trainer.model import GPT
from trainer.observers import ConsoleLine, MetricsFile
from trainer.optim import NamedOptimizer, adamw
from trainer.resume import Change, Resume
from trainer.saver import Parts, VersionSaver
from trainer.signals import StopRequest, stop_on_signal
from trainer.step import TorchStep


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run goes on from: nothing (version None) or a version, and what has changed since."""

    version: int | None
    progress: Progress
    changed: Sequence[Change] = ()
    warnings: Sequence[str] = ()


BEGINNING = Origin(None, Progress(step=0, position=0, tokens=0, feed={}))


def run(config: RunConfig, resume: Resume, console: Console) -> Progress:
    """Train `config` to its end from where `resume` says. Returns the progress at the end or at a stop by signal."""
    device = _device(config)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if device.type == "cuda":
        # Without it cuBLAS and scatter kernels sum in an order that changes from run to run.
        torch.use_deterministic_algorithms(True, warn_only=True)
    with ExitStack() as stack:
        corpus = stack.enter_context(open_corpus(config.data.corpus))
        feed = _feed(config, corpus, device)
        model, optimizer = _model(config, corpus, device)
        parts: dict[str, Part] = {"model": model, "optimizer": optimizer}
        now = environment(device, world_size=1)
        # The folder comes after whatever else can be refused: a mistake must not leave an empty run behind.
        folder = RunFolder(config.run.dir)
        if resume.version is not None and not folder.versions.exists():
            raise ConfigError(f"--resume {resume.version}: {folder.path} holds no versions yet")
        folder.make()
        checkpointer = stack.enter_context(Checkpointer(folder.versions))
        saved = _saved(checkpointer, resume)
        config = config.resolved(None if saved is None else _section(saved, "config"))
        origin = BEGINNING
        if saved is not None:
            # Every refusal comes before the first change.
            _accept(saved, config, resume, feed, now)
            restored = checkpointer.restore(saved.info.version, parts, allow_older=resume.allow_older)
            restored = replace(restored, damaged=restored.damaged or saved.damaged)
            origin = _accept(restored, config, resume, feed, now)
        folder.write_config(to_toml(config))
        folder.cut_metrics(origin.progress.step)
        log = stack.enter_context(closing(RunLog(folder, uuid.uuid4().hex[:12], rank=0)))
        metrics = stack.enter_context(closing(MetricsFile(folder.metrics, sample_ids=config.log.sample_ids)))
        _announce(console, log, config, corpus, model, origin)

        def whole(progress: Progress) -> Parts:
            return {
                **parts,
                "feed": progress.feed,
                "progress": {"step": progress.step, "position": progress.position, "tokens": progress.tokens},
                "config": config.plain(),
                "environment": now,
            }

        def acknowledged(info: VersionInfo) -> None:
            log.event("version", version=info.version, step=info.step, new_bytes=info.new_bytes)
            console.print(
                f"version {info.version} at step {info.step}: {info.new_bytes:,} new bytes of {info.total_bytes:,}",
                soft_wrap=True,
                highlight=False,
            )

        saver = VersionSaver(
            checkpointer,
            whole,
            every=config.checkpoint.every_steps,
            saved_step=origin.progress.step if origin.version is not None else None,
            acknowledged=acknowledged,
        )
        step = TorchStep(model, optimizer.optimizer, config.optim, seed=config.run.seed)
        stop = stack.enter_context(stop_on_signal())
        items = stack.enter_context(closing(grouped(feed.items(), config.accumulation(world_size=1))))
        progress = train(
            items,
            step,
            progress=origin.progress,
            until=lambda progress: stop.signal is not None or progress.step >= config.train.steps,
            saver=saver,
            observers=(metrics, ConsoleLine(console, steps=config.train.steps, every=config.log.every_steps)),
        )
        _close(console, log, config, progress, stop)
        return progress


def grouped(
    items: Generator[Item[Batch], None, None], count: int
) -> Generator[Item[Sequence[Batch]], None, None]:
    """`count` micro batches an item, resumable after the last of them. Closes `items` when it is closed itself."""
    with closing(items):
        while group := list(itertools.islice(items, count)):
            yield Item([item.value for item in group], group[-1].resume)


def _device(config: RunConfig) -> torch.device:
    available = torch.cuda.is_available()
    if config.run.device == "cuda" and not available:
        raise ConfigError("run.device is cuda, but torch sees no CUDA device; set it to auto or cpu")
    return torch.device("cuda" if available and config.run.device != "cpu" else "cpu")


def _feed(config: RunConfig, corpus: LocalCorpus, device: torch.device) -> Feed[Batch]:
    spec = FeedSpec(
        seq_len=config.data.seq_len,
        batch_size=config.train.micro_batch,
        seed=config.run.seed,
        end=config.train.steps * config.train.global_batch,
    )
    return tensor_feed(corpus, spec, str(device))


def _model(config: RunConfig, corpus: LocalCorpus, device: torch.device) -> tuple[nn.Module, NamedOptimizer]:
    torch.manual_seed(config.run.seed)
    model = GPT(config.model, corpus.meta.tokenizer.vocab_size).to(device)
    # The optimizer holds every parameter, so that freezing changes what is trained and not what is kept.
    optimizer = adamw(model, config.optim)
    freeze(model, config.freeze)
    return model, NamedOptimizer(optimizer, model)


def _saved(checkpointer: Checkpointer, resume: Resume) -> Restored | None:
    """The version to go on from, as far as its plain data; None for a new run."""
    if resume.fresh or (resume.version is None and checkpointer.latest() is None):
        return None
    return checkpointer.restore(resume.version, {}, allow_older=resume.allow_older)


def _accept(
    saved: Restored, config: RunConfig, resume: Resume, feed: Feed[Batch], now: Mapping[str, JSON]
) -> Origin:
    """Hold the version against what it is resumed with, and seek the feed. Raises ChangedConfig, FeedMismatch."""
    found = rules.changes(_section(saved, "config"), config)
    rules.refuse_inexact(found, resume.allow_change)
    state = _section(saved, "feed")
    feed.load_state_dict(state)
    done = _section(saved, "progress")
    progress = Progress(_integer(done, "step"), _integer(done, "position"), _integer(done, "tokens"), state)
    warnings = [
        *([f"{saved.damaged}"] if saved.damaged is not None else []),
        *(
            f"bits may differ from the uninterrupted run: {d}"
            for d in differing(_section(saved, "environment"), now)
        ),
    ]
    return Origin(saved.info.version, progress, found, warnings)


def _section(saved: Restored, part: str) -> dict[str, JSON]:
    plain = saved.plain.get(part)
    if not isinstance(plain, dict):
        raise ConfigError(
            f"version {saved.info.version} holds no {part!r}: it was not written by this trainer"
        )
    return plain


def _integer(plain: Mapping[str, JSON], key: str) -> int:
    value = plain.get(key)
    if not isinstance(value, int):
        raise ConfigError(f"the version's progress has no {key!r}: it was not written by this trainer")
    return value


def _announce(
    console: Console, log: RunLog, config: RunConfig, corpus: LocalCorpus, model: nn.Module, origin: Origin
) -> None:
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    begun = (
        f"resuming from version {origin.version} at step {origin.progress.step}"
        if origin.version
        else "a new run"
    )
    lines = [
        f"run {config.run.dir}: {begun}, to step {config.train.steps}",
        f"corpus {config.data.corpus}: {corpus.meta.documents:,} documents, {corpus.meta.tokens:,} tokens",
        f"model: {total:,} parameters, {trained:,} trained",
        *(f"changed since the version: {change}" for change in origin.changed),
        *(f"warning: {warning}" for warning in origin.warnings),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    log.event(
        "start",
        version=origin.version,
        step=origin.progress.step,
        changed=[str(change) for change in origin.changed],
        warnings=list(origin.warnings),
    )


def _close(console: Console, log: RunLog, config: RunConfig, progress: Progress, stop: StopRequest) -> None:
    reason = (
        "done" if progress.step >= config.train.steps else f"stopped by {stop.signal and stop.signal.name}"
    )
    log.event("end", step=progress.step, reason=reason)
    console.print(f"{reason}: step {progress.step}, {progress.tokens:,} tokens trained", highlight=False)
