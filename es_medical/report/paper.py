"""The paper's own numbers, typed from its tables and figures, each with its setting and its source.

A number stands here as the paper prints it ("28.46 ± 2.97"), so that it can be compared with the paper by eye;
`Printed.mean` and `Printed.sd` read it. Decibels for PSNR and EQUIV. Labels of tables are those of the paper's source.
"""

from typing import NamedTuple


class Printed(NamedTuple):
    """A number as printed: "mean ± standard deviation over the test items", or "" where the paper gives none.

    >>> Printed("28.46 ± 2.97").mean, Printed("28.46 ± 2.97").sd, Printed("").mean
    (28.46, 2.97, None)
    """

    text: str = ""

    @property
    def mean(self) -> float | None:
        """The mean, None where the paper gives none."""
        return float(self.text.partition("±")[0]) if self.text else None

    @property
    def sd(self) -> float | None:
        """The standard deviation over items, None where the paper gives none."""
        return float(self.text.partition("±")[2]) if "±" in self.text else None


class PaperRow(NamedTuple):
    """One row of a table of the paper.

    Attributes:
        label: as the paper names it.
        method: our name (`--method`), "baseline" for the operator's own linear reconstruction.
        psnr: dB.
        ssim: without unit.
        equiv: dB.
        known: False where the loss does not know the noise level.
    """

    label: str
    method: str
    psnr: Printed
    ssim: Printed
    equiv: Printed = Printed()
    known: bool = True


class PaperTable(NamedTuple):
    """One table of the paper, or one block of it: what it measures, where it stands, its rows in its order."""

    key: str
    title: str
    source: str
    setting: str
    rows: tuple[PaperRow, ...]

    def row(self, method: str, known: bool = True) -> PaperRow | None:
        """Return the row of a method, None where the paper has none."""
        return next((row for row in self.rows if (row.method, row.known) == (method, known)), None)


class Duration(NamedTuple):
    """Training of one method in the paper: seconds of an epoch, and epochs."""

    method: str
    seconds_per_epoch: float
    epochs: int


def paper_row(label: str, method: str, psnr: str, ssim: str, equiv: str = "", known: bool = True) -> PaperRow:
    """Make a row of printed numbers."""
    return PaperRow(label, method, Printed(psnr), Printed(ssim), Printed(equiv), known)


INPAINTING_SETTING = (
    "DIV2K, 128 x 128 RGB crops, 30 % of the values kept (Bernoulli), no noise, 800 training and 100 test images, s = 0.8"
)
MRI_SETTING = (
    "FastMRI knee, middle slices, 320 x 320, x8, noise 0.005 (40 dB), 900 training and 73 test images, s = 0.8, alpha = 0.5"
)
NOISY_MRI_SETTING = (
    "FastMRI knee, middle slices, 320 x 320, x6, noise 0.1 (10 dB), 900 training and 73 test images, s = 0.8, alpha = 0.5"
)
REAL_SETTING = "FastMRI knee, recorded k-space resampled to 320 x 320, x8, 900 training and 73 test images"
CT_SETTING = "LIDC-IDRI, 256 x 256, -1000 to 1000 HU, 50 views, noise 0.001 (50 dB), 900 training and 110 test images"
PUSHBROOM_SETTING = (
    "DIV2K, 128 x 128 RGB crops, columns removed at random places, noisy (level not stated), 800 training and 100 test"
)
EVEN_SETTING = "DIV2K, 128 x 128 RGB crops, every other column removed, 800 training and 100 test images"
SENSING_SETTING = "MNIST, 28 x 28, Gaussian matrix with entries of variance 1 / m, no noise"

