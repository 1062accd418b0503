"""Who makes a call, or has a connection, as far as that is proven."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    #: The principal: whose token it is, or the name in a certificate. Empty if callers prove nothing here.
    name: str
    #: A broker, a controller or a guardian.
    is_of_cluster: bool
    #: The mark of the token that it knows, while that is what lets it in.
    mark: str = ""
    #: The mark of the CAs that its certificate was trusted by, where clients show one: both have to hold.
    ca: str = ""
    #: What both sides said as its ticket was given: the key to proofs of answers is made of that. Empty without a
    #: ticket.
    session: bytes = b""
    #: Where it calls from; empty while nobody has looked.
    host: str = ""

    def __str__(self) -> str:
        return f"{'broker' if self.is_of_cluster else 'client'} {self.name}" if self.name else "anybody"


#: Who has proven nothing, and need not.
ANYBODY = Caller("", is_of_cluster=False)
