"""Who is at the other end of a tensor link, and do both mean the same by a block?"""

from __future__ import annotations

from distkv.errors import HandshakeRefused, MalformedMessage
from distkv.wire.links.memory.pool_memory import Pool
from distkv.wire.messages.common import PROTOCOL_VERSION, DataEndpoint, InstanceId, Value
from distkv.wire.messages.data import DataMessage, Denied, Hello, Welcome

HANDSHAKE_HEADER_BYTES = 4096
WITHHELD = "that of the instance"
"""What a stranger is told in place of the compat that would open the link."""


class LinkIdentity(Value, frozen=True):
    """Who a worker is to its peers. compat: hash of model, dtype and block layout; equal or no link."""

    instance_id: InstanceId
    incarnation: int
    compat: str


def hello_to(identity: LinkIdentity, peer_id: str, peer_incarnation: int) -> Hello:
    """The greeting of `identity` to one incarnation of a peer."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        instance_id=identity.instance_id,
        incarnation=identity.incarnation,
        compat=identity.compat,
        expects_id=peer_id,
        expects_incarnation=peer_incarnation,
    )


def answer_hello(header: DataMessage, identity: LinkIdentity, pool: Pool) -> Welcome | Denied:
    """What the accepting end answers to the first frame of a link. Raises MalformedMessage if it is no Hello.

    Who has another compat learns only that: Hello is not authenticated, and ours would be accepted from anybody.
    """
    if not isinstance(header, Hello):
        raise MalformedMessage(f"a link begins with Hello, this one with {type(header).__name__}")
    for field, expected, got in (
        ("protocol", PROTOCOL_VERSION, header.protocol),
        ("compat", identity.compat, header.compat),
        ("instance_id", identity.instance_id, header.expects_id),
        ("incarnation", identity.incarnation, header.expects_incarnation),
    ):
        if expected != got:
            secret = field == "compat"
            return Denied(field=field, expected=WITHHELD if secret else str(expected), got=str(got))
    return Welcome(
        instance_id=identity.instance_id,
        incarnation=identity.incarnation,
        slot_bytes=pool.slot_bytes,
        num_slots=pool.num_slots,
        pool_token=pool.token,
    )


def refusal(denied: Denied, identity: LinkIdentity) -> HandshakeRefused:
    """What the accepting end logs of its own answer: also what the peer was not told."""
    expected = identity.compat if denied.field == "compat" else denied.expected
    return HandshakeRefused(denied.field, expected, denied.got)


def check_answer(header: DataMessage, hello: Hello, endpoint: DataEndpoint) -> Welcome:
    """The connecting end's look at the answer to its Hello. Raises HandshakeRefused, MalformedMessage."""
    if isinstance(header, Denied):
        raise HandshakeRefused(header.field, header.expected, header.got)
    if not isinstance(header, Welcome):
        raise MalformedMessage(f"the answer to Hello is {type(header).__name__}")
    for field, expected, got in (
        ("instance_id", hello.expects_id, header.instance_id),
        ("incarnation", hello.expects_incarnation, header.incarnation),
        ("slot_bytes", endpoint.slot_bytes, header.slot_bytes),
        ("num_slots", endpoint.num_slots, header.num_slots),
    ):
        if expected != got:
            raise HandshakeRefused(field, expected, got)
    return header
