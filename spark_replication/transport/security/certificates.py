"""The certificate of this process, and the CAs that it trusts, as their files are."""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
import time
from dataclasses import dataclass, field

from spark_replication.config import Settings
from spark_replication.errors import InvalidConfig
from spark_replication.process.files import Care, Reread, load_pair, read_named

PAIR_S = 0.5  # within this, a key follows its certificate

CERTIFICATE_FILE = "security.tls.certificate.file"
KEY_FILE = "security.tls.key.file"
CA_FILE = "security.tls.ca.file"

CAS = "CAs"  # the first word of the mark of CAs
_PEM = re.compile(rf"{re.escape(ssl.PEM_HEADER)}.*?{re.escape(ssl.PEM_FOOTER)}", re.DOTALL)

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

    @property
    def callers_mark(self) -> str:
        """Names the CAs by which the certificates of callers are trusted; empty if callers need not show one."""
        return self.mark if self.mutual else ""


class Certificates:
    """The CAs that are trusted, and the certificate of this process, as their files are. Thread-safe.

    Each is read by itself: who was taken out of the CAs is out, even while the key of this process will not do."""

    def __init__(self, settings: Settings) -> None:
        if not settings.security_tls_ca_file:
            raise InvalidConfig(f"security.mode=tls needs {CA_FILE}: it says whose certificates to trust")
        own = (settings.security_tls_certificate_file, settings.security_tls_key_file)
        self._mutual = settings.security_tls_mutual
        self._ca = Reread((settings.security_tls_ca_file,), lambda: _read_ca(settings))
        self._own = Reread([*filter(None, own)], lambda: _read_pair(settings))
        if self._mutual and self._own.now() is None:
            raise InvalidConfig(
                f"security.tls.mutual needs a certificate to show: set {CERTIFICATE_FILE} and {KEY_FILE}"
            )
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
        """Look at the files at once. Returns whether they have changed."""
        changed = [each.look() for each in (self._ca, self._own)]
        return any(changed)

    @property
    def trouble(self) -> str:
        """Why the files cannot be used as they are. Empty if they can."""
        return "; ".join(filter(None, (self._ca.trouble, self._own.trouble)))


class _NoPair(InvalidConfig):
    """A certificate, and the key of another."""


def _read_ca(settings: Settings) -> bytes:
    ca = read_named(CA_FILE, settings.security_tls_ca_file, Care.TRUST)
    try:
        _context(ssl.PROTOCOL_TLS_CLIENT, ca, None)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidConfig(
            f"{CA_FILE}={settings.security_tls_ca_file} holds no certificate in PEM: {error}"
        ) from error
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
        raise InvalidConfig(f"{CERTIFICATE_FILE} and {KEY_FILE} go together: set both, or neither")
    if not chain:
        return None
    found = Certificate(chain=read_named(CERTIFICATE_FILE, chain), key=read_named(KEY_FILE, key, Care.SECRET))
    try:
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), found.chain, found.key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise (_NoPair if reason == "KEY_VALUES_MISMATCH" else InvalidConfig)(
            f"{CERTIFICATE_FILE}={chain} and {KEY_FILE}={key} are no certificate and its key in PEM: {reason}"
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
        mark=" ".join([CAS, *(hashlib.sha256(each.encode()).hexdigest() for each in sorted(_each_of(ca)))]),
    )


def _each_of(ca: bytes) -> set[str]:
    """The certificates of a file of CAs."""
    return set(_PEM.findall(ca.decode("ascii")))


def ends_s(chain: bytes) -> float:
    """When the first certificate of a chain in PEM ends."""
    from cryptography import x509  # loading it takes a sixth of what a broker's start takes: only with TLS

    return x509.load_pem_x509_certificate(chain).not_valid_after_utc.timestamp()


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
