"""Methods that take an experiment, asked with a model and tasks."""

from functools import wraps

from cs_heads import Experiment
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
