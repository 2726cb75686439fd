"""The options that commands share: input, model, computation, output and messages."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, get_args

import typer

from bertcli.cli.display.console import (
    Console,
    print_text,
    stdin_is_terminal,
    stdout_is_terminal,
)
from bertcli.cli.display.help import MESSAGES
from bertcli.cli.options.completion import complete_choices, complete_field, complete_model
from bertcli.cli.options.groups import (
    COMPUTE,
    INPUT,
    MODEL,
    OUTPUT,
    OptionGroup,
    argument,
    flag,
    number,
    option,
)
from bertcli.engines.compute import Compute
from bertcli.errors import LOG, InputError, OutputError, UsageError, counted
from bertcli.formats.registry import (
    ARRAYS,
    BINARY,
    CHOICES,
    FORMATS,
    INPUT_SUFFIXES,
    JSON,
    JSONL,
    OUTPUT_SUFFIXES,
    ROW_CHOICES,
    TXT,
    VECTOR_CHOICES,
    WHOLE_FILE,
    InputFormat,
)
from bertcli.formats.writers import format_of, open_writer, refuse_other_suffix
from bertcli.io.paths import HUB_SCHEME
from bertcli.io.streams import suffix_of
from bertcli.io.system_calls import LargeBlocks
from bertcli.io.typed_json import is_text
from bertcli.model_folder.files import TOKENIZER_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL, is_default
from bertcli.records.input import Input, listed_files, option_names
from bertcli.records.reader import Reader
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcli.runs.row_run import RowRun
    from bertcli.runs.run_folder import Target
    from bertcli.tokenizing.run import ReaderRun


# A fixed list: detecting the available devices would import torch.
DEVICES = complete_choices("auto", "cpu", "cuda", "cuda:0", "cuda:all", "mps", "xpu")

# Options shared by several groups.
SPECIAL_TOKENS = flag("Add [CLS] and [SEP].", default=True)
PARSE_SPECIAL = flag(
    'Parse a literal "[SEP]" in the text as a special token.',
    default=True,
    envvar="BERTCLI_PARSE_SPECIAL",
)


def max_length_option(help_text: str, *, low: int = 1, panel: str | None = None) -> Any:
    """Return the --max-length option, with at least ``low`` tokens."""
    return number(help_text, low=low, envvar="BERTCLI_MAX_LENGTH", panel=panel)


OVERLAP = number("Maximum tokens shared with the previous chunk.", low=0)
AT = option(
    "Boundaries at which chunks end. A sentence or word that is too long for one chunk is "
    "split at smaller ones.",
    envvar="BERTCLI_AT",
)
PROMPT = option("Text to put before each input text.", "TEXT")
PROMPT_NAME = option("Name of a prompt that the model defines.", "NAME")


class ModelOptions(OptionGroup, panel=MODEL):
    """The model and its source."""

    model = option(
        "Folder, or hub id such as bert-base-uncased.",
        "MODEL",
        "--model",
        "-m",
        default=DEFAULT_MODEL,
        envvar="BERTCLI_MODEL",
        complete=complete_model,
    )
    revision = option(
        "Branch, tag or commit of the model on the hub.", "REVISION", envvar="BERTCLI_REVISION"
    )
    offline = flag("Never use the network.", envvar="BERTCLI_OFFLINE")

    def folder(self, files: Sequence[str] = TOKENIZER_FILES) -> ModelFolder:
        """Return the model's folder. Missing files are downloaded, unless --offline."""
        return find_model(self.model, files=files, revision=self.revision, offline=self.offline)

    def tokenizer(self, *, parse_special: bool = True) -> Tokenizer:
        """Load the model's tokenizer and log its warnings."""
        folder = self.folder()
        LOG.detail(f"model: {folder.path} ({folder.source})")
        tokenizer = Tokenizer.load(folder, parse_special=parse_special)
        for warning in tokenizer.warnings:
            LOG.warn(warning)
        return tokenizer


