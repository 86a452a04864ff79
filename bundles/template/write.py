"""Write the files that all bundles have in common: `python bundles/template/write.py`.

A user may copy the folder of a bundle elsewhere, so nothing in it refers to another bundle. The common files are written
from the templates in `configs/` (jinja2); `<bundle>.yaml` next to this file has the values specific to one bundle. Overlays
(`demo.yaml`, ...) and docs are written by hand, in the bundle. `docs/knobs.md` is made from the comments of the configurations.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
BUNDLES = HERE.parent
PLAIN = ("train.yaml", "evaluate.yaml", "calibrate.yaml", "multi_gpu_train.yaml", "logging.conf")


def main() -> None:
    """Write the shared files of every bundle and print the names of those that changed."""
    for path, text in written().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(BUNDLES.parent))


def written() -> dict[Path, str]:
    """Return the text of each file that this command writes, for all bundles."""
    parts = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.yaml"))}
    commented, files = {}, {}
    for name, part in parts.items():
        commented[name], texts = _bundle({"name": name, **part})
        files |= {BUNDLES / name / path: text for path, text in texts.items()}
    files[BUNDLES.parent / "docs" / "knobs.md"] = _render("knobs.md", {"sections": _sections(commented)})
    return files


def _bundle(given: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return one bundle's configurations with their comments, and the texts of its files."""
    configs = {name: _render(name, given) for name in PLAIN}
    training = yaml.safe_load(configs["train.yaml"])
    inference = _render("inference.yaml", given | {"training": training})
    configs["inference.json"] = _json_by_line(yaml.safe_load(inference))
    configs["metadata.json"] = json.dumps(yaml.safe_load(_render("metadata.yaml", given)), indent=2) + "\n"
    licence = (BUNDLES.parent / "LICENSE").read_text(encoding="utf-8")
    files = {"LICENSE": licence, **{f"configs/{name}": text for name, text in configs.items()}}
    return configs["train.yaml"] + inference, files


def _sections(commented: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    """Return the knobs under each `# --- section` of the bundles' configurations: name, default and comment."""
    found: dict[str, dict[str, tuple[str, dict[str, list[str]]]]] = {}
    for bundle, text in commented.items():
        for section, name, value, note in re.findall(r"^(?:# --- (.*)|(\w+): (.*?)  # (.*))$", text, re.MULTILINE):
            if section:
                knobs = found.setdefault(section, {})
            else:
                knobs.setdefault(name, (note, {}))[1].setdefault(value, []).append(bundle)
    return {
        section: [
            {"name": name, "default": _default(values, len(commented)), "note": note} for name, (note, values) in knobs.items()
        ]
        for section, knobs in found.items()
    }


def _default(values: dict[str, list[str]], n_bundles: int) -> str:
    """Return the default of a knob, and of which bundles where they differ or some have no such knob."""
    if [len(bundles) for bundles in values.values()] == [n_bundles]:
        return f"`{next(iter(values))}`"
    return "; ".join(f"`{value}` ({', '.join(bundles)})" for value, bundles in values.items())


def _render(name: str, given: dict[str, Any]) -> str:
    """Fill in a template; a name that the bundle's part does not define is an error."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "configs"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"flow": _flow, "knobs": _knobs, "references": _references}
    return environment.get_template(name).render(given)


def _flow(value: object) -> str:
    """Return a value as YAML in one line: `{a: 1, b: [x, null]}`."""
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=10**6)[1:-2]


def _knobs(values: dict[str, object], notes: dict[str, str]) -> str:
    """Return top-level entries, one per line: `views: 50  # number of views`."""
    return "\n".join(f"{name}: {_flow(value)}  # {notes[name]}" for name, value in values.items())


def _references(names: list[str]) -> str:
    """Return arguments that refer to the entries of the same names: `views: "@views", sigma: "@sigma"`."""
    return ", ".join(f'{name}: "@{name}"' for name in names)


def _json_by_line(content: dict[str, object]) -> str:
    """Return JSON with one top-level entry per line."""
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()) + "\n}\n"


if __name__ == "__main__":
    main()
