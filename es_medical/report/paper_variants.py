"""The paper's own numbers of other architectures and of unknown noise, as `es_medical.report.paper` has those of methods."""

from es_medical.report.paper import INPAINTING_SETTING, MRI_SETTING, NOISY_MRI_SETTING, PUSHBROOM_SETTING, PaperTable, paper_row

ABLATIONS: dict[str, PaperTable] = {
    table.key: table
    for table in (
        PaperTable(
            "inpainting",
            "Impact of equivariant architectures: image inpainting",
            "tab:ablation_equivariance_supp (appendix Results; tab:ablation_equivariance prints 0.9002 ± 0.0414 and "
            "0.8652 ± 0.0461 for the SSIM of Supervised and Splitting, not equivariant)",
            INPAINTING_SETTING,
            (
                paper_row("Supervised", "supervised", "28.46 ± 2.97", "0.8982 ± 0.0411", "28.46 ± 2.97"),
                paper_row("Supervised, not equivariant", "supervised_neq", "28.62 ± 3.03", "0.9001 ± 0.0415", "27.85 ± 2.71"),
                paper_row("Splitting (Ours)", "es", "27.45 ± 2.86", "0.8737 ± 0.0461", "27.46 ± 2.85"),
                paper_row("Splitting, not equivariant", "splitting", "27.20 ± 2.83", "0.8651 ± 0.0463", "26.52 ± 2.60"),
                paper_row("EI", "ei", "25.89 ± 2.65", "0.8332 ± 0.0521", "25.89 ± 2.65"),
                paper_row("EI, not equivariant", "ei_neq", "26.33 ± 2.81", "0.8451 ± 0.0536", "25.58 ± 2.52"),
                paper_row("MC", "mc", "8.22 ± 2.47", "0.098 ± 0.055", "8.22 ± 2.47"),
                paper_row("MC, not equivariant", "mc_neq", "8.24 ± 2.48", "0.100 ± 0.056", "8.24 ± 2.48"),
            ),
        ),
        PaperTable(
            "mri_x8",
            "Impact of equivariant architectures: MRI (x8 Accel., 40 dB SNR)",
            "tab:ablation_equivariance (section Ablation study)",
            MRI_SETTING,
            (
                paper_row("Supervised", "supervised", "28.74 ± 2.81", "0.6445 ± 0.1094", "31.71 ± 2.83"),
                paper_row("Supervised, not equivariant", "supervised_neq", "28.48 ± 2.68", "0.6381 ± 0.1082", "28.78 ± 1.95"),
                paper_row("Splitting (Ours)", "es", "28.54 ± 2.75", "0.6195 ± 0.1188", "31.53 ± 2.74"),
                paper_row("Splitting, not equivariant", "splitting", "28.18 ± 2.58", "0.6104 ± 0.1176", "27.28 ± 2.10"),
            ),
        ),
        PaperTable(
            "mri_x6",
            "Impact of equivariant architectures: MRI (x6 Accel., 10 dB SNR)",
            "tab:ablation_equivariance_supp (appendix Results)",
            NOISY_MRI_SETTING,
            (
                paper_row("Supervised", "supervised", "27.39 ± 2.44", "0.5243 ± 0.1373", "30.38 ± 2.43"),
                paper_row("Supervised, not equivariant", "supervised_neq", "27.33 ± 2.42", "0.5174 ± 0.1410", "29.73 ± 2.20"),
                paper_row("Splitting (Ours)", "es", "27.33 ± 2.45", "0.5126 ± 0.1444", "30.32 ± 2.44"),
                paper_row("Splitting, not equivariant", "splitting", "27.20 ± 2.38", "0.5095 ± 0.1430", "28.66 ± 1.76"),
            ),
        ),
    )
}
"""Equivariant against other architectures, by the key of the table of methods."""

UNKNOWN_NOISE: dict[str, PaperTable] = {
    table.key: table
    for table in (
        PaperTable(
            "pushbroom_random",
            "Noise distribution unknown: image inpainting",
            "tab:unknown_noise (appendix Results)",
            PUSHBROOM_SETTING,
            (
                paper_row("Supervised", "supervised", "23.72 ± 2.10", "0.743 ± 0.051"),
                paper_row("ES (Ours)", "es", "23.04 ± 1.81", "0.734 ± 0.050"),
                paper_row("ES", "es", "22.05 ± 1.36", "0.59 ± 0.061", known=False),
                paper_row("EI", "ei", "23.05 ± 2.13", "0.707 ± 0.066"),
                paper_row("EI", "ei", "22.01 ± 1.71", "0.59 ± 0.051", known=False),
                paper_row("Incomplete image", "baseline", "9.44 ± 2.31", "0.141 ± 0.048"),
            ),
        ),
        PaperTable(
            "mri_x8",
            "Noise distribution unknown: MRI (x8 Accel., 40 dB SNR)",
            "tab:unknown_noise (appendix Results)",
            MRI_SETTING,
            (
                paper_row("Supervised", "supervised", "28.74 ± 2.81", "0.6445 ± 0.1094"),
                paper_row("ES (Ours)", "es", "28.54 ± 2.75", "0.6195 ± 0.1188"),
                paper_row("ES", "es", "28.52 ± 2.75", "0.6194 ± 0.1191", known=False),
                paper_row("EI", "ei", "27.88 ± 2.64", "0.5731 ± 0.1299"),
                paper_row("EI", "ei", "27.89 ± 2.59", "0.5755 ± 0.1285", known=False),
                paper_row("IDFT", "baseline", "23.62 ± 1.90", "0.5052 ± 0.0900"),
            ),
        ),
        PaperTable(
            "mri_x6",
            "Noise distribution unknown: MRI (x6 Accel., 10 dB SNR)",
            "tab:unknown_noise (appendix Results)",
            NOISY_MRI_SETTING,
            (
                paper_row("Supervised", "supervised", "27.39 ± 2.44", "0.5243 ± 0.1373"),
                paper_row("ES (Ours)", "es", "27.33 ± 2.45", "0.5126 ± 0.1444"),
                paper_row("ES", "es", "25.73 ± 1.49", "0.4566 ± 0.0622", known=False),
                paper_row("EI", "ei", "27.23 ± 2.41", "0.5110 ± 0.1421"),
                paper_row("EI", "ei", "26.02 ± 1.65", "0.4706 ± 0.0873", known=False),
                paper_row("IDFT", "baseline", "23.85 ± 1.05", "0.3878 ± 0.0272"),
            ),
        ),
    )
}
"""Losses that take the noise level as zero, by the key of the table of methods."""
