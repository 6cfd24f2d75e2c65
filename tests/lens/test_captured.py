"""Steps of decoding that a GPU is given as one CUDA graph: taken where right and faster, and left out elsewhere.

Without a GPU the graph is a stand-in, which runs the captured Python code again; what a graph cannot hold (a number
asked of the device, an upload) is counted meanwhile.
"""

from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import FalconConfig, MptConfig, MptForCausalLM

from cs_heads import Experiment, Task
from cs_heads.lens import abilities as module
from cs_heads.lens import captured, decode, load_model
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.cache import Extension
from cs_heads.lens.checks import checks_of
from cs_heads.lens.decode import Decoding
from cs_heads.lens.forward import logits_at, pad
from cs_heads.lens.gates import gate_hooks
from cs_heads.lens.model import evaluating
from tests.fake_devices import GPU, FakeDevices, WatchedDevices, lay, split
from tests.tiny import N_HEADS, N_LAYERS, choice_records, make_tokenizer

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

    def capture(self, run, device):
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
        (lambda replay, first: 1 / 0, "division by zero"),
        (lambda replay, first: replay() * 1.1, "logits differ by 1.0e-01"),
        # A graph that does not see the tokens it is given.
        (lambda replay, first: first, "logits differ by "),
    ],
)
def test_what_a_card_captures_wrongly_is_not_taken(load, backend, put_in, caplog, spoil, why):
    class Broken(Card):
        def capture(self, run, device):
            replay, first = super().capture(run, device), run().clone()
            return lambda: spoil(replay, first)

    caplog.set_level("INFO", "cs_heads")
    model, card = load("llama", backend), put_in(Broken())
    assert not able(model, card)
    assert f"without graphs on {model.cfg.model_name}: {why}" in caplog.text


def test_a_card_that_refuses_to_capture_is_run_as_it_is(load, backend, put_in, caplog):
    class Refusing(Card):
        def capture(self, run, device):
            raise RuntimeError("operation not permitted when stream is capturing")

    caplog.set_level("INFO", "cs_heads")
    assert not able(load("llama", backend), put_in(Refusing()))
    assert "operation not permitted when stream is capturing" in caplog.text


def test_a_captured_step_that_is_slower_is_not_taken(load, backend, put_in, caplog):
    caplog.set_level("INFO", "cs_heads")
    assert not able(load("llama", backend), put_in(Card(price=2.0)))
    assert "a step takes 2.00 times as long" in caplog.text


@pytest.mark.parametrize(("price", "said"), [(0.1, "used in decoding"), (2.0, "not used: a step takes 2.00 times")])
def test_the_doctor_says_whether_steps_are_captured(load, backend, put_in, monkeypatch, price, said):
    model = load("llama", backend)
    assert "CUDA graphs" not in {check.name for check in checks_of(model, None)}
    card = put_in(Card(price))
    trials = []
    steps = module._Trial.steps
    monkeypatch.setattr(
        module._Trial, "steps", lambda self, *how, **more: trials.append(more) or steps(self, *how, **more)
    )
    handle = model.unembed.register_forward_pre_hook(card.tick)
    try:
        line = {check.name: check for check in checks_of(model, None)}["CUDA graphs"]
    finally:
        handle.remove()
    # Steps are captured once to find out, and again only for the reason.
    assert trials.count({"captured": True}) == (1 if price < 1 else 2)
    assert line.status == "ok"
    assert line.found.startswith(said)


def test_none_are_tried_on_a_cpu_nor_where_they_are_not_wanted(load, backend, put_in, caplog):
    caplog.set_level("INFO", "cs_heads")
    model = load("llama", backend)
    assert not abilities(model).graphs
    assert "without graphs on" in caplog.text
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