class HeadModelOptions(ModelOptions, panel=MODEL):
    """The model with a task head. It has no default, because the default model has no head."""

    model = option(
        "Folder, or hub id, of a model for this task; required.",
        "MODEL",
        "--model",
        "-m",
        envvar="BERTCLI_MODEL",
        complete=complete_model,
    )

    def refuse_default(self, command: str, needed: str, origin: str) -> None:
        """Raise UsageError if --model is missing or is the default model, which has no head.

        ``needed`` describes the model that the command needs, ``origin`` where to get one; both
        are used in the message.
        """
        if self.model is not None and not is_default(self.model):
            return
        raise UsageError(
            f"{self.model or 'the default model'} only makes vectors; {command} needs {needed}",
            f"give -m MODEL: {origin}",
        )


FORMAT = (
    "Output format. auto: by the suffix of --output (.json: an array); without it, a table on a "
    "terminal and JSONL in a pipe. json is jsonl, but for files named .json."
)


def format_option(*formats: str, help_text: str = FORMAT) -> Any:
    """Return the --format option with these formats and auto."""
    return option(
        help_text, None, "--format", "-f", default="auto", annotation=one_of("auto", *formats)
    )


def one_of(*choices: str) -> Any:
    """Return the ``Literal`` type with these choices."""
    return Literal.__getitem__(choices)


# Options on which the written rows do not depend.
OPTIONS_WITHOUT_ROWS = ("output", "overwrite", "resume", "quiet", "verbose", "offline", "threads")


