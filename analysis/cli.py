"""The `validate` command: the study of that name."""

from __future__ import annotations

from analysis.__main__ import command_of, load_study

main = command_of(load_study("validation"))

if __name__ == "__main__":
    main()
