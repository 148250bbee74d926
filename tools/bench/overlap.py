"""What backward hides of the reduction of gradients on a link of 1 Gbit/s.

Two ranks in two network namespaces, joined by a veth pair. headrace: both ends shaped to 1 Gbit/s (tc tbf). limit: the
same pair unshaped. `hidden_share` is from timestamps: of the time in which a reduction was under way, the part before
the last gradient was ready. Needs root and iproute2; the namespaces end with the bench.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bench import text
from tools.bench.jobs import VOCABULARY, Host, train
from tools.bench.sides import LIMIT, OURS, Round, Settings, Side, Sides

RATE = "1gbit"
PORT = 29500
BATCH = 4


@contextmanager
def bench(settings: Settings) -> Iterator[Sides]:
    corpus = text.corpus(settings, VOCABULARY)
    with two_hosts() as hosts:
        yield Sides("tokens/s", {OURS: _job(corpus, hosts, RATE), LIMIT: _job(corpus, hosts, None)})


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """Two network namespaces of this process's own, joined by a link. Raises OSError, CalledProcessError."""
    names = [f"headrace-{os.getpid()}-{end}" for end in "ab"]
    links = [f"hr{os.getpid() % 100000}{end}" for end in "ab"]
    addresses = ["10.77.0.1", "10.77.0.2"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", links[1], "netns", names[1])
        for name, link, address in zip(names, links, addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield [
            Host(("ip", "netns", "exec", name), link, address)
            for name, link, address in zip(names, links, addresses, strict=True)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def shape(hosts: list[Host], rate: str | None) -> None:
    """Limit what each host sends to `rate`; None: unlimited."""
    for host in hosts:
        assert host.interface is not None
        tc = [*host.prefix, "tc", "qdisc"]
        device = ["dev", host.interface, "root"]
        subprocess.run([*tc, "del", *device], check=False, stderr=subprocess.DEVNULL)
        if rate is not None:
            subprocess.run(
                [*tc, "add", *device, "tbf", "rate", rate, "burst", "1mb", "latency", "50ms"], check=True
            )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _job(corpus: Path, hosts: list[Host], rate: str | None) -> Side:
    def round_() -> Round:
        shape(hosts, rate)
        job = train(corpus, hosts, global_batch=2 * BATCH, micro_batch=BATCH, port=PORT)
        return Round(
            job.tokens_per_s, {"comms_s": job.comms_s, "hidden_share": job.hidden_share, "step_s": job.step_s}
        )

    return round_