@pytest.fixture(scope="module")
def mpt(tmp_path_factory):
    """A folder of a tiny MPT, whose ALiBi counts columns."""
    torch.manual_seed(0)
    config = MptConfig(
        d_model=64, n_heads=4, n_layers=3, vocab_size=len(make_tokenizer()), max_seq_len=256, expansion_ratio=2
    )
    model = MptForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    folder = tmp_path_factory.mktemp("mpt")
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def test_models_whose_attention_counts_columns_are_not_captured(mpt, put_in):
    card = put_in(Card())
    model = load_model(mpt, device="cpu", backend="bridge", dtype="bfloat16")
    assert captured.why_not_capturable(model).startswith("ALiBi counts columns")
    assert not able(model, card)
    assert not card.captured


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        (FalconConfig(alibi=True), True),
        (FalconConfig(alibi=False), False),
        (SimpleNamespace(positional_embedding_type="alibi"), True),
        (SimpleNamespace(positional_embedding_type="rotary"), False),
        (SimpleNamespace(position_embedding_type="alibi"), True),
    ],
)
def test_configurations_say_whether_columns_are_counted(config, counts):
    assert captured._has_alibi(config) == counts


@pytest.mark.skipif(
    version("transformer-lens").startswith("3."), reason="an MPT bridge of TransformerLens 3 takes no stored keys"
)
def test_the_trial_has_as_many_free_columns_as_decoding(mpt, put_in, monkeypatch):
    """In half precision three of them do not show what 64 do."""
    put_in(Card())
    monkeypatch.setattr(captured, "_has_alibi", lambda config: False)
    model = load_model(mpt, device="cpu", backend="bridge", dtype="bfloat16")
    assert module.why_no_graphs(model, fused=False).startswith("logits differ by ")


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
        for step in range(32):
            if step == 11:
                decoding.keep([0, 2])
            # A step that checks a draft, in between.
            decoding.advance({0: [3, 4]} if step == 21 else None)
            seen.append(card.captured)
        return texts, seen

    expected, never = written(graphs=False)
    texts, seen = written(graphs=True)
    assert texts == expected
    assert never == [0] * 32
    # Eight steps are plain, then one graph serves three; the same after rows have left, and after the checked step.
    assert seen == [0] * 8 + [1] * 11 + [2] * 11 + [3] * 2


def test_a_graph_without_room_is_captured_anew(load, backend, put_in, monkeypatch):
    monkeypatch.setattr(decode, "REPLAYS", 4)
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
        def capture(self, run, device):
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


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_a_graph_holds_nothing_that_waits_or_comes_from_main_memory(folders, backend, put_in, kind):
    """What a stream may not do while it is captured: answer, and take what another step would have otherwise."""

    class Watched(Card):
        def capture(self, run, device):
            assert device == GPU
            run()
            before = dict(devices.seen), devices.pinned
            run()
            assert (dict(devices.seen), devices.pinned) == before
            return super().capture(run, device)

    model = load_model(folders("llama"), device="cpu", backend=backend)
    gates = (torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.3).float()
    # Constants in main memory, as those of a model that was measured there.
    given = {layer: torch.ones(1, 1, N_HEADS, 8) for layer in range(N_LAYERS)} if kind == "mean" else None
    lay(model, GPU)
    with WatchedDevices() as devices:
        card = put_in(Watched(), "cuda")
        stored = begun(model, gates)
        with evaluating(model):
            step = captured.CapturedStep(model, stored, gate_hooks(gates, given), backend == "bridge", 4)
            for token in ([4], [5], [6]):
                devices.seen.clear()
                step(torch.tensor([token] * 3)).argmax(dim=1).cpu()
                assert dict(devices.seen) == {"downloads": 1}
    assert card.captured == 1


def test_work_is_captured_and_replayed_on_the_device_of_the_model(monkeypatch):
    """Not on the current one, which another library may have set."""
    current, seen = [0], []

    @contextmanager
    def on(device):
        current.append(device.index)
        yield
        current.pop()

    class Stream:
        def wait_stream(self, other):
            seen.append("wait")

    class Graph:
        def __init__(self):
            seen.append(current[-1])

        def replay(self):
            seen.append(current[-1])

    for name, stand_in in {
        "device": on,
        "Stream": Stream,
        "current_stream": Stream,
        "CUDAGraph": Graph,
        "stream": lambda stream: nullcontext(),
        "graph": lambda graph: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)

    def run():
        seen.append(("run", current[-1]))
        return torch.zeros(1)

    replay = captured.cuda_graph(run, torch.device("cuda:1"))
    replay()
    assert seen == [1, "wait", ("run", 1), "wait", ("run", 1), 1]
