"""A broker that asks for credentials: SASL (PLAIN, SCRAM and OAUTHBEARER) or certificates (mTLS)."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from joserfc import jwt
from joserfc.jwk import RSAKey

from .broker import Broker
from .machine import JsonAnswers, answering

PASSWORD = 'pa"ss\\word;=,'
"""A password with all characters that JAAS writes otherwise."""
STORE_PASSWORD = "storepass"
INSIDE = "/secured"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""The property of a JVM that says where Kafka may ask for tokens and keys."""

JAAS = """
sasl.KafkaServer {
  org.apache.kafka.common.security.plain.PlainLoginModule required user_app="PLAIN_PASSWORD";
  org.apache.kafka.common.security.scram.ScramLoginModule required;
};
oauth.KafkaServer {
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
};
"""
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_KEYS = f"file://{INSIDE}/keys.json"


class SecuredBroker(Broker):
    """A broker with ``places``: ``SASL`` (PLAIN, SCRAM) and ``OAUTH`` over TLS, and ``MTLS`` with certificates on both sides.

    ``PLAINTEXT`` is for the tests themselves.  ``login`` answers as a login service does.
    """

    def __init__(self, image: str, folder: Path) -> None:
        self.folder = folder
        make_stores(folder)
        self.login = Login(folder / "keys.json")
        (folder / "jaas.conf").write_text(JAAS.replace("PLAIN_PASSWORD", quoted(PASSWORD)))
        super().__init__(
            image,
            {"SASL": "SASL_SSL", "OAUTH": "SASL_SSL", "MTLS": "SSL"},
            LISTENER_NAME_SASL_SASL_ENABLED_MECHANISMS="PLAIN,SCRAM-SHA-512",
            LISTENER_NAME_OAUTH_SASL_ENABLED_MECHANISMS="OAUTHBEARER",
            LISTENER_NAME_OAUTH_OAUTHBEARER_SASL_SERVER_CALLBACK_HANDLER_CLASS=_VALIDATOR,
            SASL_OAUTHBEARER_JWKS_ENDPOINT_URL=_KEYS,
            SASL_OAUTHBEARER_EXPECTED_AUDIENCE="kafka",
            LISTENER_NAME_MTLS_SSL_CLIENT_AUTH="required",
            SSL_KEYSTORE_LOCATION=f"{INSIDE}/broker.p12",
            SSL_KEYSTORE_PASSWORD=STORE_PASSWORD,
            SSL_TRUSTSTORE_LOCATION=f"{INSIDE}/trust.jks",
            SSL_TRUSTSTORE_PASSWORD=STORE_PASSWORD,
        )
        java = f"-Djava.security.auth.login.config={INSIDE}/jaas.conf -D{ALLOWED}={_KEYS}"
        self._container = self._container.with_volume_mapping(str(folder), INSIDE, "ro").with_env("JDK_JAVA_OPTIONS", java)

    def start(self) -> None:
        super().start()
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = self.admin.alter_user_scram_credentials([UserScramCredentialUpsertion("app", scram, PASSWORD.encode())])
        made["app"].result(30)


class Login:
    """A login service on localhost: gives a token to the client ``fkjoin`` that has the password."""

    def __init__(self, keys: Path) -> None:
        key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
        right = base64.b64encode(f"fkjoin:{PASSWORD}".encode()).decode()
        given = self.given = list[str]()
        """The tokens."""

        class Handler(JsonAnswers, BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.body()
                now = int(time.time())
                claims = {"sub": "fkjoin", "aud": "kafka", "scope": "kafka", "iat": now, "exp": now + 600}
                token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)
                given.append(token)
                if self.headers["Authorization"] == f"Basic {right}":
                    self.answer({"access_token": token, "token_type": "Bearer", "expires_in": 600})
                else:
                    self.answer({}, 401)

        self._open = contextlib.ExitStack()
        self.address = f"http://localhost:{self._open.enter_context(answering(Handler))}/token"
        self.close = self._open.close


def quoted(text: str) -> str:
    """Escape a text for quotation marks in JAAS."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def make_stores(folder: Path) -> None:
    """Make a certificate for broker and one for client, as Java's stores and as PEM; ``trust`` has both."""

    def keytool(*words: str) -> str:
        command = ["keytool", *words, "-storepass", STORE_PASSWORD]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

    for name, host in (("broker", "localhost"), ("client", "client")):
        about = ["-alias", name, "-keyalg", "EC", "-dname", f"CN={host}", "-ext", f"SAN=dns:{host}", "-validity", "30"]
        keytool("-genkeypair", "-keystore", f"{name}.p12", "-storetype", "PKCS12", *about)
        pem = keytool("-exportcert", "-rfc", "-keystore", f"{name}.p12", "-alias", name)
        (folder / f"{name}.crt").write_text(pem)
        keytool(
            "-importcert", "-noprompt", "-keystore", "trust.jks", "-storetype", "JKS", "-alias", name, "-file", f"{name}.crt"
        )
    both = ["-srckeystore", "client.p12", "-srcstorepass", STORE_PASSWORD, "-destkeystore", "client.jks"]
    keytool("-importkeystore", "-noprompt", *both, "-deststoretype", "JKS")
    opened = ["openssl", "pkcs12", "-in", "client.p12", "-passin", f"pass:{STORE_PASSWORD}", "-nodes"]
    key = subprocess.run([*opened, "-nocerts"], cwd=folder, check=True, capture_output=True, text=True).stdout
    (folder / "client.key").write_text(key[key.index("-----BEGIN") :])
    (folder / "client.pem").write_text(key[key.index("-----BEGIN") :] + (folder / "client.crt").read_text())
    (folder / "ca.pem").write_text((folder / "broker.crt").read_text())
