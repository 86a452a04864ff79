"""Read an MLflow store: runs as records (runs), their curves and times (timing), scores and logged images."""
