"""Times of a modelled engine, by hand and by the performance model."""

from __future__ import annotations

from typing import Any

import pytest

from distkv.checksums import pack
from distkv.control.performance.model import PerformanceModel
from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.engine.around import Around
from distkv.sim.timed.engine.engine import NO_LINK_S, Engine, Reply
from distkv.sim.timed.engine.step_work import StepTimes
from distkv.sim.timed.links import Links
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.profile import LinkProfile, Point, Profile
from tests.sim.timed.parts import LINK, PROFILE, profile

GREEDY = tw.Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
SPAN = SpanRef(span_id="s", epoch=Epoch(1, 1))
BLOCK = PROFILE.block_tokens
BLOCK_BYTES = PROFILE.layers * PROFILE.kv_bytes * BLOCK


class Bench:
    """Engines i0, i1, ... on hosts; replies: what each answered, and when."""

    def __init__(self, hosts: str = "aa", of: Profile = PROFILE) -> None:
        self.agenda = Agenda()
        self.links = Links(of, self.agenda)
        self.around = Around(self.agenda, self.links)
        self.replies: dict[str, list[tuple[float, Reply]]] = {}
        self.engines = []
        for index, host in enumerate(hosts):
            name = f"i{index}"
            self.links.place(name, host)
            self.replies[name] = []
            self.engines.append(Engine(name, 1, host, StepTimes(of), self.around, self._noting(name)))

    def _noting(self, name: str) -> Any:
        return lambda reply: self.replies[name].append((self.agenda.now(), reply))

    def step(self, name: str = "i0", index: int = -1) -> tuple[float, fw.StepResult]:
        """The last StepResult of an engine, or another one, and when it came."""
        found = [(at, reply) for at, reply in self.replies[name] if isinstance(reply, fw.StepResult)]
        return found[index]


def seq(start: int, end: int, *remote: tw.RemoteSpan, name: str = "r", attempt: int = 0) -> tw.SeqStep:
    return tw.SeqStep(
        request_id=name,
        version=0,
        attempt=attempt,
        start=start,
        end=end,
        tokens=b"",
        local=(),
        remote=remote,
        sample=GREEDY,
    )


def step(*seqs: tw.SeqStep, step_id: int = 1) -> tw.Step:
    return tw.Step(step_id=step_id, seqs=seqs)


def at(creditor: str, blocks: int, span: SpanRef = SPAN) -> tw.RemoteSpan:
    return tw.RemoteSpan(instance_id=creditor, span=span, index=0, first_block=0, num_blocks=blocks)


def lend(engine: Engine, blocks: int, span: SpanRef = SPAN) -> None:
    engine.receive(tw.Grant(span=span, slots=tuple(range(blocks))))


def test_a_step_of_decodes_takes_what_the_model_says() -> None:
    bench = Bench()
    bench.engines[0].receive(step(seq(99, 100, name="a"), seq(199, 200, name="b")))
    bench.agenda.run()
    at_s, result = bench.step()
    assert at_s == pytest.approx(0.0201 + 300e-6) == PerformanceModel(PROFILE).step_s(2, 300)
    assert result.compute_s == at_s and [one.token for one in result.results] == [1, 1]


def test_a_chunk_takes_what_the_model_says() -> None:
    bench = Bench()
    bench.engines[0].receive(step(seq(50, 151)))
    bench.agenda.run()
    per_key_s = 1e-6 + 0.1 * 99e-6
    assert bench.step()[0] == pytest.approx(0.030 + per_key_s * (50 + 51))
    assert bench.step()[0] == pytest.approx(PerformanceModel(PROFILE).prefill_s(101, 50))


def test_chunks_beside_decodes_read_the_weights_once() -> None:
    bench = Bench()
    bench.engines[0].receive(step(seq(99, 100, name="a"), seq(0, 100, name="b")))
    bench.agenda.run()
    per_key_s = 1e-6 + 99 / 1000 * 99e-6
    assert bench.step()[0] == pytest.approx(0.030 + 100e-6 + per_key_s * 50.5)


def test_steps_follow_each_other_in_order() -> None:
    bench = Bench()
    bench.engines[0].receive(step(seq(99, 100)))
    bench.engines[0].receive(step(seq(100, 101), step_id=2))
    bench.agenda.run()
    first_s, second_s = (bench.step(index=index)[0] for index in (0, 1))
    assert first_s == pytest.approx(0.0201) and second_s == pytest.approx(first_s + 0.020101)


