"""What every augmentation must do: subclass the contract, name one, and get its tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages import collate
from stages.augment import Augmentation, Rows

SEQ_LEN = 24

generated = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])
"""A contract's tests run once for each of its subclasses."""


def rows_of(samples: Sequence[Sequence[Sequence[int]]], seq_len: int = SEQ_LEN, position: int = 0) -> Rows:
    """Rows of documents of token ids, at consecutive positions."""
    ids_ST = np.zeros((len(samples), seq_len), np.int64)
    starts: list[int] = []
    filled = [sum(map(len, sample)) for sample in samples]
    for row, sample in enumerate(samples):
        at = 0
        for document in sample:
            starts.append(row * seq_len + at)
            ids_ST[row, at : at + len(document)] = document
            at += len(document)
        if at < seq_len:
            starts.append(row * seq_len + at)
    labels_ST = np.empty_like(ids_ST)
    collate.labels(ids_ST, np.array(starts), out=labels_ST)
    labels_ST[collate.padding(np.array(filled), seq_len)] = collate.IGNORE
    rows = Rows(
        position + np.arange(len(samples), dtype=np.int64),
        ids_ST,
        labels_ST,
        np.array(starts),
        np.array(filled),
    )
    for array in (rows.positions_S, rows.ids_ST, rows.labels_SU, rows.starts, rows.filled_S):
        array.flags.writeable = False
    return rows


@st.composite
def samples(draw: st.DrawFn) -> list[list[int]]:
    """Documents of one row: at least one token, at most SEQ_LEN."""
    filled = draw(st.integers(1, SEQ_LEN))
    cuts = sorted(draw(st.sets(st.integers(1, max(filled - 1, 1)), max_size=3)))
    tokens = draw(st.lists(st.integers(0, 90), min_size=filled, max_size=filled))
    return [part for a, b in zip([0, *cuts], [*cuts, filled], strict=True) if (part := tokens[a:b])]


class AugmentationContract(ABC):
    @abstractmethod
    def augmentation(self) -> Augmentation:
        """One that takes rows of SEQ_LEN and ids up to 90."""

    @generated
    @given(
        rows=st.lists(samples(), min_size=1, max_size=5),
        position=st.integers(0, 1 << 61),
        seed=st.integers(0, 99),
    )
    def test_a_sample_comes_out_the_same_in_any_company(
        self, rows: list[list[list[int]]], position: int, seed: int
    ) -> None:
        """Hence at every width and every cut; and what came in, which is read-only here, is not written to."""
        augment = self.augmentation()
        together = augment(rows_of(rows, position=position), seed)
        width = augment.widths(SEQ_LEN).ids
        for k, sample in enumerate(rows):
            alone = augment(rows_of([sample], position=position + k), seed)
            assert alone.ids_ST[0].tolist() == together.ids_ST[k].tolist()
            assert alone.labels_SU[0].tolist() == together.labels_SU[k].tolist()
            assert alone.filled_S.tolist() == [together.filled_S[k]]
            inside = (together.starts >= k * width) & (together.starts < (k + 1) * width)
            assert alone.starts.tolist() == (together.starts[inside] - k * width).tolist()

    @generated
    @given(rows=st.lists(samples(), min_size=1, max_size=5))
    def test_rows_are_as_wide_as_said_and_padding_has_no_label(self, rows: list[list[list[int]]]) -> None:
        augment = self.augmentation()
        augmented = augment(rows_of(rows), seed=3)
        widths = augment.widths(SEQ_LEN)
        assert augmented.ids_ST.shape == (len(rows), widths.ids)
        assert augmented.labels_SU.shape == (len(rows), widths.labels)
        assert augmented.ids_ST.dtype == augmented.labels_SU.dtype == np.int64
        assert (augmented.filled_S <= widths.ids).all()
        assert (np.diff(augmented.starts) > 0).all()
        padding = collate.padding(augmented.filled_S, widths.ids)
        begins = np.zeros(padding.size + 1, np.bool_)
        begins[augmented.starts] = True
        assert begins[np.arange(len(rows)) * widths.ids].all()
        for row, filled in enumerate(augmented.filled_S.tolist()):
            assert filled == widths.ids or begins[row * widths.ids + filled]
        if widths == (SEQ_LEN, SEQ_LEN):
            assert (augmented.labels_SU[padding] == collate.IGNORE).all()
            assert (augmented.labels_SU < 1 << 31).all()

    def test_each_seed_and_each_position_is_another_draw(self) -> None:
        augment = self.augmentation()
        row = [list(range(SEQ_LEN))]
        outcomes = {
            augment(rows_of([row], position=position), seed).ids_ST.tobytes()
            for position in range(20)
            for seed in range(3)
        }
        assert len(outcomes) > 20

    def test_its_identity_does_not_change_from_one_process_to_the_next(self) -> None:
        """As far as one process can tell: not by instance, and by no address."""
        assert self.augmentation().identity == self.augmentation().identity
        assert " at 0x" not in self.augmentation().identity
