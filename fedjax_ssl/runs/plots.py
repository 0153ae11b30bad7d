"""partition.png in a run's folder, drawn at the end: the examples of each client. The report draws
curves.
"""

import io

from fedjax_ssl import data
from fedjax_ssl.folder.files import StorageError
from fedjax_ssl.own_code import said
from fedjax_ssl.runs.active_run import Run

FILE = "partition.png"
FEWEST = 5  # evaluations; drawing would take longer than a shorter run


def draw_partition(run: Run) -> None:
    """Draw the partition unless the picture exists; a failure does not stop the run.

    Args:
        run: in a folder, over.
    """
    assert run.folder is not None
    if (run.path / FILE).exists():
        return
    picture = io.BytesIO()
    classes = run.built.experiment.dataset.class_names
    try:
        data.plot_partition(run.built.federation, picture, classes, run.names)
        run.folder.write(FILE, picture.getvalue())
    except StorageError:
        raise
    except Exception as error:
        run.progress.note(f"{FILE} cannot be drawn: {said(error)}")
