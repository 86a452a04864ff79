"""The name that `python -m es_medical.tracking` had in 0.1, kept because runs of 0.1 printed it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("es_medical.tracking", run_name="__main__", alter_sys=True)
