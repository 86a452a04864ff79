"""Write reconstructions as derived DICOM series.

Start reading at `writer.py`; `source.py` reads the series whose study they join.
"""
