"""`digits`: 1,797 real handwritten digits by 14 natural writers, inside the package.

The images are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C.
Kaynak, UCI Machine Learning Repository, 1998), in the form scikit-learn ships. Licence: UCI is said
to offer it under CC BY 4.0, which the dataset's page (number 80 there) has to confirm before a
release; scikit-learn's copy names UCI as its source and states no terms of its own. Cite Alpaydin
and Kaynak (1998), Cascading Classifiers, Kybernetika.
"""

from importlib import resources

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts
from fedjax_ssl.data.reading.register import dataset

# Every writer filled in a form with the same 130 digits in the same order. The labels repeat that
# form 14 times, with 0 to 8 digits missing or doubled; aligning them with the form gives each
# start.
FORM_STARTS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)


@dataset(
    "digits",
    "1,797 handwritten digits by 14 writers, 8x8x1, 10 classes; in the package",
    terms=(
        "UCI dataset 80; CC BY 4.0, to be confirmed on its page; cite Alpaydin and Kaynak "
        "(1998), Cascading Classifiers, Kybernetika"
    ),
    kind="embedded",
    facts=Facts(1797, 0, (8, 8, 1), 10, clients=14),
)
def load_digits() -> Dataset:
    """Load the embedded digits; needs no network, no folder and no scikit-learn.

    There is no test split: hold out writers with `federate(..., test_clients=3)`. UCI speaks of 13
    people for these 14 forms and does not say which two share a hand, so a "writer" is strictly a
    form.

    Returns:
        Dataset with train.x uint8 [1797, 8, 8, 1] of values 0 to 16 (input_max 16), 10 classes, 14
        clients.
    """
    with (
        resources.files(__package__).joinpath("digits.npz").open("rb") as file,
        np.load(file) as arrays,
    ):
        inputs = arrays["inputs"]
        labels = arrays["labels"]
    client = np.searchsorted(FORM_STARTS, np.arange(len(inputs)), side="right") - 1
    return Dataset(
        name="digits",
        train=Split(inputs[..., None], labels, client),
        test=None,
        class_names=tuple("0123456789"),
        client_names=tuple(f"writer {i}" for i in range(len(FORM_STARTS))),
        input_max=16.0,
        mean=(0.0,),  # by convention, values stay in 0 .. 1
        std=(1.0,),
    )
