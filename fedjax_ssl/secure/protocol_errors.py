"""Errors of the protocols. No message holds a key, a mask, a code or a share."""


class ProtocolError(ValueError):
    """A protocol cannot go on, or a message of it was refused.

    `sender` is who the message says sent it, where there is one.
    """

    def __init__(self, text: str, sender: int | None = None):
        super().__init__(text if sender is None else f"{text} (from {party_name(sender)})")
        self.sender = sender


class MalformedMessage(ProtocolError):
    """Bytes that are no message, or a message of another shape than is due."""


class NotAuthentic(ProtocolError):
    """A seal or a signature that does not fit: changed, misdirected, or of another sender, run,
    round or attempt.
    """


class StaleMessage(ProtocolError):
    """A message of another run, round or attempt, or one that was there before."""


class BadKey(ProtocolError):
    """A public key that is not the pinned one, of low order, not canonical, or twice there."""


class InconsistentView(ProtocolError):
    """The parties were told different things: who takes part, whose row is which, or what the
    columns are.
    """


class TooFewClients(ProtocolError):
    """Fewer live clients than a sum needs, so that it would show what single clients put in."""


class MissingExtra(ImportError):
    """An optional package is not installed."""


SERVER = -1


def party_name(party: int) -> str:
    """Name a party, for messages."""
    return "the server" if party == SERVER else f"client {party}"
