"""`bertcli serve`: the model over HTTP."""

from importlib.util import find_spec

from bertcli.cli.display.console import print_text
from bertcli.cli.options.common import (
    PARSE_SPECIAL,
    ConsoleOptions,
    InferenceOptions,
    ModelOptions,
    max_length_option,
)
from bertcli.cli.options.groups import LAYOUT, OptionGroup, number, option, record
from bertcli.cli.options.vectors import pooling_option
from bertcli.embedding.options import EmbedOptions
from bertcli.errors import BertcliError
from bertcli.io.system_calls import LargeBlocks
from bertcli.model_folder.files import files_for
from bertcli.versions import install_command

SERVER = "Server"


class ServeOptions(OptionGroup, panel=SERVER):
    """Address, keys and limits."""

    host: str = option(
        "Address to listen on; one that other machines reach needs --api-key.",
        "HOST",
        default="127.0.0.1",
        envvar="BERTCLI_HOST",
    )
    port = number(
        "Port; 0: a free one.",
        low=0,
        high=65535,
        annotation=int,
        default=8080,
        envvar="BERTCLI_PORT",
    )
    api_key = option(
        "Key that requests must have: Authorization: Bearer KEY.", "KEY", envvar="BERTCLI_API_KEY"
    )
    max_queue = number("Requests that may wait; more get status 429.", annotation=int, default=512)
    max_batch_texts = number("Texts of a request.", annotation=int, default=2048)
    max_body = number("Bytes of the body of a request.", annotation=int, default=8 << 20)
    cors: list[str] | None = option(
        "Origin of web pages that may send requests, repeatable; * is any.", "ORIGIN"
    )


class ServedVectorOptions(OptionGroup, panel=LAYOUT, record_class=EmbedOptions):
    """How vectors are computed, as by `bertcli embed`."""

    pooling = pooling_option(
        "As for `bertcli embed`: cls, mean, max, ... (auto: the model's, else mean)."
    )
    max_length = max_length_option(
        "Maximum tokens of a text (default: the model's limit). Longer ones are refused, or "
        'truncated if the request has "truncate": true.',
        low=2,
    )
    parse_special = PARSE_SPECIAL


def serve(
    server: ServeOptions,
    model: ModelOptions,
    vector: ServedVectorOptions,
    compute: InferenceOptions,
    console: ConsoleOptions,
) -> None:
    """Serve a model over HTTP, with the API of OpenAI's embeddings and that of TEI.

    Vectors have the same bits as those of `bertcli embed`. Prints the address, and stops on Ctrl-C
    or SIGTERM, after the requests it has accepted. docs/serve.md lists the routes. Needs starlette
    and uvicorn (extra serve).

    $ bertcli serve
    $ curl 127.0.0.1:8080/v1/embeddings -d '{"input": ["I love NLP"]}'
    $ bertcli serve -m cross-encoder/ms-marco-MiniLM-L6-v2 --host 0.0.0.0 --api-key KEY
    """
    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise BertcliError("serve needs starlette and uvicorn", install_command("serve"))
    options = record(EmbedOptions, vector, compute, parallel="auto")
    folder = model.folder(files_for(options.dtype))
    from bertcli.server.app import ServerSettings
    from bertcli.server.run import serve as run_server
    from bertcli.server.served_model import ServedModel

    def announce(address: str) -> None:
        print_text(address)
        console.note(f"serving {model.model}; Ctrl-C stops it")

    LargeBlocks.give_back()
    settings = record(ServerSettings, server, cors=tuple(server.cors or ()))
    run_server(ServedModel(folder, str(model.model), options), settings, announce)
