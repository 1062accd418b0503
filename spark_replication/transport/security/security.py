"""Who may call this process, and how it calls others: security.mode and the files that it names.

Flight servers and clients and both sides of replication share this one value. It is the only home of four decisions:
how a Flight client is made, what URIs endpoints have, how a replication connection begins, whether a host may be bound.

Rules:
- Nothing listens beyond loopback unless each client proves who it is, by a token or by a certificate.
- A token is in no repr, no log, no command line, no file but its own. `token` alone encrypts nothing: it stays on
  loopback, unless that is waived by name.
- A mistake in settings or files raises InvalidConfig at the start, which names the setting. Files are read again once
  they change; what a mistake in them takes away then, process.files says, and `trouble` is what people are to see.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from pyarrow import flight

from spark_replication.config import SecurityMode, Settings, settings_from
from spark_replication.core.law.acls import ACLS
from spark_replication.core.law.quotas import QuotaTable
from spark_replication.errors import InvalidConfig
from spark_replication.process.loopback import require_loopback
from spark_replication.process.memory import keep_freed_memory
from spark_replication.process.processes import uses_grpc
from spark_replication.transport.proofs.answer_proofs import Question
from spark_replication.transport.proofs.call_check import CallCheck, TrustedBy
from spark_replication.transport.proofs.caller import ANYBODY, Caller
from spark_replication.transport.proofs.cluster_header import Cluster, ClusterCheck, ClusterHeader, Refused
from spark_replication.transport.proofs.flight_client import KnownClient, ProcessIdentity, Purse
from spark_replication.transport.proofs.tickets import Tickets
from spark_replication.transport.proofs.token import BROKER, CLIENT
from spark_replication.transport.proofs.tokens import Tokens, read_tokens
from spark_replication.transport.security.certificates import (
    CA_FILE,
    CAS,
    CERTIFICATE_FILE,
    KEY_FILE,
    Certificates,
    Tls,
)
from spark_replication.transport.sockets.frames import Channel
from spark_replication.transport.sockets.tls_channel import TlsChannel
from spark_replication.zk.login import NOBODY, Login, read_login

# After so long a silence of a connection with a call under way the client sends a ping. Without an answer in time it
# ends the calls and connects anew. It pings twice in one silence, and then once a minute: that is gRPC's own limit,
# since servers hang up on clients that ping more often.
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 10_000

CALLER, CA = "caller", "ca"  # the names of CallCheck and TrustedBy among the middleware

_TOKEN = "security.token.file"
_SESSION_TOKEN = "security.session.token.file"
_BROKER_TOKEN = "security.broker.token.file"
_PRINCIPALS = "security.broker.principals"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Security:
    mode: SecurityMode = "none"
    #: Clients'.
    tokens: Tokens | None = None
    #: What this process proves as a client, where `tokens` may be verifiers alone. None: one of those.
    session_tokens: Tokens | None = None
    #: Of brokers, controllers and guardians.
    broker_tokens: Tokens | None = None
    #: Whether it may cross a network that anybody may listen to.
    token_in_clear: bool = False
    certificates: Certificates | None = None
    #: Principals that are brokers, controllers and guardians, by the name in their certificate.
    broker_principals: frozenset[str] = frozenset()
    #: They may do what clients may. None: so may every client.
    super_users: frozenset[str] = frozenset()
    cluster: Cluster = field(default=lambda: "")
    #: Who this process is to ZooKeeper.
    zookeeper: Login = NOBODY
    #: Shared by all that is made from this.
    purse: Purse = field(default_factory=Purse, repr=False)

    @staticmethod
    def of(given: Security | Mapping[str, Any] | None) -> Security:
        """Made from what people give to clients: settings by name, or None."""
        if isinstance(given, Security):
            return given
        return NO_SECURITY if given is None else read_security(settings_from(given))

    def of_cluster(self, cluster: Cluster) -> Security:
        """The same, for one cluster: calls are for this cluster only, and servers belong to it."""
        return replace(self, cluster=cluster)

    @property
    def tls(self) -> Tls | None:
        """As it is now: what begins with it keeps it."""
        return None if self.certificates is None else self.certificates.now()

    @property
    def trouble(self) -> str:
        """Why files of secrets cannot be used as they are, and what holds meanwhile. Empty if all can."""
        told = (
            each.trouble
            for each in (self.tokens, self.session_tokens, self.broker_tokens, self.certificates)
            if each is not None
        )
        return "; ".join(filter(None, told))

    @property
    def cluster_tokens(self) -> Tokens | None:
        """What brokers, controllers and guardians are known by."""
        return self.broker_tokens or self.tokens

    @property
    def own_tokens(self) -> Tokens | None:
        """What this process proves that it knows: as one of the cluster's, if it has the secret of those."""
        return self.broker_tokens or self.client_tokens

    @property
    def client_tokens(self) -> Tokens | None:
        """What this process proves that it knows, as a client."""
        return self.session_tokens or self.tokens

    # Flight

    def location(self, address: str) -> str:
        """address: host:port."""
        return f"grpc://{address}" if self.tls is None else f"grpc+tls://{address}"

    def client(self, address: str, options: Sequence[tuple[str, int | str]] = ()) -> KnownClient:
        """options: gRPC's own."""
        keep_freed_memory()
        keepalive = (
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        )
        if self.certificates is not None:
            self.certificates.look()

        def dial(middleware: Sequence[flight.ClientMiddlewareFactory]) -> flight.FlightClient:
            given: dict[str, Any] = {"generic_options": [*keepalive, *options]}
            if (tls := self.tls) is not None:
                given["tls_root_certs"] = tls.ca
                if tls.certificate is not None:
                    given |= {"cert_chain": tls.certificate.chain, "private_key": tls.certificate.key}
            uses_grpc()
            return flight.connect(
                self.location(address), middleware=[ClusterHeader(self.cluster), *middleware], **given
            )

        tokens = self.own_tokens
        identity = None if tokens is None else ProcessIdentity(tokens, self.broker_tokens is not None, self.purse)
        return KnownClient(address, dial, identity=identity, certificates=self.certificates)

    def checks(self, tickets: Tickets, refused: Refused) -> dict[str, flight.ServerMiddlewareFactory]:
        """The middleware that says who makes a call. refused: see CallCheck."""
        cluster = ClusterCheck(self.cluster, refused)
        if self.cluster_tokens is None:
            return {CALLER: cluster}
        # Only those who may know are told which cluster this is.
        return {CALLER: CallCheck(self.tokens, self.is_known, tickets, cluster, refused)}

    def tokens_of(self, *, is_of_cluster: bool) -> Tokens | None:
        """What a caller that says so of itself has to know one of."""
        return self.cluster_tokens if is_of_cluster else self.tokens

    def is_known(self, mark: str) -> bool:
        """Whether the token with this mark is still there, or all CAs are still trusted that were then: nobody says of
        which one a caller is."""
        tls = self.tls
        if tls is not None and mark == tls.mark:  # as nearly always: each receive and each send asks
            return True
        if tls is not None and mark.startswith(CAS) and set(mark.split()) <= set(tls.mark.split()):
            return True
        return any(tokens is not None and tokens.is_known(mark) for tokens in (self.tokens, self.broker_tokens))

    def require_own_cluster(self, context: flight.ServerCallContext) -> None:
        """Raises FlightServerError if a call that wants a proof of its answer is for another cluster; other calls are
        refused before this."""
        checked = context.get_middleware(CALLER)
        if checked is not None and checked.misrouted is not None:
            raise checked.misrouted

    def question(self, context: flight.ServerCallContext, action: str, body: bytes) -> Question | None:
        """What a caller asks that wants a proof of the answer. None: it wants none."""
        checked = context.get_middleware(CALLER)
        if checked is None or checked.nonce is None:
            return None
        for tokens in (self.tokens, self.broker_tokens):
            token = None if tokens is None else tokens.of_mark(checked.caller.mark)
            if token is not None:
                return Question(token.session_key(checked.caller.session), checked.nonce, action, body)
        return None

    def caller(self, context: flight.ServerCallContext) -> Caller | None:
        """Who makes a call. None: it has proven nothing yet, and may do nothing but that."""
        checked = context.get_middleware(CALLER)
        proven = ANYBODY if checked is None else checked.caller
        if proven is None:
            return None
        trusted = context.get_middleware(CA)
        found = self.known(proven, context.peer_identity().decode(errors="replace"))
        return found if trusted is None else found._replace(ca=trusted.mark)

    def known(self, proven: Caller, certificate: str) -> Caller:
        """proven: as far as its token says so. certificate: the name in it, or empty."""
        tells_brokers = self.broker_tokens is not None or self.broker_principals
        has_secret = proven.is_of_cluster and self.broker_tokens is not None
        is_of_cluster = has_secret or certificate in self.broker_principals or not tells_brokers
        return proven._replace(name=proven.name or certificate, is_of_cluster=is_of_cluster)

    def caller_at(self, channel: Channel, proven: Caller) -> Caller:
        """Who has this connection, after its handshake."""
        if not isinstance(channel, TlsChannel):
            return self.known(proven, "")
        return self.known(proven, channel.peer_name)._replace(ca=channel.mark)

    # Replication

    def connected(self, connection: socket.socket, host: str, timeout_s: float) -> Channel:
        """The channel over a connection to a leader that was dialled as `host`."""
        if self.certificates is None:
            return connection
        self.certificates.look()  # the leader may have another certificate by now, of another CA
        tls = self.certificates.now()
        channel = TlsChannel.connected(connection, tls.as_client, host, timeout_s)
        channel.is_trusted = partial(self.is_known, tls.mark)
        return channel

    def accepted(self, connection: socket.socket, timeout_s: float) -> Channel:
        """The channel over a follower's connection."""
        if (tls := self.tls) is None:
            return connection
        if tls.as_server is None:
            _refuse_to_serve()
        channel = TlsChannel.accepted(connection, tls.as_server, timeout_s)
        if tls.mutual:
            channel.mark = tls.mark  # of now it would be too new: a peer may take its time to shake hands
        return channel

    # Where to listen

    @property
    def knows_clients(self) -> bool:
        return self.tokens is not None or (self.tls is not None and self.tls.mutual)

    @property
    def may_leave_loopback(self) -> bool:
        """Whether clients prove who they are, and nobody who listens on the way learns how."""
        return self.knows_clients and (self.tls is not None or self.token_in_clear)

    def require_may_bind(self, host: str) -> None:
        """Raises InvalidConfig if others than this host would be served, and may not be."""
        if self.tls is not None and self.tls.certificate is None:
            _refuse_to_serve()
        if self.may_leave_loopback:
            return
        if self.tokens is not None:
            require_loopback(
                host,
                "clients would send the token over the network in the clear. Set security.mode=tls and keep the token, "
                "or security.token.in.clear=true if nobody listens there, or use 127.0.0.1",
            )
        elif self.tls is None:
            require_loopback(host, "without security only loopback is served. Use 127.0.0.1, or set security.mode")
        else:
            require_loopback(
                host,
                "clients need not prove who they are there. Set security.tls.mutual=true or security.token.file, or "
                "use 127.0.0.1",
            )


