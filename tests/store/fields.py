"""What each argument of each call does to what a model says.

*identity*: it may change what is said under one mask on one example, so an observation under one value never answers
under another: it is in ``study_of``, in the settings of ``StoredObservations`` or in ``example_identities``, or, of
what is kept beside them, in the identity of its ``KeptWork``. *scoring*: it says what is made of what was said.
*design*: it says which masks and examples are asked for, and needs no place of its own, as those are in the key
themselves: a field that changes a number in any other way is no design. *runtime*: the number is the same whatever its
value, to rounding.
"""

from cs_heads.settings import Settings

# Of every call that runs a model.
_CALL: dict[str, str] = {"model": "identity", **Settings.kinds()}
# Of every method.
_SEARCH: dict[str, str] = {"experiment": "identity", "budget": "design", "seed": "design"}
# Of those that fit gates: seeds and steps, which a budget cuts, make other gates.
_GATING: dict[str, str] = dict.fromkeys(
    ("experiment", "n_seeds", "steps", "batch_size", "strength", "budget", "seed"), "identity"
)


def _designed(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "design")


FIELDS: dict[str, dict[str, str]] = {
    "Experiment": {**_CALL, "task": "identity"},
    "Settings": Settings.kinds(),
    "find_heads": {
        **_CALL,
        "task": "identity",
        **_designed("method", "controls", "off", "k", "budget", "seed", "options"),
    },
    "confirm": {
        **_CALL,
        "task": "identity",
        **_designed("heads", "k", "exclude", "controls", "off", "n", "n_random", "least", "repeats", "seed"),
    },
    "atlas": {
        **_CALL,
        "tasks": "identity",
        **_designed("k", "budget", "seed", "n", "n_random", "screen", "control_weight"),
    },
    "compare": {
        **_CALL,
        "task": "identity",
        **_designed("methods", "budget", "k", "max_heads", "n", "n_random", "controls", "contrast", "options", "seed"),
        **_designed("shares"),
    },
    "specificity": {
        **_CALL,
        "tasks": "identity",
        **_designed("heads", "k", "controls", "siblings", "suites", "n", "seed"),
    },
    "sparsity_curve": {
        **_CALL,
        "task": "identity",
        **_designed("heads", "siblings", "controls", "suites", "max_heads", "n", "n_random", "seed"),
    },
    "faithfulness": {
        **_CALL,
        "task": "identity",
        "response": "scoring",
        **_designed("found", "shares", "n", "n_random", "seed"),
    },
    "format_heads": {
        **_CALL,
        "letters": "identity",
        "full": "identity",
        **_designed("heads", "controls", "k", "n", "seed"),
    },
    "failures": {
        **_CALL,
        **dict.fromkeys(("task", "max_new_tokens", "stop"), "identity"),
        **_designed("heads", "k", "n", "texts"),
    },
    "held_out_contrasts": {
        **_CALL,
        **dict.fromkeys(("formats", "steps", "batch_size", "seed"), "identity"),
        **_designed("held_out", "n"),
    },
    "swearing_prompts": {**_CALL, "task": "identity"},
    "toggle_curves": {"experiment": "identity", "gates": "identity", **_designed("max_heads", "n_points")},
    "fit_gates": _GATING,
    "causal_head_gating": {**_GATING, "controls": "design"},
    "contrastive_gating": {**_GATING, "forget": "identity"},
    "gradient_importance": {**_SEARCH, **_designed("signed", "controls")},
    "mediation": {**_SEARCH, "n_pairs": "design"},
    "indirect_effects": {**_CALL, "pairs": "identity", "average_source": "identity", "budget": "design"},
    "attribution_patching": {**_CALL, "pairs": "identity"},
    "attention": {
        **_CALL,
        "prompts": "identity",
        **_designed("heads", "off"),
    },
    "habits": {**_CALL, **_designed("heads", "n", "length", "seed")},
    "generate": {
        "masks": "design",
        "examples": "design",
        "max_new_tokens": "identity",
        "stop": "identity",
    },
    "respond": {"masks": "design", "examples": "design", "response": "scoring"},
    "observe": {"masks": "design", "examples": "design"},
    "load_model": {
        "name_or_path": "identity",
        "dtype": "identity",
        "backend": "identity",
        "revision": "identity",
        # Says how the model came about, which is in its weights.
        "unfolded": "runtime",
        "device_map": "runtime",
        "device": "runtime",
    },
    "Cluster": {
        "model": "identity",
        "workers": "runtime",
        "address": "runtime",
        "gpus_per_worker": "runtime",
        "threads": "runtime",
    },
    "Task": {
        "kind": "identity",
        "examples": "identity",
        "length_normalized": "scoring",
        "scorer": "scoring",
        "accuracy": "scoring",
        "max_new_tokens": "identity",
        "stop": "identity",
        "chat": "identity",
        # What is cut is in the tokens.
        "too_long": "runtime",
        "name": "runtime",
        "role": "design",
        "held_out": "design",
    },
    "Example": {
        **dict.fromkeys(("prompt", "prompts", "continuations", "positions"), "identity"),
        **dict.fromkeys(("answer", "reference"), "scoring"),
        # Which side of a split an example is on.
        "asked": "design",
        "sequence": "design",
    },
}
