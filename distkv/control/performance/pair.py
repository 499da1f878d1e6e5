"""A debtor and its creditor: what both decode, by the performance model (001 §5.3)."""

from __future__ import annotations

from typing import NamedTuple

from distkv.control.performance.model import Load, PerformanceModel
from distkv.wire.messages.profile import LinkKind


class PairRates(NamedTuple):
    """Tokens each second of a debtor and of its creditor."""

    debtor: float
    creditor: float


def pair_rates(
    debtor: tuple[PerformanceModel, Load],
    creditor: tuple[PerformanceModel, Load],
    *,
    link: LinkKind = "host",
) -> PairRates:
    """Of a debtor and the creditor where its remote tokens lie (001, eq. 7).

    Either has an empty batch, or both compute at once. The creditor serves as often as the debtor makes a step. In 001
    both make their steps in the same time; then it is the same.
    """
    debtor_model, debt = debtor
    creditor_model, own = creditor
    both = debt.batch > 0 and own.batch > 0
    traffics: tuple[float | None, float | None] = (None, None)
    if both and link == "host" and (debtor_model.profile.can_crowd or creditor_model.profile.can_crowd):
        debtor_s = debt.batch / debtor_model.tokens_per_s(debt, link=link, busy=False, creditor=creditor_model)
        creditor_s = own.batch / creditor_model.tokens_per_s(own, busy=False)
        traffics = debtor_model.traffic(debtor_s), creditor_model.traffic(creditor_s)
    borrowing = debtor_model.tokens_per_s(
        debt, link=link, busy=own.batch > 0, beside=traffics[1], creditor=creditor_model
    )
    lending = creditor_model.tokens_per_s(own, link=link, busy=debt.batch > 0, beside=traffics[0])
    if both:
        lending *= creditor_model.kept_share(debt.remote_tokens, borrowing / debt.batch)
    return PairRates(borrowing, lending)
