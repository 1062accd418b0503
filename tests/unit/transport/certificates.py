"""Certificates for tests, made here: P-256 and just enough of X.509, so that no machine needs more than Python.

Not for production: nothing here resists a look at its timing. The guide shows how people make theirs.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import secrets
from pathlib import Path
from typing import NamedTuple

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

_EC_PUBLIC_KEY = "2a8648ce3d0201"
_PRIME256V1 = "2a8648ce3d030107"
_ECDSA_WITH_SHA256 = "2a8648ce3d040302"
_COMMON_NAME = "550403"
_BASIC_CONSTRAINTS = "551d13"
_SUBJECT_ALT_NAME = "551d11"
_KEY_USAGE = "551d0f"
_SUBJECT_KEY = "551d0e"
_AUTHORITY_KEY = "551d23"
_PBES2 = "2a864886f70d01050d"
_MAY_SIGN_CERTIFICATES = bytes.fromhex("03020106")
_DAY = datetime.timedelta(days=1)

Point = tuple[int, int]


def _sum(left: Point | None, right: Point | None) -> Point | None:
    if left is None or right is None:
        return left or right
    if left[0] == right[0]:
        if (left[1] + right[1]) % _P == 0:
            return None
        slope = 3 * (left[0] ** 2 - 1) * pow(2 * left[1], -1, _P)  # the curve's a is -3
    else:
        slope = (right[1] - left[1]) * pow(right[0] - left[0], -1, _P)
    x = (slope**2 - left[0] - right[0]) % _P
    return x, (slope * (left[0] - x) - left[1]) % _P


def _times(number: int, point: Point) -> Point:
    found: Point | None = None
    doubled: Point | None = point
    while number:
        if number & 1:
            found = _sum(found, doubled)
        doubled = _sum(doubled, doubled)
        number >>= 1
    assert found is not None
    return found


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) < 128:
        return bytes([tag, len(body)]) + body
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + body


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, *parts)


def _integer(number: int) -> bytes:
    return _der(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _oid(encoded: str) -> bytes:
    return _der(0x06, bytes.fromhex(encoded))


def _bits(data: bytes) -> bytes:
    return _der(0x03, b"\0", data)


def _time(at: datetime.datetime) -> bytes:
    return _der(0x18, at.strftime("%Y%m%d%H%M%SZ").encode())


def _name(common_name: str) -> bytes:
    return _sequence(_der(0x31, _sequence(_oid(_COMMON_NAME), _der(0x0C, common_name.encode()))))


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(oid), b"\1\1\xff" if critical else b"", _der(0x04, value))


def _pem(label: str, data: bytes) -> str:
    text = base64.encodebytes(data).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"


class Key:
    def __init__(self) -> None:
        self._secret = secrets.randbelow(_N - 1) + 1
        x, y = _times(self._secret, _G)
        self._point = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
        self._algorithm = _sequence(_oid(_EC_PUBLIC_KEY), _oid(_PRIME256V1))

    @property
    def public(self) -> bytes:
        return _sequence(self._algorithm, _bits(self._point))

    @property
    def identifier(self) -> bytes:
        return hashlib.sha256(self._point).digest()[:20]

    def sign(self, data: bytes) -> bytes:
        digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
        once = secrets.randbelow(_N - 1) + 1
        r = _times(once, _G)[0] % _N
        return _sequence(_integer(r), _integer(pow(once, -1, _N) * (digest + r * self._secret) % _N))

    def pem(self) -> str:
        private = _sequence(_integer(1), _der(0x04, self._secret.to_bytes(32, "big")), _der(0xA1, _bits(self._point)))
        return _pem("PRIVATE KEY", _sequence(_integer(0), self._algorithm, _der(0x04, private)))


def locked_key() -> str:
    """One that OpenSSL asks a password for. There is none that opens it."""
    return _pem("ENCRYPTED PRIVATE KEY", _sequence(_sequence(_oid(_PBES2), _sequence()), _der(0x04, bytes(32))))


class Files(NamedTuple):
    """Of one party, as settings name them."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; `file` is what the others are told to trust."""

    def __init__(self, directory: Path, name: str = "test CA") -> None:
        self._directory = directory
        self._name = name
        self._key = Key()
        self.file = directory / f"{name.replace(' ', '-')}.pem"
        may_sign = (
            _extension(_BASIC_CONSTRAINTS, _sequence(b"\1\1\xff"), critical=True),
            _extension(_KEY_USAGE, _MAY_SIGN_CERTIFICATES, critical=True),
        )
        self.file.write_text(self._certificate(name, self._key, *may_sign))

    def issue(self, name: str, *hosts: str, days: int = 30) -> Files:
        """For a party that is dialled by these names or addresses. days < 0: it has expired."""
        key = Key()
        names = [self._host(host) for host in hosts or ("127.0.0.1", "localhost")]
        found = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        found.certificate.write_text(
            self._certificate(name, key, _extension(_SUBJECT_ALT_NAME, _sequence(*names)), days=days)
        )
        found.key.touch(mode=0o600)
        found.key.write_text(key.pem())
        return found

    def _host(self, host: str) -> bytes:
        try:
            return _der(0x87, ipaddress.ip_address(host).packed)
        except ValueError:
            return _der(0x82, host.encode())

    def _certificate(self, name: str, key: Key, *extensions: bytes, days: int = 30) -> str:
        now = datetime.datetime.now(datetime.UTC)
        algorithm = _sequence(_oid(_ECDSA_WITH_SHA256))
        keys = (
            _extension(_SUBJECT_KEY, _der(0x04, key.identifier)),
            _extension(_AUTHORITY_KEY, _sequence(_der(0x80, self._key.identifier))),
        )
        signed = _sequence(
            _der(0xA0, _integer(2)),
            _integer(secrets.randbits(120)),
            algorithm,
            _name(self._name),
            _sequence(_time(now - 60 * _DAY), _time(now + days * _DAY)),
            _name(name),
            key.public,
            _der(0xA3, _sequence(*extensions, *keys)),
        )
        return _pem("CERTIFICATE", _sequence(signed, algorithm, _bits(self._key.sign(signed))))


def tls_settings(authority: Authority, files: Files | None, *, mutual: bool = False) -> dict[str, str | bool]:
    """files: None: of a client that shows no certificate."""
    found: dict[str, str | bool] = {
        "security.mode": "tls",
        "security.tls.ca.file": str(authority.file),
        "security.tls.mutual": mutual,
    }
    if files is not None:
        found |= {"security.tls.certificate.file": str(files.certificate), "security.tls.key.file": str(files.key)}
    return found