TABLES: dict[str, PaperTable] = {
    table.key: table
    for table in (
        PaperTable(
            "inpainting",
            "Image inpainting",
            "tab:Inpainting (section Image inpainting)",
            INPAINTING_SETTING,
            (
                paper_row("Supervised", "supervised", "28.46 ± 2.97", "0.8982 ± 0.0411", "28.46 ± 2.97"),
                paper_row("ES (Ours)", "es", "27.45 ± 2.86", "0.8737 ± 0.0461", "27.46 ± 2.85"),
                paper_row("EI", "ei", "25.89 ± 2.65", "0.8332 ± 0.0521", "25.89 ± 2.65"),
                paper_row("MC", "mc", "8.22 ± 2.47", "0.0983 ± 0.0551", "8.22 ± 2.47"),
                paper_row("Incomplete image", "baseline", "8.22 ± 2.47", "0.0973 ± 0.0542"),
            ),
        ),
        PaperTable(
            "mri_x8",
            "MRI (x8 Accel., 40 dB SNR)",
            "tab:MRI (section Magnetic resonance imaging)",
            MRI_SETTING,
            (
                paper_row("Supervised", "supervised", "28.74 ± 2.81", "0.6445 ± 0.1094", "31.71 ± 2.83"),
                paper_row("ES (Ours)", "es", "28.54 ± 2.75", "0.6195 ± 0.1188", "31.53 ± 2.74"),
                paper_row("EI", "ei", "27.88 ± 2.64", "0.5731 ± 0.1299", "30.79 ± 2.64"),
                paper_row("SURE", "sure", "24.45 ± 1.86", "0.5479 ± 0.0740", "27.35 ± 1.90"),
                paper_row("IDFT", "baseline", "23.62 ± 1.90", "0.5052 ± 0.0900", "25.99 ± 1.94"),
            ),
        ),
        PaperTable(
            "mri_x6",
            "MRI (x6 Accel., 10 dB SNR)",
            "tab:MRI_supp (appendix Results)",
            NOISY_MRI_SETTING,
            (
                paper_row("Supervised", "supervised", "27.39 ± 2.44", "0.5243 ± 0.1373", "30.38 ± 2.43"),
                paper_row("ES (Ours)", "es", "27.33 ± 2.45", "0.5126 ± 0.1444", "30.32 ± 2.44"),
                paper_row("EI", "ei", "27.23 ± 2.41", "0.5110 ± 0.1421", "30.21 ± 2.40"),
                paper_row("SURE", "sure", "27.08 ± 2.29", "0.5097 ± 0.1372", "30.06 ± 2.28"),
                paper_row("IDFT", "baseline", "23.85 ± 1.05", "0.3878 ± 0.0272", "25.14 ± 0.79"),
            ),
        ),
        PaperTable(
            "mri_real",
            "Real MRI measurements (x8 Accel.)",
            "tab:MRI (section Magnetic resonance imaging)",
            REAL_SETTING,
            (
                paper_row("Supervised", "supervised", "28.81 ± 2.85", "0.6480 ± 0.1103", "31.81 ± 2.84"),
                paper_row("ES (Ours)", "es", "28.30 ± 2.64", "0.6151 ± 0.1179", "31.29 ± 2.62"),
                paper_row("EI", "ei", "27.88 ± 2.61", "0.5740 ± 0.1290", "30.80 ± 2.61"),
                paper_row("MC", "mc", "23.63 ± 1.90", "0.5061 ± 0.0904", "26.00 ± 1.94"),
                paper_row("IDFT", "baseline", "23.63 ± 1.90", "0.5060 ± 0.0904", "26.00 ± 1.94"),
            ),
        ),
        PaperTable(
            "ct",
            "CT (50 views, 50 dB SNR)",
            "tab:MRI (section Computed tomography)",
            CT_SETTING,
            (
                paper_row("Supervised", "supervised", "33.99 ± 2.48", "0.8819 ± 0.0585", "34.00 ± 2.49"),
                paper_row("ES (Ours)", "es", "32.62 ± 2.16", "0.8570 ± 0.0596", "32.60 ± 2.17"),
                paper_row("EI", "ei", "28.61 ± 1.28", "0.7400 ± 0.0466", "28.61 ± 1.29"),
                paper_row("FBP", "baseline", "25.59 ± 0.69", "0.4805 ± 0.0363", "25.59 ± 0.70"),
            ),
        ),
        PaperTable(
            "pushbroom_random",
            "Image inpainting (randomly-spaced push-broom mask)",
            "tab:push_broom (appendix Results)",
            PUSHBROOM_SETTING,
            (
                paper_row("Supervised", "supervised", "23.72 ± 2.10", "0.743 ± 0.051"),
                paper_row("ES (Ours)", "es", "23.04 ± 1.81", "0.734 ± 0.050"),
                paper_row("EI", "ei", "23.05 ± 2.13", "0.707 ± 0.066"),
                paper_row("Incomplete image", "baseline", "9.44 ± 2.31", "0.141 ± 0.048"),
            ),
        ),
        PaperTable(
            "pushbroom_even",
            "Image inpainting (evenly-spaced push-broom mask)",
            "tab:push_broom (appendix Results)",
            EVEN_SETTING,
            (
                paper_row("Supervised", "supervised", "28.37 ± 2.15", "0.873 ± 0.035"),
                paper_row("ES (Ours)", "es", "21.94 ± 2.12", "0.617 ± 0.091"),
                paper_row("Incomplete image", "baseline", "9.61 ± 2.42", "0.152 ± 0.061"),
            ),
        ),
    )
}
"""The tables of methods by key, in the order of the report."""

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""m / n of the figure's points: compression levels of 90, 80, 70, 60 and 50 %."""

LEVELS: dict[str, tuple[float, ...]] = {
    "supervised": (25.2847900390625, 30.28490966796875, 34.11861328125, 37.6652099609375, 41.28447265625),
    "es": (25.6813037109375, 30.9136767578125, 34.57111572265625, 38.193095703125, 41.7637939453125),
    "ei": (19.727647705078127, 27.54322265625, 32.2607861328125, 36.406787109375, 39.9035009765625),
    "baseline": (10.64, 11.10, 11.74, 12.40, 13.30),
}
"""PSNR in dB at `RATIOS` (fig:compressive_sensing, fig:compressing_sensing_supp); the baseline is the pseudo-inverse."""

DURATIONS: dict[str, tuple[Duration, ...]] = {
    "inpainting": (Duration("supervised", 12, 200), Duration("es", 12, 1000), Duration("ei", 14, 1000)),
    "mri_x8": (
        Duration("supervised", 29, 200),
        Duration("es", 24, 13800),
        Duration("ei", 53, 7800),
        Duration("sure", 36, 5700),
    ),
    "mri_x6": (
        Duration("supervised", 19, 70),
        Duration("es", 19, 3100),
        Duration("ei", 75, 2400),
        Duration("sure", 35, 1200),
    ),
}
"""tbl:training_durations: inpainting on one RTX 3090 Ti, MRI on one H100; by the key of the table of methods."""


def sensing_table(ratio: float) -> PaperTable | None:
    """Return the figure's points at one ratio m / n, to 0.01 dB, as a table; None for a ratio that the figure has not."""
    at = [i for i, one in enumerate(RATIOS) if abs(one - ratio) < 1e-6]
    if not at:
        return None
    labels = {"supervised": "Supervised", "es": "ES (Ours)", "ei": "EI", "baseline": "Pseudo-inv."}
    rows = tuple(paper_row(labels[name], name, f"{points[at[0]]:.2f}", "") for name, points in LEVELS.items())
    source = "fig:compressing_sensing_supp (points of the figure, which gives no standard deviation)"
    title = f"Compressive sensing ({100 * (1 - ratio):g} % compression)"
    return PaperTable("sensing", title, source, f"{SENSING_SETTING}, m / n = {ratio:g}", rows)
