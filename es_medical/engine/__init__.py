"""What trains: one step, the MONAI engines around it, checkpoints, and what a configuration builds. Start reading at `step.py`.

`trainer.py` and `evaluator.py` are the engines, `checkpoint.py` keeps weights and states, `setup.py` and `operators.py` are the
functions that the bundles name, `config.py` checks their knobs. Whole jobs made of these are in `es_medical.jobs`.
"""
