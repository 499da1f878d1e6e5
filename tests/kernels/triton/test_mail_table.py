"""Mail of a whole step, by functions on the host and by Triton's kernels: several creditors, faults, empty lines."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from distkv.kernels import Backend
from distkv.kernels.mail_table import MailField, MailTable, addresses
from distkv.kernels.mailbox import SPOILT, Lane, MailStatus, post, take
from tests.engine.attention.mailbox.ends import backend_of

ROWS, HEADS, DIM, LAYERS = 5, 4, 24, 3


@dataclass
class Creditor:
    """Rows that it is asked with, the first of its partials, and both lanes, which the two ends of this test share."""

    asked: list[int]
    first_partial: int
    partial_rows: int
    first: int

    def __post_init__(self) -> None:
        def words(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int64)

        self.halt, self.status, self.times = words(1), words(1), words(2)
        done = torch.zeros(2, dtype=torch.int32)
        bodies = torch.full((2, 3 * ROWS * HEADS * (DIM + 1)), -1, dtype=torch.int32)
        self.queries, self.partials = (
            Lane(words(1), self.halt, body, self.status, done[i : i + 1], self.times) for i, body in enumerate(bodies)
        )

    def line(self, limit_s: float) -> list[int]:
        fields = [self.first, len(self.asked), self.partial_rows, self.first_partial, int(limit_s * 1e9)]
        rows = self.asked + [0] * (ROWS - len(self.asked))
        return [*addresses(self.queries, self.partials), *fields, *rows]

    def answer(self, layer: int) -> torch.Tensor:
        """Its queries, and partials of them posted: rows of all queries' sums, times 1, 2, and so on."""
        theirs = Lane(*(getattr(self.queries, name) for name in ("flag", "halt", "body")), *_own())
        queries = torch.zeros(len(self.asked), HEADS, DIM)
        take(theirs, self.first + layer, queries, limit_s=1.0)
        assert int(theirs.status) == MailStatus.OK
        ours = Lane(*(getattr(self.partials, name) for name in ("flag", "halt", "body")), *_own())
        post(ours, self.first + layer, *self.partial(queries))
        return queries

    def partial(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        times = torch.arange(1, self.partial_rows + 1, dtype=torch.float32)[:, None, None]
        out = queries.sum(0) * times
        return out, out.sum(-1)


def _own() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "triton":
        pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")
        if torch.cuda.is_available():
            pytest.skip("compiled kernels reach no memory of the host that is not registered")
    return backend_of(str(request.param))


def table_of(*creditors: Creditor | None, limit_s: float = 1.0) -> MailTable:
    nobody = [0] * (len(MailField) + ROWS)
    return MailTable(torch.tensor([one.line(limit_s) if one else nobody for one in creditors]))


def staged() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((3 * ROWS + 1, HEADS, DIM), -7.0), torch.full((3 * ROWS + 1, HEADS), -7.0)


def test_each_creditor_gets_its_rows_and_answers_into_its_own(backend: Backend) -> None:
    """Layer by layer, lines of nobody between them; what belongs to nobody stays as it was."""
    one, other = Creditor([0, 2, 4], 0, 4, first=9), Creditor([2], 4, 2, first=2**40)
    table, (out, lse) = table_of(one, None, other), staged()
    for layer in range(LAYERS):
        q = torch.randn(ROWS, HEADS, DIM)
        backend.post_all(table, layer, q)
        for creditor in (other, one):
            assert torch.equal(creditor.answer(layer), q[creditor.asked])
        backend.take_all(table, layer, out, lse)
        for creditor in (one, other):
            rows = slice(creditor.first_partial, creditor.first_partial + creditor.partial_rows)
            expected = creditor.partial(q[creditor.asked])
            assert torch.equal(out[rows], expected[0]) and torch.equal(lse[rows], expected[1])
            assert int(creditor.status) == MailStatus.OK
    assert bool((out[6:] == -7).all()) and bool((lse[6:] == -7).all())
    assert bool((one.queries.body[3 * HEADS * DIM :] == -1).all())


@pytest.mark.parametrize("rows", [1, ROWS])
def test_queries_of_two_bytes(backend: Backend, rows: int) -> None:
    one, q = Creditor(list(range(rows)), 0, 1, first=1), torch.randn(ROWS, HEADS, DIM).bfloat16()
    backend.post_all(table_of(one), 0, q)
    assert torch.equal(one.queries.body[: rows * HEADS * DIM // 2], q[:rows].reshape(-1).view(torch.int32))


def test_a_creditor_that_is_late_ends_its_own_line_only(backend: Backend) -> None:
    late, well = Creditor([1], 0, 1, first=5), Creditor([1, 3], 1, 2, first=5)
    table, (out, lse) = table_of(late, well, limit_s=0.05), staged()
    for layer in range(2):
        q = torch.randn(ROWS, HEADS, DIM)
        backend.post_all(table, layer, q)
        well.answer(layer)
        backend.take_all(table, layer, out, lse)
        assert torch.equal(out[1:3], well.partial(q[well.asked])[0])
    assert [int(one.status) for one in (late, well)] == [MailStatus.LATE, MailStatus.OK]
    assert int(late.queries.flag) == SPOILT, "it is not waited for again, and need not wait"
    assert bool((out[0] == -7).all())


@pytest.mark.parametrize(("number", "halted", "status"), [(0, 1, MailStatus.HALTED), (99, 0, MailStatus.SPOILT)])
def test_a_line_that_is_halted_or_spoilt(backend: Backend, number: int, halted: int, status: MailStatus) -> None:
    one, (out, lse) = Creditor([0], 0, 1, first=5), staged()
    one.partials.flag.fill_(number)
    one.halt.fill_(halted)
    backend.take_all(table_of(one, limit_s=30.0), 0, out, lse)
    assert int(one.status) == status and bool((out == -7).all())