class OutputOptions(OptionGroup, panel=OUTPUT):
    """Output file and format. Subclasses restrict the formats."""

    output: Path | None = option(
        "Output file; the suffix sets the format. Default, and -: stdout. Written completely "
        "or not at all.",
        "PATH",
        "--output",
        "-o",
    )
    format = format_option("table", *CHOICES)
    overwrite = flag("Replace an existing file.")
    resume = flag("Resume an interrupted run.")

    @property
    def on_terminal(self) -> bool:
        """True if the result is written to a terminal."""
        return self.output is None and stdout_is_terminal()

    def __post_init__(self) -> None:
        if self.output == Path("-"):
            self.output = None  # stdout, as `-i -` is stdin
        if self.resume and self.output is None:
            raise UsageError("--resume requires -o FILE", "a stream cannot be resumed")

    def resolve_format(self, allowed: Sequence[str] = (), default: str = "") -> str:
        """Return the output format: --format, else the format of the suffix, else ``default``.

        Without any of these, it is a table on a terminal and jsonl elsewhere. ``allowed`` defaults
        to the choices of --format.

        Raises UsageError for a format that is not allowed, and for a table in a file.
        """
        choices = get_args(self.OPTIONS["format"].annotation.__origin__)
        if self.format == "table" and self.output is not None:
            raise UsageError(
                "a table cannot be written to a file",
                "leave out --output, or give another --format",
            )
        file_format: str = self.format
        if self.output is not None and file_format != "auto":
            refuse_other_suffix(self.output, file_format)
        if file_format in FORMATS:  # .json files are assembled from jsonl rows
            file_format = FORMATS[file_format].written_as or file_format
        allowed = allowed or [name for name in choices if name != "auto"]
        if file_format == "auto" and self.output is not None:
            file_format = format_of_output(self.output, allowed)
        elif file_format == "auto":
            file_format = default or ("table" if stdout_is_terminal() else JSONL)
        check_format(file_format, allowed)
        return file_format

    def open(
        self,
        file_format: str,
        inputs: Sequence[str | Path] = (),
        *models: ModelOptions,
        view: str = "rows_view",
        view_arguments: Sequence[Any] = (),
        run: "ReaderRun | None" = None,
        uses_weights: bool = True,
        state: Mapping[str, Any] | None = None,
    ) -> AbstractContextManager[Callable[..., None]]:
        """Return a context manager that opens the output and yields a function that writes rows.

        A table is drawn by ``view``, a function of `display.tables` that takes ``view_arguments``
        before the rows. Only the first 40 rows are drawn (`tables.show` draws all). With --resume,
        an interrupted ``run`` is continued; a command without ``run`` starts over, unless the same
        command has completed the file. ``uses_weights`` is False if the rows depend only on the
        models' tokenizers. ``state`` is what they depend on beside options, inputs and models.

        Raises UsageError for a binary format on a terminal, and with --resume ModelError for a
        model that is missing or unreadable. The context manager raises

        - OutputError if the output exists and is not replaced or continued, is one of the inputs
          or a file of a model, or cannot be written;
        - ModelError for a missing model;
        - with --resume, InputError for a missing input, and typer.Exit if the output is complete.
        """
        if self.resume:
            resumable_run = self._resumable_run(
                run, inputs, models, uses_weights=uses_weights, state=state or {}
            )
            return self._open_resumable(file_format, resumable_run)
        if file_format == "table":
            from bertcli.cli.display import tables

            return tables.open_table(inputs, partial(getattr(tables, view), *view_arguments))
        if self.on_terminal and file_format in BINARY:
            raise UsageError(
                f"{file_format} cannot be shown on a terminal", "give -o FILE, or pipe it"
            )
        return self._open_streamed(file_format, inputs, models)

    @contextmanager
    def _open_streamed(
        self, file_format: str, inputs: Sequence[str | Path], models: Sequence[ModelOptions]
    ) -> Iterator[Callable[..., None]]:
        """Yield a function that writes rows to stdout, a device, or a file without --resume.

        Raises ModelError for a missing model, and OutputError as `streamed_rows` does.
        """
        if self.output is None:
            with open_writer(None, file_format, inputs=inputs) as write:
                yield write
            return
        from bertcli.runs.row_run import streamed_rows

        model_files: list[Path] = []
        for model in models:
            model_files += model.folder().model_files
        with streamed_rows(
            self.output,
            file_format,
            overwrite=self.overwrite,
            inputs=inputs,
            model_files=model_files,
        ) as write:
            yield write

    @contextmanager
    def _open_resumable(self, file_format: str, run: "RowRun") -> Iterator[Callable[..., None]]:
        """Yield a function that writes the rows of a resumable run.

        Raises typer.Exit if the output is complete, OutputError as `open_rows` does, and InputError
        for a missing input. After an interrupt, a note says how to continue.
        """
        from bertcli.runs.row_run import RowTarget, open_rows

        target = RowTarget(Path(str(self.output)), file_format, resume=True)
        try:
            with open_rows(run, target) as write:
                if write is None:
                    LOG.note(f"{self.output} is already complete: nothing to do")
                    raise typer.Exit
                yield write
        except KeyboardInterrupt:
            committed = run.reader_run.committed if run.reader_run else 0
            LOG.note(interrupted_note(target, committed))
            raise

    def _resumable_run(
        self,
        reader_run: "ReaderRun | None",
        inputs: Sequence[str | Path],
        models: Sequence[ModelOptions],
        *,
        uses_weights: bool,
        state: Mapping[str, Any],
    ) -> "RowRun":
        """Return the resumable run of this command.

        Its rows depend on the options, the model files, the inputs and ``state``. The file of
        --vectors is an input that the run may write, if there is a corpus to make it from.

        Raises ModelError for a model that is missing or unreadable.
        """
        from bertcli.runs.identity import Inputs, result_digests, tokenizer_and_settings_digests
        from bertcli.runs.row_run import RowRun

        options = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in self.command_options.items()
            if name not in OPTIONS_WITHOUT_ROWS
        }
        fingerprint: dict[str, Any] = {"options": options, **state}
        model_files: list[Path] = []
        digests = result_digests if uses_weights else tokenizer_and_settings_digests
        for index, folder in enumerate(model.folder() for model in models):
            facts = {"model": folder.name, **digests(folder)}
            fingerprint |= {f"model {index + 1}": facts} if index else facts
            model_files += folder.model_files
        if reader_run:
            run_inputs = Inputs.of(reader_run.reader.source, model_files)
            return RowRun(run_inputs, fingerprint, reader_run)
        paths = [str(path) for path in inputs]
        vectors = options.get("vectors")
        has_corpus = bool(options.get("corpus")) or "files" in options
        if not (vectors and has_corpus):
            return RowRun(Inputs(paths, model_files=model_files), fingerprint)
        paths = [path for path in paths if path != str(vectors)]
        run_inputs = Inputs(paths, cached=[Path(str(vectors))], model_files=model_files)
        return RowRun(run_inputs, fingerprint)


