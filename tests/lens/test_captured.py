"""Steps of decoding that a GPU is given as one CUDA graph: taken where right and faster, and left out elsewhere.

Without a GPU the graph is a stand-in, which runs the captured Python code again; what a graph cannot hold (a number
asked of the device, an upload) is counted meanwhile.
"""

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Task
from cs_heads.lens import abilities as module
from cs_heads.lens import captured, load_model
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.cache import Extension
from cs_heads.lens.checks import checks_of
from cs_heads.lens.decode import Decoding
from cs_heads.lens.forward import logits_at, pad
from cs_heads.lens.gates import gate_hooks
from cs_heads.lens.model import evaluating
from tests.fake_devices import GPU, FakeDevices, WatchedDevices, lay, split
from tests.tiny import N_HEADS, N_LAYERS, choice_records

SHAPE = (N_LAYERS, N_HEADS)
ROWS = [[1, 4, 5, 6], [1, 7], [1, 8, 9]]


def task(n=6):
    return Task.from_records(choice_records(np.random.default_rng(0), n))


class Card:
    """A card that captures by keeping the Python code that it runs again; the time is what its forwards cost.

    ``price`` is that of a replayed forward, where one that is not costs 1.
    """

    def __init__(self, price=0.1):
        self.price, self.cost, self.now, self.captured = price, 1.0, 0.0, 0

    def capture(self, run):
        run()
        self.captured += 1

        def replay():
            self.cost = self.price
            try:
                return run()
            finally:
                self.cost = 1.0

        return replay

    def tick(self, *_):
        self.now += self.cost


@pytest.fixture
def put_in(monkeypatch):
    """Put a card in: CPU models are captured by it, and ``abilities`` looks at its clock."""

    def put_in(card, kind="cpu"):
        monkeypatch.setitem(captured._CAPTURES, kind, card.capture)
        monkeypatch.setattr(module, "perf_counter", lambda: card.now)
        return card

    return put_in


def able(model, card):
    """What ``abilities`` says of graphs while the card's clock runs."""
    handle = model.unembed.register_forward_pre_hook(card.tick)
    try:
        return abilities(model).graphs
    finally:
        handle.remove()


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_captured_steps_are_taken_where_they_are_right_and_faster(load, backend, put_in, architecture):
    assert able(load(architecture, backend), put_in(Card()))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda replay, first: 1 / 0, "ZeroDivisionError('division by zero')"),
        (lambda replay, first: replay() * 1.1, "logits differ by 1.0e-01"),
        # A graph that does not see the tokens it is given.
        (lambda replay, first: first, "logits differ by "),
    ],
)
def test_what_a_card_captures_wrongly_is_not_taken(load, backend, put_in, caplog, spoil, why):
    class Broken(Card):
        def capture(self, run):
            replay, first = super().capture(run), run().clone()
            return lambda: spoil(replay, first)

    caplog.set_level("INFO", "cs_heads")
    model, card = load("llama", backend), put_in(Broken())
    assert not able(model, card)
    assert f"graphs are not used on {model.cfg.model_name}: {why}" in caplog.text


def test_a_card_that_refuses_to_capture_is_run_as_it_is(load, backend, put_in, caplog):
    class Refusing(Card):
        def capture(self, run):
            raise RuntimeError("operation not permitted when stream is capturing")

    caplog.set_level("INFO", "cs_heads")
    assert not able(load("llama", backend), put_in(Refusing()))
    assert "RuntimeError('operation not permitted when stream is capturing')" in caplog.text


def test_a_captured_step_that_is_slower_is_not_taken(load, backend, put_in, caplog):
    caplog.set_level("INFO", "cs_heads")
    assert not able(load("llama", backend), put_in(Card(price=2.0)))
    assert "a step takes 2.00 times as long" in caplog.text


@pytest.mark.parametrize(("price", "said"), [(0.1, "used in decoding"), (2.0, "not used: a step takes 2.00 times")])
def test_the_doctor_says_whether_steps_are_captured(load, backend, put_in, price, said):
    model = load("llama", backend)
    assert "CUDA graphs" not in {check.name for check in checks_of(model, None)}
    card = put_in(Card(price))
    handle = model.unembed.register_forward_pre_hook(card.tick)
    try:
        line = {check.name: check for check in checks_of(model, None)}["CUDA graphs"]
    finally:
        handle.remove()
    assert line.status == "ok"
    assert line.found.startswith(said)


def test_none_are_tried_on_a_cpu_nor_where_they_are_not_wanted(load, backend, put_in, caplog):
    caplog.set_level("INFO", "cs_heads")
    model = load("llama", backend)
    assert not abilities(model).graphs
    assert "graphs are not used on" in caplog.text
    assert "there are none on cpu" in caplog.text
    card = put_in(Card())
    assert not abilities(model, Abilities()).graphs
    assert not card.captured


