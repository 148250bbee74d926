"""`headrace COMMAND …`: every command under one name."""

from __future__ import annotations

import importlib
import sys

from trainer.entry import MISTAKE, guarded

COMMANDS = {
    "pack": ("tools.pack", "tokenise text into a corpus"),
    "corpus": ("tools.corpus", "show what a corpus holds, and what a step of a run read"),
    "tokenizer": ("tools.tokenizer", "train, convert and show tokenizers"),
    "train": ("trainer.__main__", "train a model, or go on with a run"),
    "restore": ("tools.restore", "go back to an earlier version, or export one"),
    "versions": ("tools.versions", "list, show and verify versions"),
    "bench": ("tools.bench.__main__", "measure against the physical limit and peers"),
    "demo": ("tools.demo", "the main job from text to a restored version, checked"),
}


def main() -> int:
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: headrace COMMAND …\n")
        for command, (_, says) in COMMANDS.items():
            print(f"  {command:<10}{says}")
        print("\n`headrace COMMAND --help` tells more.")
        return 0
    if name not in COMMANDS:
        print(f"error: no command {name!r}; commands: {', '.join(COMMANDS)}", file=sys.stderr)
        return MISTAKE
    sys.argv = [f"headrace {name}", *rest]
    # Only the command at hand is imported: `headrace pack` must not wait for torch.
    module = importlib.import_module(COMMANDS[name][0])
    return guarded(lambda: int(module.main(rest)))


if __name__ == "__main__":
    raise SystemExit(main())
