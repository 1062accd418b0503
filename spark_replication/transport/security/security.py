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

import hashlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from pyarrow import flight

from spark_replication.config import SecurityMode, Settings, settings_from
from spark_replication.core.law.acls import ACLS
from spark_replication.core.law.quotas import QuotaTable
from spark_replication.errors import InvalidConfig
from spark_replication.process.files import Care, Reread, load_pair, read_named
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
from spark_replication.transport.security.expiry import ends_s
from spark_replication.transport.sockets.frames import Channel
from spark_replication.transport.sockets.tls_channel import TlsChannel
from spark_replication.zk.login import NOBODY, Login, read_login

# After so long a silence of a connection with a call under way the client sends a ping. Without an answer in time it
# ends the calls and connects anew. It pings twice in one silence, and then once a minute: that is gRPC's own limit,
# since servers hang up on clients that ping more often.
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 10_000

_CAS = "CAs"
_PEM = re.compile(rf"{re.escape(ssl.PEM_HEADER)}.*?{re.escape(ssl.PEM_FOOTER)}", re.DOTALL)

PAIR_S = 0.5  # within this, a key follows its certificate

CALLER, CA = "caller", "ca"  # the names of CallCheck and TrustedBy among the middleware

_TOKEN = "security.token.file"
_SESSION_TOKEN = "security.session.token.file"
_BROKER_TOKEN = "security.broker.token.file"
_PRINCIPALS = "security.broker.principals"
_CERTIFICATE = "security.tls.certificate.file"
_KEY = "security.tls.key.file"
_CA = "security.tls.ca.file"


