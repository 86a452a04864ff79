"""Make an empty MLflow database in the working directory."""

from es_medical.tracking.server import connect

if __name__ == "__main__":
    connect("sqlite:///mlflow.db").search_experiments()
