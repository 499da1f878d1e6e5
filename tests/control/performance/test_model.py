"""001 §5.3: T(β, S), its debtor's and creditor's forms, and what travels. The numbers are worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.control.performance.model import CROWDING_POWER, Load, PerformanceModel
from distkv.control.performance.pair import pair_rates
from distkv.wire.messages.profile import LinkKind, LinkProfile, Point, Profile
from tests.control.performance.profiles import MS, NETWORK, US, make_profile, profiles

batches = st.integers(1, 256)
tokens = st.integers(0, 2**20)
some_tokens = st.integers(1, 2**14)
links = st.sampled_from(["host", "network"])
ROUNDING = 1 + 1e-9


def test_a_step_takes_its_base_and_its_attention() -> None:
    model = PerformanceModel(make_profile())
    assert model.step_s(1, 0) == pytest.approx(10 * MS)
    assert model.step_s(6, 3000) == pytest.approx(15 * MS + 30 * MS)
    assert model.tokens_per_s(Load(batch=6, context_tokens=3000)) == pytest.approx(6 / (45 * MS))
    assert model.tokens_per_s(Load(batch=0, context_tokens=0)) == 0


def test_remote_time_counts_beyond_local_time() -> None:
    model = PerformanceModel(make_profile())
    # Ten layers of a round trip of 50 µs and a row of 4 µs, and 20 µs for each token there.
    assert model.remote_s(1000, busy=False) == pytest.approx(540 * US + 20 * MS)
    assert model.remote_s(1000, rows=3, busy=False) == pytest.approx(620 * US + 20 * MS)
    # A creditor that computes its own steps answers after 100 µs.
    assert model.remote_s(1000) == pytest.approx(1040 * US + 20 * MS)
    assert model.remote_s(1000, link="network") == pytest.approx(10 * 540 * US + 20 * MS)
    # 3,000 local tokens take 30 ms, which hides it; 500 take 5 ms, which do not.
    assert model.step_s(1, 4000, remote_tokens=1000, busy=False) == pytest.approx(10 * MS + 30 * MS)
    assert model.step_s(1, 1500, remote_tokens=1000, busy=False) == pytest.approx(10 * MS + 20.54 * MS)


def test_a_step_that_sends_queries_has_a_base_of_its_own() -> None:
    model = PerformanceModel(make_profile(remote_step=(Point(1, 12 * MS), Point(11, 22 * MS))))
    assert model.step_s(1, 4000, remote_tokens=1000) == pytest.approx(12 * MS + 30 * MS)
    assert model.step_s(1, 4000) == pytest.approx(10 * MS + 40 * MS)


def test_a_creditor_serves_beside_its_steps() -> None:
    model = PerformanceModel(make_profile(serving_share=0.5, serving_busy_times=2.0))
    assert model.step_s(1, 1000, served_tokens=100) == pytest.approx(20 * MS + 0.5 * 2 * 2 * MS)
    assert model.serving_s(100, busy=False) == pytest.approx(2 * MS)
    each = PerformanceModel(make_profile(serving_step_s=1 * MS))
    assert each.step_s(1, 1000, served_tokens=100) == pytest.approx(20 * MS + 3 * MS)
    assert each.served_s(100) == pytest.approx(3 * MS) and each.served_s(0) == 0


def test_instances_of_one_host_crowd_each_other() -> None:
    model = PerformanceModel(make_profile(crowded_times=1.5))
    assert model.step_s(1, 0) == pytest.approx(15 * MS)
    # Half of this one reads weights, beside one like it.
    half = 0.5**CROWDING_POWER
    assert model.traffic(10 * MS) == 1.0 and model.traffic(20 * MS) == pytest.approx(half)
    assert model.step_s(1, 1000) == pytest.approx((1 + 0.5 * half * half) * 20 * MS)
    assert model.step_s(1, 1000, beside=1.0) == pytest.approx((1 + 0.5 * half) * 20 * MS)
    assert model.step_s(1, 1000, busy=False) == model.step_s(1, 1000, link="network") == pytest.approx(20 * MS)
    # What is waited for is not computed here.
    assert model.step_s(1, 1000, remote_tokens=1000) == pytest.approx(15 * MS + 21.04 * MS)


def test_a_pair_is_crowded_by_what_each_computes() -> None:
    model = PerformanceModel(make_profile(crowded_times=1.5))
    nothing, short, long = (Load(batch=batch, context_tokens=tokens) for batch, tokens in ((0, 0), (1, 0), (1, 1000)))
    half = 0.5**CROWDING_POWER
    assert pair_rates((model, nothing), (model, long)) == (0, pytest.approx(1 / (20 * MS)))
    rates = pair_rates((model, short), (model, long))
    assert rates.debtor == pytest.approx(1 / ((1 + 0.5 * half) * 10 * MS))
    assert rates.creditor == pytest.approx(1 / ((1 + 0.5 * half) * 20 * MS))
    # A debtor that waits for partials is less in the way: half of its 20 ms.
    waits = Load(batch=1, context_tokens=490, remote_tokens=490)
    assert pair_rates((model, waits), (model, short)).debtor == pytest.approx(1 / (15 * MS + model.remote_s(490)))
    slowed = (1 + 0.5 * model.traffic(10 * MS + model.remote_s(490, busy=False))) * 10 * MS
    kept = model.kept_share(490, 1 / (15 * MS + model.remote_s(490)))
    assert pair_rates((model, waits), (model, short)).creditor == pytest.approx(kept / slowed)


def test_the_next_step_begins_later_beside_others() -> None:
    model = PerformanceModel(make_profile(crowded_times=1.5, crowded_step_s=1 * MS))
    assert model.step_s(1, 0) == pytest.approx(16 * MS)
    assert model.step_s(1, 0, busy=False) == pytest.approx(10 * MS)
    assert model.step_s(1, 1000, remote_tokens=1000) == pytest.approx(1 * MS + 15 * MS + 21.04 * MS)


def test_decodes_and_chunks_of_a_step_share_its_weights() -> None:
    """Eleven positions take 11 ms in chunks and 20 ms in decodes: those add what they take longer."""
    model = PerformanceModel(make_profile())
    assert model.base_s(11) == pytest.approx(20 * MS)
    assert model.base_s(0, 101) == model.prefill_s(101) - model.chunk_attention_s(101, 0) == pytest.approx(101 * MS)
    assert model.base_s(11, 90) == pytest.approx(101 * MS + (20 - 11) * MS)
    asking = PerformanceModel(make_profile(remote_step=(Point(1, 12 * MS), Point(11, 22 * MS))))
    assert asking.base_s(11, is_remote=True) == pytest.approx(22 * MS) and asking.base_s(11) == pytest.approx(20 * MS)


def test_who_shares_a_link_shares_its_bandwidth() -> None:
    model = PerformanceModel(make_profile())
    assert model.exchange_s(3, busy=False) == pytest.approx(10 * (50 + 3 * 4) * US)
    assert model.exchange_s(3, busy=False, users=2) == pytest.approx(10 * (50 + 2 * 3 * 4) * US)


def test_a_creditor_keeps_what_it_does_not_spend_on_a_debtor() -> None:
    model = PerformanceModel(make_profile())
    assert model.kept_share(100, 20.0) == pytest.approx(1 - 20 * 2 * MS)
    assert model.kept_share(0, 20.0) == 1.0 and model.kept_share(10**6, 20.0) == pytest.approx(0.05)


def test_a_link_that_was_not_measured_is_as_the_other() -> None:
    profile = make_profile()
    only = PerformanceModel(make_profile(links={"network": profile.links["network"]}))
    assert only.remote_s(10, link="host") == only.remote_s(10, link="network")


def test_a_pair_makes_what_both_make() -> None:
    """While the debtor makes a step in 30 ms the creditor serves for 2 ms: 1/15 of its time is gone."""
    model = PerformanceModel(make_profile())
    debtor = Load(batch=1, context_tokens=2100, remote_tokens=100)
    creditor = Load(batch=11, context_tokens=1000)
    together = pair_rates((model, debtor), (model, creditor))
    assert together == (pytest.approx(1 / (30 * MS)), pytest.approx(11 / (30 * MS) * (1 - 2 / 30)))
    # As in eq. 6, where both make their steps in the same time T + K/g.
    assert 11 / model.step_s(11, 1000, served_tokens=100) == pytest.approx(11 / (30 * MS) / (1 + 2 / 30))
    nothing = Load(batch=0, context_tokens=0)
    assert pair_rates((model, debtor), (model, nothing)) == (pytest.approx(1 / (30 * MS)), 0)
    assert pair_rates((model, nothing), (model, creditor)) == (0, pytest.approx(11 / (30 * MS)))


def test_a_slow_creditor_is_predicted_by_its_own_profile() -> None:
    fast, slow = PerformanceModel(make_profile()), PerformanceModel(make_profile(serving=(Point(1, 100 * US),)))
    debtor, creditor = Load(batch=1, context_tokens=1000, remote_tokens=1000), Load(batch=0, context_tokens=0)
    assert pair_rates((fast, debtor), (slow, creditor)).debtor == pytest.approx(1 / (10 * MS + 100.54 * MS))


def test_prefill_attends_to_what_is_before_each_token() -> None:
    model = PerformanceModel(make_profile())
    assert model.prefill_s(0, 1000) == 0
    # 101 tokens: 101 ms, and 110 µs for each of 51 keys on average, and 1,000 before.
    assert model.prefill_s(101, 1000) == pytest.approx(101 * MS + 110 * US * 1051)


def test_shipping_and_fetching() -> None:
    model = PerformanceModel(make_profile(remote_prefill=(Point(10, 15 * MS), Point(100, 105 * MS))))
    # Shipped: 5 ms more for the chunk; ten layers of 50 µs and 101 rows of 4 µs; 220 µs for each token there.
    shipped = 5 * MS + 10 * (50 * US + 101 * 4 * US) + 1000 * 220 * US
    assert model.ship_s(101, 1000, busy=False) == pytest.approx(shipped)
    # 500 local tokens take 55 ms meanwhile.
    assert model.ship_s(101, 1000, local_tokens=500, busy=False) == pytest.approx(shipped - 55 * MS)
    # Fetched: 1 MB at 1 GB/s, and 110 µs for each token here.
    assert model.fetch_s(101, 1000) == pytest.approx(50 * US + 1 * MS + 110 * MS)
    assert model.fetch_s(101, 1000, fetched_tokens=100) == pytest.approx(50 * US + 0.1 * MS + 110 * MS)
    assert model.fetch_s(101, 1000, fetched_tokens=0) == pytest.approx(110 * MS)
    assert model.ship_s(0, 1000) == model.ship_s(10, 0) == model.fetch_s(0, 10) == model.fetch_s(10, 0) == 0


@pytest.mark.parametrize(("bytes_per_s", "carries"), [(5e6, True), (3e6, False)])
def test_a_link_carries_prompts_if_their_queries_take_no_longer_than_their_tokens(
    bytes_per_s: float, carries: bool
) -> None:
    """A token takes 1 ms, and its row 4,000 bytes in ten layers."""
    link = LinkProfile(round_trip_s=1.0, bytes_per_s=bytes_per_s, read_bytes_per_s=1.0)
    assert PerformanceModel(make_profile(links={"network": link})).carries_prompts("network") is carries


def test_one_row_ships_and_a_long_chunk_fetches() -> None:
    """000, Fig. 12: for a token, its query is less than all keys; for a chunk, keys are less than what is attended."""
    model = PerformanceModel(make_profile(links={"network": NETWORK}, serving_prefill=make_profile().prefill_attention))
    assert model.ship_s(1, 10_000) < model.fetch_s(1, 10_000)
    assert model.ship_s(400, 10_000) > model.fetch_s(400, 10_000)


@settings(deadline=None)
@given(profiles, batches, batches, tokens, tokens, some_tokens, links)
def test_more_work_never_takes_less_time(
    profile: Profile, batch: int, more: int, context: int, longer: int, remote: int, link: LinkKind
) -> None:
    """While nobody else computes: beside others, one that computes more may slow the others, and itself, less."""
    model = PerformanceModel(profile)
    batch, more = sorted((batch, more))
    context, longer = sorted((context, longer))
    least = model.step_s(batch, context, busy=False)
    assert 0 < least <= model.step_s(more, longer, busy=False) * ROUNDING
    assert least <= model.step_s(batch, context, served_tokens=remote, busy=False) * ROUNDING
    here = model.step_s(batch, context + remote, remote_tokens=remote, link=link, busy=False)
    assert here <= model.step_s(more, longer + remote, remote_tokens=remote, link=link, busy=False) * ROUNDING
    assert model.remote_s(remote, busy=False) <= model.remote_s(remote, busy=True) * ROUNDING
    assert model.remote_s(remote, 1) <= model.remote_s(remote + 1, 2) * ROUNDING


@settings(deadline=None)
@given(profiles, batches, tokens, st.none() | st.floats(0, 1))
def test_others_of_the_host_cost_no_more_than_the_profile_says(
    profile: Profile, batch: int, context: int, beside: float | None
) -> None:
    model = PerformanceModel(profile)
    alone_s = model.step_s(batch, context, busy=False)
    crowded_s = model.step_s(batch, context, beside=beside) - profile.crowded_step_s
    assert alone_s <= crowded_s * ROUNDING and crowded_s <= alone_s * profile.crowded_times * ROUNDING


@settings(deadline=None)
@given(profiles, some_tokens, some_tokens, tokens, tokens)
def test_longer_chunks_and_spans_never_take_less_time(
    profile: Profile, chunk: int, longer: int, span: int, more: int
) -> None:
    model = PerformanceModel(profile)
    chunk, longer = sorted((chunk, longer))
    span, more = sorted((span, more))
    assert 0 <= model.prefill_s(chunk, span) <= model.prefill_s(longer, more) * ROUNDING
    assert 0 <= model.fetch_s(chunk, span) <= model.fetch_s(longer, more) * ROUNDING
    assert 0 <= model.ship_s(chunk, span) <= model.ship_s(chunk, more) * ROUNDING
    assert model.ship_s(chunk, span, local_tokens=more) <= model.ship_s(chunk, span) * ROUNDING
    assert model.fetch_s(chunk, span, fetched_tokens=span // 2) <= model.fetch_s(chunk, span) * ROUNDING


@settings(deadline=None)
@given(profiles, batches, batches, tokens, some_tokens, links)
def test_rates_are_finite_and_a_debt_costs_its_creditor(
    profile: Profile, debtor: int, creditor: int, context: int, remote: int, link: str
) -> None:
    model = PerformanceModel(profile)
    debt = Load(batch=debtor, context_tokens=context + remote, remote_tokens=remote)
    own = Load(batch=creditor, context_tokens=context)
    rates = pair_rates((model, debt), (model, own), link=link)  # type: ignore[arg-type]
    assert 0 < rates.debtor <= model.tokens_per_s(debt, link=link, busy=False) * ROUNDING  # type: ignore[arg-type]
    assert 0 < rates.creditor <= model.tokens_per_s(own, link=link, busy=False) * ROUNDING  # type: ignore[arg-type]
