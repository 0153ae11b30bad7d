"""What is said where no report can be made."""

from fedjax_ssl.errors import UserError


class ReportError(UserError):
    """A report that cannot be made; the message says what to give instead."""
