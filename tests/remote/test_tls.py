"""S3 over TLS, and signed https URLs."""

import ipaddress
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.command import assert_fails, prep, prep_process, printed
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg, tree_bytes
from tests.remote.conftest import SECRET, Proxy, running

FLAGS = ("--size", 16, "--workers", 1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = builder.add_extension(here, critical=False).sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + secret)
    return path


@pytest.fixture
def secure(s3: Any, endpoint: str, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy with TLS before the S3 server."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with running(Proxy(endpoint, tls), monkeypatch) as server:
        yield server


@pytest.fixture
def tar(tmp_path: Path, s3: Any) -> Path:
    path = write_tar(tmp_path / "shards" / "a.tar", [part for k in range(9) for part in sample(f"{k}", jpeg(), cls=0)])
    s3.upload_file(str(path), "images", "a.tar")
    return path


def test_s3_is_read_over_tls(tmp_path: Path, tar: Path, secure: Proxy, certificate: Path) -> None:
    printed("build", "webdataset", tar, tmp_path / "local", *FLAGS)
    printed("build", "webdataset", "s3://images/a.tar", tmp_path / "out", *FLAGS, AWS_CA_BUNDLE=str(certificate))
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "local")
    assert secure.requests


def test_signed_url_is_read_and_its_signature_is_nowhere(
    tmp_path: Path, tar: Path, secure: Proxy, certificate: Path
) -> None:
    client = boto3.client("s3", endpoint_url=secure.url)
    url = client.generate_presigned_url("get_object", Params={"Bucket": "images", "Key": "a.tar"})
    query = url.partition("?")[2]
    printed("build", "webdataset", tar, tmp_path / "local", *FLAGS)
    arguments = ("build", "webdataset", url, tmp_path / "out", *FLAGS, "--log", tmp_path / "log")
    done = prep_process(*arguments, SSL_CERT_FILE=str(certificate))
    assert done.returncode == 0, done.stderr
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "local")
    secure.answers = iter([403] * 99)
    failed = prep_process(*arguments[:3], tmp_path / "other", "--log", tmp_path / "log", SSL_CERT_FILE=str(certificate))
    assert_fails(failed, 1, f"{secure.url}/images/a.tar: access denied (403)")
    written = b"".join(tree_bytes(tmp_path).values()).decode(errors="replace")
    hidden = [SECRET, *(part.partition("=")[2] for part in query.split("&"))]
    assert len(hidden) == 4
    for text in (written, done.stdout, done.stderr, failed.stderr):
        assert not [value for value in hidden if value in text]


@pytest.mark.usefixtures("tar", "secure")
def test_unknown_certificate_is_one_line(tmp_path: Path) -> None:
    done = prep("build", "webdataset", "s3://images/a.tar", tmp_path / "out")
    assert_fails(done, 1, "s3://images/a.tar: ", "test the URL and your credentials with `aws s3 ls")


@pytest.mark.long
@pytest.mark.usefixtures("tar")
def test_signed_url_can_be_measured(tmp_path: Path, secure: Proxy, certificate: Path) -> None:
    client = boto3.client("s3", endpoint_url=secure.url)
    url = client.generate_presigned_url("get_object", Params={"Bucket": "images", "Key": "a.tar"})
    done = prep_process(
        "build", "webdataset", url, tmp_path / "out", *FLAGS, "--dry-run", SSL_CERT_FILE=str(certificate)
    )
    assert done.returncode == 0, done.stderr
    assert "Signature=" not in done.stdout + done.stderr
