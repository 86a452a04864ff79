"""Check a bundle's configuration before anything is built from it: names, numbers, versions."""

import difflib
import inspect
import json
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Mapping, Set
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from monai.bundle import ConfigParser, ConfigWorkflow
from packaging.version import Version

from es_medical.engine.launch import refuse_restart
from es_medical.engine.settings import knobs_to_keep, read_knobs_of, taken_knobs
from es_medical.engine.weights.state_file import LAST, TRAIN_FIRST
from es_medical.knobs import AUTO, BY_DATA, OPERATOR, read_configuration, typed_options
from es_medical.methods import METHODS, current_name

logger = logging.getLogger(__name__)

PACKAGES = {"monai_version": "monai", "pytorch_version": "torch", "numpy_version": "numpy"}
TRUTH = {"true": True, "false": False}
USERS = (ValueError, OSError, ImportError, FloatingPointError)
"""Errors whose message says by itself what is wrong."""
NULLS = ("none", "null")
COMMANDS = (("monai", "bundle", "__main__.py"), ("es_medical", "reconstruct.py"))
NULLABLE = (*OPERATOR, "photons", "assumed_sigma", "clip")
"""Knobs that can be null in every bundle: any value of the data file is accepted, or nothing is limited."""


def check_configuration() -> None:
    """Check the configuration being initialised; call this first in a bundle's `initialize`.

    A top-level name that is in no file of the bundle and that nothing refers to is refused, with the nearest valid name
    (MONAI accepts a misspelt override silently). Text becomes a number where one belongs (YAML 1.1 reads `lr: 1e-4` as
    text), and `--resume false`, which the command line passes as text, becomes false. `--ema None`, which MONAI's command
    line leaves out, and `--ema null` become null. Old method names are updated. Testing, reconstruction and resuming take the
    knobs that their weights were trained with (see `es_medical.engine.settings.taken_knobs`).

    Raises:
        FileNotFoundError: there are no weights, and a knob is `auto`.
        ValueError: an unknown name, text in place of a number or boolean, null for a knob that has none, a job that the
            bundle does not have (`run train`), or another network than that of the weights.
    """
    workflow = _running_workflow()
    say_cause_alone(workflow.parser)
    logger.info("%s: reading the data and building the network", Path(workflow.config_root_path).resolve().parent.name)
    files = _files(workflow)
    shipped, nullable = _shipped(files)
    check_job(workflow.run_id, workflow.parser.get())
    ours = any(Path(sys.argv[0]).parts[-len(command) :] == command for command in COMMANDS)
    typed = typed_options(sys.argv[1:]) if ours else {}
    for name, text in typed.items():
        if text.lower() in NULLS and name in workflow.parser:
            workflow.parser[name] = None if "#" in name else "none"
    given = {name: value for name, value in workflow.parser.get().items() if not name.startswith("_")}
    check_names(given, shipped)
    for name, value in as_typed(given, shipped, nullable).items():
        workflow.parser[name] = value
    check_nulls(workflow.parser.get(), shipped, nullable)
    if isinstance(given.get("method"), str):
        workflow.parser["method"] = current_name(given["method"])
    _take_knobs(workflow.parser, files, frozenset(name.partition("#")[0] for name in typed))
    check_versions(workflow.parser.get("_meta_") or {})


def _take_knobs(parser: ConfigParser, files: list[dict[str, Any]], typed: Set[str]) -> None:
    """Set the knobs that are those of the weights, where the configuration uses any."""
    learns = METHODS.get(parser.get("method", "es"), METHODS["es"]).trained
    name = parser.get("knobs_from") or (LAST if parser.get("resume") and learns else None)
    if name is None:
        return
    weights = Path(parser.get_parsed_content("ckpt_dir")) / name
    given = {name: value for name, value in parser.get().items() if name != "_meta_"}
    if not weights.is_file():  # said when they are loaded: a reconstruction without any can still be built
        if AUTO in (given.get(name) for name in BY_DATA if name in files[0]):
            raise FileNotFoundError(f"no checkpoint at {weights}: {TRAIN_FIRST}")
        return
    given = {name: value if value == files[0].get(name) else _evaluated(parser, name, value) for name, value in given.items()}
    for name, value in taken_knobs(given, files, typed, read_knobs_of(weights), weights).items():
        parser[name] = value


