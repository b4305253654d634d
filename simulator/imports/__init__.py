"""What other engines measured, as this project's token models, and its answers in their terms.

`formats.read_file` reads an engine's output, `measured.acceptance_of` turns a measurement into a file that
`simulate --acceptance` takes, `export` prints settings as vLLM, SGLang and llama.cpp take them.
docs/how-to/import.md has what every source says and leaves out.
"""
