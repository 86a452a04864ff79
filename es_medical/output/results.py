"""Make and print the table of results at the end of a job."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from es_medical.data.schema import GROUND_TRUTH
from es_medical.metrics import MAX_DB

EXACT = "∞ (exact)"
"""EQUIV of a network that is equivariant up to rounding: infinite, so not shown as a number here or in MLflow."""


def summary_table(
    method: str, metrics: Mapping[str, float], n: int, baseline: str = "zero-filled", image: str = GROUND_TRUTH
) -> dict[str, list[str]]:
    """Make the summary of a test: a row for the baseline and one for the method, mean and standard deviation over n slices.

    Columns of scores that need images are left out if there are none; images that are no ground truth are named in the titles.
    The held-out error of a zero-filled image is 1 by definition: it predicts nothing that was held out.
    """
    to = "" if image == GROUND_TRUTH else f" to {image}"
    titles = {"psnr": f"PSNR{to} (dB)", "ssim": f"SSIM{to}", "equiv": "EQUIV (dB)", "heldout": "held-out error"}
    table: dict[str, list[str]] = {"method": [baseline, method], "slices": [str(n), str(n)]}
    for name, title in titles.items():
        if name in metrics:
            given = _cell(metrics, f"baseline_{name}", name)
            table[title] = ["1" if (name, baseline) == ("heldout", "zero-filled") else given, _cell(metrics, name, name)]
    exact = exact_slices(metrics, n)
    if 0 < exact < n:
        table["EQUIV (dB)"][-1] += f" ({exact} of {n} {EXACT})"
    return table


def exact_slices(metrics: Mapping[str, float], n: int) -> int:
    """Return for how many of n slices the network was equivariant up to rounding."""
    return n if metrics.get("equiv") == math.inf else int(metrics.get("equiv_exact", 0))


def verdict(label: str, without: str, metrics: Mapping[str, float], baseline: str, place: str) -> str:
    """Say the result in a sentence, from means over slices.

    >>> verdict("ES", "no ground truth", {"psnr": 34.3, "baseline_psnr": 21.1}, "zero-filled", "on 20 test slices")
    'ES, no ground truth: +13.2 dB over zero-filled (PSNR 34.3 dB on 20 test slices)'
    >>> verdict("ES", "no ground truth", {"heldout": 0.0731}, "zero-filled", "on 20 test slices")
    'ES, no ground truth: held-out error 0.0731 on 20 test slices'
    """
    if "psnr" not in metrics or "baseline_psnr" not in metrics:
        return f"{label}, {without}: held-out error {metrics['heldout']:.3g} {place}"
    ssim = f", SSIM {metrics['ssim']:.3f}" if "ssim" in metrics else ""
    gain = metrics["psnr"] - metrics["baseline_psnr"]
    side = f"{gain:+.1f} dB over" if gain >= 0 else f"{-gain:.1f} dB below"
    return f"{label}, {without}: {side} {baseline} (PSNR {metrics['psnr']:.1f} dB{ssim} {place})"


def numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out infinite values, which are exact ones; a NaN is kept, so that it is noticed."""
    return {name: value for name, value in metrics.items() if value != math.inf}


def json_value(value: Any) -> Any:  # noqa: ANN401 - what a row holds
    """Turn infinity into the string "inf" and NaN into None, since JSON has neither; any other value is returned as it is.

    >>> [json_value(value) for value in (1.5, float("inf"), float("nan"), "item7")]
    [1.5, 'inf', None, 'item7']
    """
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def _cell(metrics: Mapping[str, float], name: str, kind: str) -> str:
    if name not in metrics:
        return "-"
    if metrics[name] == math.inf:
        return EXACT
    if kind == "psnr" and metrics[name] >= MAX_DB:
        return f"≥ {MAX_DB:g} (exact)"
    digits = 2 if kind in ("psnr", "equiv") else 4
    deviation = f" ± {metrics[f'{name}_sd']:.{digits}f}" if f"{name}_sd" in metrics else ""
    return f"{metrics[name]:.{digits}f}{deviation}"


def markdown(table: Mapping[str, list[str]], epoch: int, verdict: str = "") -> str:
    """Format the result in a sentence and the summary in Markdown, as the description of a run."""
    rows = [list(table), ["---"] * len(table), *(list(row) for row in zip(*table.values(), strict=True))]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"**{verdict}**\n\nTest slices, weights of epoch {epoch} (mean ± standard deviation):\n\n{lines}\n"


def print_table(table: Mapping[str, list[str]], title: str, width: int) -> None:
    """Print columns of text under their names, at least `width` characters wide, so that output to a file is not wrapped."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title)
    for name in table:
        shown.add_column(name)
    for row in zip(*table.values(), strict=True):
        shown.add_row(*row)
    console = Console()
    console.width = max(console.width, width)
    console.print(shown)


def print_places(models: Path, page: Path, address: str, command: str) -> None:
    """Print where the weights, the page and the run in MLflow are.

    Args:
        models: folder of the weights.
        page: the run's page.
        address: where MLflow shows the run; "" if it has not arrived there.
        command: what starts MLflow's pages; "" for a server.
    """
    print(f"weights:  {models}\npage:     {page}  (open it in a browser)")
    if address:
        print(f"MLflow:   {address}" + (f"\n          after: {command}" if command else ""), flush=True)
