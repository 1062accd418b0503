"""Makes the CA of a cluster, and the certificates that it signs: of hosts, and of principals.

Rules:
- Keys are P-256, in files that their owner alone may read. Nothing is written over: what is there stays, and a CA that
  is there signs what is new.
- A host's certificate has the names and addresses by which it is dialled. A principal's has its name alone, so it
  serves nobody as a host's.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spark_replication.errors import InvalidConfig, InvalidRequest
from spark_replication.process.files import Care, read_named

CA_DAYS = 3_650
BACKDATED = datetime.timedelta(minutes=5)  # for hosts whose clocks are behind
COMMON_NAME_MAX = 64  # RFC 5280

_SIGNING = ec.SECP256R1


class Ca(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ca_in(directory: Path, name: str) -> tuple[Ca, list[Path]]:
    """The CA whose `ca.pem` and `ca.key` are there, or a new one. Returns what was written, too."""
    certificate_file, key_file = directory / "ca.pem", directory / "ca.key"
    if certificate_file.exists() or key_file.exists():
        return _read(certificate_file, key_file), []
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(_SIGNING())
    subject = _named(name)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _begun(subject, subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_file, key)
    _write(certificate_file, _pem(certificate), 0o644)
    return Ca(certificate, key), [certificate_file, key_file]


def host_certificate(directory: Path, ca: Ca, names: Sequence[str], days: int) -> list[Path]:
    """names: by which the host is dialled; the files have the first one's. Returns what was written."""
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]  # brokers are clients of each other
    return _issued(directory, ca, names[0], [_general_name(name) for name in names], uses, days)


def principal_certificate(directory: Path, ca: Ca, name: str, days: int) -> list[Path]:
    return _issued(directory, ca, name, [], [ExtendedKeyUsageOID.CLIENT_AUTH], days)


def _issued(
    directory: Path,
    ca: Ca,
    name: str,
    names: Sequence[x509.GeneralName],
    uses: Sequence[x509.ObjectIdentifier],
    days: int,
) -> list[Path]:
    if not name or Path(name).name != name:
        raise InvalidRequest(f"{name!r} names no file: certificates are for names and addresses")
    certificate_file, key_file = directory / f"{name}.pem", directory / f"{name}.key"
    if certificate_file.exists() or key_file.exists():
        return []
    key = ec.generate_private_key(_SIGNING())
    builder = (
        _begun(_named(name), ca.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write_key(key_file, key)
    _write(certificate_file, _pem(builder.sign(ca.key, hashes.SHA256())), 0o644)
    return [certificate_file, key_file]


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    if not 0 < len(name) <= COMMON_NAME_MAX:
        raise InvalidRequest(f"{name!r} has {len(name)} characters, and a certificate's name 1 to {COMMON_NAME_MAX}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise InvalidRequest(f"{name!r} is neither an address nor a host's name: {error}") from error


def _read(certificate_file: Path, key_file: Path) -> Ca:
    certificate = x509.load_pem_x509_certificate(read_named("the CA's certificate", str(certificate_file)))
    key = serialization.load_pem_private_key(read_named("the CA's key", str(key_file), Care.SECRET), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidConfig(f"{key_file} is not the key of {certificate_file}")
    return Ca(certificate, key)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(path, pem, 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