def interrupted_note(target: "Target[Any]", committed: int) -> str:
    """Return the note on an interrupted run: its number of committed records, how to continue it.

    ``committed`` is the number that the run knows of. The journal has a higher one if the interrupt
    came at the end of a commit.
    """
    from bertcli.io.output_files import OutputFiles

    committed = max(committed, OutputFiles(target.path).committed_records())
    if not committed:
        return "interrupted before anything was committed: the next run starts over"
    records = counted(committed, "record is", "records are")
    advice = "continue with --update" if target.update else "continue with --resume"
    if target.overwrite:  # the same command, which cannot have both options
        advice += " instead of --overwrite"
    return f"interrupted; {records} kept; {advice}"


class RowOutput(OutputOptions):
    """Output of commands that write rows."""

    format = format_option("table", *ROW_CHOICES)


class LineOutput(OutputOptions):
    """Output of commands that write rows, or only their text."""

    format = format_option(TXT, "table", *ROW_CHOICES)


class TextOutput(OutputOptions):
    """Output of commands that write texts or rows of texts."""

    format = format_option(
        TXT,
        *ROW_CHOICES,
        help_text="Output format. auto: by the suffix of --output (.json: an array); without it, "
        "txt. json is jsonl, but for files named .json.",
    )


class VectorOutput(OutputOptions):
    """Output of commands that write vectors."""

    format = format_option("table", *VECTOR_CHOICES)


class ReportOutput(OutputOptions):
    """Output of commands that write a single report."""

    format = format_option("table", JSONL, JSON)

    def open(self, file_format: str, *inputs: Any, **settings: Any) -> Any:
        """Open the writer of a report. jsonl and json both write one JSON object."""
        return super().open(JSON if file_format == JSONL else file_format, *inputs, **settings)


def format_of_output(path: Path, allowed: Sequence[str]) -> str:
    """Return the format of an output file. Raises OutputError for a folder or an unknown suffix."""
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder", "give the name of a file, such as results.jsonl")
    if suffix_of(path) not in OUTPUT_SUFFIXES:
        suffixes = [suffix for suffix, name in OUTPUT_SUFFIXES.items() if name in allowed]
        if "html" in allowed:
            suffixes.insert(0, ".html")
        listed = ", ".join(suffixes)
        raise OutputError(f"{path}: unknown format", f"known: {listed}; or give --format")
    return format_of(path)


def check_format(file_format: str, allowed: Sequence[str]) -> None:
    """Raise UsageError for a format that this command cannot write.

    Raises an error if a package that the format requires is missing.
    """
    if file_format not in allowed:
        raise UsageError(
            f"this command cannot write {file_format}", f"--format can be: {', '.join(allowed)}"
        )
    if file_format in FORMATS:
        FORMATS[file_format].require()


class ConsoleOptions(OptionGroup, Console, panel=MESSAGES):
    """Verbosity of the messages on stderr."""

    quiet = flag("Suppress notes, warnings and progress.", "--quiet", "-q", envvar="BERTCLI_QUIET")
    verbose = flag("Show details.", "--verbose", "-v")

    def __post_init__(self) -> None:
        """Send the library's messages to this console. Raises UsageError for --quiet --verbose."""
        if self.quiet and self.verbose:
            if not os.environ.get("BERTCLI_QUIET"):
                raise UsageError("--quiet cannot be combined with --verbose")
            self.quiet = False  # --verbose overrides BERTCLI_QUIET
        LOG.connect(self)


def _show_versions(requested: bool) -> None:
    """Print the versions that affect results. They are read from metadata, without imports."""
    if not requested:
        return
    from bertcli.versions import __version__, versions

    packages = ("openvino", "torch", "tokenizers")
    installed = versions(*packages)
    listed = [f"{name} {installed.get(name, 'not installed')}" for name in packages]
    print_text(f"bertcli {__version__}, {', '.join(listed)}")
    raise typer.Exit


def _show_skill(wanted: bool) -> None:
    """Print the instructions for AI agents."""
    if not wanted:
        return
    import bertcli

    skill = Path(bertcli.__file__).with_name("SKILL.md")
    print_text(skill.read_text("utf-8").rstrip("\n"))
    raise typer.Exit


class VersionOptions(OptionGroup):
    """Options of bertcli itself: --version and --skill."""

    version = flag(
        "Show versions and exit.", "--version", "-V", is_eager=True, callback=_show_versions
    )
    skill = flag(
        "Show how an AI agent uses bertcli, and exit.",
        "--skill",
        is_eager=True,
        callback=_show_skill,
    )


