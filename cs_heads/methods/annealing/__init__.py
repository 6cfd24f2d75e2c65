"""The parts of annealed sensing, each a statistic or a rule of its own."""
