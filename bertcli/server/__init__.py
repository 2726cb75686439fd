"""The HTTP server: the API of OpenAI's embeddings, and that of text-embeddings-inference.

    serve(ServedModel(folder, "all-MiniLM-L6-v2", EmbedOptions()), ServerSettings(), print)

A request is checked (`requests`) and tokenized (`routes`), its texts wait in the queue of
`batching`, which runs them in batches on one thread, and `app` writes the answer. `served_model`
opens what the routes need of the model. `metrics` counts, `connections` closes connections of
clients that stall, `run` binds the address and stops on signals. Begin with `routes`.

`app`, `connections` and `run` need starlette and uvicorn (extra serve).
"""
