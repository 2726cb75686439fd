"""Files, streams and folders as bytes. Imports only `errors`.

- In: `streams` opens files, stdin, gz and zst and cuts them into lines; `mapped_file` reads large
  files without copying them; `typed_json` is the only
  reader of JSON, `protobuf` reads messages without their schema.
- Out: `lock` keeps other processes away from an output; `publish` writes files and folders
  atomically; `output_files` publishes an output with the files beside it; `system_calls` has what
  not every system has.
- Names: `paths` of files beside an output; `printable` is the only filter between text from
  outside and a terminal.
- `progress` is what a run reports while it works; `threads` run work ahead of the caller.

Begin with `streams` and `publish`.
"""
