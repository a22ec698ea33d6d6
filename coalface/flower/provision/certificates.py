"""Keys and certificates of a federation: ECDSA on P-384, a CA of its own, and the forms in which Flower reads them.

Flower's nodes have no certificates. A node signs with its key, which `flower-supernode` reads as OpenSSH writes private
keys, `flwr supernode register` as OpenSSH writes public ones, and which a ServerApp is shown as PEM of
SubjectPublicKeyInfo. Importing this file raises RecipeError where cryptography, which Flower brings, is not installed.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from coalface.core.errors import RecipeError
from coalface.flower.provision.project import is_address

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as missing:
    raise RecipeError(f"{missing.name} is needed for provisioning: pip install 'coalface[flower]'") from missing

SKEW = datetime.timedelta(minutes=5)
"""How far the clock of a party may lag behind the one that made the certificate."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class NodeKey:
    """The key of a party's node in the forms that Flower asks for."""

    private: bytes
    """For `flower-supernode --auth-supernode-private-key`."""
    public: bytes
    """For `flwr supernode register`."""
    public_pem: bytes
    """What a ServerApp is told as the node's `public_key`."""


def authority(name: str, now: datetime.datetime, days: int) -> Pair:
    """A CA whose own certificate is good for `days`."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _subject(f"{name} CA")
    builder = _builder(subject, subject, key, now, days, ca=True)
    return Pair(_pem(builder.sign(key, hashes.SHA384())), _private_pem(key))


def server(ca: Pair, name: str, hosts: tuple[str, ...], now: datetime.datetime, days: int) -> Pair:
    """A certificate of the SuperLink by the CA, good for `hosts` (names and addresses), and as a server's only."""
    issuer, signer = x509.load_pem_x509_certificate(ca.certificate), _private(ca.key)
    key = ec.generate_private_key(ec.SECP384R1())
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host) for host in hosts
    ]
    builder = (
        _builder(_subject(f"{name} SuperLink"), issuer.subject, key, now, days, ca=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return Pair(_pem(builder.sign(signer, hashes.SHA384())), _private_pem(key))


def node() -> NodeKey:
    """A fresh key for a party's node."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return NodeKey(private, public + b"\n", _public_pem(key.public_key()))


# --- contents of files; each raises ValueError for another kind of content --------------------------------------------


def public_of_private(data: bytes) -> bytes:
    """The public half of a private key (PEM or OpenSSH), as PEM."""
    return _public_pem(_private(data).public_key())


def secret(data: bytes) -> bytes:
    """The secret number of a private key, 48 bytes: what other secrets of its owner are derived from."""
    return _private(data).private_numbers().private_value.to_bytes(48, "big")


def public_of_openssh(data: bytes) -> bytes:
    """A public key as OpenSSH writes it, as PEM."""
    return _ecdsa_pem(lambda: serialization.load_ssh_public_key(data))


def public_of_certificate(data: bytes) -> bytes:
    """The public key of a certificate, as PEM."""
    return _ecdsa_pem(lambda: _certificate(data).public_key())


def validity(data: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    """From when and until when a certificate holds."""
    certificate = _certificate(data)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def host_names(data: bytes) -> list[str]:
    """The names and addresses that a certificate is good for."""
    try:
        extension = _certificate(data).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(str(error)) from error
    hosts = extension.value
    return [*hosts.get_values_for_type(x509.DNSName), *map(str, hosts.get_values_for_type(x509.IPAddress))]


def is_issued(data: bytes, by: bytes) -> bool:
    """Whether a certificate is signed by the key of another."""
    try:
        _certificate(data).verify_directly_issued_by(_certificate(by))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error


def _ecdsa_pem(load: Callable[[], object]) -> bytes:
    try:
        key = load()
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("its key is not an ECDSA key")
    return _public_pem(key)


def _private(data: bytes) -> ec.EllipticCurvePrivateKey:
    openssh = b"BEGIN OPENSSH PRIVATE KEY" in data
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        key = load(data, None)
    except (TypeError, UnsupportedAlgorithm) as error:  # encrypted, or of a kind that is not known
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        raise ValueError("not an ECDSA key on P-384")
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
    *,
    ca: bool,
) -> x509.CertificateBuilder:
    """A certificate as RFC 5280 asks for it: verifiers that are strict want the key's identifier and its usage."""
    usage = x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # 64 is the most that X.520 allows


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
