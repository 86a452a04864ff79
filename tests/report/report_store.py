"""A tiny MLflow store with runs as the engine logs them."""

import json
from io import BytesIO
from itertools import count
from pathlib import Path

import numpy as np
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from PIL import Image

from es_medical.report.groups import group_runs
from es_medical.report.reading.runs import read_runs
from es_medical.report.tables import Context, method_table

BUNDLES = Path(__file__).parents[2] / "bundles"
MRI = {"acceleration": "4", "center_fraction": "0.08", "sigma": "0.005"}


def items(psnr, n=6, ssim=0.8, equiv=50.0, baseline=20.0, spread=1.0, first=0, **extra):
    """Scores of n items whose mean PSNR is `psnr`."""
    offsets = spread * (np.arange(n) - (n - 1) / 2) / max(n - 1, 1)
    shared = {"ssim": ssim, "equiv": equiv, "baseline_psnr": baseline, "baseline_ssim": 0.5} | extra
    return {f"item{first + i}": {"psnr": psnr + offset} | shared for i, offset in enumerate(offsets.tolist())}


class Store:
    """Logs runs through the client alone, without waiting for a training; reads them as the report does."""

    def __init__(self, client, uri, folder):
        self.client, self.uri, self.folder = client, uri, Path(folder)
        self.context = Context(uri, BUNDLES)
        self._clock = count(1_700_000_000_000, 60_000)

    def runs(self, **options):
        return read_runs(self.uri, **options).runs

    def groups(self, **options):
        return group_runs(self.runs(**options))

    def group(self):
        """The only group."""
        (group,) = self.groups()
        return group

    def table(self):
        """The table of methods of the only group."""
        return method_table(self.group(), self.context)

    def log(
        self,
        method,
        table=None,
        experiment="fastmri_synthetic_demo",
        bundle="fastmri_synthetic",
        operator=MRI,
        digest="d1" * 32,
        seed=0,
        curve=((0, 0.0, 20.0), (1, 10.0, 25.0), (2, 10.0, 30.0)),
        status="FINISHED",
        params=None,
        tags=None,
        metrics=None,
        files=None,
        warm=None,
        warm_start="1500 synthetic images of kind mr, 2 epochs",
    ):
        """Log one run; `curve` holds (epoch, seconds of the epochs since the last one, validation PSNR), `warm` seconds."""
        start = next(self._clock)
        found = self.client.get_experiment_by_name(experiment)
        place = (self.folder / "artifacts" / experiment).as_uri()
        where = found.experiment_id if found else self.client.create_experiment(experiment, artifact_location=place)
        run = self.client.create_run(where, start_time=start, run_name=f"{method}-seed{seed}").info.run_id
        knobs = {"method": method, "seed": str(seed), "data_file": "demo.h5", "epochs": "2"} | operator | (params or {})
        labels = {"method": method, "bundle": bundle, "data_set": "demo.h5", "scale": "demo"} | operator | (tags or {})
        labels |= {} if warm is None else {"warm_start": warm_start}
        labels = {name: value for name, value in labels.items() if value is not None}
        self.client.log_batch(
            run,
            self._metrics(table, curve, start, metrics or {}) + ([Metric("warm/seconds", warm, start, 0)] if warm else []),
            [Param(k, v) for k, v in knobs.items()],
            [RunTag(k, v) for k, v in labels.items()],
        )
        used = [("train", 30, digest), ("val", 4, digest), ("test", len(table or ()), digest)] if digest else []
        for context, n, sha256 in used + ([] if warm is None else [("warm", 1500, "e0" * 32)]):
            profile = json.dumps({"num_rows": n, "sha256": sha256})
            data = Dataset(f"demo.h5:{context}", sha256[:36], "local", "{}", profile=profile)
            self.client.log_inputs(run, datasets=[DatasetInput(data, [InputTag("mlflow.data.context", context)])])
        self._files(run, table, files or {})
        self.client.set_terminated(run, status, end_time=start + 1000)
        return run

    def _metrics(self, table, curve, start, metrics):
        logged = [Metric(f"test/{name}", value, start, 9) for name, value in metrics.items()]
        if table:
            finite = [row["psnr"] for row in table.values() if row.get("psnr") is not None and np.isfinite(row["psnr"])]
            logged += [Metric("test/psnr", float(np.mean(finite)), start, 9)] if finite else []
        for epoch, seconds, psnr in curve:
            at = (start + 1000 * epoch, 10 * epoch)
            scores = {"val/psnr": psnr, "val/ssim": psnr / 50, "val/baseline_psnr": 20.0}
            logged += [Metric(name, value, *at) for name, value in scores.items()]
            logged += [Metric("epoch", epoch, *at), Metric("epoch_time", seconds, *at)] if epoch else []
        return logged

    def _files(self, run, table, files):
        if table is not None:
            names = ["id", "index", *next(iter(table.values()))]
            rows = [[one, i, *(row.get(name) for name in names[2:])] for i, (one, row) in enumerate(table.items())]
            files = files | {"test/cases.json": json.dumps({"columns": names, "data": rows}).encode()}
        for path, content in files.items():
            local = self.folder / "upload" / Path(path).name
            local.parent.mkdir(exist_ok=True)
            local.write_bytes(content)
            self.client.log_artifact(run, str(local), str(Path(path).parent))


def case_arrays(reconstruction, target, ids=("item0", "item1")):
    """`test/cases.npz` of images (C, H, W), the same for each id."""
    stream = BytesIO()
    stack = {name: np.stack([one] * len(ids)) for name, one in (("reconstruction", reconstruction), ("target", target))}
    np.savez_compressed(stream, id=np.array(ids), baseline=0.5 * stack["target"], window=np.array([0.0, 1.0]), **stack)
    return stream.getvalue()


def case_picture(value, case=0, time=5):
    """Name and content of a picture as the engine logs it."""
    stream = BytesIO()
    Image.fromarray(np.full((20, 60), value, np.uint8)).save(stream, format="png")
    name = f"images/test~case{case}+step+2+timestamp+{time}+0a1b2c3d-0000-4000-8000-00000000000{case}.png"
    return {name: stream.getvalue()}
