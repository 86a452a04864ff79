"""Small data for demos of minutes, from images that installed packages ship.

Start reading at `brain.py`.
"""
