"""XCLP's cryptographic protocols: distances and sums of which the parties learn no more than they have to.

Host code on NumPy arrays and bytes, never traced. Confidential while parties follow the protocols and the server works
together with no client; what XCLP shows by design, which is much, is in docs/secure.md. Needs the extra `secure`.
"""

from fedjax_ssl.secure.api import Secured, protocols, secure_hamming, secure_row_sums
from fedjax_ssl.secure.errors import (
    SERVER,
    BadKey,
    InconsistentView,
    MalformedMessage,
    MissingExtra,
    NotAuthentic,
    ProtocolError,
    StaleMessage,
    TooFewClients,
    party_name,
)
from fedjax_ssl.secure.levels import CHOICES, DROPS, HAMMING, LEVELS, Protocols
from fedjax_ssl.secure.network import Traffic
