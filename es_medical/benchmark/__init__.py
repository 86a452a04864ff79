"""Benchmarks of training, imports and data preparation; needs torch and deepinv, but neither MONAI nor MLflow."""
