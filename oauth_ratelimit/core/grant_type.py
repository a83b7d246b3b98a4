"""Grant types of OAuth 2."""

CLIENT_CREDENTIALS = "client_credentials"  # the grant whose tokens are reused
PASSWORD = "password"
IMPLICIT = "implicit"  # of every token from the authorization endpoint
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"

COMMON_NAMES = {
    "device_code": DEVICE_CODE,
    "jwt-bearer": JWT_BEARER,
    "saml2-bearer": "urn:ietf:params:oauth:grant-type:saml2-bearer",
    "token-exchange": "urn:ietf:params:oauth:grant-type:token-exchange",
}
"""Real names by common name, of the grant types whose real names are addresses."""

STANDARD_GRANTS = (
    "authorization_code",
    CLIENT_CREDENTIALS,
    IMPLICIT,
    PASSWORD,
    "refresh_token",
    *COMMON_NAMES.values(),
)


def full_grant_type(name: str) -> str:
    """Return the real name of a grant type that may be called by its common name."""
    return COMMON_NAMES.get(name, name)