def test_a_split_model_and_one_that_looks_through_a_window_are_not_captured(load, folders, backend, put_in):
    put_in(Card(), "xla")
    parted = load_model(folders("llama"), device="cpu", backend=backend)
    split(parted)
    with FakeDevices():
        assert captured.why_not_capturable(parted) == "the model lies on several devices"
    put_in(Card())
    assert captured.why_not_capturable(load("llama", backend)) is None
    assert captured.why_not_capturable(load("neo", backend)) == "some layer looks back no farther than a window"


def begun(model, gates):
    """Keys and values of rows, up to their last token but one."""
    tokens, mask = pad([row[:-1] for row in ROWS])
    extension, nowhere = Extension(mask, keep=True), torch.zeros(1, dtype=torch.long)
    with evaluating(model):
        logits_at(model, tokens, mask, row=nowhere, position=nowhere, gates=gates, extension=extension)
    stored = extension.finish()
    stored.compact()
    return stored


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_batch_is_captured_after_some_steps_and_again_when_rows_leave(load, backend, put_in, architecture):
    """Token for token what plain steps write, through all of that."""
    model, card = load(architecture, backend), put_in(Card())
    gates = (torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.3).float()

    def written(graphs):
        texts = [[row[-1]] for row in ROWS]
        decoding = Decoding(model, begun(model, gates), texts, gates, graphs=graphs)
        seen = []
        for step in range(24):
            if step == 11:
                decoding.keep([0, 2])
            # A step that checks a draft, in between.
            decoding.advance({0: [3, 4]} if step == 21 else None)
            seen.append(card.captured)
        return texts, seen

    expected, never = written(graphs=False)
    texts, seen = written(graphs=True)
    assert texts == expected
    assert never == [0] * 24
    # Eight steps are plain, then one graph serves three, and so on; the last steps follow the checked one.
    assert seen == [0] * 8 + [1] * 11 + [2] * 3 + [3] * 2


def test_a_graph_without_room_is_captured_anew(load, backend, put_in, monkeypatch):
    from cs_heads.lens import decode

    monkeypatch.setattr(decode, "_REPLAYS", 4)
    model, card = load("llama", backend), put_in(Card())
    gates = torch.ones(3, *SHAPE)
    texts = {}
    for graphs in (False, True):
        texts[graphs] = [[row[-1]] for row in ROWS]
        decoding = Decoding(model, begun(model, gates), texts[graphs], gates, graphs=graphs)
        for _ in range(18):
            decoding.advance()
    assert texts[True] == texts[False]
    assert card.captured == 3


def test_what_cannot_be_captured_at_its_size_goes_on_as_it_is(load, backend, put_in, caplog):
    class Small(Card):
        def capture(self, run):
            raise torch.OutOfMemoryError("CUDA out of memory")

    caplog.set_level("INFO", "cs_heads")
    model, gates = load("llama", backend), torch.ones(3, *SHAPE)
    put_in(Small())
    texts = {}
    for graphs in (False, True):
        texts[graphs] = [[row[-1]] for row in ROWS]
        decoding = Decoding(model, begun(model, gates), texts[graphs], gates, graphs=graphs)
        for _ in range(12):
            decoding.advance()
    assert texts[True] == texts[False]
    assert caplog.text.count("steps of 3 rows are not captured on") == 1
    assert "CUDA out of memory" in caplog.text


@pytest.mark.parametrize(("kind", "captures"), [("zero", True), ("mean", True), ("resample", False)])
def test_an_experiment_writes_the_same_texts_with_graphs(load, backend, put_in, monkeypatch, kind, captures):
    model = load("llama", backend)
    masks = np.random.default_rng(1).random((3, *SHAPE)) < 0.4

    def texts():
        return Experiment(model, task(), ablation=kind, progress=False).generate(masks, max_new_tokens=20)

    expected, card = texts(), put_in(Card())
    handle = model.unembed.register_forward_pre_hook(card.tick)
    try:
        tried = []
        step = captured.CapturedStep.__init__
        monkeypatch.setattr(
            captured.CapturedStep,
            "__init__",
            lambda self, model, stored, *rest: tried.append(len(stored.valid)) or step(self, model, stored, *rest),
        )
        np.testing.assert_array_equal(texts(), expected)
    finally:
        handle.remove()
    # The trial has three rows.
    assert bool([n for n in tried if n > 3]) == captures


def test_a_graph_holds_nothing_that_waits_or_comes_from_main_memory(folders, backend, put_in):
    """What a stream may not do while it is captured: answer, and take what another step would have otherwise."""

    class Watched(Card):
        def capture(self, run):
            run()
            before = dict(devices.seen)
            run()
            assert dict(devices.seen) == before
            return super().capture(run)

    model = load_model(folders("llama"), device="cpu", backend=backend)
    gates = (torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.3).float()
    lay(model, GPU)
    with WatchedDevices() as devices:
        card = put_in(Watched(), "cuda")
        stored = begun(model, gates)
        with evaluating(model):
            step = captured.CapturedStep(model, stored, gate_hooks(gates), backend == "bridge", 4)
            for token in ([4], [5], [6]):
                devices.seen.clear()
                step(torch.tensor([token] * 3)).argmax(dim=1).cpu()
                assert dict(devices.seen) == {"downloads": 1}
    assert card.captured == 1
