"""The name of `python -m es_medical.tracking` in 0.1; messages of its runs print it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("es_medical.tracking", run_name="__main__", alter_sys=True)
