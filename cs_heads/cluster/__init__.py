"""Experiments on many workers, by Ray: the same numbers, to rounding, sooner.

A ``cluster`` keeps a ``pool`` of ``worker`` processes; ``engine`` cuts an experiment's pairs into ``chunks`` for them.
``session`` is the connection to Ray.
"""

from cs_heads.cluster.cluster import Cluster as Cluster
from cs_heads.cluster.cluster import ModelLike as ModelLike
from cs_heads.cluster.cluster import local_model as local_model
from cs_heads.cluster.cluster import model_or_cluster as model_or_cluster
from cs_heads.cluster.cluster import placed as placed
