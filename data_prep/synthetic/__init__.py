"""Slices of synthetic images, measured like those of a file."""