# These are dataclasses, since a msgspec.Struct would show and encode every field.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certificate:
    """The certificate of this process and its key, both in PEM."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tls:
    ca: bytes = field(repr=False)
    certificate: Certificate | None
    mutual: bool
    as_client: ssl.SSLContext = field(repr=False)
    #: None without a certificate: then nothing is served.
    as_server: ssl.SSLContext | None = field(repr=False)
    #: When the certificate of this process ends, in seconds since the epoch. None without one.
    ends_s: float | None
    #: Names the CAs that it trusts.
    mark: str


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

    def serving(self, tickets: Tickets, refused: Refused) -> dict[str, Any]:
        """The arguments that a Flight server is made with. refused: see CallCheck."""
        cluster = ClusterCheck(self.cluster, refused)
        check: flight.ServerMiddlewareFactory = cluster
        if self.cluster_tokens is not None:  # only those who may know are told which cluster this is
            check = CallCheck(self.tokens, self.is_known, tickets, cluster, refused)
        given: dict[str, Any] = {"middleware": {CALLER: check}}
        if (tls := self.tls) is not None:
            if tls.certificate is None:
                _refuse_to_serve()
            given["tls_certificates"] = [(tls.certificate.chain, tls.certificate.key)]
            if tls.mutual:
                given |= {"verify_client": True, "root_certificates": tls.ca}
                given["middleware"][CA] = TrustedBy(tls.mark)
        return given

    def tokens_of(self, *, is_of_cluster: bool) -> Tokens | None:
        """What a caller that says so of itself has to know one of."""
        return self.cluster_tokens if is_of_cluster else self.tokens

    def is_known(self, mark: str) -> bool:
        """Whether the token with this mark is still there, or all CAs are still trusted that were then: nobody says of
        which one a caller is."""
        tls = self.tls
        if tls is not None and mark == tls.mark:  # as nearly always: each receive and each send asks
            return True
        if tls is not None and mark.startswith(_CAS) and set(mark.split()) <= set(tls.mark.split()):
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


def _refuse_to_serve() -> NoReturn:
    raise InvalidConfig(f"security.mode=tls serves nothing without a certificate: set {_CERTIFICATE} and {_KEY}")


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
    _CERTIFICATE: "security_tls_certificate_file",
    _KEY: "security_tls_key_file",
    _CA: "security_tls_ca_file",
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


class Certificates:
    """The CAs that are trusted, and the certificate of this process, as their files are. Thread-safe.

    Each is read by itself: who was taken out of the CAs is out, even while the key of this process will not do."""

    def __init__(self, settings: Settings) -> None:
        if not settings.security_tls_ca_file:
            raise InvalidConfig(f"security.mode=tls needs {_CA}: it says whose certificates to trust")
        own = (settings.security_tls_certificate_file, settings.security_tls_key_file)
        self._mutual = settings.security_tls_mutual
        self._ca = Reread((settings.security_tls_ca_file,), lambda: _read_ca(settings))
        self._own = Reread([*filter(None, own)], lambda: _read_pair(settings))
        if self._mutual and self._own.now() is None:
            raise InvalidConfig(f"security.tls.mutual needs a certificate to show: set {_CERTIFICATE} and {_KEY}")
        self._making = threading.Lock()
        self._made = _tls(self._ca.now(), self._own.now(), mutual=self._mutual)

    def now(self) -> Tls:
        """The same value, while the files are the same."""
        ca, own = self._ca.now(), self._own.now()
        with self._making:
            if self._made.ca is not ca or self._made.certificate is not own:
                self._made = _tls(ca, own, mutual=self._mutual)
            return self._made

    def look(self) -> bool:
        """Looks at the files at once. Returns whether they have changed."""
        changed = [each.look() for each in (self._ca, self._own)]
        return any(changed)

    @property
    def trouble(self) -> str:
        """Why the files cannot be used as they are. Empty if they can."""
        return "; ".join(filter(None, (self._ca.trouble, self._own.trouble)))


class _NoPair(InvalidConfig):
    """A certificate, and the key of another."""


def _read_ca(settings: Settings) -> bytes:
    ca = read_named(_CA, settings.security_tls_ca_file, Care.TRUST)
    try:
        _context(ssl.PROTOCOL_TLS_CLIENT, ca, None)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidConfig(f"{_CA}={settings.security_tls_ca_file} holds no certificate in PEM: {error}") from error
    return ca


def _read_pair(settings: Settings) -> Certificate | None:
    """Whoever replaces a certificate and its key replaces one after the other: this may be in between."""
    try:
        return _read_certificate(settings)
    except _NoPair:
        time.sleep(PAIR_S)
        return _read_certificate(settings)


def _read_certificate(settings: Settings) -> Certificate | None:
    chain, key = settings.security_tls_certificate_file, settings.security_tls_key_file
    if bool(chain) != bool(key):
        raise InvalidConfig(f"{_CERTIFICATE} and {_KEY} go together: set both, or neither")
    if not chain:
        return None
    found = Certificate(chain=read_named(_CERTIFICATE, chain), key=read_named(_KEY, key, Care.SECRET))
    try:
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), found.chain, found.key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise (_NoPair if reason == "KEY_VALUES_MISMATCH" else InvalidConfig)(
            f"{_CERTIFICATE}={chain} and {_KEY}={key} are no certificate and its key in PEM: {reason}"
        ) from error
    return found


def _tls(ca: bytes, certificate: Certificate | None, *, mutual: bool) -> Tls:
    """ca, certificate: as they were read, and so both will do."""
    return Tls(
        ca=ca,
        certificate=certificate,
        mutual=mutual,
        as_client=_context(ssl.PROTOCOL_TLS_CLIENT, ca, certificate),
        as_server=None if certificate is None else _server_context(ca, certificate, mutual=mutual),
        ends_s=None if certificate is None else ends_s(certificate.chain),
        mark=" ".join([_CAS, *(hashlib.sha256(each.encode()).hexdigest() for each in sorted(_each_of(ca)))]),
    )


def _each_of(ca: bytes) -> set[str]:
    """The certificates of a file of CAs."""
    return set(_PEM.findall(ca.decode("ascii")))


def _server_context(ca: bytes, certificate: Certificate, *, mutual: bool) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, ca, certificate)
    context.num_tickets = 0  # nobody resumes
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    return context


def _context(protocol: int, ca: bytes, certificate: Certificate | None) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_verify_locations(cadata=ca.decode("ascii"))
    if certificate is not None:
        load_pair(context, certificate.chain, certificate.key)
    return context
