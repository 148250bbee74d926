"""The engine against the loaders that others use, at the same widths, on the same work.

    0, 1, 2, … ─► a side's workers apply the workload's maps ─► the consumer, in order
    stamped                                                     counted, timed, compared

Workloads: numbers through one and through three trivial Python maps, with one and with `width` threads each (`tiny…`);
arrays that a map fills and the consumer sums, 64 KiB in threads and 1 MiB from processes (`arrays-…`); Python that
computes and holds the GIL for about 0.2 and 2 ms, in processes and in threads (`cpu-…`).

Sides: `adapters` tells how each is set up: order kept, the same widths, buffers of about as many items, and within that
the fastest way that its own options give; but `torchdata` is as its documents show it, and `torchdata-prebatch` with
the option that puts items into groups, as `spdl-lists` is SPDL whose user does it himself. `limit` is the bare loop,
times the width where maps run in processes. `queue` is `queue.Queue` between two threads. A peer that is not installed
is left out.

Each side of a workload is a process of its own, opened once and read for a while each round. Start-up is left out of
rates, and given as `start_s`. `handoff_us`: what an item costs over the bare loop. `p50_us`, `p99_us`: from when the
source gave an item to when the consumer got it, with buffers as full as they get: a side that holds fewer items is
faster through. `cpu_us`: CPU time of all of the side's processes for each item.
"""

from tools.bench.engine.contest import bench

__all__ = ["bench"]