class InferenceOptions(OptionGroup, panel=COMPUTE, record_class=Compute):
    """Backend, device, precision and memory."""

    backend = option(
        "Inference engine. auto: OpenVINO on a CPU if installed, else torch (extra torch).",
        envvar="BERTCLI_BACKEND",
    )
    device = option(
        "auto, cpu, cuda, cuda:N, mps or xpu. auto: the best available; cuda:0,cuda:1 or "
        "cuda:all: several at once.",
        "NAME",
        envvar="BERTCLI_DEVICE",
        complete=DEVICES,
    )
    dtype = option(
        "Compute precision. auto: float32. bfloat16: fastest on CPUs with AMX, nearly exact. int8: "
        "CPU only, faster, approximate.",
        envvar="BERTCLI_DTYPE",
    )
    threads = number("CPU threads (default: all cores).", envvar="BERTCLI_THREADS")
    batch_tokens = number(
        "Tokens per batch, with padding except in float32 with OpenVINO; halved when memory runs "
        "out.",
        envvar="BERTCLI_BATCH_TOKENS",
    )


class ComputeOptions(InferenceOptions, record_class=Compute):
    """The same for commands that read many records."""

    window = number("Maximum number of records that are sorted by length together.", default=4096)
    parallel = False

    def receive_command_options(self, values: Mapping[str, Any]) -> None:
        """Run several batches at once, unless the texts are on the command line: they are few."""
        super().receive_command_options(values)
        self.parallel = not values.get("texts")
        if self.parallel and self.backend != "torch":
            LargeBlocks.give_back()


class FolderOptions(OptionGroup, panel=OUTPUT):
    """Output folder."""

    output: Path = option(
        "Output folder. Written completely or not at all.", "DIR", "--output", "-o"
    )
    overwrite = flag("Replace a folder that this command wrote.")

    def __post_init__(self) -> None:
        """Raise UsageError for a name that is not UTF-8, which tokenizers cannot open."""
        if not is_text(str(self.output)):
            raise UsageError(f"--output {str(self.output)!r} is not UTF-8", "choose another name")


def field_option(help_text: str, envvar: str | None = None) -> Any:
    """Return an option for the name of an input field, with completion."""
    return option(help_text, "NAME", envvar=envvar, complete=complete_field)


# Options shared by several groups.
TEXTS = argument("Texts (default: read --input or stdin).", "TEXT...")
FORMAT_OF_FILES = option("auto: by the suffix.", default="auto", annotation=InputFormat)
TEXT_FIELD = field_option(
    "Column or key of the text (default: text). title,body: both, joined; user.bio: a key in an "
    "object.",
    "BERTCLI_TEXT_FIELD",
)
JOIN = option(
    r"Text between the fields of --text-field title,body, where \n is a line end (default: a blank "
    "line).",
    "TEXT",
)
INFER_TYPES = flag(
    "Keep fields of CSV that are numbers in all rows as numbers; ids and fields of stdin are text.",
    default=True,
)
ID_FIELD = field_option("Column or key of the id (default: id).", "BERTCLI_ID_FIELD")
KEEP_FIELDS = option(
    "Copy other fields of the input to the output: all, or those named: a,b,c. A field of "
    "your own that the output already has is an error.",
    "[NAMES]",
    complete=complete_field,
)
WHOLE = flag("Each file is one text, as those in .md, .markdown and .rst are.")
DELIMITER = option(
    r"Delimiter of csv; \t is a tab.",
    "C",
    callback=lambda value: "\t" if value == "\\t" else value,
)
SKIP_EMPTY = flag("Leave out empty texts, and count them.")
ON_ERROR = option(
    "Stop at a bad record, or report and skip it (exit code 1 at the end).",
    envvar="BERTCLI_ON_ERROR",
)
MAX_RECORD_BYTES = number(
    "Maximum size of a record in bytes, after decompression.", envvar="BERTCLI_MAX_RECORD_BYTES"
)
ENCODING = option("Encoding of the input.", "NAME", envvar="BERTCLI_ENCODING")
ENCODING_ERRORS = option(
    "Bad bytes are an error, or replaced by U+FFFD and counted.",
    envvar="BERTCLI_ENCODING_ERRORS",
)
FILES = option(
    "File, folder or quoted glob, repeatable; - is stdin. A folder stands for its files with "
    "known suffixes, recursively. .gz and .zst are decompressed. hf://datasets/OWNER/NAME/... is "
    "on the hub.",
    "PATH",
    "--input",
    "-i",
    annotation=list[str] | None,
)
FILES_FROM = option(
    "Read the files listed in FILE, one per line (NUL-delimited with -0); - is stdin.", "FILE"
)
ONE_FILE = option("FILE, given as an option.", "FILE", "--input", "-i", annotation=list[str] | None)
NULL = flag("Texts, or the names in --files-from, are NUL-delimited.", "--null", "-0")


