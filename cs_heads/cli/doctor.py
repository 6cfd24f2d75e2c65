"""Check that a model loads as it is and can be measured.

Load a model and check everything that a wrong number could come from, one line each: ok,
warn or fail, with what to do about it.

  weights          complete, none left over, no NaN
  hook_z           in every layer, before W_O: a head's gate is its o_proj slice zeroed in
                   plain Hugging Face
  logits           those of plain Hugging Face in float32
  BOS              texts in the tokens that the tokenizer itself makes
  padding, batch   a text scores the same beside longer ones, and among others
  dtype, folded biases, fused attention, heads, context length
  speed            tokens a second, and what a default search takes at that

Exit status 1 where a check failed, else 0; 2 for a model that is not there.

Examples:
  cs-heads doctor gpt2
  cs-heads doctor FOLDER --dtype bfloat16 --json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING

from cs_heads.cli.options import add_command, add_loading

if TYPE_CHECKING:
    from cs_heads.cli.options import Commands


def add(commands: Commands) -> None:
    """The sub-command ``doctor``."""
    parser = add_command(commands, "doctor", __doc__, _doctor)
    parser.add_argument("model", metavar="MODEL", help="Hugging Face name or local folder, or demo")
    add_loading(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _doctor(options: argparse.Namespace) -> int:
    import cs_heads as cs

    checks = cs.check_model(options.model, device=options.device, dtype=options.dtype, backend=options.backend)
    count = Counter(check.status for check in checks)
    if options.json:
        lines = [check.to_dict() for check in checks]
        print(json.dumps({"model": options.model, "ok": not count["fail"], "checks": lines}))
    else:
        for check in checks:
            print(check)
        print(f"\nmodel {options.model}: {count['ok']} ok, {count['warn']} warn, {count['fail']} fail")
    return int(count["fail"] > 0)
