"""Augmentations: what is done to samples between reading and collating, pure in (seed, position).

    gathered rows ─► augment(rows, seed) ─► rows ─► position_ids, cu_seqlens, attention_mask
         │                  ▲
         └─ positions ─► words: 64 random bits for each (seed, use, position, place)

An augmentation keeps no state and draws no number from anywhere but `words`, so a sample comes out the same at any
width, any cut, any rank and after any resume, and anew in each epoch, since positions run across epochs.

| class | trains | changes |
| --- | --- | --- |
| MaskedLanguageModelling | encoders, as BERT | some ids; labels are the ids that were chosen |
| SpanCorruption | sequence-to-sequence models, as T5 | ids and labels become two shorter rows |
| FillInTheMiddle | causal models of code | the order within some documents |

One's own is any class with what `Augmentation` names.
"""

from stages.augment.fill_in_the_middle import FillInTheMiddle
from stages.augment.masked import MaskedLanguageModelling
from stages.augment.randomness import below, chance, words
from stages.augment.rows import Augmentation, Rows, Widths
from stages.augment.span_corruption import SpanCorruption

__all__ = [
    "Augmentation",
    "FillInTheMiddle",
    "MaskedLanguageModelling",
    "Rows",
    "SpanCorruption",
    "Widths",
    "below",
    "chance",
    "words",
]
