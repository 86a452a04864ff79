"""Make small data sets for demos of a few minutes from images in installed packages.

Start reading at `brain.py`.
"""