def source_of(
    *groups: OptionGroup, files: list[str] | None = None, objects: bool = False, **values: Any
) -> Input:
    """Return the input that these options describe: texts, files or stdin.

    ``files`` are the input files, if they are not given by --input. With ``objects``, stdin is
    read as JSONL. ``values`` override options, or are fields of `Input` without an option.

    Raises UsageError if no input is given and stdin is a terminal.
    """
    options = {name: value for group in groups for name, value in vars(group).items()}
    texts = tuple(values.get("texts", options.get("texts")) or ())
    list_file = options.get("files_from")
    null = options.get("null", False)
    paths = tuple(files or options.get("input") or ())
    if "" in paths:
        raise InputError(
            "the name of an input file is empty", "give the name of a file; - is stdin"
        )
    if list_file is not None:
        paths += listed_files(list_file, null=null)
    elif not (texts or paths):
        if stdin_is_terminal():
            raise UsageError("no input", "give TEXT, -i FILE, or pipe text in")
        paths = ("-",)
    file_format = WHOLE_FILE if options.get("whole") else options.get("input_format", "auto")
    defaults = {
        "texts": texts,
        "paths": paths,
        "list_file": list_file,
        "null": null and list_file is None,  # with --files-from, it applies to the list of names
        "format": JSONL if objects and file_format == "auto" and paths == ("-",) else file_format,
        "keep": options.get("keep_fields"),
        "join": unescaped(options.get("join")),
        "requested": given_field_options(groups),
    }
    return fill_input(*groups, **(defaults | values))


def fill_input(*groups: OptionGroup, **values: Any) -> Input:
    """Return an `Input`, its fields filled from options of the same name.

    ``values`` override options, or are fields without an option.
    """
    names = option_names()
    options = {
        name: value for group in groups for name, value in vars(group).items() if name in names
    }
    options["offline"] = groups[0].command_options.get("offline", False)
    return Input.of(**(options | values))


def unescaped(text: str | None) -> str | None:
    r"""Return an option's text with \n and \t replaced by a line end and a tab."""
    return text and text.replace("\\n", "\n").replace("\\t", "\t")


def reader_of(*groups: OptionGroup, **values: Any) -> Reader:
    """Return the reader of the input that these options describe, see `source_of`."""
    return checked_reader(source_of(*groups, **values), groups[0].command_options)


def checked_reader(source: Input, options: Mapping[str, Any] = {}) -> Reader:
    """Return the reader of an input. ``options`` are the command's options.

    Raises UsageError if the only text is a file or folder, see `refuse_file_as_text`. Notes a text
    that is also the name of a file.
    """
    texts = [text for text in (*source.texts, source.pair) if isinstance(text, str)]
    arguments = options.get("texts") or options.get("queries") or ()
    if len(arguments) == len(texts) == 1:
        refuse_file_as_text(arguments, options)
    for text in texts:
        if os.path.isfile(text):
            LOG.note(f"`{text}` is also a file; {reading_option(options)} reads it")
            break
    return Reader(source)


