import subprocess
import sys

import pytest

HEAVY = ["monai", "mlflow", "astra", "ignite", "h5py", "pandas", "typer"]
CODE = """
import sys
for name in {names}:
    __import__("es_medical" + name)
print(*sorted(set(sys.modules) & set({heavy})))
"""


@pytest.mark.parametrize(
    "names", [[""], ["", ".groups", ".physics", ".splits", ".networks", ".losses", ".metrics", ".inferers"]]
)
def test_import_loads_none_of_the_heavy_packages(names):
    heavy = HEAVY if names == [""] else HEAVY[:3]  # deepinv may bring others
    run = subprocess.run(
        [sys.executable, "-c", CODE.format(names=names, heavy=heavy)], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == ""
