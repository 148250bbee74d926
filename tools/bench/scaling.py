"""Scaling from one rank to two, one thread each.

headrace: two ranks, each with the micro batch of the one rank (weak scaling). strong: two ranks that share the one
rank's global batch. limit: the one rank's rate doubled, what two would do that lose nothing to each other. So
headrace/limit is the efficiency of weak scaling, and strong's rate over limit's that of strong scaling.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bench import text
from tools.bench.jobs import VOCABULARY, Host, train
from tools.bench.ports import free_port
from tools.bench.sides import LIMIT, OURS, Round, Settings, Side, Sides

BATCH = 2


@contextmanager
def bench(settings: Settings) -> Iterator[Sides]:
    corpus = text.corpus(settings, VOCABULARY)
    yield Sides(
        "tokens/s",
        {
            OURS: _job(corpus, ranks=2, global_batch=2 * BATCH, micro_batch=BATCH),
            LIMIT: _job(corpus, ranks=1, global_batch=BATCH, micro_batch=BATCH, times=2),
            "strong": _job(corpus, ranks=2, global_batch=BATCH, micro_batch=BATCH // 2),
        },
    )


def _job(corpus: Path, *, ranks: int, global_batch: int, micro_batch: int, times: int = 1) -> Side:
    def round_() -> Round:
        hosts = [Host()] * ranks
        job = train(corpus, hosts, global_batch=global_batch, micro_batch=micro_batch, port=free_port())
        figures = {"comms_share": job.comms_s / job.step_s, "exposed_share": job.exposed_s / job.step_s}
        return Round(times * job.tokens_per_s, figures if ranks > 1 else {})

    return round_