def refuse_file_as_text(texts: Sequence[str], options: Mapping[str, Any] = {}) -> None:
    """Raise UsageError if the only text is the name of a folder or of an existing input file.

    A URL of a file on the hub is one, too.
    """
    if len(texts) != 1:
        return
    (name,) = texts
    if name.startswith(f"{HUB_SCHEME}datasets/") and not any(map(str.isspace, name)):
        file_type = "file on the hub"
    elif os.path.isdir(name):
        file_type = "folder"
    elif suffix_of(name) in INPUT_SUFFIXES and os.path.isfile(name):
        file_type = "file"
    else:
        return
    raise UsageError(
        f"{name} is a {file_type}; {reading_option(options)} reads it",
        f"{reading_option(options)} {quote(name)}; the name itself as a text: "
        f"printf %s {quote(name)} | bertcli ...",
    )


def reading_option(options: Mapping[str, Any]) -> str:
    """Return the option that reads a file: --corpus for a search without a corpus, else -i."""
    searches = "corpus" in options and "vectors" in options
    if searches and not (options["corpus"] or options["vectors"]):
        return "--corpus"
    return "-i"


def given_files(arguments: list[str] | None, inputs: list[str] | None) -> list[str]:
    """Return the files given as arguments, or else by --input. Raises UsageError if none is."""
    files = arguments or inputs
    if not files:
        raise UsageError("no input", "give FILE, or -i FILE")
    return files


def given_file(argument: str | None, inputs: list[str] | None) -> str:
    """Return the one file given, see `given_files`. Raises UsageError for more than one."""
    files = given_files([argument] if argument else None, inputs)
    if len(files) > 1:
        raise UsageError(f"--input was given {len(files)} times", "this command reads one file")
    return files[0]


def given_field_options(groups: Iterable[OptionGroup]) -> tuple[str, ...]:
    """Return the field options that were given, such as --id-field, except by the environment."""
    return tuple(
        f"--{name.replace('_', '-')}"
        for group in groups
        for name, option in group.OPTIONS.items()
        if name.endswith(("_field", "_fields"))
        and (value := getattr(group, name)) not in (option.default, "*")
        and os.environ.get(f"BERTCLI_{name.upper()}") != value
    )


class TaskFileOptions(OptionGroup, panel=INPUT, record_class=Input):
    """Input records with any fields."""

    input = FILES
    files_from = FILES_FROM
    input_format = FORMAT_OF_FILES
    whole = WHOLE
    delimiter = DELIMITER
    skip_empty = SKIP_EMPTY
    id_field = ID_FIELD
    keep_fields = KEEP_FIELDS
    infer_types = INFER_TYPES
    null = NULL
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS
    max_record_bytes = MAX_RECORD_BYTES


class InputOptions(TaskFileOptions, record_class=Input):
    """Input texts and pairs."""

    texts: list[str] | None = TEXTS
    input_format = option(
        "auto: by the suffix; stdin is txt, or JSON if it begins with an object or a list.",
        default="auto",
        annotation=InputFormat,
    )
    pair: list[str] | None = option("Second sentence for a single TEXT.", "TEXT")
    pairs = option(
        "File of sentence pairs; - is stdin. TSV with two columns and no header, or .csv, "
        ".jsonl, .parquet.",
        "PATH",
    )
    text_field = TEXT_FIELD
    join = JOIN
    pair_field = field_option(
        "Column or key of the second sentence (default: pair).", "BERTCLI_PAIR_FIELD"
    )
    pre_split = flag("Texts are already split into words: JSON lists, or separated by white space.")

    def refuse_kept_fields(self, file_format: str) -> None:
        """Raise UsageError for --keep-fields with an array format, which stores no fields."""
        if self.keep_fields and file_format in ARRAYS:
            raise UsageError(
                f"{file_format} cannot hold the fields of --keep-fields",
                "use -f jsonl, csv or parquet",
            )

    def reader(self, **changes: Any) -> Reader:
        """Return the reader of the given texts, files or stdin."""
        return checked_reader(self.source(**changes), self.command_options)

    def source(self, **changes: Any) -> Input:
        """Return the given texts, files or stdin. Raises UsageError for more than one --pair."""
        if self.pair and len(self.pair) > 1:
            raise UsageError(
                f"--pair was given {len(self.pair)} times, but BERT takes at most two sentences",
                "give one TEXT and one --pair",
            )
        return source_of(
            self,
            files=None if self.pairs is None else [self.pairs],
            pair=self.pair[0] if self.pair else None,
            are_pairs=self.pairs is not None,
            **changes,
        )
