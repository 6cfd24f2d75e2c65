"""What a model said, on disk, under what can change it; no scores.

``store.Store`` is the file of one study (``identity.study_of``); ``stored_observations.StoredObservations`` are the
observations of one task under some settings, by example (``identity.example_identities``) and mask;
``experiment.plan`` reads and writes them batch by batch, as they are measured. ``kept_work.KeptWork`` keeps work
that is no list of observations, such as fitted gates. Results of analyses (``analysis.result``) are files of their own.
"""
