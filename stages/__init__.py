"""What runs in the engine: from raw inputs to batches on the device.

    packing a corpus                         feeding a trainer
    inputs ─► tokenise ─► corpus   order ─► packing ─► corpus.gather ─► collate ─► transfer
    (async    (threads,   (arrow)  (which   (which     (memory map      (ids,      (pinned ring,
     reads)    Rust)                sample)  spans)     into buffers)    labels)    side stream)
                                   └──────────────── feed: the loader that a trainer holds ─────┘

A *position* is the number of samples consumed over all ranks; everything right of the corpus is a pure function of it.
Import what is needed from the modules themselves (`stages.feed`, `stages.corpus`, …); torch is imported by
`stages.transfer` alone, and only when a device is asked for.
"""
