"""A run: composed from its configuration, begun or resumed, trained to its end."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import nn

from checkpoint import Checkpointer, Part, VersionInfo
from pipeline import JSON, Item, State
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

BEGINNING = Progress(step=0, position=0, tokens=0, feed={})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run goes on from: nothing (version None) or a version, and what has changed since."""

    version: int | None
    progress: Progress
    changed: Sequence[Change] = ()
    warnings: Sequence[str] = ()


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
        folder = RunFolder(config.run.dir)
        checkpointer = stack.enter_context(Checkpointer(folder.versions))
        version = _version(checkpointer, resume)
        saved = checkpointer.plain(version) if version is not None else {}
        config = config.resolved(saved.get("config"))
        model, optimizer = _model(config, corpus, device)
        parts = {"model": model, "optimizer": optimizer}
        now = environment(device, world_size=1)
        origin = _restore(checkpointer, version, saved, config, resume, parts, feed, now)
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


def grouped(items: Iterator[Item[Batch]], count: int) -> Iterator[Item[Sequence[Batch]]]:
    """`count` micro batches an item, resumable after the last of them."""
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


def _version(checkpointer: Checkpointer, resume: Resume) -> int | None:
    if resume.fresh:
        return None
    if resume.version is not None:
        return resume.version
    return checkpointer.last_good() if resume.allow_older else checkpointer.latest()


def _restore(
    checkpointer: Checkpointer,
    version: int | None,
    saved: Mapping[str, State],
    config: RunConfig,
    resume: Resume,
    parts: Mapping[str, Part],
    feed: Feed[Batch],
    now: Mapping[str, JSON],
) -> Origin:
    """Bring parts and feed to `version`. Every refusal comes before the first change."""
    if version is None:
        return Origin(None, BEGINNING)
    found = rules.changes(saved["config"], config)
    rules.refuse_inexact(found, resume.allow_change)
    feed.load_state_dict(saved["feed"])
    checkpointer.restore(version, parts)
    done = saved["progress"]
    progress = Progress(_integer(done, "step"), _integer(done, "position"), _integer(done, "tokens"), saved["feed"])
    return Origin(version, progress, found, differing(saved["environment"], now))


def _integer(plain: Mapping[str, JSON], key: str) -> int:
    value = plain[key]
    assert isinstance(value, int), f"progress.{key} is {value!r}"
    return value


def _announce(
    console: Console, log: RunLog, config: RunConfig, corpus: LocalCorpus, model: nn.Module, origin: Origin
) -> None:
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    begun = f"resuming from version {origin.version} at step {origin.progress.step}" if origin.version else "a new run"
    lines = [
        f"run {config.run.dir}: {begun}, to step {config.train.steps}",
        f"corpus {config.data.corpus}: {corpus.meta.documents:,} documents, {corpus.meta.tokens:,} tokens",
        f"model: {total:,} parameters, {trained:,} trained",
        *(f"changed since the version: {change}" for change in origin.changed),
        *(f"warning: bits may differ from the uninterrupted run: {warning}" for warning in origin.warnings),
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
    reason = "done" if progress.step >= config.train.steps else f"stopped by {stop.signal and stop.signal.name}"
    log.event("end", step=progress.step, reason=reason)
    console.print(f"{reason}: step {progress.step}, {progress.tokens:,} tokens trained", highlight=False)