@pytest.mark.parametrize("blocks", [1, 60])
def test_a_decode_waits_for_its_creditor_as_the_model_says(blocks: int) -> None:
    of = profile(remote_step=(Point(1, 0.025), Point(101, 0.035)))
    bench = Bench(of=of)
    lend(bench.engines[1], blocks)
    bench.engines[0].receive(step(seq(999, 1000, at("i1", blocks))))
    bench.agenda.run()
    at_s, result = bench.step()
    tokens = blocks * BLOCK
    assert at_s == pytest.approx(PerformanceModel(of).step_s(1, 1000, remote_tokens=tokens, busy=False))
    exchange_s = 10 * (1e-4 + 3000 / 1e9)
    assert result.counters.attend_wait_s == pytest.approx(max(0.0, exchange_s + 2e-6 * tokens - 1e-6 * (1000 - tokens)))
    assert bench.engines[1].counters.serve_s == pytest.approx(2e-6 * tokens)


def test_serving_slows_the_creditor() -> None:
    of = profile(serving_share=0.5, serving_step_s=0.001)
    bench = Bench(of=of)
    lend(bench.engines[1], 50)
    bench.engines[1].receive(step(seq(9_999, 10_000)))
    bench.engines[0].receive(step(seq(999, 1000, at("i1", 50))))
    bench.agenda.run()
    served_s = 0.001 + 0.5 * 800 * 2e-6
    at_s, result = bench.step("i1")
    assert at_s == pytest.approx(0.030 + served_s) == PerformanceModel(of).step_s(1, 10_000, served_tokens=800)
    assert result.counters.step_serve_s == pytest.approx(served_s) and result.compute_s == at_s


def test_what_begins_while_a_debtor_is_served_takes_its_part_of_that() -> None:
    bench = Bench()
    lend(bench.engines[1], 50)
    bench.engines[0].receive(step(seq(999, 1000, at("i1", 50))))
    begins_s = 0.020 + 10 * (1e-4 + 3000 / 1e9) + 800 * 2e-6 / 2
    bench.agenda.at(begins_s, lambda: bench.engines[1].receive(step(seq(99, 100))))
    bench.agenda.run()
    assert bench.step("i1")[1].compute_s == pytest.approx(0.0201 + 800 * 2e-6 / 2)
    assert bench.step("i1")[1].counters.step_serve_s == pytest.approx(800 * 2e-6 / 2)


def test_two_debtors_share_their_creditor() -> None:
    bench = Bench("aaa")
    lend(bench.engines[2], 60)
    other = SpanRef(span_id="t", epoch=Epoch(1, 2))
    lend(bench.engines[2], 60, other)
    bench.engines[0].receive(step(seq(999, 1000, at("i2", 60))))
    bench.engines[1].receive(step(seq(999, 1000, at("i2", 60, other))))
    bench.agenda.run()
    alone_s = PerformanceModel(PROFILE).step_s(1, 1000, remote_tokens=960, busy=False)
    assert bench.step("i0")[0] == bench.step("i1")[0] == pytest.approx(alone_s + 960 * 2e-6)
    assert bench.engines[2].counters.serve_s == pytest.approx(2 * 960 * 2e-6)


def test_instances_of_a_host_crowd_each_other() -> None:
    of = profile(crowded_times=1.5)
    bench = Bench("aab", of)
    for engine in bench.engines:
        engine.receive(step(seq(99, 100)))
    bench.agenda.run()
    model = PerformanceModel(of)
    times, _ = model.crowding(0.0201, model.traffic(0.0201))
    assert 1.2 < times < 1.5
    assert [bench.step(f"i{index}")[0] for index in range(3)] == pytest.approx([0.0201, times * 0.0201, 0.0201])


def test_a_long_chunk_crowds_a_decode_less_than_another_decode_does() -> None:
    took = {}
    for beside in (seq(99, 100), seq(0, 1000)):
        bench = Bench("aa", profile(crowded_times=1.5))
        bench.engines[0].receive(step(beside))
        bench.engines[1].receive(step(seq(99, 100)))
        bench.agenda.run()
        took[beside.start] = bench.step("i1")[0]
    assert 0.0201 < took[0] < 0.3 * 0.0201 + 0.7 * took[99]


def test_what_a_host_decides_beside_others_comes_between_steps() -> None:
    of = profile(crowded_step_s=0.005)
    bench = Bench("aa", of)
    for number in (1, 2):
        for engine in bench.engines:
            engine.receive(step(seq(98 + number, 99 + number), step_id=number))
    bench.agenda.run()
    results = {name: [bench.step(name, index) for index in range(2)] for name in ("i0", "i1")}
    assert [at for at, _ in results["i0"]] == pytest.approx([0.0201, 0.0201 + 0.005 + 0.020101])
    assert [at for at, _ in results["i1"]] == pytest.approx([0.0251, 0.0251 + 0.005 + 0.020101])
    assert results["i1"][1][1].compute_s == pytest.approx(0.020101)


