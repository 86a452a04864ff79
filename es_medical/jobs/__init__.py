"""What a configuration runs as a whole: training, evaluation, calibration of intervals, diagnosis.

Start reading at `training.py`.
"""
