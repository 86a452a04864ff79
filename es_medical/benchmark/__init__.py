"""Timings of what training spends its time on; needs torch and deepinv, neither MONAI nor MLflow."""