def test_a_straggler_takes_longer_until_it_is_mended() -> None:
    bench = Bench()
    bench.engines[0].slow_down(3.0)
    bench.engines[0].receive(step(seq(99, 100)))
    bench.agenda.run()
    bench.engines[0].slow_down(1.0)
    bench.engines[0].receive(step(seq(100, 101), step_id=2))
    bench.agenda.run()
    assert bench.step(index=0)[1].compute_s == pytest.approx(3 * 0.0201)
    assert bench.step(index=1)[1].compute_s == pytest.approx(0.020101)


def test_a_straggler_serves_slowly_too() -> None:
    bench = Bench()
    lend(bench.engines[1], 60)
    bench.engines[1].slow_down(4.0)
    bench.engines[0].receive(step(seq(999, 1000, at("i1", 60))))
    bench.agenda.run()
    assert bench.step()[0] == pytest.approx(0.020 + 10 * (1e-4 + 3000 / 1e9) + 4 * 960 * 2e-6)


def test_what_cannot_be_read_is_lost_and_steps_behind_it_are_void() -> None:
    bench = Bench()
    bench.engines[0].receive(step(seq(999, 1000, at("i1", 50)), seq(99, 100, name="other")))
    bench.engines[0].receive(step(seq(1000, 1001, at("i1", 50)), step_id=2))
    bench.engines[0].receive(step(seq(999, 1000, attempt=1), step_id=3))
    bench.agenda.run()
    first, second, third = (bench.step(index=index)[1].results for index in range(3))
    assert [(one.status, one.lost) for one in first] == [("lost", ("i1",)), ("ok", ())]
    assert [one.status for one in (*second, *third)] == ["void", "ok"]


def test_positions_that_are_closed_cannot_be_read() -> None:
    bench = Bench()
    lend(bench.engines[1], 50)
    bench.engines[1].receive(tw.Revoke(span=SPAN, positions=(3,)))
    bench.engines[0].receive(step(seq(999, 1000, at("i1", 3))))
    bench.engines[0].receive(step(seq(1000, 1001, at("i1", 4)), step_id=2))
    bench.agenda.run()
    assert [bench.step(index=index)[1].results[0].status for index in (0, 1)] == ["ok", "lost"]


def test_a_creditor_that_dies_is_waited_for_no_longer() -> None:
    bench = Bench()
    lend(bench.engines[1], 60)
    bench.engines[0].receive(step(seq(999, 1000, at("i1", 60))))
    dies_s = 0.020 + 10 * (1e-4 + 3000 / 1e9) + 0.0001
    bench.agenda.at(dies_s, bench.engines[1].kill)
    bench.agenda.run()
    at_s, result = bench.step()
    assert at_s == pytest.approx(dies_s) and result.results[0].lost == ("i1",)


def test_a_span_is_gone_when_its_last_reader_is_done() -> None:
    bench = Bench()
    lend(bench.engines[1], 60)
    bench.engines[0].receive(step(seq(999, 1000, at("i1", 60))))
    bench.agenda.at(0.0212, lambda: bench.engines[1].receive(tw.Revoke(span=SPAN)))
    bench.agenda.run()
    ((revoked_s, _),) = bench.replies["i1"]
    assert bench.step()[1].results[0].status == "ok" and revoked_s == pytest.approx(bench.step()[0])


def test_a_span_that_nobody_reads_is_gone_at_once() -> None:
    bench = Bench()
    lend(bench.engines[1], 60)
    bench.engines[1].receive(tw.Revoke(span=SPAN))
    assert bench.replies["i1"] == [(0.0, fw.Revoked(span=SPAN))]


def pull(source: str, blocks: int, pull_id: int = 1, incarnation: int = 1) -> tw.Pull:
    slots = tuple(range(blocks))
    return tw.Pull(
        pull_id=pull_id,
        source_id=source,
        source_incarnation=incarnation,
        source_slots=slots,
        slots=slots,
        checksums=pack(slots),
    )


def test_a_pull_takes_what_its_link_takes() -> None:
    bench = Bench()
    bench.engines[0].receive(pull("i1", 50))
    bench.agenda.run()
    assert bench.replies["i0"] == [(pytest.approx(50 * BLOCK_BYTES / 1e9 + 1e-4), fw.Pulled(pull_id=1))]
    assert bench.engines[0].counters.kv_bytes == 50 * BLOCK_BYTES


def test_two_pulls_over_one_link_take_twice_as_long() -> None:
    bench = Bench("aaa")
    bench.engines[0].receive(pull("i2", 50))
    bench.engines[1].receive(pull("i2", 50))
    bench.agenda.run()
    took_s = pytest.approx(2 * 50 * BLOCK_BYTES / 1e9 + 1e-4)
    assert [at_s for name in ("i0", "i1") for at_s, _ in bench.replies[name]] == [took_s, took_s]


