"""Describe the setting of our numbers in one line: scale, data, items, image size, operator."""

from pathlib import Path

from es_medical.report.reading.runs import Run


def describe(run: Run) -> str:
    """Describe the data and operator of a run in one line, including what was not logged."""
    digest = f" (SHA-256 {run.digest[:8]}...)" if run.digest else " (digest not logged)"
    names = {"train": "training", "val": "validation", "test": "test"}
    items = ", ".join(f"{run.sizes[context]} {name}" for context, name in names.items() if context in run.sizes)
    parts = [
        f"scale {run.scale}",
        f"{run.data_set or 'data not named'}{digest}",
        f"{items} items" if items else "number of items not logged",
        image_size(run),
        f"synthetic images of kind {run.tags['synthetic_images']}, no real ones" if "synthetic_images" in run.tags else "",
        f"PSNR and SSIM to the {run.tags['images']} in the data, no ground truth" if "images" in run.tags else "",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.operator),
        f"MLflow experiment {run.experiment}" + (f", study {run.tags['study']}" if run.tags.get("study") else ""),
    ]
    return "; ".join(part for part in parts if part)


def image_size(run: Run) -> str:
    """Return height x width: from the tag `image_size`, else from the slice file unless it has changed since the run began."""
    if run.tags.get("image_size"):
        return run.tags["image_size"]
    path = Path(run.params.get("data_file", ""))
    try:
        if path.is_file() and path.stat().st_mtime * 1000 <= run.start:
            from es_medical.data import read_header

            height, width = read_header(path).size
            return f"{height} x {width}"
    except (OSError, ValueError, KeyError):  # the slice file no longer exists
        pass
    return "image size not logged"
