"""A run: composed from its configuration, begun or resumed, trained to its end."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import torch
from rich.console import Console
from torch import nn

from checkpoint import Checkpointer, Part, Restored
from pipeline import JSON, Item
from stages.corpus import LocalCorpus, open_corpus
from stages.feed import Feed, FeedSpec, tensor_feed
from stages.packing import PLANS
from trainer import models
from trainer import resume as rules
from trainer.config import RunConfig
from trainer.console import shown
from trainer.engine import DataParallel, Engine, Single
from trainer.environment import differing, environment
from trainer.errors import ConfigError
from trainer.evaluation import Evaluation
from trainer.folder import RunFolder
from trainer.freeze import freeze
from trainer.loop import Batch, Observer, Progress, train
from trainer.optim import NamedOptimizer, adamw
from trainer.ranks import Alone, Launched
from trainer.records import FolderRecords, NoRecords, Records
from trainer.resume import BEGINNING, Origin, Resume
from trainer.saver import Parts, VersionSaver
from trainer.signals import StopRequest, stop_on_signal
from trainer.step import TorchStep


def run(config: RunConfig, resume: Resume, console: Console, ranks: Alone | Launched) -> Progress:
    """Train `config` to its end from where `resume` says. Returns the progress at the end or at a stop by signal."""
    _settle_arithmetic(config, ranks)
    accumulation = config.accumulation(ranks.size)
    with ExitStack() as stack:
        corpus = stack.enter_context(open_corpus(config.data.corpus))
        feed = _feed(config, corpus, ranks)
        model, optimizer = _model(config, corpus, ranks)
        parts: dict[str, Part] = {"model": model, "optimizer": optimizer}
        now = environment(ranks.device, ranks.size)
        held_out = (
            None if config.eval.corpus is None else stack.enter_context(open_corpus(config.eval.corpus))
        )
        # The folder comes after whatever else can be refused: a mistake must not leave an empty run behind.
        folder = RunFolder(config.run.dir)
        if resume.version is not None and not folder.versions.exists():
            raise ConfigError(f"--resume {resume.version}: {folder.path} holds no versions yet")
        folder.make()
        checkpointer = stack.enter_context(Checkpointer(folder.versions, group=ranks.versions))
        saved = _saved(checkpointer, resume)
        config = config.resolved(None if saved is None else _section(saved, "config"))
        origin = BEGINNING
        if saved is not None:
            # Every refusal comes before the first change.
            _accept(saved, config, resume, feed, now)
            restored = checkpointer.restore(saved.info.version, parts, allow_older=resume.allow_older)
            restored = replace(restored, damaged=restored.damaged or saved.damaged)
            origin = _accept(restored, config, resume, feed, now)
        records: Records = (
            FolderRecords(folder, config, origin.progress.step, console) if ranks.rank == 0 else NoRecords()
        )
        stack.enter_context(records)
        records.began(origin, _about(config, corpus, model, ranks))
        stop = stack.enter_context(stop_on_signal())
        observers = [*records.observers]
        if held_out is not None:
            observers.append(_evaluation(config, held_out, model, ranks, stop, records))
        saver = VersionSaver(
            checkpointer,
            partial(_whole, parts, config, now),
            every=config.checkpoint.every_steps,
            saved_step=origin.progress.step if origin.version is not None else None,
            before=records.sync,
            acknowledged=records.version,
        )

        def until(progress: Progress) -> bool:
            return progress.step >= config.train.steps or ranks.any(stop.asked)

        try:
            step = TorchStep(
                _engine(config, model, ranks),
                model,
                optimizer.optimizer,
                config.optim,
                ranks=ranks,
                seed=config.run.seed,
                precision=config.train.precision,
            )
            items = stack.enter_context(closing(grouped(feed.items(), accumulation)))
            progress = train(
                items, step, progress=origin.progress, until=until, saver=saver, observers=observers
            )
        except Exception as error:
            records.failed(error)
            ranks.failed(error)
            raise
        records.ended(progress, _reason(config, progress, stop))
        return progress


def grouped(
    items: Generator[Item[Batch], None, None], count: int
) -> Generator[Item[Sequence[Batch]], None, None]:
    """`count` micro batches an item, resumable after the last of them. Closes `items` when it is closed itself."""
    with closing(items):
        while group := list(itertools.islice(items, count)):
            yield Item([item.value for item in group], group[-1].resume)


def _settle_arithmetic(config: RunConfig, ranks: Alone | Launched) -> None:
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if ranks.device.type == "cuda":
        # Without it cuBLAS and scatter kernels sum in an order that changes from run to run.
        torch.use_deterministic_algorithms(True, warn_only=True)


def _feed(config: RunConfig, corpus: LocalCorpus, ranks: Alone | Launched) -> Feed[Batch]:
    spec = FeedSpec(
        seq_len=config.data.seq_len,
        batch_size=config.train.micro_batch,
        seed=config.run.seed,
        rank=ranks.rank,
        world_size=ranks.size,
        packing=config.data.packing,
        plans=config.data.corpus / PLANS,
    )
    return tensor_feed(corpus, spec, str(ranks.device))


def _model(
    config: RunConfig, corpus: LocalCorpus, ranks: Alone | Launched
) -> tuple[nn.Module, NamedOptimizer]:
    torch.manual_seed(config.run.seed)
    vocabulary = corpus.meta.tokenizer.vocab_size
    model = models.build(config.model, vocabulary, recompute=config.train.activation_checkpointing)
    model = model.to(ranks.device)
    # The optimizer holds every parameter, so that freezing changes what is trained and not what is kept.
    optimizer = adamw(model, config.optim)
    freeze(model, config.freeze)
    return model, NamedOptimizer(optimizer, model)


def _engine(config: RunConfig, model: nn.Module, ranks: Alone | Launched) -> Engine:
    if isinstance(ranks, Alone):
        return Single(model)
    engine = DataParallel(model, ranks, config.comms)
    shape = (config.train.micro_batch, config.data.seq_len)
    ids = torch.zeros(shape, dtype=torch.int64, device=ranks.device)
    engine.settle(ids, torch.arange(shape[1], device=ranks.device).expand(shape))
    return engine


def _evaluation(
    config: RunConfig,
    corpus: LocalCorpus,
    model: nn.Module,
    ranks: Alone | Launched,
    stop: StopRequest,
    records: Records,
) -> Observer:
    spec = FeedSpec(
        seq_len=config.data.seq_len,
        batch_size=config.train.micro_batch,
        rank=ranks.rank,
        world_size=ranks.size,
        columns=("input_ids", "labels", "position_ids"),
        packing=config.data.packing,
        plans=None if config.eval.corpus is None else config.eval.corpus / PLANS,
    )
    return Evaluation(
        model,
        lambda: tensor_feed(corpus, spec, str(ranks.device)),
        ranks,
        config.eval,
        precision=config.train.precision,
        stopping=lambda: stop.asked,
        report=records.evaluated,
    )


def _whole(
    parts: Mapping[str, Part], config: RunConfig, now: Mapping[str, JSON], progress: Progress
) -> Parts:
    """The whole run as a version holds it."""
    return {
        **parts,
        "feed": progress.feed,
        "progress": {"step": progress.step, "position": progress.position, "tokens": progress.tokens},
        "config": config.plain(),
        "environment": now,
    }


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
            f"bits may differ from the uninterrupted run: {difference}"
            for difference in differing(_section(saved, "environment"), now)
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


def _about(config: RunConfig, corpus: LocalCorpus, model: nn.Module, ranks: Alone | Launched) -> list[str]:
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    return [
        f"corpus {shown(config.data.corpus)}: {corpus.meta.documents:,} documents, {corpus.meta.tokens:,} tokens",
        f"model: {total:,} parameters, {trained:,} trained",
        *([f"ranks: {ranks.size}, on {ranks.device.type}"] if ranks.size > 1 else []),
    ]


def _reason(config: RunConfig, progress: Progress, stop: StopRequest) -> str:
    if progress.step >= config.train.steps:
        return "done"
    return f"stopped by {stop.signal.name}" if stop.signal is not None else "stopped by another rank's signal"
