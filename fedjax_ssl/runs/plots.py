"""Pictures in a run's folder, drawn once the run is over: who holds which examples, and curves."""

import io

from fedjax_ssl import data
from fedjax_ssl.folder.files import StorageError
from fedjax_ssl.folder.plot_curves import plot_curves
from fedjax_ssl.own_code import said
from fedjax_ssl.runs.active_run import Run

FEWEST = 5  # evaluations; to draw the pictures of a shorter run would take longer than the run


def draw(run: Run, *, missing: bool) -> None:
    """Draw the pictures of a run that is over; one that cannot be drawn ends no run.

    Args:
        run: in a folder.
        missing: draw no picture that is there.
    """
    assert run.folder is not None
    drawings = {"partition.png": _partition, "curves.png": _curves}
    for name, drawing in drawings.items():
        if missing and (run.path / name).exists():
            continue
        try:
            if picture := drawing(run):
                run.folder.write(name, picture)
        except StorageError:
            raise
        except Exception as error:
            run.progress.note(f"{name} cannot be drawn: {said(error)}")


def _partition(run: Run) -> bytes:
    picture = io.BytesIO()
    classes = run.built.experiment.dataset.class_names
    data.plot_partition(run.built.federation, picture, classes, run.names)
    return picture.getvalue()


def _curves(run: Run) -> bytes:
    """Draw the curves of all rows; nothing where there is none."""
    assert run.folder is not None
    rows = run.folder.rows()
    picture = io.BytesIO()
    if rows:
        plot_curves(
            rows,
            picture,
            title=f"{run.config.method.name} on {run.config.data.name}",
            stages=run.built.method.recipe.starts[1:],
            validation=int(run.built.federation.num_valid),
        )
    return picture.getvalue()
