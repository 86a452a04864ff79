"""The paper's tables and figures, built from MLflow runs; `python -m es_medical.report tables|reproduce|sweep`.

`reading/` reads an MLflow store, `running/` runs trainings. From runs to files: groups (which runs belong in
one table), tables, statistics and levels; figures and gallery; grids (tables as text); report (all of it), formats (the files).
The paper's experiments are in catalogue, its numbers in two CSV files (paper). Start at report.py.
"""
