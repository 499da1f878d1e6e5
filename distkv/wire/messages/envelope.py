"""The one frame of the control plane: who says what, and because of which message."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from msgspec import Meta

from distkv.wire.messages import from_worker, to_client, to_gmanager, to_rmanager, to_worker
from distkv.wire.messages.common import Value

ToGManager = (
    to_gmanager.Join
    | to_gmanager.Leave
    | to_gmanager.Heartbeat
    | to_gmanager.BorrowQuery
    | to_gmanager.RedispatchQuery
    | to_gmanager.Frozen
    | to_gmanager.Swapped
    | to_gmanager.MembersQuery
    | to_gmanager.Locate
    | to_gmanager.ExplainQuery
    | to_gmanager.ClusterQuery
)
"""What may come by a gManager's port: of rManagers and clients."""
GManagerAnswer = (
    to_rmanager.Members
    | to_rmanager.JoinRefused
    | to_rmanager.HeartbeatAck
    | to_rmanager.Creditors
    | to_rmanager.MoveKvcache
    | to_rmanager.Redispatch
    | to_rmanager.Freeze
    | to_rmanager.Swap
    | to_rmanager.Thaw
)
"""What may come by an rManager's own connection to a gManager."""
PeerRequest = to_rmanager.TryMoveKvcache | to_rmanager.BlocksReady | to_rmanager.Renew | to_rmanager.Release
"""What a debtor says by its own connection to a creditor's port."""
PeerAnswer = (
    to_rmanager.Granted
    | to_rmanager.Refused
    | to_rmanager.Complete
    | to_rmanager.Renewed
    | to_rmanager.Released
    | to_rmanager.Reclaim
    | to_rmanager.Vacant
)
"""What may come by a debtor's own connection to a creditor: answers, and a creditor's `Reclaim` and `Vacant`."""
ClientRequest = (
    to_rmanager.Submit
    | to_rmanager.Cancel
    | to_rmanager.KeepAlive
    | to_rmanager.StatusQuery
    | to_gmanager.MembersQuery
    | to_gmanager.Locate
    | to_gmanager.ExplainQuery
    | to_gmanager.ClusterQuery
)
"""What a client says by its connection to an rManager's port."""
ToRManager = PeerRequest | ClientRequest
"""What may come by an rManager's port."""
ToClient = (
    to_client.Located
    | to_client.TokenChunk
    | to_client.TokenChunks
    | to_client.RequestEnded
    | to_client.Status
    | to_client.Explained
    | to_client.Dispatched
    | to_client.ClusterState
    | to_client.Rejected
    | to_rmanager.Members
)
"""What may come by a client's connection, to a gManager or an rManager."""
ToWorker = (
    to_worker.Step
    | to_worker.Compile
    | to_worker.Forget
    | to_worker.Checksum
    | to_worker.Grant
    | to_worker.Revoke
    | to_worker.Pull
    | to_worker.Link
    | to_worker.Peers
    | to_worker.StatsQuery
    | to_worker.Shutdown
)
"""What may come by the pipe to an engine worker."""
FromWorker = (
    from_worker.WorkerReady
    | from_worker.StepResult
    | from_worker.Compiled
    | from_worker.Checksummed
    | from_worker.Pulled
    | from_worker.Linked
    | from_worker.Revoked
    | from_worker.WorkerStats
    | from_worker.WorkerFailed
)
"""What may come by the pipe from an engine worker."""
Control = ToGManager | GManagerAnswer | ToRManager | PeerAnswer | ToClient | ToWorker | FromWorker


Body = TypeVar("Body", bound=Control, covariant=True)
"""One message, or the union of those that may come by one inbox."""


MAX_MESSAGE_ID, MAX_SENDER = 512, 256
MessageId = Annotated[str, Meta(max_length=MAX_MESSAGE_ID)]
"""An answer repeats it as its cause, and so do lines of the log."""


class Envelope(Value, Generic[Body], frozen=True):
    """One message of the control plane, with its sender and what caused it."""

    id: MessageId  #: unique among all messages of this sender's name; at most 512 characters, as `cause`
    #: an instance id, `gmanager`, `worker`, or a client's name; at most 256 characters
    sender: Annotated[str, Meta(max_length=MAX_SENDER)]
    body: Body  #: the message; its `type` key is the name in the headings below
    cause: MessageId = ""  #: id of the message that made the sender send this one; empty if none did
