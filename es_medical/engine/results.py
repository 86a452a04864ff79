"""The table at the end of a job."""

from collections.abc import Mapping
from pathlib import Path

from es_medical.metrics import MAX_DB


def summary_table(method: str, metrics: Mapping[str, float], n: int, baseline: str = "zero-filled") -> dict[str, list[str]]:
    """Make the summary of a test: rows of the baseline and the method, mean and standard deviation over n slices.

    Columns of scores that need ground truth are left out where there is none. The held-out error of a zero-filled image
    is 1 by definition: it predicts nothing that was held out.
    """
    titles = {"psnr": "PSNR (dB)", "ssim": "SSIM", "equiv": "EQUIV (dB)", "heldout": "held-out error"}
    table: dict[str, list[str]] = {"method": [baseline, method], "slices": [str(n), str(n)]}
    for name, title in titles.items():
        if name in metrics:
            given = _cell(metrics, f"baseline_{name}", name)
            table[title] = ["1" if (name, baseline) == ("heldout", "zero-filled") else given, _cell(metrics, name, name)]
    return table


def _cell(metrics: Mapping[str, float], name: str, kind: str) -> str:
    if name not in metrics:
        return "-"
    if kind in ("psnr", "equiv") and metrics[name] >= MAX_DB:
        return f"≥ {MAX_DB:g} (exact)"
    digits = 2 if kind in ("psnr", "equiv") else 4
    deviation = f" ± {metrics[f'{name}_sd']:.{digits}f}" if f"{name}_sd" in metrics else ""
    return f"{metrics[name]:.{digits}f}{deviation}"


def markdown(table: Mapping[str, list[str]], epoch: int) -> str:
    """Lay the summary out as the description of a run."""
    rows = [list(table), ["---"] * len(table), *(list(row) for row in zip(*table.values(), strict=True))]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"Test slices, weights of epoch {epoch} (mean ± standard deviation):\n\n{lines}\n"


def print_summary(table: Mapping[str, list[str]], epoch: int, uri: str, experiment: str, models: Path) -> None:
    """Print the summary and where everything is."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"Test slices, weights of epoch {epoch} (mean ± standard deviation)")
    for title in table:
        shown.add_column(title)
    for row in zip(*table.values(), strict=True):
        shown.add_row(*row)
    console = Console()
    console.width = max(console.width, 110)  # not folded where the output is a file
    console.print(shown)
    console.print(f"weights:    {models}")
    console.print(f"curves and pictures:  mlflow ui --backend-store-uri {uri}   (experiment {experiment})", soft_wrap=True)
