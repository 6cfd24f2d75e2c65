"""The bugs that ``mutants.py`` plants: small, plausible and silent, each in one place.

Each leaves code that runs and gives a wrong number, or takes an assurance away. A text that is replaced stands exactly
once in its file, so that a bug is planted where it was meant to be; ``tests/test_mutants.py`` holds this.
"""

from __future__ import annotations

from dataclasses import dataclass

AREAS = ("lens", "engine", "store", "methods", "analysis", "tasks", "sandbox", "plot")


@dataclass(frozen=True)
class Mutant:
    """A planted bug: ``old``, which stands once in the file at ``path``, becomes ``new``.

    ``name`` says what is wrong; ``tests`` are those most likely to notice, which run first.
    """

    name: str
    area: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The text of the file with the bug in it; ``ValueError`` where the code has moved on."""
        times = text.count(self.old)
        if times != 1:
            raise ValueError(f"mutant {self.name!r}: its text must stand once in {self.path}, it stands {times} times")
        return text.replace(self.old, self.new)


def _bugs(area: str, path: str, tests: str, *bugs: tuple[str, str, str]) -> list[Mutant]:
    """Bugs in one file, each a name, the text that is there and what stands there instead."""
    near = tuple(f"tests/{test}" for test in tests.split())
    return [Mutant(name, area, f"cs_heads/{path}", old, new, near) for name, old, new in bugs]


_LENS = [
    *_bugs(
        "lens",
        "lens/gates.py",
        "lens/test_gates.py lens/test_logprobs.py",
        (
            "gates are applied one layer late",
            "partial(_mix, (shared, layer, units), _on_device",
            "partial(_mix, (shared, layer - 1, units), _on_device",
        ),
        (
            "hooks stay on the model after an exception",
            """\
        try:
            for name, hook in hooks.items():
                point = points[name]
                point.add_hook(hook)
                added.append((point, point.fwd_hooks[-1]))
            yield
        finally:
            for point, handle in added:
                handle.hook.remove()
                point.fwd_hooks[:] = [other for other in point.fwd_hooks if other is not handle]
""",
            """\
        for name, hook in hooks.items():
            point = points[name]
            point.add_hook(hook)
            added.append((point, point.fwd_hooks[-1]))
        yield
        for point, handle in added:
            handle.hook.remove()
            point.fwd_hooks[:] = [other for other in point.fwd_hooks if other is not handle]
""",
        ),
        (
            "hooks of others are removed with our own",
            "point.fwd_hooks[:] = [other for other in point.fwd_hooks if other is not handle]",
            "point.remove_hooks()",
        ),
    ),
    *_bugs(
        "lens",
        "lens/logprobs.py",
        "lens/test_logprobs.py",
        (
            "all tokens are normalized alike",
            "torch.cat(normalizer)[at]",
            "torch.cat(normalizer)[at].mean()",
        ),
        (
            "the log-softmax is taken in the dtype of the weights",
            "scores = part.float()",
            "scores = part",
        ),
    ),
    *_bugs(
        "lens",
        "lens/tokens.py",
        "lens/test_tokens.py experiment/test_chat.py",
        (
            "a prompt that begins with the beginning-of-sequence token gets a second one",
            "if tokens and tokens[0] in (bos, *wanted[:1]):",
            "if tokens and not wanted:",
        ),
    ),
    *_bugs(
        "lens",
        "lens/cache.py",
        "lens/test_cache.py engine/test_generation.py",
        (
            "a row taken from the cache loses its last token",
            "valid = valid & (valid.cumsum(dim=1) <= lengths[:, None])",
            "valid = valid & (valid.cumsum(dim=1) < lengths[:, None])",
        ),
    ),
    *_bugs(
        "lens",
        "lens/transfer.py",
        "lens/test_transfers.py",
        (
            "what goes to a GPU waits for all that was queued before",
            "tensor.pin_memory().to(device, non_blocking=True)",
            "tensor.to(device)",
        ),
    ),
    *_bugs(
        "lens",
        "lens/quantized.py",
        "lens/test_quantized.py",
        (
            "eight-bit weights, under which rows depend on each other, pass for four-bit ones",
            'f"{method} {8 if eight else 4}-bit"',
            'f"{method} 4-bit"',
        ),
    ),
    *_bugs(
        "lens",
        "lens/forward.py",
        "lens/test_abilities.py engine/test_engine.py",
        (
            "left padding counts as tokens and moves the positions",
            '"attention_mask": placed.mask(tokens)}',
            '"attention_mask": torch.ones_like(placed.mask(tokens))}',
        ),
    ),
    *_bugs(
        "lens",
        "lens/forward.py",
        "lens/test_resume.py lens/test_abilities.py",
        (
            "a forward resumes one block late",
            "with _skipping(model, range(start.layer)):",
            "with _skipping(model, range(start.layer + 1)):",
        ),
    ),
    *_bugs(
        "lens",
        "lens/decode.py",
        "engine/test_generation.py experiment/test_texts.py",
        (
            "the last token that a draft agrees on is forgotten",
            "kept = torch.tensor([n + 1 for n in taken]",
            "kept = torch.tensor([max(1, n) for n in taken]",
        ),
    ),
    *_bugs(
        "lens",
        "lens/patch.py",
        "lens/test_patch.py methods/test_mediation.py",
        (
            "every place of a pair gets the z of the first place",
            "moved = here + share * (source[:, :, layer].to(here) - here)",
            "moved = here + share * (source[:, :1, layer].to(here) - here)",
        ),
    ),
    *_bugs(
        "lens",
        "lens/differentiate.py",
        "lens/test_differentiate.py",
        (
            "the loss of a target is summed over its tokens",
            "return summed / to_device(torch.tensor([len(target) for target in targets]), logprob.device)",
            "return summed",
        ),
    ),
    *_bugs(
        "lens",
        "lens/fused.py",
        "lens/test_fused.py",
        (
            "fused attention silences a backward hook inside attention",
            """\
    return any(
        getattr(module, "fwd_hooks", None) or getattr(module, "bwd_hooks", None)
        for module in attention.modules()
        if id(module) not in still_heard
    )
