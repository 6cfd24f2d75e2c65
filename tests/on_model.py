"""Methods that take an experiment, and log-probabilities, asked with a model."""

from functools import wraps
from types import SimpleNamespace

import numpy as np

from cs_heads import Experiment
from cs_heads.engine.protocol import PairMasks
from cs_heads.lens import EncodedExample
from cs_heads.lens.differentiate import GradientExample
from cs_heads.lens.forward import pad
from cs_heads.lens.logprobs import Reads, token_logprobs
from cs_heads.settings import Settings


def on_model(method):
    """The method on an experiment made of a model, a task and settings, with experiments on the controls."""

    @wraps(method)
    def run(model, task, controls=(), **options):
        settings = {name: options.pop(name) for name in Settings.kinds() if name in options}
        experiment = Experiment(model, task, **settings)
        beside = {"controls": [experiment.on(control) for control in controls]} if controls else {}
        return method(experiment, **beside, **options)

    return run


def observed(engine, masks, pairs):
    """By (mask, example) pair, each once: the log-probability and the share of hits of each continuation."""
    found = {}
    for batch in engine.run(PairMasks.of(masks[pairs[:, 0]]), pairs[:, 1]):
        for pair, said in batch:
            assert pair not in found
            found[pair] = said.T
    return [found[pair] for pair in range(len(pairs))]


def completions(prompts, targets):
    """A target after each prompt."""
    return [
        EncodedExample(tuple(prompt), (tuple(target),), False) for prompt, target in zip(prompts, targets, strict=True)
    ]


def losses(prompts, targets):
    """What ``gate_gradients`` is asked for the loss of a target after each prompt."""
    return [[GradientExample(example, 0, (1.0,))] for example in completions(prompts, targets)]


def target_logprobs(model, prompts, targets, gates=None):
    """Of each row: the summed log-probability of its target (nats), and the share of its tokens that are the argmax."""
    examples = completions(prompts, targets)
    row = np.repeat(np.arange(len(targets)), [len(target) for target in targets])
    places = np.concatenate([example.positions_of(0) for example in examples])
    reads = Reads(row, places, np.concatenate(targets))
    tokens, attention_mask = pad([example.inputs_of(0) for example in examples])
    each = token_logprobs(model, tokens, attention_mask, reads, gates=gates)
    summed = np.bincount(reads.row, weights=each.logprob, minlength=len(targets))
    hits = np.bincount(reads.row, weights=each.greedy, minlength=len(targets))
    hits = hits / np.array([len(target) for target in targets])
    return SimpleNamespace(logprob=summed, hits=hits, greedy=hits == 1)
