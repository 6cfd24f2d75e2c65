"""Adaptive group testing: heads and pairs of heads that carry a task together, though none does alone.

A regression on random masks sees what each head does by itself. Of two heads that are fully redundant (backups),
neither does anything until both are off, as they are in few masks. But a mask that has both off shows it at once: it
breaks the task and leaves the controls whole. So random masks are *screened* on a few examples each (a sequential
probability ratio test, Wald 1945), and the few that break the task are *bisected*: parts of them are measured until one
head or one pair is left that explains all answers (noisy adaptive group testing, after Dorfman 1943).
"""

from cs_heads.methods.group_testing.method import group_testing as group_testing
