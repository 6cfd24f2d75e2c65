"""Every result on disk, under what identifies it.

From a result to the store: ``store.Store`` is the file of one study (``identity.study_of``);
``stored_results.StoredResults`` are the results of one task under one scoring (``identity.scoring_of``), by example
(``identity.example_identities``) and mask, written batch by batch as they are measured. ``progress.Progress`` keeps
work that is no list of results.
"""
