"""How messages say numbers."""


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number of things: "1 run", "1,200 runs", "2 processes".

    Args:
        number: of them.
        one: the word for one.
        several: for any other number; by default with an "s".
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"
