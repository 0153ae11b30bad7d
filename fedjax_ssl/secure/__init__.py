"""XCLP's cryptographic protocols: distances and sums, of which each party learns only its own
result.

Host code on NumPy arrays and bytes, never traced. Data stay confidential while all parties follow
the protocols and the server colludes with no client; XCLP itself reveals much by design, see
docs/secure.md. Needs the extra `secure`. Importing this package loads no protocol: `protocols`,
`secure_hamming` and the others load when first used.
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING, get_args

from fedjax_ssl.graph.graph_settings import Hamming, Level
from fedjax_ssl.lazy import attach
from fedjax_ssl.secure.protocol_errors import (
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

if TYPE_CHECKING:
    from fedjax_ssl.secure.levels import Protocols
    from fedjax_ssl.secure.network import Traffic
    from fedjax_ssl.secure.real import Secured, protocols, secure_hamming, secure_row_sums

LEVELS = get_args(Level)[1:]  # without "none", which stands for the kernels
HAMMING = get_args(Hamming)
DROPS = ("keys", "hamming", "mask", "sums", "result")  # phases in which a client can vanish

__getattr__, __dir__ = attach(__name__)