def kept_configuration(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of the running configuration with the weights; `chosen` are the knobs that were `auto`."""
    workflow = _running_workflow()
    return knobs_to_keep(resolved_configuration(), workflow.parser.get(), _files(workflow)[0], chosen)


def resolved_configuration() -> dict[str, Any]:
    """Return the configuration of the running workflow, with overrides but without its metadata.

    Plain top-level values are evaluated; definitions of objects are returned as written.
    """
    parser = _running_workflow().parser
    content = {name: value for name, value in parser.get().items() if name != "_meta_"}
    return {name: _evaluated(parser, name, value) for name, value in content.items()}


def _evaluated(parser: ConfigParser, name: str, value: Any) -> Any:  # noqa: ANN401 - any YAML value
    if not isinstance(value, str) or not value.startswith(("$", "@")):
        return str(value) if isinstance(value, Path) else value
    content = parser.get_parsed_content(name)
    return content if isinstance(content, str | int | float | bool | list | None) else str(content)


def check_names(given: Mapping[str, Any], shipped: Mapping[str, Any]) -> None:
    """Raise ValueError for a name in `given` that is not in `shipped` and that no value refers to as @name."""
    used = set(re.findall(r"[@%]([A-Za-z_]\w*)", json.dumps(given, default=str)))
    for name in sorted(given.keys() - shipped.keys() - used):
        near = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"valid names: {', '.join(sorted(shipped))}"
        raise ValueError(f"unknown configuration name {name!r}: {hint}")


def check_job(run_id: str, content: Mapping[str, Any]) -> None:
    """Raise ValueError if what is to be run is no list of instructions: MONAI would build it, and end without a word."""
    if isinstance(content.get(run_id), dict):
        raise ValueError(
            f"{run_id!r} is a part of the configuration and no job: leave out the word, as in "
            "`python -m monai.bundle run --config_file ...`"
        )


def check_nulls(given: Mapping[str, Any], shipped: Mapping[str, Any], nullable: Set[str]) -> None:
    """Raise ValueError for a knob that is null where every file of the bundle has a number or boolean."""
    for name, value in shipped.items():
        if isinstance(value, bool | int | float) and name in given and given[name] is None and name not in nullable:
            raise ValueError(f"{name} can't be null: expected a value like {str(value).lower()}")


def as_typed(
    given: Mapping[str, Any], shipped: Mapping[str, Any], nullable: Set[str] = frozenset()
) -> dict[str, float | bool | None]:
    """Return the values of `given` that are text where the bundle has a number or boolean, converted to that type.

    `auto` stays text, for the knobs that can follow from the data. "null" and "None" become None, but for knobs that are names
    and can't be null: `weighting: none` is one of them.

    Raises:
        ValueError: a text is neither.

    >>> as_typed({"lr": "1e-4", "resume": "false"}, {"lr": 0.1, "resume": True})
    {'lr': 0.0001, 'resume': False}
    """
    typed: dict[str, float | bool | None] = {}
    for name, text in given.items():
        if name not in shipped or not isinstance(text, str) or text.startswith(("$", "@", "%")):
            continue
        if text == AUTO and name in BY_DATA:
            continue
        if text.lower() in NULLS and (name in nullable or not isinstance(shipped[name], str)):
            typed[name] = None
            continue
        default = shipped[name]
        while isinstance(default, str) and default.startswith("@") and default[1:] in shipped:
            default = shipped[default[1:]]  # `assumed_sigma: "@sigma"` is a number because sigma is
        if isinstance(default, bool) or (default is None and text.lower() in TRUTH):
            typed[name] = _truth(name, text)
        elif isinstance(default, int | float):
            typed[name] = _number(name, text, default)
    return typed


def _truth(name: str, text: str) -> bool:
    if text.lower() not in TRUTH:
        raise ValueError(f"{name} must be true or false, got {text!r}")
    return TRUTH[text.lower()]


def _number(name: str, text: str, default: float) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number like {default}, got {text!r}") from None
    return int(number) if isinstance(default, int) and number.is_integer() else number


def positive_int(name: str, value: float) -> int:
    """Return `value` as an int; raise ValueError unless it is a whole number of at least 1.

    >>> positive_int("epochs", 80.0)
    80
    """
    if value != int(value) or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {value}")
    return int(value)


def check_versions(metadata: Mapping[str, Any]) -> None:
    """Warn of each installed package that is older than the bundle's metadata requires."""
    asked = {package: metadata[key] for key, package in PACKAGES.items() if key in metadata}
    asked |= metadata.get("required_packages_version", {})
    for package, wanted in asked.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            found = None
        if found is None or Version(found.split("+")[0]) < Version(wanted):
            effect = "what needs it fails; to add it" if found is None else "results may differ; to upgrade"
            warnings.warn(
                f"this bundle was made with {package} {wanted}, {found or 'none'} is installed: "
                f"{effect}: pip install '{package}>={wanted}'",
                stacklevel=2,
            )


def say_cause_alone(parser: ConfigParser) -> None:
    """Print an error as its cause in one line (MONAI names only a component); the traceback goes to `output_dir`."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        said = cause(error)
        if isinstance(said, KeyboardInterrupt):
            print("interrupted (--resume True goes on after the last finished epoch of a training)", file=sys.stderr)
            return
        name = "" if isinstance(said, USERS) else f"{type(said).__name__}: "
        print(f"error: {name}{said or kind.__name__}", file=sys.stderr)
        try:
            log = Path(str(parser.get_parsed_content("output_dir"))) / "error.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(traceback.format_exception(kind, error, trace)), encoding="utf-8")
            print(f"(traceback: {log})", file=sys.stderr)
        except Exception:  # no such folder: whatever MONAI raises, or the disk
            sys.__excepthook__(kind, error, trace)
        refuse_restart(said)

    sys.excepthook = hook


def cause(error: BaseException) -> BaseException:
    """Return the exception inside MONAI's wrappers, which are RuntimeErrors; one of torch's in words that say what is missing.

    >>> cause(ValueError("lr"))
    ValueError('lr')
    >>> cause(RuntimeError("could not create a primitive"))
    MemoryError('could not create a primitive (torch says so when it is out of memory)')
    """
    while type(error) is RuntimeError and error.__cause__ is not None:
        error = error.__cause__
    if type(error) is RuntimeError and str(error).startswith("could not create a "):
        return MemoryError(f"{error} (torch says so when it is out of memory)")
    return error


def _files(workflow: ConfigWorkflow) -> list[dict[str, Any]]:
    """Read all configuration files of a bundle; the first is that of the workflow's kind, which has the defaults."""
    first = "inference.json" if "input_file" in workflow.parser else "train.yaml"
    folder = workflow.config_root_path
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.json")], key=lambda path: (path.name != first, path.name))
    return [read_configuration(path) for path in paths if path.name != "metadata.json"]


def _shipped(files: list[dict[str, Any]]) -> tuple[dict[str, Any], frozenset[str]]:
    """Merge the top-level entries of the configuration files of a bundle; if a name has several values, prefer a number.

    Returns:
        the entries, and the names that can be null.
    """
    shipped: dict[str, Any] = {}
    nullable = set(NULLABLE)
    for content in reversed(files):
        for name, value in content.items():
            if name not in shipped or isinstance(value, int | float):
                shipped[name] = value
            nullable |= {name} if value is None else set()
    return shipped, frozenset(nullable)


def _running_workflow() -> ConfigWorkflow:
    """Find the workflow on the call stack: MONAI gives the objects it builds no access to the configuration."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, ConfigWorkflow):
            return owner
        frame = frame.f_back
    raise RuntimeError("no MONAI bundle workflow is running: call this from a bundle's configuration")
