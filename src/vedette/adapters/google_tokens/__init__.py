"""Google as issuer: agents' service accounts, checked by their ID tokens; tokens for single calls.

https://cloud.google.com/docs/authentication/get-id-token,
https://cloud.google.com/iam/docs/reference/credentials/rest
"""

from vedette.adapters.google_tokens.broker import IamCredentials, Metadata
from vedette.adapters.google_tokens.hands import TokenHands
from vedette.adapters.google_tokens.tokens import GOOGLE, GoogleTokens

__all__ = ["GOOGLE", "GoogleTokens", "IamCredentials", "Metadata", "TokenHands"]
