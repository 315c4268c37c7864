"""Pages of the reference that are made from the code: the API, the commands, the TOML keys."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import typer
from site_docstrings import arguments

import isfed

SUBJECTS = {
    "simulate": "Simulate",
    "methods": "Methods",
    "parts": "Parts of methods",
    "problems": "Problems and losses",
    "datasets": "Data",
    "sampling": "Sampling",
    "theory": "Theory",
    "studies": "Results and tables",
    "federation": "Agents and cloud",
    "base": "Random streams",
}
ROOMS_OF_THEIR_OWN = {
    "isfed.torch": "Neural networks (`isfed[torch]`)",
    "isfed.flower": "Flower (`isfed[flower]`)",
}


def api_pages() -> dict[str, str]:
    """One page per subject, with directives that mkdocstrings fills in, and an overview."""
    overview = [
        "# Python",
        "Import every name from `isfed`, or from `isfed.torch` and `isfed.flower` where the table "
        "says so. Most programs need four: `Problem`, a method such as `ISFedAvg`, `simulate`, "
        "and the `History` that it returns.",
        "| subject | names |\n|---|---|",
    ]
    pages = {}
    for page, (title, note, names) in _subjects().items():
        links = ", ".join(f"[`{name.split('.')[-1]}`][{path}]" for name, path in names.items())
        overview[-1] += f"\n| [{title}]({page}) | {links} |"
        described = [directive(name, path) for name, path in names.items()]
        pages[f"reference/{page}"] = "\n\n".join([f"# {title}", note, *described]) + "\n"
    return {"reference/index.md": "\n\n".join(overview) + "\n", **pages}


def _subjects() -> dict[str, tuple[str, str, dict[str, str]]]:
    """The pages: title, introduction, and for each name, as imported, where it is defined."""
    from isfed.studies.name_registry import METHODS

    names: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
    for name, home in isfed._homes().items():
        room = home.split(".")[0]
        part = room == "methods" and name not in METHODS
        names["parts" if part else room].append(name)
    found = {}
    for subject, title in SUBJECTS.items():
        ordered = sorted(names[subject], key=lambda name: (name != "simulate", name.lower()))
        paths = {f"isfed.{name}": where_of(name) for name in ordered}
        found[f"{subject}.md"] = title, "Import these names from `isfed`.", paths
    for module, title in ROOMS_OF_THEIR_OWN.items():
        paths = {f"{module}.{path.split('.')[-1]}": path for path in own_names(module)}
        note = f"Import these names from `{module}`."
        found[f"{module.split('.')[1]}.md"] = title, note, paths
    return found


def directive(name: str, path: str) -> str:
    """What mkdocstrings replaces by the description of a name, under the name to import."""
    return f'::: {path}\n    options:\n      heading: "{name}"\n      heading_level: 2'


def where_of(name: str) -> str:
    """The module that defines a public name; constants are where the root looks them up."""
    if name == "simulate":
        return "isfed.simulate.simulate_call.simulate"
    found = getattr(isfed, name)
    named = inspect.isclass(found) or inspect.isfunction(found)
    home = getattr(found, "__module__", None) if named else None
    if home is None:
        home = _defining(f"isfed.{isfed._homes()[name]}", name)
    return f"{home}.{name}"


def _defining(module: str, name: str) -> str:
    """Follow `from x import NAME` to the file that assigns it."""
    source = inspect.getsource(importlib.import_module(module))
    found = re.search(rf"^from (isfed[\w.]*) import [^\n(]*(?:\([^)]*)?\b{name}\b", source, re.M)
    return _defining(found[1], name) if found else module


def own_names(module: str) -> list[str]:
    """The names of a room that needs an extra, read from its source: the extra may be missing."""
    folder = Path(isfed.__file__).parent / module.removeprefix("isfed.")
    tree = ast.parse((folder / "__init__.py").read_bytes())
    homes = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isfed.")
        for alias in node.names
        if alias.name not in isfed.__all__  # these stand further up on the page
    }
    return [f"{home}.{name}" for name, home in sorted(homes.items())]


def commands_page() -> str:
    """Every command with its arguments and options, as the command line itself knows them."""
    from isfed.cli.app import app

    root = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Every command prints this with `--help`. Exit codes: 0 (done), 1 (the run failed), 2 (the "
        "command was used wrongly), 70 (a bug in isfed: please report it with what "
        "`ISFED_TRACEBACK=1` prints), 130 (stopped by Ctrl-C).",
    ]
    for path, command in _commands(root, "isfed"):
        parts.append(f"## `{path}`")
        parts.append(_prose(command.help or ""))
        rows = [_parameter(p) for p in command.params if not getattr(p, "hidden", False)]
        rows = [row for row in rows if row]
        if rows:
            parts.append("| option | what | default |\n|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    subcommands: Mapping[str, Any] = getattr(command, "commands", {})
    if not subcommands:
        yield path, command
    for name, sub in subcommands.items():
        yield from _commands(sub, f"{path} {name}")


def _prose(text: str) -> str:
    """Help as Markdown: a line that is a command becomes code."""
    text = inspect.cleandoc(text.replace("\b", ""))
    return re.sub(r"(?m)^((?:isfed|\$) [^\n]*)$", r"`\1`", text)


def _parameter(parameter: Any) -> str:
    if parameter.name == "help":
        return ""
    if parameter.param_type_name == "argument":
        shown = f"`{(parameter.metavar or parameter.name).upper()}`"
    else:
        flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
        kind = "" if getattr(parameter, "is_flag", False) else f" {_kind(parameter)}"
        shown = flags + kind
    default = parameter.default
    empty = (
        default is None
        or callable(default)
        or default is False
        or repr(default) == "Sentinel.UNSET"
    )
    value = "" if empty or default == () else f"`{getattr(default, 'value', default)}`"
    what = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
    return f"| {shown} | {what} | {'required' if parameter.required else value} |"


def _kind(parameter: Any) -> str:
    kind = getattr(parameter, "type", None)  # Typer's own, or Click's
    choices = getattr(kind, "choices", None)
    if choices:
        return " or ".join(f"`{getattr(choice, 'value', choice)}`" for choice in choices)
    return (parameter.metavar or getattr(kind, "name", None) or "").removesuffix(" range").upper()


def keys_page() -> str:
    """The keys of a TOML file: of the experiment, of every method, policy, design and loss."""
    from isfed.federation.virtual_clock import Clock
    from isfed.studies import name_registry
    from isfed.studies.step_grid import StepGrid

    parts = [
        "# TOML keys",
        "These are the keys of the file that `isfed run FILE.toml` reads. [Experiments]"
        "(../experiments.md) shows whole files. An unknown key or value is an error that suggests "
        "the nearest known one. Methods, policies, designs and losses of your own are named as "
        "[`module:Class`](../extend.md#in-a-configuration-file).",
        *_experiment_keys(),
        *_problem_keys(),
        "## Policies",
        "`agents` and `examples` of an algorithm: a name, or a table such as "
        '`{policy = "memory", floor = 0.05}`.',
        _table_of(name_registry.POLICIES),
        "## Designs",
        "`agent_design` and `example_design`: a name, or a table such as "
        '`{design = "spread", by = "local-pivotal", every = 10}`. `spread` and `local-pivotal` are '
        "for `agent_design`.",
        _table_of(name_registry.DESIGNS),
        "## Losses",
        _table_of(name_registry.LOSSES),
        "## Clock",
        "`[clock]`, if virtual seconds are to be counted or agents may fail to answer. "
        + _first_sentence(Clock),
        _keys_of(Clock),
        "## Step sizes",
        "`[step_sizes]`: algorithms that give no `step_size` get the one of least loss on held-out "
        "rows.",
        _keys_of(StepGrid),
        "## Algorithms",
        "`kind` of an `[[algorithm]]`, beside `name`, which tables and figures show. Instead of a "
        "kind it may have the parts `sampler`, `estimator` and `server`, each a name or a table, "
        "`num_active`, and the keys of its local steps.",
        "### Samplers",
        _table_of(name_registry.SAMPLERS),
        "### Estimators",
        _table_of(name_registry.ESTIMATORS),
        "### Servers",
        "A `server` may also stand beside a `kind`.",
        _table_of(name_registry.SERVERS),
    ]
    for kind in name_registry.METHODS:
        parts.append(f"### `{kind}`\n\n{_first_sentence(name_registry.METHODS[kind])}")
        parts.append(_keys_of(name_registry.METHODS[kind], without=name_registry.NOT_KEYS))
    return "\n\n".join(parts) + "\n"


def _experiment_keys() -> list[str]:
    """The keys outside every table."""
    from isfed.studies.config_schema import arguments, expected_value
    from isfed.studies.experiment import Experiment, StudyTask
    from isfed.studies.experiment_config import DEFAULTS

    documented = explanations(StudyTask) | explanations(Experiment)
    known = arguments(StudyTask) | arguments(Experiment)
    rows = [
        f"| `{key}` | {documented[key]} | {expected_value(known[key].hint)} | `{default}` |"
        for key, default in DEFAULTS.items()
    ]
    return [
        "## The experiment",
        "These keys stand at the top of the file, before every table.",
        "| key | what | value | default |\n|---|---|---|---|\n" + "\n".join(rows),
    ]


def _problem_keys() -> list[str]:
    """The keys of [problem]: of a preset, of every data set with a name, of a table."""
    from isfed.datasets.read_options import Reading
    from isfed.datasets.table_data import Columns
    from isfed.problems.synthetic_problems import Regression
    from isfed.studies import problem_sources
    from isfed.studies.dataset_config import PARTITIONS

    parts = [
        "## The problem",
        "`[problem]` has one of the keys `preset`, `data` and `file`, which decides what else it "
        "has.",
        "### `preset`",
        f"One of {', '.join(f'`{name}`' for name in problem_sources.PRESETS)}: a regression that "
        "is generated. `seed` is that of the data; the other keys replace those of the preset. The "
        "defaults are those of `paper`.",
        _keys_of(Regression, without=("name",)),
    ]
    for name, kind in problem_sources.DATA.items():
        found: Any = kind
        heading = f'### `data = "{name}"`'
        parts += [heading, _first_sentence(kind), _keys_of(kind, without=found.not_keys)]
    parts += [
        "### Partitions",
        'The key `partition` of a data set: a name, or a table such as `{partition = "dirichlet", '
        "concentration = 0.5}`.",
        _table_of(PARTITIONS),
        "### `file`",
        "A table of your own; [All about tables](../tables.md) explains what is read.",
        _keys_of(problem_sources.FileSource, without=("columns", "reading")),
        "Which column is what:",
        _keys_of(Columns),
        "How the file is read, if its name and its content do not tell:",
        _keys_of(Reading),
    ]
    return parts


def _keys_of(factory: Any, *, without: tuple[str, ...] = ()) -> str:
    """A table of the keys that make a record."""
    from isfed.studies.config_schema import arguments

    documented = explanations(factory)
    rows = [_key(argument, documented) for argument in arguments(factory, without=without).values()]
    return "| key | what | value | default |\n|---|---|---|---|\n" + "\n".join(rows)


def _table_of(known: Any) -> str:
    rows = []
    for name, factory in known.items():
        options = known.options(factory).items()
        keys = ", ".join(f"`{key}` ({_value(arg, known)})" for key, arg in options)
        rows.append(f"| `{name}` | {_first_sentence(factory)} | {keys} |")
    return "| name | what | keys |\n|---|---|---|\n" + "\n".join(rows)


def _toml(value: Any) -> str:
    """A value as a file would say it; a text without its quotation marks reads better alone."""
    if isinstance(value, Mapping):
        pairs = (f"{key} = {json.dumps(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def _first_sentence(factory: Any) -> str:
    return (inspect.getdoc(factory) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def explanations(factory: Any) -> dict[str, str]:
    """What the docstring of a record, or of one that it derives from, says about its fields."""
    explained: dict[str, str] = {}
    for kind in reversed(getattr(factory, "__mro__", (factory,))):
        text = inspect.cleandoc(kind.__doc__ or "") if kind is not object else ""
        for name, entry in arguments(text).items():
            explained[name] = " ".join(entry.partition(": ")[2].split())
    return explained


def _value(argument: Any, name_registry: Any) -> str:
    from isfed.studies.config_schema import REQUIRED, expected_value, write_value

    kinds = expected_value(argument.hint)
    if argument.default in (REQUIRED, None):
        return kinds
    write = name_registry.write if argument.hint == name_registry.word else write_value
    return f"{kinds}, default {write(argument.default)}"


def _key(argument: Any, documented: Mapping[str, str]) -> str:
    from isfed.studies.config_schema import REQUIRED
    from isfed.studies.name_registry import written

    what = documented.get(argument.name, "").replace("|", "\\|")
    if argument.default is REQUIRED:
        default = "required"
    elif argument.default is None:
        default = ""
    else:
        shown = written({argument.name: argument.default}, {argument.name: argument})
        default = f"`{_toml(shown[argument.name])}`".replace("|", "\\|")
    return f"| `{argument.name}` | {what} | {_expected(argument.hint)} | {default} |"


def _expected(hint: Any) -> str:
    """What a key may hold; what has a name in a registry is called by the registry's word."""
    from isfed.studies.config_schema import expected_value
    from isfed.studies.name_registry import REGISTRIES

    kinds = [kind for kind in (hint, *get_args(hint)) if not isinstance(kind, list)]
    named = [REGISTRIES[kind].word for kind in kinds if kind in REGISTRIES]
    return f"a {named[0]}" if named else expected_value(hint)
