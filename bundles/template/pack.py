"""Pack each bundle as a zip file for MONAI: `python bundles/template/pack.py OUT`.

`python -m monai.bundle download --name lidc_ct --url file:///FOLDER/lidc_ct_v0.2.0.zip --bundle_dir .` unpacks it, from a
folder or a server. The weights of its demo are in it; other weights, data and results in its folder are left out. The same
sources give the same bytes.
"""

import json
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

BUNDLES = Path(__file__).parents[1]
PARTS = ("LICENSE", "configs", "docs", "models/demo")
DATE = (1980, 1, 1, 0, 0, 0)


def main(out: Path) -> None:
    """Write OUT/NAME_vVERSION.zip for every bundle and print their names."""
    out.mkdir(parents=True, exist_ok=True)
    for configs in sorted(BUNDLES.glob("*/configs")):
        if configs.parent.name != "template":
            print(packed(configs.parent, out).name)


def packed(bundle: Path, out: Path) -> Path:
    """Write one bundle; return the zip file's path."""
    version = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))["version"]
    path = out / f"{bundle.name}_v{version}.zip"
    files = [file for part in PARTS for file in sorted([bundle / part, *(bundle / part).rglob("*")]) if file.is_file()]
    with ZipFile(path, "w") as archive:
        for file in files:
            entry = ZipInfo(f"{bundle.name}/{file.relative_to(bundle).as_posix()}", DATE)
            entry.compress_type, entry.external_attr = ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bundles/template/pack.py OUT")
    main(Path(sys.argv[1]))
