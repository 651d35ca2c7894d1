"""Google as issuer: agents' service accounts, checked by their ID tokens; tokens for single calls.

https://cloud.google.com/docs/authentication/get-id-token,
https://cloud.google.com/iam/docs/reference/credentials/rest
"""

from vedette.adapters.identity.google.broker import IamCredentials, MetadataServer
from vedette.adapters.identity.google.tokens import GOOGLE_ISSUER, GoogleTokens
from vedette.adapters.identity.google.tools import TokenTools

__all__ = ["GOOGLE_ISSUER", "GoogleTokens", "IamCredentials", "MetadataServer", "TokenTools"]
