"""The model card: what weights were trained on and can be used for, in a README.md beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from es_medical import __version__
from es_medical.data import SliceHeader, read_header
from es_medical.data.atomic import whole_or_not
from es_medical.data.schema import SPLITS
from es_medical.engine.checkpoint import BEST, Checkpoints
from es_medical.engine.distributed import rank
from es_medical.jobs.page import HELD_OUT
from es_medical.jobs.record import Record
from es_medical.knobs import ARCHITECTURE, OPERATOR

CARD = "README.md"


def write_card(checkpoints: Checkpoints, record: Record, uses: tuple[str, str], scores: str) -> None:
    """Write the model card beside the weights; only the first process does.

    Args:
        checkpoints: the weights, with the configuration of their training.
        record: of the training.
        uses: whether ground truth was used in training, and in the choice of weights, in words.
        scores: Markdown.
    """
    if rank() != 0:
        return
    text = model_card(checkpoints.configuration, read_header(record.data_file), record, uses, scores, checkpoints.best_epoch)
    with whole_or_not(checkpoints.folder / CARD) as temporary:
        temporary.write_text(text, encoding="utf-8")


def model_card(
    knobs: Mapping[str, Any], header: SliceHeader, record: Record, uses: tuple[str, str], scores: str, epoch: int
) -> str:
    """Return the text of the card; see `write_card`."""
    file, label = Path(record.data_file).name, record.label
    operator = str(record.tags.get("operator", header.modality))
    network = ", ".join(f"{name} {knobs[name]}" for name in ARCHITECTURE if knobs.get(name) is not None)
    slices = ", ".join(f"{header.splits.get(split, 0)} {split}" for split in SPLITS)
    made = header.configuration.get("command")
    licence = header.configuration.get("licence") or "not stated in the data file: that of its source holds"
    rows = {
        "data": f"`{file}`, {slices} slices of {' x '.join(map(str, header.size))}"
        + f", made by `data_prep {made}`" * bool(made),
        "SHA-256 of the data": f"`{record.digest}`",
        "licence of the data": licence,
        "operator": f"{operator}: {_acquisition(knobs, header)}",
        record.image: f"{uses[0]} in training, {uses[1]} in the choice of weights",
        "method": f"{label} ({network}), weights of epoch {epoch}",
        "made by": f"es_medical {__version__}, bundle {record.tags.get('bundle', 'unknown')}",
    }
    return f"""# {label}, {operator}, {file}

| | |
|---|---|
{chr(10).join(f"| {name} | {text} |" for name, text in rows.items())}

## Scores

{scores.strip()}

Held-out error: {HELD_OUT}

## Use

```bash
python -m es_medical.reconstruct FOLDER INPUT OUT
```

FOLDER is the one of this file. `{BEST}` in it holds the knobs of its training: none has to be given. INPUT is a scan, a
photograph, a folder of them, or a slice file.

## Limits

- For this operator alone: measurements with another mask, geometry, noise level or pixel size are
  reconstructed worse, with a warning.
- A network can show what is not there, and hide what is. Compare with other images; see the spread beside each reconstruction.
- Research only: not a medical device, not for clinical use.
"""


def _acquisition(knobs: Mapping[str, Any], header: SliceHeader) -> str:
    """The operator in words: knobs that were checked against the file, and what its header says."""
    asked = [f"{name} {knobs[name]}" for name in (*OPERATOR, "photons") if knobs.get(name) is not None]
    measured = f"{int(header.mask.sum())} of {header.mask.numel()} measured"
    return ", ".join([measured, *([f"{header.coils} coils"] if header.coils else []), *asked])
