"""prepare: what the tensors of a microbatch say, which plans go to creditors, and who is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distkv.engine.attention.merging import Gather
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Device
from distkv.engine.step.batch import Batch, PlannedSeq
from distkv.engine.step.prepare import prepare
from distkv.engine.step.tables import BlockTables
from distkv.errors import MalformedMessage
from distkv.token_ids import unpack
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import PromptLogprobs, SeqStep
from tests.checkpoints import variant
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step
from tests.engine.lent import Lent
from tests.token_ids import packed

IDS = tuple(range(100, 160))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, num_slots=128)


def prepared(engine: Engine, *seqs: SeqStep | PlannedSeq, device: Device | None = None, microbatch: int = 0) -> Batch:
    planned = [PlannedSeq(seq, unpack(seq.tokens)) if isinstance(seq, SeqStep) else seq for seq in seqs]
    device = device or CpuDevice()
    return prepare(
        7, planned, engine.pool, BlockTables(engine.pool), engine.model.config, engine.peers, device, microbatch
    )


def test_rows_follow_each_other_sequence_by_sequence(engine: Engine) -> None:
    """A decode step at position 9 and a chunk [3, 6); blocks have 4 tokens, and lie in no order."""
    batch = prepared(
        engine,
        seq_step(IDS, 9, 10, (Run(0, 20, 2), Run(2, 7, 1)), name="decode", sample=GREEDY),
        seq_step(IDS, 3, 6, (Run(0, 50, 1), Run(1, 40, 1)), name="chunk"),
    )
    assert [seq.rows for seq in batch.seqs] == [slice(0, 1), slice(1, 4)]
    assert batch.tokens.tolist() == [109, 103, 104, 105]
    assert batch.positions.tolist() == [9, 3, 4, 5]
    assert batch.slots.tolist() == [7, 50, 40, 40]
    assert batch.offsets.tolist() == [1, 3, 0, 1]
    assert batch.wanted.tolist() == [0], "a chunk without a token to sample has no wanted row"
    assert {tensor.dtype for tensor in (batch.tokens, batch.slots, batch.offsets, batch.wanted)} == {torch.int64}
    assert batch.metadata.rows == (range(0, 1), range(1, 4))
    assert batch.metadata.positions is batch.positions
    assert [tuple(seq.local.slots) for seq in batch.seqs] == [(20, 21, 7), (50, 40)]
    assert batch.links == [] and batch.merge_plan.parts == ()


def test_wanted_rows_are_those_to_sample_and_then_those_of_prompts(engine: Engine) -> None:
    """Position p is predicted by the row of position p - 1."""
    first = PromptLogprobs(first=2, token_ids=packed(*IDS[2:4]), top=1)
    second = PromptLogprobs(first=11, token_ids=packed(*IDS[11:12]), top=1)
    batch = prepared(
        engine,
        seq_step(IDS, 0, 5, engine.table(8), name="a", prompt_logprobs=first),
        seq_step(IDS, 5, 6, engine.table(8), name="b", sample=GREEDY),
        seq_step(IDS, 8, 12, engine.table(12), name="c", sample=GREEDY, prompt_logprobs=second),
    )
    assert batch.wanted.tolist() == [5, 9, 1, 2, 8]


@pytest.mark.parametrize(("first", "count"), [(8, 1), (7, 2), (12, 3), (14, 1)])
def test_rows_that_predict_none_of_the_wanted_positions_are_refused(engine: Engine, first: int, count: int) -> None:
    """Rows [8, 13) predict positions 9 to 13."""
    wanted = PromptLogprobs(first=first, token_ids=packed(*IDS[first : first + count]), top=1)
    with pytest.raises(MalformedMessage, match="predicts no positions"):
        prepared(engine, seq_step(IDS, 8, 13, engine.table(16), prompt_logprobs=wanted))


def test_each_creditor_gets_one_plan_of_the_rows_that_concern_it(engine: Engine) -> None:
    """Rows 0 and 1 have keys on x and y, row 2 has none elsewhere."""
    lent = Lent(engine)
    batch = prepared(engine, lent.step(), seq_step(IDS, 0, 1, engine.table(4), name="local", sample=GREEDY))
    x, y = (engine.peers.creditors[name].plans for name in "xy")
    assert (len(x), len(y)) == (1, 1)
    assert [(entry.first_position, entry.row, entry.num_rows) for entry in y[0].entries] == [(20, 0, 2), (36, 0, 2)]
    assert [(plan.step_id, plan.num_rows) for plan in (*x, *y)] == [(7, 2), (7, 2)]
    assert [link.rows for link in batch.links] == [slice(0, 2)] * 2
    assert [link.partial_rows for link in batch.links] == [2, 4]
    # Block 0 is here, 1-4 on x, 5 and 6 on y, 7 and 8 here, 9 on y: the local part has the first token.
    assert batch.seqs[0].remote == [(0, 0), (1, 0), (1, 1)] and batch.seqs[0].local_place == 0
    assert batch.merge_plan.rows == slice(0, 2)
    assert batch.merge_plan.parts == (
        Gather(0, slice(0, 2)),
        Gather(1, slice(0, 2)),
        Gather(2, slice(0, 2)),
        Gather(2, slice(2, 4)),
    )


def test_spans_that_no_query_sees_are_left_out(tmp_path: Path) -> None:
    engine = Engine(variant(tmp_path, "mistral-window", sliding_window=12), num_slots=128)
    lent = Lent(engine)
    batch = prepared(engine, lent.step(48, 50))
    assert [span.first_block for span in batch.seqs[0].spans] == [9], "positions [36, 40) of those from 37 on"
    assert [span.first_block for span in prepared(engine, lent.step(28, 32)).seqs[0].spans] == [1, 5]


def test_who_has_spans_on_an_unreachable_creditor_has_no_rows(engine: Engine) -> None:
    lent = Lent(engine)
    del engine.peers.creditors["y"]
    hit = PlannedSeq(lent.step(), unpack(lent.step().tokens))
    local = seq_step(IDS, 0, 3, engine.table(4), name="local", sample=GREEDY)
    batch = prepared(engine, hit, local)
    assert hit.lost == {"y"}
    assert [seq.step.request_id for seq in batch.seqs] == ["local"]
    assert batch.seqs[0].rows == slice(0, 3) and batch.tokens.tolist() == list(IDS[:3])
    assert batch.links == [] and engine.peers.creditors["x"].plans == []


def test_who_was_lost_in_an_earlier_microbatch_has_no_rows(engine: Engine) -> None:
    lent = Lent(engine)
    step = lent.step()
    batch = prepared(engine, PlannedSeq(step, unpack(step.tokens), lost={"x"}), microbatch=1)
    assert batch.seqs == [] and len(batch.tokens) == 0


def test_a_plan_that_cannot_be_sent_loses_its_sequences(engine: Engine) -> None:
    lent = Lent(engine)
    engine.peers.creditors["x"].fail_at = ("plan", 0)
    hit = PlannedSeq(lent.step(), unpack(lent.step().tokens))
    batch = prepared(engine, hit)
    assert hit.lost == {"x"}
    assert [link.is_open for link in batch.links] == [False, False], "nobody else computes for it in vain"


def test_everything_goes_to_the_device_by_one_copy(engine: Engine) -> None:
    """Also index tensors: rows of x's sequences do not follow each other here."""
    device = AsyncHost()
    lent, other = Lent(engine, "a"), Lent(engine, "b", seed=6)
    with device.stream():
        batch = prepared(
            engine,
            lent.step(),
            seq_step(IDS, 0, 3, engine.table(4), name="local", sample=GREEDY),
            other.step(),
            device=device,
        )
    assert device.copies_in == 1
    rows = batch.links[0].rows
    assert isinstance(rows, torch.Tensor) and rows.tolist() == [0, 1, 5, 6]
    assert isinstance(batch.merge_plan.rows, torch.Tensor)
    assert batch.merge_plan.rows.tolist() == [0, 1, 5, 6]
