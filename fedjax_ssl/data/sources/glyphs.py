"""`glyphs`: a rendered stand-in shaped like FEMNIST, for work without a download.

62 classes in FEMNIST's order, 28x28 grey images, natural clients that differ in how they write, the
same share of digits and a similar spread of examples per client. Every image is drawn from our own
strokes by a random writer. It has FEMNIST's shapes, skew and look-alikes, not its content: **never
report accuracies on it as FEMNIST's.**
"""

from typing import Annotated

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import data_root, kept
from fedjax_ssl.data.reading.fetch import Facts
from fedjax_ssl.data.reading.own import Place
from fedjax_ssl.data.reading.register import dataset

# Part of the cache's name; raise it if the same options give another dataset.
VERSION = 2
MEAN_EXAMPLES = 227
# With fewer examples, a writer could be left without a test example.
MIN_EXAMPLES = 40


@dataset(
    "glyphs",
    "rendered characters by writer, 28x28x1, 62 classes, a stand-in shaped like FEMNIST; in the "
    "package",
    terms="part of this package, Apache-2.0",
    kind="embedded",
    facts=Facts(20_000, 0, (28, 28, 1), 62),
)
def load_glyphs(
    *,
    root: Place = None,
    writers: Annotated[int, Whole(1)] = 100,
    seed: Annotated[int, Whole(0)] = 0,
    examples: Annotated[int, Whole(MIN_EXAMPLES)] = MEAN_EXAMPLES,
) -> Dataset:
    """Draw the dataset, or open it if the same options were drawn before.

    The first writers of a larger set are the writers of a smaller one with the same seed and
    `examples`. Each writer's examples are split 90 / 10 into train and test, as FEMNIST's are.
    Backends may round single grey values differently.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        writers: number of natural clients.
        seed: the writers and everything they write.
        examples: mean number of images per writer; the standard deviation is 0.37 of it.

    Returns:
        Dataset with inputs uint8 [n, 28, 28, 1], ink high, 62 classes.

    Raises:
        ValueError: an option out of range.
    """

    def make() -> Dataset:
        import jax

        from fedjax_ssl.data.reading.drawing import CHARACTERS, draw

        # The same images and the same compiled program, for all types of the caller.
        with jax.enable_x64(False):
            train, test = draw(writers, seed, examples)
        return Dataset(
            "glyphs",
            train,
            test,
            class_names=CHARACTERS,
            client_names=tuple(f"writer {w}" for w in range(writers)),
            mean=(0.0,),  # as FEMNIST: by convention, values stay in 0 .. 1
            std=(1.0,),
            extra={"writers": writers, "seed": seed, "examples": examples, "version": VERSION},
        )

    return kept(
        data_root(root) / "glyphs" / f"v{VERSION}-writers{writers}-seed{seed}-examples{examples}",
        make,
    )
