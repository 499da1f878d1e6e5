"""Pieces that are read ahead by a thread, and what becomes of a step where there is none."""

from __future__ import annotations

from typing import cast
from unittest.mock import Mock

import pytest
import torch

from distkv.engine.attention.fetch.link import FetchLink
from distkv.engine.attention.fetch.reader import Piece, PieceReader
from distkv.errors import LinkClosed
from tests.threads import NO_THREAD, no_threads

PIECES = [Piece([0], (0, 64)), Piece([1], (0, 64))]


def reading(link: Mock) -> PieceReader:
    link.creditor_id = "p"
    return PieceReader(cast(FetchLink, link), PIECES, [torch.zeros(64, dtype=torch.uint8) for _ in range(2)])


def test_pieces_come_in_their_order() -> None:
    link = Mock()
    reader = reading(link)
    for _ in PIECES:
        reader.release(reader.next())
    reader.end()
    assert [call.args[0] for call in link.read.call_args_list] == [[0], [1]] and reader.read_bytes == 128
    link.end.assert_not_called()


def test_without_a_thread_the_step_misses_its_keys_and_no_more() -> None:
    """As where the link has failed: it ended the worker."""
    link = Mock()
    with no_threads():
        reader = reading(link)
    with pytest.raises(LinkClosed, match=NO_THREAD):
        reader.next()
    reader.end()
    link.end.assert_called_once()
    link.read.assert_not_called()
