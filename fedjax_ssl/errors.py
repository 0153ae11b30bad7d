"""What a command answers with one message, wherever in the house it was found."""

INTERRUPTED = 130  # exit code after Ctrl-C


class UserError(ValueError):
    """A mistake of the user; the message says what was wrong and what to give instead."""