def test_pulls_from_one_source_come_one_after_the_other() -> None:
    bench = Bench()
    bench.engines[0].receive(pull("i1", 50, 1))
    bench.engines[0].receive(pull("i1", 50, 2))
    bench.agenda.run()
    one_s = 50 * BLOCK_BYTES / 1e9 + 1e-4
    assert [at_s for at_s, _ in bench.replies["i0"]] == [pytest.approx(one_s), pytest.approx(2 * one_s)]


def test_queries_share_a_link_with_what_is_read_over_it() -> None:
    slow = LinkProfile(round_trip_s=1e-4, bytes_per_s=1e6, read_bytes_per_s=1e6)
    bench = Bench(of=profile(links={"host": slow}))
    lend(bench.engines[1], 1)
    bench.engines[0].receive(pull("i1", 50))
    bench.engines[0].receive(step(seq(15, 16, at("i1", 1))))
    bench.agenda.run()
    assert bench.step()[0] == pytest.approx(0.020 + 10 * (1e-4 + 2 * 3000 / 1e6) + BLOCK * 2e-6)


def test_hosts_have_their_own_link() -> None:
    network = LinkProfile(round_trip_s=1e-3, bytes_per_s=1e8, read_bytes_per_s=1e8)
    bench = Bench("aab", profile(links={"host": LINK, "network": network}))
    bench.engines[0].receive(pull("i1", 10))
    bench.engines[0].receive(pull("i2", 10))
    bench.agenda.run()
    assert [at_s for at_s, _ in bench.replies["i0"]] == [
        pytest.approx(10 * BLOCK_BYTES / 1e9 + 1e-4),
        pytest.approx(10 * BLOCK_BYTES / 1e8 + 1e-3),
    ]


def test_nothing_is_pulled_from_another_life_or_from_the_dead() -> None:
    bench = Bench("aaa")
    bench.engines[2].kill()
    bench.engines[0].receive(pull("i1", 1, 1, incarnation=7))
    bench.engines[0].receive(pull("i2", 1, 2))
    bench.agenda.run()
    assert [reply for _, reply in bench.replies["i0"]] == [
        fw.Pulled(pull_id=1, problem="the source is gone"),
        fw.Pulled(pull_id=2, problem="the source is gone"),
    ]


def test_links_are_there_after_a_round_trip_or_not_at_all() -> None:
    bench = Bench()
    bench.engines[0].receive(tw.Link(instance_id="i1", incarnation=1))
    bench.engines[0].receive(tw.Link(instance_id="i1", incarnation=2))
    bench.agenda.run()
    assert [(at_s, reply.problem) for at_s, reply in bench.replies["i0"] if isinstance(reply, fw.Linked)] == [
        (1e-4, ""),
        (NO_LINK_S, "no link within 1 s"),
    ]


def test_a_checksum_is_a_pass_over_the_blocks() -> None:
    bench = Bench()
    bench.engines[0].receive(tw.Checksum(checksum_id=1, slots=(3, 4)))
    bench.agenda.run()
    assert bench.replies["i0"] == [
        (pytest.approx(2 * BLOCK_BYTES / 1e9), fw.Checksummed(checksum_id=1, checksums=pack((3, 4))))
    ]


def test_long_chunks_fetch_what_short_ones_have_attended_to_elsewhere() -> None:
    model = PerformanceModel(PROFILE)
    for rows, way in ((2, "ship"), (1001, "fetch")):
        bench = Bench()
        lend(bench.engines[1], 60)
        bench.engines[0].receive(step(seq(960, 960 + rows, at("i1", 60))))
        bench.agenda.run()
        ship_s = model.ship_s(rows, 960, busy=False)
        fetch_s = model.fetch_s(rows, 960)
        assert (ship_s <= fetch_s) == (way == "ship")
        own_s = model.prefill_s(rows, 0)
        expected_s = own_s + fetch_s if way == "fetch" else model.prefill_s(rows) + ship_s - _hidden(rows)
        assert bench.step()[0] == pytest.approx(expected_s)
        assert (bench.engines[0].counters.fetched_blocks == 60) == (way == "fetch")


def _hidden(rows: int) -> float:
    """Attention of a chunk over itself, behind which partials are waited for."""
    return (rows + 1) / 2 * (1e-6 + (rows - 1) / 1000 * 99e-6)


def test_cpus_of_a_host_read_each_others_pools_where_they_lie() -> None:
    of = profile(threads=1)
    bench = Bench(of=of)
    lend(bench.engines[1], 60)
    bench.engines[0].receive(step(seq(960, 1961, at("i1", 60))))
    bench.agenda.run()
    model = PerformanceModel(of)
    assert bench.step()[0] == pytest.approx(model.prefill_s(1001) + model.fetch_s(1001, 960, fetched_tokens=0))
