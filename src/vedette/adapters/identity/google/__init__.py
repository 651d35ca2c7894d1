"""Google as issuer: agents' service accounts, checked by their ID tokens; tokens for single calls.

https://cloud.google.com/docs/authentication/get-id-token,
https://cloud.google.com/iam/docs/reference/credentials/rest
"""

from vedette.adapters.identity.google.broker import IamCredentials, Metadata
from vedette.adapters.identity.google.tokens import GOOGLE, GoogleTokens
from vedette.adapters.identity.google.tools import TokenHands

__all__ = ["GOOGLE", "GoogleTokens", "IamCredentials", "Metadata", "TokenHands"]
