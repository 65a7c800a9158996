"""A private CA, a server certificate for a SuperLink, and a key pair for each SuperNode.

    python simulations/deployment/certificates.py keys --hosts superlink localhost --nodes 3

writes ``ca.pem``, which everybody gets; ``server.pem`` and ``server.key`` for the SuperLink; and
``node-0`` with ``node-0.pub`` for the first SuperNode, which alone gets the former. The CA's own
key is not kept: whoever has it can pass for the SuperLink. For another host start anew.
"""

import argparse
import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=365)
_Key = ec.EllipticCurvePrivateKey
_PEM, _OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH


def make_certificates(
    folder: Path, hosts: Iterable[str] = ("localhost", "127.0.0.1")
) -> None:
    """Write ``ca.pem``, ``server.pem`` and ``server.key``.

    Args:
        folder: where to; made if it is not there.
        hosts: names and addresses under which the SuperLink is reached. Its own processes reach it
            under 127.0.0.1 where it listens on all addresses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (
        ec.generate_private_key(ec.SECP256R1()) for _ in range(2)
    )
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, "Private CA of a federation")]
    )
    ca = (
        _builder(name, name, authority, authority)
        .add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    known = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SuperLink")])
    certificate = (
        _builder(own, name, server, authority)
        .add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            critical=False,
        )
        .add_extension(known, critical=False)
    )
    for path, builder in (("ca.pem", ca), ("server.pem", certificate)):
        signed = builder.sign(authority, hashes.SHA256())
        (folder / path).write_bytes(signed.public_bytes(_PEM))
    _write_secret(
        folder / "server.key", server, _PEM, serialization.PrivateFormat.PKCS8
    )


def make_node_key(path: Path) -> None:
    """Write a SuperNode's private key, and beside it, with ``.pub``, the one to register."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key, _PEM, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        _OPENSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_suffix(".pub").write_bytes(public + b"\n")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _Key, signer: _Key
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(
        signer.public_key()
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + _VALID)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            critical=False,
        )
        .add_extension(identifier, critical=False)
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(
    path: Path,
    key: _Key,
    encoding: serialization.Encoding,
    form: serialization.PrivateFormat,
) -> None:
    """Readable by its owner alone, from the start."""
    path.unlink(missing_ok=True)
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
    ) as file:
        file.write(
            key.private_bytes(encoding, form, serialization.NoEncryption())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--hosts", nargs="+", default=["localhost", "127.0.0.1"]
    )
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    make_certificates(
        options.folder, dict.fromkeys([*options.hosts, "127.0.0.1"])
    )
    for node in range(options.nodes):
        make_node_key(options.folder / f"node-{node}")
    print(*sorted(options.folder.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