""",
            """\
    return any(getattr(module, "fwd_hooks", None) for module in attention.modules() if id(module) not in still_heard)
""",
        ),
    ),
    *_bugs(
        "lens",
        "lens/abilities.py",
        "lens/test_abilities.py lens/test_fused.py",
        (
            "a short cut whose logits are no numbers is taken",
            "if not away <= tolerance(dtype_of(self.model)):",
            "if away > tolerance(dtype_of(self.model)):",
        ),
    ),
    *_bugs(
        "lens",
        "lens/fingerprint.py",
        "lens/test_fingerprint.py store/test_identity.py",
        (
            "the fingerprint leaves out the dtype",
            'digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\\n".encode())',
            'digest.update(f"{name} {tuple(parameter.shape)}\\n".encode())',
        ),
        (
            "the last bytes of a weight are in no fingerprint",
            "left = octets[whole:].cpu().numpy().tobytes()",
            "left = octets[whole:whole].cpu().numpy().tobytes()",
        ),
    ),
    *_bugs(
        "lens",
        "lens/state.py",
        "lens/test_model.py lens/test_state.py experiment/test_altered.py",
        (
            "under GQA a model is said to have as many key/value heads as heads",
            '"key_value_heads": getattr(model.cfg, "n_key_value_heads", None) or model.cfg.n_heads,',
            '"key_value_heads": model.cfg.n_heads,',
        ),
        (
            "an altered model is measured as the one before",
            "        if changed:\n            raise ValueError(",
            "        if False:\n            raise ValueError(",
        ),
    ),
    *_bugs(
        "lens",
        "lens/locks.py",
        "lens/test_locks.py experiment/test_altered.py",
        (
            "threads do not wait for each other",
            '_LOCKS.setdefault(getattr(model, "original_model", model), RLock())',
            "RLock()",
        ),
    ),
    *_bugs(
        "lens",
        "lens/model.py",
        "lens/test_model.py experiment/test_experiment.py",
        (
            "a model in train mode keeps its dropout",
            """\
        if training:
            model.eval()
