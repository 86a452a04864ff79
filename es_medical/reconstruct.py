"""`python -m es_medical.reconstruct WEIGHTS INPUT OUT`: reconstruct scans by trained weights, which know their knobs."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from ignite.engine import Engine

    from es_medical.data import SliceDataset
    from es_medical.engine.evaluator import Evaluator

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
OWN_WARNINGS = "the weights in|this bundle was made with"
PICTURES, CASES = "pictures.png", 3


class Row(NamedTuple):
    """What became of one source."""

    name: str
    result: str
    failed: bool = False


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reconstruct(
    context: typer.Context,
    weights: Annotated[Path, typer.Argument(help="Folder of a training's weights, or reconstructor.pt in it.")],
    source: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="Scan, DICOM folder, slice file or photograph, or a folder of many of one kind."),
    ],
    out: Annotated[Path, typer.Argument(help="Folder for the images; made if absent.")],
    config_file: Annotated[
        list[Path] | None,
        typer.Option("--config_file", "--config-file", help="Configuration that defines an operator of your own."),
    ] = None,
) -> None:
    """Reconstruct what the weights were trained for: NIfTI and HDF5, DICOM for scanners' data, PNG for photographs.

    Input that is no slice file is prepared as the training's data were. Knobs of inference.json may follow: --device cpu,
    --n_samples 20, --intervals 0.9, --source_dicom SERIES/, --data_split test. Those of the network come from the weights.

    `es-medical reconstruct BUNDLE --demo [INPUT OUT]` takes the weights that come with a bundle.
    """
    from es_medical.engine.config import cause
    from es_medical.jobs.trained_weights import inference_file, own_parts, weights_folder
    from es_medical.knobs import read_options

    rows: list[Row] = []
    try:
        folder = weights_folder(weights)
        config = inference_file(folder)
        knobs = own_parts(config_file or (), config, folder) | read_options(context.args)
        several = slice_files(source)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    for path in several or [source]:
        place = out / path.stem if several else out
        try:
            with quiet():
                found = run(config, folder, path, place, knobs)
                rows += [
                    row._replace(result=f"{path.stem}/{row.result}") if several and not row.failed else row for row in found
                ]
        except Exception as error:  # of any kind: one broken scan stops no other
            rows.append(Row(path.name, str(cause(error)).strip(), failed=True))
    show(rows, out)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def slice_files(source: Path) -> list[Path]:
    """Return the HDF5 files of a folder that holds a slice file, so that a broken one is an error; none for anything else."""
    from data_prep.inference import is_slice_file

    found = sorted(path for path in source.iterdir() if path.suffix in (".h5", ".hdf5")) if source.is_dir() else []
    found = [path for path in found if not path.name.startswith(".")]
    return found if any(is_slice_file(str(path)) for path in found) else []


def run(config: Path, folder: Path, source: Path, out: Path, knobs: Mapping[str, Any]) -> Iterator[Row]:
    """Run the bundle's inference on one input, and say what became of each of its sources."""
    from ignite.engine import Events
    from monai.bundle import ConfigWorkflow

    from es_medical.engine.config import cause

    places = {"data_file": str(source), "ckpt_dir": str(folder), "output_dir": str(out), "dataset#with_image": True}
    job = ConfigWorkflow(str(config), logging_file=False, workflow_type="infer", **(dict(knobs) | places))
    job.initialize()
    done: list[Engine] = []  # before the images are written
    evaluator, failure = job.parser.get_parsed_content("evaluator"), ""
    evaluator.n_cases, evaluator.progress.first = CASES, 3.0
    typer.echo(what_is_in(evaluator.data_loader.dataset))
    evaluator.add_event_handler(Events.EPOCH_COMPLETED, done.append)
    try:
        job.run()
    except RuntimeError as error:  # MONAI's, around any
        failure = str(cause(error))
    rows = sorted(results(Path(job.parser.get_parsed_content("input_file")), source, out)) if done else []
    if done:
        look(evaluator, source.name, str(job.parser["method"]), out / PICTURES)
    yield from rows
    if failure and not any(row.failed for row in rows):
        yield Row(source.name, failure, failed=True)


