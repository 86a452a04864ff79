"""The paper's tables and figures, built from MLflow runs."""
