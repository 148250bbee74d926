"""The trainer: brings a model through its steps and every step into a version.

    run.toml ─► config ─► model, optimizer ─┐
    corpus ─► feed ─► batches ──────────────┴─► train(): step, step, … ─► observers (metrics, console)
                                                     └─► checkpointer ─► versions/

Nothing heavy is imported here: tools that only need `trainer.entry` must start without torch.
"""