def what_is_in(dataset: SliceDataset) -> str:
    """Say how many slices are reconstructed; those of one split alone take less time."""
    splits = {name: n for name, n in dataset.header.splits.items() if n}
    parts = ", ".join(f"{n} {name}" for name, n in splits.items())
    more = f" ({parts}; --data_split test for one part)" if len(splits) > 1 and len(dataset) == sum(splits.values()) else ""
    return f"{Path(dataset.path).name}: {len(dataset)} slices to reconstruct{more}"


def look(evaluator: Evaluator, name: str, method: str, path: Path) -> None:
    """Draw a few slices, and print the scores where the file holds images to compare with."""
    import numpy as np
    from PIL import Image

    from es_medical.data.atomic import whole_or_not
    from es_medical.output.pictures import picture
    from es_medical.output.results import print_table, summary_table

    baseline, header = evaluator.physics.baseline, evaluator.data_loader.dataset.header  # type: ignore[union-attr]
    options = {"window": (0.0, 1.0), "error_max": 0.2, "baseline_name": baseline, "target_name": header.image_name}
    rows = [picture(*case[1:], **options) for case in evaluator.cases]
    with whole_or_not(path) as temporary:
        Image.fromarray(np.vstack(rows)).save(temporary, "PNG")
    metrics = evaluator.state.metrics
    if "psnr" in metrics:
        table = summary_table(method, metrics, len(evaluator.rows), baseline, header.image_name)
        print_table(table, f"{name} (mean ± standard deviation)", 100)


def results(slices: Path, source: Path, out: Path) -> Iterator[Row]:
    """What became of each source of a slice file, by its name; that is in no file, which holds hashes alone."""
    from data_prep.run.manifest import Pseudonyms, default_salt, manifest_path, source_hash
    from es_medical.data import read_header

    if slices == source:
        yield Row(source.name, "reconstructions.h5")
        return
    pseudonyms = Pseudonyms(default_salt(read_header(slices).configuration["seed"]))
    below = (
        [source.name, *(path.relative_to(source).as_posix() for path in source.rglob("*"))]
        if source.is_dir()
        else [source.name]
    )
    names = {source_hash(name, pseudonyms): name for name in below}
    for entry in json.loads(manifest_path(slices).read_text(encoding="utf-8"))["sources"]:
        name, wrong = names.get(entry["source"], "?"), entry["status"] == "failed"
        written = [name for volume in entry.get("volumes", ()) for name in written_as(out, volume)]
        if entry["status"] != "skipped":
            yield Row(name, entry["cause"] if wrong else "\n".join(written) or "reconstructions.h5", wrong)


def written_as(out: Path, volume: str) -> Iterator[str]:
    """The names of the reconstruction of a volume or image, in each format that was written."""
    names = (f"{volume}_reconstruction.nii.gz", f"png/{volume}_reconstruction.png", f"dicom/{volume}/reconstruction")
    return (name for name in names if (out / name).exists())


@contextmanager
def quiet() -> Iterator[None]:
    """Let only our own warnings and lines of progress through."""
    progress, lines = logging.getLogger("es_medical.engine.progress"), logging.StreamHandler()
    progress.addHandler(lines)
    progress.setLevel(logging.INFO)
    logs = [logging.getLogger(name) for name in ("monai.bundle.workflows", "ignite.engine.engine.Evaluator")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", message=OWN_WARNINGS)
        warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
        for log in logs:
            log.disabled = True
        try:
            yield
        finally:
            progress.removeHandler(lines)
            for log in logs:
                log.disabled = False


def show(rows: list[Row], out: Path) -> None:
    """Print the table of sources and their images, and why others failed."""
    from es_medical.output.results import print_table

    done = sum(not row.failed for row in rows)
    columns = {"file": [row.name for row in rows], "images": ["failed" if row.failed else row.result for row in rows]}
    print_table(columns, "", 100)
    typer.echo(f"reconstructed {done} of {len(rows)}: images in {out}" + f" ({PICTURES}: a few to look at)" * (done > 0))
    for row in rows:
        if row.failed:
            typer.echo(f"error: {row.name}: {row.result}", err=True)


if __name__ == "__main__":
    app(prog_name="python -m es_medical.reconstruct")
