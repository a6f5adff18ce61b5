"""transformers' Trainer on a converted toy: no decay, clipping of its own, a record, and a resume that is exact."""

import json
import math

import pytest
import torch

pytest.importorskip("accelerate")
from transformers import Trainer, TrainerCallback, TrainingArguments

import lerope
from lerope.interop.huggingface import rotary_of
from lerope.interop.trainer import LeropeCallback, log_scales, undecayed
from lerope.rotary.optim import frequency_parameters
from tests.interop.toys import make, tokens


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Keep(TrainerCallback):
    """Gradients as the optimizer sees them, and the frequencies after each step."""

    def __init__(self):
        self.gradients, self.norms, self.alphas = [], [], []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        frequencies = frequency_parameters(model)
        self.gradients.append([p.grad.clone() for p in frequencies.values()])
        rest = [p.grad for name, p in model.named_parameters() if name not in frequencies]
        self.norms.append(float(torch.nn.utils.get_total_norm(rest)))

    def on_step_end(self, args, state, control, model, **kwargs):
        self.alphas.append([p.detach().clone() for p in frequency_parameters(model).values()])


def trainer(folder, family="llama", callbacks=None, **changes):
    options = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.5,
        "max_grad_norm": 0.05,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
        **changes,
    }
    rows = [{"input_ids": row, "labels": row} for row in tokens(8, 24)]
    keep = Keep()
    model = lerope.convert(make(family))
    callbacks = [LeropeCallback()] if callbacks is None else callbacks
    made = Trainer(
        model=model,
        args=TrainingArguments(**options),
        train_dataset=rows,
        eval_dataset=rows[:2],
        callbacks=[*callbacks, keep],
    )
    return made, keep


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_frequencies_follow_adam_without_decay(family, tmp_path):
    made, keep = trainer(tmp_path, family)
    made.train()
    for number in range(len(keep.alphas[0])):
        alpha = torch.zeros_like(keep.alphas[0][number]).double()
        first = second = 0.0
        for step in range(4):
            g = keep.gradients[step][number].double()
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            change = (first / (1 - 0.9 ** (step + 1))) / ((second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
            alpha = alpha - 1e-2 * change
            torch.testing.assert_close(keep.alphas[step][number].double(), alpha, rtol=0, atol=1e-7)


def test_without_the_callback_they_would_be_decayed(tmp_path):
    """What the callback is for: Trainer's own groups decay every parameter that is no bias and no norm."""
    made, _ = trainer(tmp_path, callbacks=[])
    alpha = rotary_of(made.model).inv_freq.alpha
    made.create_optimizer()
    decay = [group["weight_decay"] for group in made.optimizer.param_groups if any(p is alpha for p in group["params"])]
    assert decay == [0.5]


def test_clipping_is_separate(tmp_path):
    made, keep = trainer(tmp_path, callbacks=[LeropeCallback(frequency_max_norm=1e-3)])
    made.train()
    for gradients, norm in zip(keep.gradients, keep.norms, strict=True):
        assert gradients[0].norm().item() == pytest.approx(1e-3, rel=1e-3)
        assert norm == pytest.approx(0.05, rel=1e-3)
    assert made.args.max_grad_norm == 0.05


def test_the_log_tells_how_far_frequencies_moved(tmp_path):
    made, keep = trainer(tmp_path)
    made.train()
    entries = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(entries) == 4
    for entry, alphas, gradients in zip(entries, keep.alphas, keep.gradients, strict=True):
        assert entry["log_scale_max"] == pytest.approx(alphas[0].abs().max().item(), rel=1e-4)
        fastest = (alphas[0].exp() * 10000.0 ** (-torch.arange(8) / 8)).max().item()
        assert entry["wavelength_min"] == pytest.approx(2 * math.pi / fastest, rel=1e-5)
        assert entry["frequency_grad_norm"] == pytest.approx(gradients[0].norm().item(), rel=1e-4)
    lines = [json.loads(line) for line in (tmp_path / "frequencies.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["log_scales"] == pytest.approx(keep.alphas[-1][0].tolist(), abs=1e-6)
    assert log_scales(made.model)["shared"] == lines[-1]["log_scales"]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.filterwarnings("ignore:the checkpoint holds no learned frequencies")
def test_resume_is_exact(family, tmp_path):
    whole, expected = trainer(tmp_path / "a", family, save_strategy="steps", save_steps=2)
    whole.train()
    again, keep = trainer(tmp_path / "a", family)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert len(keep.alphas) == 2
    for one, other in zip(expected.alphas[2:], keep.alphas, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)
    for (name, one), other in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.filterwarnings("ignore:the checkpoint holds no learned frequencies")
def test_best_model_at_the_end_has_its_frequencies(tmp_path):
    made, keep = trainer(
        tmp_path,
        "gemma3",
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="step_number",
        greater_is_better=False,
    )
    evaluate = made.evaluate
    made.evaluate = lambda *args, **kwargs: {
        **evaluate(*args, **kwargs),
        "eval_step_number": abs(made.state.global_step - 2),
    }
    made.train()
    assert made.state.best_global_step == 2
    for parameter, alpha in zip(frequency_parameters(made.model).values(), keep.alphas[1], strict=True):
        assert torch.equal(parameter, alpha)


def test_groups_are_whole_outside_a_step():
    model = lerope.convert(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    undecayed(optimizer, frequency_parameters(model).values())
    before = [list(map(id, group["params"])) for group in optimizer.param_groups]
    with torch.no_grad():
        rotary_of(model).inv_freq.alpha.fill_(1.0)
        model.model.norm.weight.fill_(1.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert [list(map(id, group["params"])) for group in optimizer.param_groups] == before
    assert (rotary_of(model).inv_freq.alpha == 1.0).all()
    torch.testing.assert_close(model.model.norm.weight.detach(), torch.full((64,), 0.95))


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="frequency_max_norm must be positive; got 0"):
        LeropeCallback(frequency_max_norm=0)
    made, _ = trainer(tmp_path)
    made.model = made.model_wrapped = made.callback_handler.model = make()
    with pytest.raises(ValueError, match=r"no learnable frequencies; convert it with lerope\.convert"):
        made.train()
