"""Former name of `python -m es_medical.tracking`, kept because runs of version 0.1 printed it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("es_medical.tracking", run_name="__main__", alter_sys=True)
