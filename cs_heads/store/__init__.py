"""Every result on disk, under what identifies it.

From a result to the store: ``store.Store`` is the file of one study (``identity.study_of``);
``stored_results.StoredResults`` are the results of one task under one scoring (``identity.scoring_identity``), by
example (``identity.example_identities``) and mask; ``experiment.results`` reads and writes them batch by batch, as they
are measured. ``kept_work.KeptWork`` keeps work that is no list of results, such as fitted gates. Results of analyses
(``analysis.result``) are files of their own.
"""
