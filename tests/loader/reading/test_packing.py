"""Document boundaries inside rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loader.reading.packing import (
    compute_document_ids,
    compute_position_ids,
    compute_sequence_lengths,
    mark_document_starts,
)


def test_the_example_of_the_docstring() -> None:
    """A row starts inside a document, contains a whole one, and ends inside a third."""
    marks = mark_document_starts(np.array([0, 7, 9, 30]), np.array([4]), 8)
    assert compute_document_ids(marks).tolist() == [[0, 0, 0, 1, 1, 2, 2, 2]]
    assert compute_position_ids(marks).tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert compute_sequence_lengths(marks).cu_seqlens.tolist() == [0, 3, 5, 8]
    assert compute_sequence_lengths(marks).max_seqlen == 3


@given(
    doc_lengths=st.lists(st.integers(1, 20), min_size=2, max_size=30),
    seq_len=st.integers(1, 25),
)
def test_packing_agrees_with_a_token_by_token_computation(
    doc_lengths: list[int], seq_len: int
) -> None:
    """The ids and lengths of all rows equal those of a plain loop over the tokens."""
    num_rows = (sum(doc_lengths) - 1) // seq_len
    row_starts = np.arange(num_rows) * seq_len
    marks = mark_document_starts(
        np.concatenate([[0], np.cumsum(doc_lengths)]), row_starts, seq_len
    )
    owner = np.repeat(np.arange(len(doc_lengths)), doc_lengths)
    cu_seqlens = [0]
    for row, start in enumerate(row_starts.tolist()):
        owners = owner[start : start + seq_len].tolist()
        assert compute_document_ids(marks)[row].tolist() == [
            each - owners[0] for each in owners
        ]
        assert compute_position_ids(marks)[row].tolist() == [
            owners[:i].count(each) for i, each in enumerate(owners)
        ]
        cu_seqlens += [
            row * seq_len + i
            for i in range(1, seq_len + 1)
            if i == seq_len or owners[i] != owners[i - 1]
        ]
    if num_rows:
        assert compute_sequence_lengths(marks).cu_seqlens.tolist() == cu_seqlens
