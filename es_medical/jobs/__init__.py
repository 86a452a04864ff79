"""Whole jobs that a configuration runs: training, evaluation, calibration of intervals, diagnosis.

Start reading at `training.py`.
"""
