"""What may come by each channel of the control plane: one decoder per inbox, built once.

A message that is none of an inbox's union does not decode there, whoever sent it. So worker messages come by the worker
pipe only, and member lists and acknowledgements by connections that this process opened itself.
"""

from __future__ import annotations

from distkv.wire.codec import EnvelopeDecoder
from distkv.wire.messages.envelope import (
    Control,
    FromWorker,
    GManagerAnswer,
    PeerAnswer,
    ToClient,
    ToGManager,
    ToRManager,
    ToWorker,
)
from distkv.wire.messages.to_client import Rejected

GMANAGER_PORT: EnvelopeDecoder[ToGManager] = EnvelopeDecoder(ToGManager)
"""A gManager's port: rManagers, clients, strangers."""

RMANAGER_PORT: EnvelopeDecoder[ToRManager] = EnvelopeDecoder(ToRManager)
"""An rManager's port: clients, peers, strangers."""

GMANAGER_CONNECTION: EnvelopeDecoder[GManagerAnswer | Rejected] = EnvelopeDecoder(GManagerAnswer | Rejected)
"""An rManager's own connection to a gManager."""

PEER_CONNECTION: EnvelopeDecoder[PeerAnswer | Rejected] = EnvelopeDecoder(PeerAnswer | Rejected)
"""An rManager's own connection to a peer's port."""

CLIENT_CONNECTION: EnvelopeDecoder[ToClient] = EnvelopeDecoder(ToClient)
"""A client's connection, to a gManager or an rManager."""

WORKER_COMMANDS: EnvelopeDecoder[ToWorker] = EnvelopeDecoder(ToWorker)
"""The worker's end of the pipe."""

WORKER_RESULTS: EnvelopeDecoder[FromWorker] = EnvelopeDecoder(FromWorker)
"""The rManager's end of the pipe."""

CAPTURE: EnvelopeDecoder[Control] = EnvelopeDecoder(Control)
"""No channel: recorded bytes, which may hold any message (`distkv wire decode`)."""
