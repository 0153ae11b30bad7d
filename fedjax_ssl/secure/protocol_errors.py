"""Errors of the protocols. Their messages never contain a key, a mask, a code or a share."""


class ProtocolError(ValueError):
    """A protocol cannot go on, or a message of it was refused.

    `sender` is the claimed sender of the message, if there is one.
    """

    def __init__(self, text: str, sender: int | None = None):
        super().__init__(text if sender is None else f"{text} (from {party_name(sender)})")
        self.sender = sender


class MalformedMessage(ProtocolError):
    """Bytes that are no message, or a message of an unexpected shape."""


class NotAuthentic(ProtocolError):
    """A wrong seal or signature: changed, misdirected, or from another sender, run, round or
    attempt.
    """


class StaleMessage(ProtocolError):
    """A message from another run, round or attempt, or a repeated one."""


class BadKey(ProtocolError):
    """A public key that is not the pinned one, of low order, not canonical, or a duplicate."""


class InconsistentView(ProtocolError):
    """Parties got different information about the participants, the owners of rows, or the
    columns.
    """


class TooFewClients(ProtocolError):
    """Fewer live clients than a sum needs to hide the matrices of single clients."""


class MissingExtra(ImportError):
    """An optional package is not installed."""


SERVER = -1


def party_name(party: int) -> str:
    """Return the name of a party, for messages."""
    return "the server" if party == SERVER else f"client {party}"
