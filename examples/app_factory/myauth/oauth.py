"""The OAuth server. Clients stand here and tokens are kept nowhere: put your database in their places."""

from hmac import compare_digest

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, grants

SECRETS = {"batch-jobs": "batch-secret", "reports": "reports-secret", "monitoring": "monitoring-secret"}


class Client(ClientMixin):
    """A confidential client that asks for tokens in its own name."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id

    def get_client_id(self) -> str:
        return self.client_id

    def check_client_secret(self, client_secret: str) -> bool:
        return compare_digest(client_secret.encode(), SECRETS[self.client_id].encode())

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"

    def get_allowed_scope(self, scope: str) -> str:
        return ""


def query_client(client_id: str) -> Client | None:
    """Find a client."""
    return Client(client_id) if client_id in SECRETS else None


def save_token(token: object, request: object) -> None:
    """Keep a token."""


server = AuthorizationServer(query_client=query_client, save_token=save_token)
server.register_grant(grants.ClientCredentialsGrant)
