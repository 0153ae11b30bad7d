"""What is said where no report can be made."""


class ReportError(ValueError):
    """A report that cannot be made; the message says what to give instead."""