NO_SECURITY = Security()


def trusted_by(mark: str) -> dict[str, flight.ServerMiddlewareFactory]:
    """The middleware that says by which CAs a caller's certificate was trusted. mark: empty if it need not show one."""
    return {CA: TrustedBy(mark)} if mark else {}


def _refuse_to_serve() -> NoReturn:
    raise InvalidConfig(
        f"security.mode=tls serves nothing without a certificate: set {CERTIFICATE_FILE} and {KEY_FILE}"
    )


def read_security(settings: Settings) -> Security:
    mode = settings.security_mode
    given = _given(settings)
    if mode == "none" and given:
        raise InvalidConfig(
            f"{given[0]} is set, and security.mode=none does not use it: set security.mode, or unset it"
        )
    if mode == "token":
        if _TOKEN not in given:
            raise InvalidConfig(f"security.mode=token needs {_TOKEN}")
        of_tls = [setting for setting in given if setting not in (_TOKEN, _SESSION_TOKEN, _BROKER_TOKEN)]
        if of_tls:
            raise InvalidConfig(f"security.mode=token does not use {of_tls[0]}: set security.mode=tls, or unset it")
    if _SESSION_TOKEN in given and _TOKEN not in given:
        raise InvalidConfig(f"{_SESSION_TOKEN} is set, and without {_TOKEN} nobody asks for it: set that, too")
    ACLS.said(settings.security_acls)
    QuotaTable(settings.security_quotas)
    found = Security(
        mode=mode,
        tokens=read_tokens(_TOKEN, settings.security_token_file, CLIENT),
        session_tokens=read_tokens(_SESSION_TOKEN, settings.security_session_token_file, CLIENT, proven_here=True),
        broker_tokens=read_tokens(_BROKER_TOKEN, settings.security_broker_token_file, BROKER, proven_here=True),
        token_in_clear=settings.security_token_in_clear,
        certificates=Certificates(settings) if mode == "tls" else None,
        super_users=_names(settings.security_super_users),
        broker_principals=_names(settings.security_broker_principals),
        zookeeper=read_login(settings),
    )
    if found.super_users and not found.knows_clients:
        raise InvalidConfig(
            f"security.super.users={settings.security_super_users} tells clients apart, and they prove nothing: set "
            f"{_TOKEN}, or security.tls.mutual=true"
        )
    if found.broker_principals and not settings.security_tls_mutual:
        raise InvalidConfig(f"{_PRINCIPALS} are names in certificates: set security.tls.mutual=true")
    return found


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, (name.strip() for name in text.split(","))))


_FILES = {
    _TOKEN: "security_token_file",
    _SESSION_TOKEN: "security_session_token_file",
    _BROKER_TOKEN: "security_broker_token_file",
    CERTIFICATE_FILE: "security_tls_certificate_file",
    KEY_FILE: "security_tls_key_file",
    CA_FILE: "security_tls_ca_file",
}


def require_own_brokers(settings: Settings) -> None:
    """Raises InvalidConfig if a client could be taken for a broker."""
    tells_brokers = settings.security_broker_token_file or settings.security_broker_principals
    if settings.security_mode != "none" and not tells_brokers:
        raise InvalidConfig(
            f"security.mode={settings.security_mode} does not tell brokers from clients, and whoever takes a broker's "
            f"place can lose what was acknowledged: set {_BROKER_TOKEN}, a file that no client has, or {_PRINCIPALS}"
        )


def _given(settings: Settings) -> list[str]:
    found = [setting for setting, name in _FILES.items() if getattr(settings, name)]
    return [*found, "security.tls.mutual"] if settings.security_tls_mutual else found