""",
            "",
        ),
    ),
]

_ENGINE = [
    *_bugs(
        "engine",
        "engine/forwards.py",
        "engine/test_engine.py engine/test_forwards.py experiment/test_experiment.py",
        (
            "continuations go on from the prefix of another row of the batch",
            "for i, row in enumerate(forward.rows, start=done)",
            "for i, row in enumerate(reversed(forward.rows), start=done)",
        ),
        (
            "continuations of a later forward go on from the prefixes of the first",
            "for i, row in enumerate(forward.rows, start=done)",
            "for i, row in enumerate(forward.rows)",
        ),
        (
            "rows of all lengths share a forward",
            "min(int(fits.sum()), like_lengths(lengths, self.budget.tokens, self._overhead))",
            "int(fits.sum())",
        ),
        (
            "masked rows share the prefix of the intact model",
            "gates = np.stack([as_gates(row.mask).astype(np.float32) for row in batch])",
            "gates = np.stack([as_gates(row.mask & (not row.piece.children)).astype(np.float32) for row in batch])",
        ),
    ),
    *_bugs(
        "engine",
        "engine/logprobs.py",
        "engine/test_engine.py experiment/test_experiment.py",
        (
            "choices are scored by the mean log-probability of their tokens",
            "        return self.pairs[local], np.bincount(continuation, weights=self.logprob[slots]), hits",
            """\
        mean = np.bincount(continuation, weights=self.logprob[slots]) / np.bincount(continuation)
        return self.pairs[local], mean, hits""",
        ),
        (
            "a completion is right when one of its tokens is",
            "hits = np.bincount(continuation, weights=self.greedy[slots]) / np.bincount(continuation)",
            "hits = np.bincount(continuation, weights=self.greedy[slots]).astype(bool).astype(float)",
        ),
        (
            "masks start one layer after the first that they touch",
            "max((layer for layer in layers if layer <= f), default=0)",
            "max((layer for layer in layers if layer <= f + 1), default=0)",
        ),
    ),
    *_bugs(
        "engine",
        "lens/tokens.py",
        "experiment/test_prompts.py engine/test_prefixes.py test_token_ids.py",
        (
            "choices are read where the first prompt ends, not their own",
            "first = len(self.prompt_of(continuation)) - 1",
            "first = len(self.prompt) - 1",
        ),
        (
            "answers inside a prompt are read after it",
            "return self.positions or range(",
            "return range(",
        ),
    ),
    *_bugs(
        "engine",
        "engine/ablation.py",
        "engine/test_ablation.py",
        (
            "the mean of z is over examples, not over their tokens",
            "self._n_tokens = torch.tensor(self._length.sum())",
            "self._n_tokens = torch.tensor(len(self._length))",
        ),
        (
            "resampling may draw an example for itself",
            "partner[order] = np.roll(order, 1)",
            "partner[order] = np.random.default_rng(seed + 1).permutation(n)",
        ),
        (
            "the mean at a position counts from the beginning of the prompt",
            "places = Shared(position - torch.from_numpy(self._prompt[batch])[row] - self._lowest)",
            "places = Shared(position)",
        ),
        (
            "examples share a resampled prefix",
            'return self.kind in ("zero", "mean", "optimal")',
            'return self.kind in ("zero", "mean", "optimal", "resample")',
        ),
    ),
    *_bugs(
        "engine",
        "engine/protocol.py",
        "experiment/test_texts.py",
        (
            "a text is cut at the stop string that is listed first",
            "return decoded[: min(ends, default=len(decoded))]",
            "return decoded[: ends[0] if ends else len(decoded)]",
        ),
    ),
    *_bugs(
        "engine",
        "experiment/experiment.py",
        "engine/test_ablation.py experiment/test_experiment.py",
        (
            "the log-probability of an answer is divided by the tokens of the first choice",
            "/ len(self.encoded[example].continuations[answer])",
            "/ len(self.encoded[example].continuations[0])",
        ),
        (
            "what an ablation runs beforehand costs nothing",
            "return spent + (self.preparation if spent else 0)",
            "return spent",
        ),
    ),
    *_bugs(
        "engine",
        "cluster/engine.py",
        "cluster/test_worker.py cluster/test_chunks.py",
        (
            "a chunk that is known in part is not run",
            """\
        chunks = [chunk for chunk in chunks if not known[chunk].all()]
        calls = [WorkerCall("logprobs",""",
            """\
        chunks = [chunk for chunk in chunks if not known[chunk].any()]
        calls = [WorkerCall("logprobs",""",
        ),
    ),
    *_bugs(
        "engine",
        "cluster/pool.py",
        "cluster/test_pool.py",
        (
            "a late answer counts for the next run",
            "wanted = done.run == run.number and done.index not in run.answered",
            "wanted = done.index != _LOADING and done.index not in run.answered",
        ),
    ),
]

_STORE = [
    *_bugs(
        "store",
        "store/identity.py",
        "store/test_identity.py",
        (
            "the key of a store leaves out which ablation it was",
            '"ablation": settings.ablation,',
            '"ablation": bool(settings.ablation),',
        ),
        (
            "the key of a store does not say what the tokenizer prepends by itself",
            '"prepend_bos": prepended(getattr(model, "tokenizer", None), settings.prepend_bos),',
            '"prepend_bos": settings.prepend_bos,',
        ),
        (
            "what a head is set to is kept without the examples that it comes from",
            '{"replacement": _hash([ablation, *keys])}',
            '{"replacement": _hash([ablation, len(keys) > 0])}',
        ),
        (
            "the key of an example has its texts and not its tokens",
            """\
    return [
        _hash([example.identity, tokens.prompt, tokens.continuations, *tokens.prompts])
        for example, tokens in zip(task.examples, encoded, strict=True)
    ]
""",
            """\
    return [_hash([example.identity]) for example, tokens in zip(task.examples, encoded, strict=True)]
""",
        ),
    ),
    *_bugs(
        "store",
        "tasks/example.py",
        "store/test_identity.py tasks/test_task.py",
        (
            "the key of an example leaves out the right answer",
            "return hash_of([self.prompt, self.continuations, self.answer, *more])",
            "return hash_of([self.prompt, self.continuations, *more])",
        ),
    ),
    *_bugs(
        "store",
        "experiment/experiment.py",
        "store/test_store.py store/test_identity.py",
        (
            "results of a model that was altered go into the store",
            "with self._state.kept(self.model):\n            looked_up",
            "with alone(self.model):\n            looked_up",
        ),
    ),
    *_bugs(
        "store",
        "store/stored_results.py",
        "store/test_store.py",
        (
            "texts are kept without the tokens that end them",
            'written = what == "text" or (what == "score" and task.kind == "generation")',
            'written = what == "score" and task.kind == "generation"',
        ),
        (
            "a call that was cut short is planned anew",
            "planned = [absent | (calls >= number) for",
            "planned = [absent | (calls > number) for",
        ),
        (
            "a call that fills in margins is planned anew when it was cut short",
            "margin = excluded.margin, call = excluded.call WHERE",
            "margin = excluded.margin WHERE",
        ),
        (
            "a later result takes the place of one that is kept",
            " WHERE margin IS NULL AND excluded.margin IS NOT NULL",
            ", logprob = excluded.logprob",
        ),
    ),
    *_bugs(
        "store",
        "experiment/results.py",
        "experiment/test_generation_tasks.py store/test_store.py",
        (
            "what the store has of a mask counts once, not for each example",
            "self.taken += int(np.isnan(entry[examples, self.column]).sum())",
            "self.taken += int(np.isnan(entry[examples, self.column]).any())",
        ),
        (
            "a new log-probability wipes out the score",
            "entry[examples] = np.where(np.isnan(entry[examples]), values, entry[examples])",
            "entry[examples] = values",
        ),
    ),
    *_bugs(
        "store",
        "methods/gating/fit.py",
        "store/test_identity.py analysis/test_gating.py",
        (
            "gates that are kept of one seed answer for another",
            'experiment.kept_work("chg", {"plan": asdict(plan), "seed": seed})',
            'experiment.kept_work("chg", {"plan": asdict(plan)})',
        ),
    ),
]

_METHODS = [
    *_bugs(
        "methods",
        "designs.py",
        "test_designs.py methods/test_compressed_sensing.py",
        (
            "stratified masks are drawn at random first and balanced last",
            "np.lexsort((rng.random(grid.size), times_off))",
            "np.lexsort((times_off, rng.random(grid.size)))",
        ),
        (
            "masks that are asked once are given each other's scores",
            "return masks[first[order]], np.argsort(order)[place.ravel()]",
            "return masks[first[order]], order[place.ravel()]",
        ),
    ),
    *_bugs(
        "methods",
        "ranking.py",
        "test_ranking.py methods/test_greedy.py",
        (
            "shared heads are ranked among the top",
            "place[[self.grid.index(head) for head in self.shared]] += 1",
            "place[[self.grid.index(head) for head in self.shared]] += 0",
        ),
        (
            "the set that was chosen is forgotten in the order",
            "place[[self.grid.index(head) for head in self.chosen]] = np.arange(len(self.chosen))",
            "place[[self.grid.index(head) for head in self.chosen]] = len(self.chosen)",
        ),
        (
            "the standard error of a mean lacks its square root",
            "each.std(axis=0, ddof=1) / np.sqrt(len(each))",
            "each.std(axis=0, ddof=1) / len(each)",
        ),
    ),
    *_bugs(
        "methods",
        "methods/compressed_sensing.py",
        "methods/test_compressed_sensing.py",
        (
            "the Lasso has the wrong sign",
            "return 0.0 - lasso.fit(ablated, standardized).coef_ * spread, r2",
            "return lasso.fit(ablated, standardized).coef_ * spread, r2",
        ),
        (
            "importances stay in units of the standardized response",
            "lasso.fit(ablated, standardized).coef_ * spread, r2",
            "lasso.fit(ablated, standardized).coef_, r2",
        ),
        (
            "a mask costs one evaluation, not one for each example",
            "spent=before + len(once) * measure.a_mask",
            "spent=before + len(once)",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/regression.py",
        "methods/test_annealing_parts.py methods/test_annealed.py",
        (
            "z is in variances, not in standard errors",
            """\
    noise = np.sqrt(np.maximum(_variances(residual, group) @ spread, 1e-12))
    effect[known]""",
            """\
    noise = np.maximum(_variances(residual, group) @ spread, 1e-12)
    effect[known]""",
        ),
        (
            "the debiasing step is left out",
            "effect[known] = coefficients + (columns.T @ residual) / total",
            "effect[known] = coefficients",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/task_search.py",
        "methods/test_annealed.py",
        (
            "rows with a shared head off stay in the fit",
            "self.rows = self.every_row[self._used]",
            "self.rows = self.every_row",
        ),
        (
            "heads that the controls need too are not set aside",
            "        self.shared |= found\n        return bool(found)",
            "        return False",
        ),
        (
            "the share of the intact score that is left forgets chance",
            "(rows.scores.mean() - self.sensor.task.guess) / self.sensor.task.above_guess",
            "rows.scores.mean() / self.sensor.task.level",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/contrast_fit.py",
        "methods/test_annealing_parts.py methods/test_annealed.py",
        (
            "what heads take from the controls is added to the contrast",
            "contrast = task.effect / above_guess - weight * beyond_doubt(controls)",
            "contrast = task.effect / above_guess + weight * beyond_doubt(controls)",
        ),
        (
            "what rows do to everything stays in the task's noise",
            "response = response + together * left",
            "response = response + 0.0 * left",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/sensing.py",
        "methods/test_joint.py",
        (
            "kin are controls of each other",
            "if other != place and frozenset((place, other)) not in apart]",
            "if other != place]",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/universal.py",
        "methods/test_screen.py",
        (
            "a head that one task needs much is universal",
            "(losses > _SOME + errors).mean(axis=0) > _MOST",
            "(losses > _SOME + errors).mean(axis=0) > 0",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/task_search.py",
        "methods/test_joint.py",
        (
            "what a task sets aside takes nothing from it for the others",
            "effect[head], z[head] = both.task, both.task / both.task_error",
            "effect[head], z[head] = 0.0, 0.0",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/regression.py",
        "methods/test_joint.py",
        (
            "the error of a mean effect is that of a sum",
            "sum(axis=0)) / len(fits)",
            "sum(axis=0))",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/measurements.py",
        "methods/test_annealing_parts.py",
        (
            "hard examples of the controls are held against their rows",
            "return row_means(self.losses, self.drawn)",
            "return np.asarray(self.losses.mean(axis=1))",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/head_sets.py",
        "methods/test_head_sets.py",
        (
            "sets are held against the task alone",
            "return -self.most * np.expm1(-shares) - self.weight * losses",
            "return -self.most * np.expm1(-shares)",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/measurements.py",
        "methods/test_annealing_parts.py methods/test_annealed.py",
        (
            "examples of the controls are not paid for",
            "self.budget.pay(examples.size + drawn.size)",
            "self.budget.pay(examples.size)",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/intervals.py",
        "methods/test_annealing_parts.py methods/test_annealed.py",
        (
            "claims are not corrected for the number of finalists",
            "passed = p[order] <= _LEVEL / np.arange(len(p), 0, -1)",
            "passed = p[order] <= _LEVEL",
        ),
        (
            "chance is not counted in what chose the finalists",
            "self.error**2 * (1 + self.passed**2)",
            "self.error**2",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/intervals.py",
        "methods/test_annealing_parts.py methods/test_annealed.py",
        (
            "the two-way variance adds what rows and examples share",
            "bread @ (by_row + by_example - scores.T @ scores) @ bread",
            "bread @ (by_row + by_example + scores.T @ scores) @ bread",
        ),
    ),
    *_bugs(
        "methods",
        "methods/annealing/schedule.py",
        "methods/test_annealing_parts.py",
        (
            "decoys may come from the best quarter",
            "rest = order[max(n_finalists, len(order) // 4) :]",
            "rest = order[n_finalists:]",
        ),
    ),
    *_bugs(
        "methods",
        "methods/greedy.py",
        "methods/test_greedy.py",
        (
            "greedy picks the head that raises the score most",
            "alone = current - swept",
            "alone = swept - current",
        ),
        (
            "later rounds of greedy ablate each head alone",
            "swept = _sweep(measure, grid, [[*chosen, head] for head in others])",
            "swept = _sweep(measure, grid, [[head] for head in others])",
        ),
    ),
    *_bugs(
        "methods",
        "methods/gating/result.py",
        "analysis/test_gating.py analysis/test_taxonomy.py",
        (
            "facilitation and irrelevance are swapped",
            """\
            "facilitation": self.minus,
            "irrelevance": self.plus * (1 - self.minus),""",
            """\
            "facilitation": self.plus * (1 - self.minus),
            "irrelevance": self.minus,""",
        ),
    ),
    *_bugs(
        "methods",
        "methods/gating/fit.py",
        "analysis/test_gating.py",
        (
            "the contrastive penalty is a mean over heads, not a sum",
            "SIGNED_RATES, [-strength * experiment.grid.size])",
            "SIGNED_RATES, [-strength])",
        ),
    ),
    *_bugs(
        "methods",
        "methods/gradient.py",
        "methods/test_gradient.py",
        (
            "gradients of opposite signs cancel before their size is taken",
            "else np.abs(gradient)",
            "else np.abs(gradient.mean(axis=0, keepdims=True)).repeat(len(gradient), axis=0)",
        ),
    ),
    *_bugs(
        "methods",
        "methods/mediation.py",
        "methods/test_mediation.py",
        (
            "the test of an indirect effect has two sides",
            'ttest_1samp(self.effects[:, moved], 0.0, alternative="greater")',
            'ttest_1samp(self.effects[:, moved], 0.0, alternative="two-sided")',
        ),
    ),
    *_bugs(
        "methods",
        "experiment/patching.py",
        "methods/test_mediation.py",
        (
            "effects are held against the first pair's run without a patch",
            "reshape(n, -1) - without[:, None]",
            "reshape(n, -1) - without[0]",
        ),
    ),
]

_ANALYSIS = [
    *_bugs(
        "analysis",
        "experiment/controls.py",
        "analysis/test_confirm.py",
        (
            "heads are confirmed on the examples that found them",
            "return unseen.take(n)",
            "return task.take(n)",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/verdict.py",
        "analysis/test_verdict.py analysis/test_proof.py",
        (
            "the verdict has the wrong sign",
            "margin = result.relative_drop - random.drop / result.baseline",
            "margin = random.drop / result.baseline - result.relative_drop",
        ),
        (
            "the drop of random heads is no share of the baseline where the other is",
            "margin = result.relative_drop - random.drop / result.baseline",
            "margin = result.relative_drop - random.drop",
        ),
        (
            "heads are specific though the controls lose nearly as much",
            "specific = not few and little and difference.low",
            "specific = not few and difference.low",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/losses.py",
        "analysis/test_losses.py analysis/test_verdict.py",
        (
            "a difference takes the wrong end of the interval of what is subtracted",
            "down, up = reach if weight > 0 else reach[::-1]",
            "down, up = reach",
        ),
        (
            "the mean over controls is that of their worst",
            "[one.within for one in self.controls.values()]",
            "[self.worst for _ in self.controls]",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/random_comparison.py",
        "analysis/test_proof.py analysis/test_random_comparison.py",
        (
            "p is one-sided the wrong way",
            "betting_p(random - ablated)",
            "betting_p(ablated - random)",
        ),
        (
            "random sets that do as much harm are not counted",
            "(1 + len(left)) / (1 + n_sets)",
            "1 / (1 + n_sets)",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/random_heads.py",
        "analysis/test_confirm.py analysis/test_proof.py analysis/test_compare.py",
        (
            "random sets may hold the heads that were found",
            "free = np.flatnonzero(~(found[layer] | exclude[layer]))",
            "free = np.flatnonzero(~exclude[layer])",
        ),
        (
            "universal heads are not excluded from random sets",
            "free = np.flatnonzero(~(found[layer] | exclude[layer]))",
            "free = np.flatnonzero(~found[layer])",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/overlap.py",
        "analysis/test_overlap.py",
        (
            "a permutation test leaves out the observed sets",
            "p = (1 + int((random >= shared).sum())) / (1 + len(random))",
            "p = int((random >= shared).sum()) / len(random)",
        ),
        (
            "p is of more heads in common than there are",
            "float(chances[shared:].sum())",
            "float(chances[shared + 1 :].sum())",
        ),
        (
            "under GQA a group has as many heads as there are key/value heads",
            "return grid.n_units // n_key_value_heads",
            "return n_key_value_heads",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/drops.py",
        "analysis/test_drops.py analysis/test_specificity.py",
        (
            "each set of heads is given the scores of the one before",
            "for row, found in enumerate(heads, start=1):",
            "for row, found in enumerate(heads):",
        ),
        (
            "specificity is by the control that loses least",
            "worst = max(others, key=lambda name: others[name], default=None)",
            "worst = min(others, key=lambda name: others[name], default=None)",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/losses.py",
        "analysis/test_intervals.py",
        (
            "answers that go together widen an interval",
            "one**2 - 2 * r * one * other + other**2",
            "one**2 + 2 * r * one * other + other**2",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/losses.py",
        "analysis/test_drops.py analysis/test_specificity.py analysis/test_scale.py",
        (
            "a suite is the mean of its examples, not of its tasks",
            "baseline, score = (float(np.mean([pair[side].mean() for pair in parts])) for side in (0, 1))",
            "baseline, score = (float(np.concatenate([pair[side] for pair in parts]).mean()) for side in (0, 1))",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/universal.py",
        "analysis/test_universal.py",
        (
            "what a head leaves is held against the intact score of other examples",
            "before, chance = intact[name][drawn], chance_of(experiment)",
            "before, chance = intact[name][:n_examples], chance_of(experiment)",
        ),
    ),
    *_bugs(
        "analysis",
        "experiment/baseline.py",
        "analysis/test_universal.py methods/test_annealed.py",
        (
            "a head that breaks half of the tasks counts as universal",
            "2 * sum(broken) > len(broken)",
            "2 * sum(broken) >= len(broken)",
        ),
    ),
    *_bugs(
        "analysis",
        "experiment/baseline.py",
        "experiment/test_continuous_scores.py",
        (
            "full marks of a graded scorer count as right answers",
            "(task.scorer is None or task.graded)",
            "task.scorer is None",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/gating.py",
        "analysis/test_taxonomy.py",
        (
            "a head that facilitates in some seed counts as always",
            'shares[name]["always", score] = float(counted.all(axis=0).mean())',
            'shares[name]["always", score] = float(counted.any(axis=0).mean())',
        ),
        (
            "toggled heads stand among gates that were pushed shut",
            "for plus, scores in zip(gates.plus, gates.score(score), strict=True):",
            "for plus, scores in zip(gates.minus, gates.score(score), strict=True):",
        ),
    ),
    *_bugs(
        "analysis",
        "analysis/failures.py",
        "analysis/test_failures.py",
        (
            "a tenth of a probability is taken of its logarithm",
            "masses[0] + np.log(UNLIKELY)",
            "masses[0] * UNLIKELY",
        ),
    ),
    *_bugs(
        "analysis",
        "experiment/controls.py",
        "analysis/test_specificity.py analysis/test_compare.py analysis/test_confirm.py",
        (
            "a control may share questions with the search of another task",
            "if shared and other != place:",
            "if shared and other > place:",
        ),
    ),
]

_TASKS = [
    *_bugs(
        "tasks",
        "tasks/family.py",
        "tasks/test_drawn_tasks.py tasks/test_function_vectors.py",
        (
            "the right answer is where it stood before the choices were shuffled",
            '"answer": shuffled.index(right)}',
            '"answer": 0}',
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/scorer.py",
        "tasks/test_scorer.py",
        (
            "a text that holds the reference somewhere matches it exactly",
            "float(t.strip() == e.reference.strip())",
            "float(e.reference.strip() in t)",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/scorer.py",
        "tasks/test_function_identity.py",
        ("a scorer that changes what it reads goes on", "        if after != before:", "        if not after:"),
    ),
    *_bugs(
        "tasks",
        "tasks/function_identity.py",
        "tasks/test_function_identity.py",
        (
            "what a text in an annotation names is no part of a scorer",
            "self._named(named_in(text, namespace)) if isinstance(text, str) else []",
            "[]",
        ),
        (
            "an object of C that no pickle tells is told by its class",
            "if base not in _EMPTY_BASES and not _is_written(base)]",
            "if base not in _EMPTY_BASES and _installed_name(base)]",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/function_identity.py",
        "tasks/test_function_identity.py",
        ("tensors of one content are one, whatever their type", "[str(value.dtype), tuple(value.shape), ", "["),
        (
            "what a lock is told by is no pickle, so it is refused",
            "    if isinstance(value, _LOCKS):",
            "    if not _LOCKS:",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/function_reads.py",
        "tasks/test_function_identity.py",
        (
            "a name imported inside a function overwrites one that is read of a global",
            'yield f"from {name} import {attribute}", getattr(module, attribute)',
            'yield f"{name}.{attribute}", getattr(module, attribute)',
        ),
        (
            "a module that is imported inside a function hides what is called of it",
            "held |= _held(step.argval, names, following)",
            "pass",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/task.py",
        "tasks/test_task.py experiment/test_chat.py",
        (
            "of choices that tie the right one wins",
            "return float(best[self.examples[example].answer] / max(best.sum(), 1))",
            "return float(best[self.examples[example].answer])",
        ),
        (
            "unseen examples are not shown in the chat template",
            "unseen = None if self.held_out is None else self.held_out.with_chat_template(chat)",
            "unseen = self.held_out",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/scorer.py",
        "tasks/test_task.py experiment/test_experiment.py",
        (
            "the right choice competes with itself in its margin",
            "np.logaddexp.reduce(np.delete(compared, answer))",
            "np.logaddexp.reduce(compared)",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/splits.py",
        "tasks/test_task.py",
        (
            "a control is judged with the half that was searched with",
            "distinct(_halves(task, seed)[1], seen)",
            "distinct(_halves(task, seed)[0], seen)",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/forms.py",
        "tasks/test_forms.py",
    ),
    *_bugs(
        "tasks",
        "tasks/lm_eval/requests.py",
        "tasks/test_lm_eval.py",
        (
            "of several right choices the last one counts",
            """\
    target = target[0] if isinstance(target, list) and target else target
    index =""",
            """\
    target = target[-1] if isinstance(target, list) and target else target
    index =""",
        ),
        (
            "a row that all questions of lm-eval are shown is asked, too",
            "if shown and _question(task, doc) in shown:",
            "if False:",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/symbolic.py",
        "tasks/test_drawn_tasks.py",
        (
            "words of the triples that all questions are shown are asked, too",
            "[word for word in vocabulary if word not in kept]",
            "list(vocabulary)",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/lm_eval/scoring.py",
        "tasks/test_lm_eval.py",
        (
            "all tasks of a group are scored by the rule of the first",
            "return _judge_of(_rule_of(self.rules, _named(example.reference)))",
            "return _judge_of(self.rules[0])",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/rhyming.py",
        "tasks/test_rhyming.py",
        (
            "a word counts as its own rhyme",
            "return word != other and not tails(word).isdisjoint(tails(other))",
            "return not tails(word).isdisjoint(tails(other))",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/function_vectors.py",
        "tasks/test_function_vectors.py",
        (
            "a worked example may be the question itself",
            "pool, asked = items[:held_back], items[held_back:]",
            "pool, asked = items, items[held_back:]",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/pairs.py",
        "methods/test_mediation.py tasks/test_function_vectors.py",
        (
            "a shuffled label may stay in its place",
            "moved = dict(zip(cycle, np.roll(cycle, 1), strict=True))",
            "moved = dict(zip(cycle, rng.permutation(n_shots), strict=True))",
        ),
    ),
    *_bugs(
        "tasks",
        "tasks/induction.py",
        "tasks/test_drawn_tasks.py",
        (
            "the answer of an induction prompt is its last word",
            "shown[at], shown, choices)",
            "shown[at - 1], shown, choices)",
        ),
    ),
]

_SANDBOX = [
    *_bugs(
        "sandbox",
        "sandbox/runner.py",
        "sandbox/test_sandbox.py",
        (
            "the limit on the size of a file is dropped",
            """\
        "RLIMIT_FSIZE": (limits["file_mb"] * MB,) * 2,
""",
            "",
        ),
        (
            "code may raise its limits again",
            "resource.setrlimit(which, (min(soft, ceiling), ceiling))",
            "resource.setrlimit(which, (min(soft, ceiling), most))",
        ),
    ),
    *_bugs(
        "sandbox",
        "sandbox/bubblewrap.py",
        "sandbox/test_sandbox.py",
        (
            "the sandbox shares the network of the machine",
            '"--unshare-net", ',
            "",
        ),
    ),
    *_bugs(
        "sandbox",
        "sandbox/bubblewrap.py",
        "sandbox/test_sandbox.py",
        (
            "the rule against sockets is dropped",
            """\
    "sockets, some kinds of which are in no network namespace": "socket",
""",
            "",
        ),
    ),
    *_bugs(
        "sandbox",
        "sandbox/conversation.py",
        "sandbox/test_sandbox.py",
        (
            "a pass is believed without the word of the run",
            'if event in ("loaded", "passed") and not compare_digest',
            'if event == "loaded" and not compare_digest',
        ),
    ),
    *_bugs(
        "sandbox",
        "sandbox/run.py",
        "sandbox/test_sandbox.py",
        (
            "a program beyond the limit on output may pass",
            "if talk.stopped or verdict is None:",
            "if verdict is None:",
        ),
    ),
]

_VIEWS = [
    *_bugs(
        "plot",
        "plot/style.py",
        "plot/test_style.py plot/test_head_map.py",
        (
            "heads that facilitate are orange and those that interfere blue",
            'ends = [ROLES["interference"][0], "white", ROLES["facilitation"][0]]',
            'ends = [ROLES["facilitation"][0], "white", ROLES["interference"][0]]',
        ),
    ),
    *_bugs(
        "plot",
        "plot/bars.py",
        "plot/test_confirmation.py",
        (
            "relative drops are drawn with the intervals of drops",
            'return share, *_numbers(frame, "relative_low", "relative_high")',
            'return share, *_numbers(frame, "low", "high")',
        ),
    ),
    *_bugs(
        "plot",
        "report/findings.py",
        "report/test_report.py",
        (
            "a report mixes results of two dtypes",
            '_check_alike("model", ("name", "revision", "dtype", "grid"), *models)',
            '_check_alike("model", ("name", "revision", "grid"), *models)',
        ),
    ),
    *_bugs(
        "plot",
        "cli/find.py",
        "test_cli.py test_cli_store.py",
    ),
]

MUTANTS: list[Mutant] = [*_LENS, *_ENGINE, *_STORE, *_METHODS, *_ANALYSIS, *_TASKS, *_SANDBOX, *_VIEWS]
"""Every bug, area by area."""
