"""What rankings say: the proof, what breaks, what stays, and how rankings agree.

The **verdict** (``confirm``) ablates the top heads on *unseen* examples, which the search had no part
in, beside random heads of the same layers, since any ablation does some harm. *Localized* are heads that do more harm
than the random ones (p < .01 over sets of heads and over examples) and a loss larger by .10; of these,
*specific* are heads whose removal costs the controls little, *shared* those that cost them too much for that, and the
verdict says *localized* where that is not known. *Baseline too low*: the intact model does not beat chance, or
answers fewer than 20 examples right, so that nothing could be seen to drop.
Else *not localized*. ``cs_heads.analysis.verdict`` has the rule.

A **drop** is the baseline less the score with heads off, on their scale of 0 to 1 (drop@k: with the top k); the *loss*
is its share of what the baseline has above chance. A *point* is a percentage point: 2 points are a drop of .02. All
come with 95 % intervals:

>>> import numpy as np
>>> from cs_heads.analysis.losses import task_drop
>>> drop = task_drop("choices of four", 0.25, [(np.repeat([1.0, 0.0], [90, 10]), np.repeat([1.0, 0.0], [45, 55]))])
>>> [round(number, 2) for number in (drop.drop, drop.loss)]
[0.45, 0.69]

``confirm``, ``specificity``, ``sparsity_curve``, ``faithfulness`` and ``format_heads`` take a model and tasks, or no
model (None) and an **experiment** in place of every task. Anything that answers masks with scores is one, also a
planted truth. It has a model, settings and examples of its own, of which all count.

>>> import cs_heads as cs
>>> made = cs.simulate.planted_world("main", cs.Grid(16, 16), seed=0)
>>> proof = cs.confirm(None, made.unseen, made.planted, controls=[made.control])
>>> proof.verdict, proof.close
('specific', False)
>>> print(proof.specificity.difference)
0.56 (+0.43 to +0.67)

An analysis takes tasks in roles: the *own* task of the heads, *siblings* (other data of the same capability),
*controls*, and *suites*, whose mean counts. Each judges on the side of a task that no heads were found with, and
refuses a task that shares a question with that; so do ``confirm`` and ``compare``. Each is one function; its result
holds data, with ``to_frame()``, and ``plot()``. What is one small table and nothing else is a frame itself:
``habits``, ``taxonomy``, ``score_distribution``, ``seed_agreement``.

What was found can be acted on in the user's own model: ``ablated`` and ``scale`` are ``with`` blocks in which heads are
off or weighed, ``bake`` takes them out of the weights, for models that are shipped, and ``certify`` says what that
costs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
