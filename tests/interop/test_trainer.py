"""transformers' Trainer on a converted toy: no decay, clipping of its own, a record, and a resume that is exact."""

import json
import math
import shutil
import warnings

import pytest
import torch

pytest.importorskip("accelerate")
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

import lerope
import lerope.interop.auto
from lerope.interop.adapters import load_adapter
from lerope.interop.huggingface import rotary_of
from lerope.interop.trainer import LeropeCallback, log_scales, undecayed
from lerope.model.saved import save_model
from lerope.rotary.optim import frequency_parameters
from tests.interop.toys import make, shake, tokens
from tests.interop.trained import TRAIN_LENGTH, odd_lerope, trained, untrained


class Keep(TrainerCallback):
    """Gradients as the optimizer sees them, and the frequencies after each step."""

    def __init__(self):
        self.gradients, self.norms, self.alphas = [], [], []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        frequencies = frequency_parameters(model)
        self.gradients.append([p.grad.clone() for p in frequencies.values()])
        rest = [p.grad for name, p in model.named_parameters() if name not in frequencies and p.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(rest)))

    def on_step_end(self, args, state, control, model, **kwargs):
        self.alphas.append([p.detach().clone() for p in frequency_parameters(model).values()])


class Interrupt(TrainerCallback):
    """Ctrl-C after a step, or in the middle of one."""

    def __init__(self, step, event):
        self.step, self.event = step, event

    def _stop(self, event, state):
        if event == self.event and state.global_step == self.step:
            self.event = None
            raise KeyboardInterrupt

    def on_step_end(self, args, state, control, **kwargs):
        self._stop("after a step", state)

    def on_pre_optimizer_step(self, args, state, control, optimizer, **kwargs):
        if self.event == "within a step" and state.global_step == self.step:
            hooks = []
            hooks.append(
                optimizer.optimizer.register_step_pre_hook(
                    lambda *_: (hooks[0].remove(), self._stop(self.event, state))
                )
            )


def trainer(folder, family="llama", callbacks=None, model=None, args=None, **changes):
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
    model = lerope.convert(make(family)) if model is None else model
    callbacks = [LeropeCallback()] if callbacks is None else callbacks
    made = Trainer(
        model=model,
        args=TrainingArguments(**options) if args is None else args,
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


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adafactor", "rmsprop", "sgd"])
def test_no_optimizer_decays_the_frequencies(optim, tmp_path):
    found = []
    for weight_decay in (0.0, 0.5):
        model = lerope.convert(make())
        shake(model)
        made, keep = trainer(tmp_path, model=model, optim=optim, weight_decay=weight_decay, max_steps=1)
        norm = model.model.layers[0].mlp.up_proj.weight.norm().item()
        made.train()
        found.append((keep.alphas[0][0], model.model.layers[0].mlp.up_proj.weight.norm().item() - norm))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] != found[1][1]  # while a matrix is decayed


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
def test_resume_is_exact(family, tmp_path):
    whole, expected = trainer(tmp_path / "a", family, save_strategy="steps", save_steps=2)
    whole.train()
    again, keep = trainer(tmp_path / "a", family)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no learned frequencies")
        again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    check_same(whole, expected.alphas[2:], again, keep.alphas)


def check_same(whole, expected, again, found):
    """Two trainers that ended at the same step, and the frequencies after the steps that the second made."""
    assert len(found) == len(expected) > 0
    for one, other in zip(expected, found, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)
    for (name, one), other in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_resume_takes_the_checkpoint_not_the_folder_that_was_converted(tmp_path):
    start = lerope.convert(make("gemma3"))
    shake(start)
    start.save_pretrained(tmp_path / "start")

    def converted():
        return lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path / "start"))

    whole, expected = trainer(tmp_path / "a", model=converted(), save_strategy="steps", save_steps=2)
    whole.train()
    again, keep = trainer(tmp_path / "a", model=converted())
    again.train(resume_from_checkpoint=True)
    assert not keep.alphas  # checkpoint-4 is the end
    for one, other in zip(expected.alphas[3], frequency_parameters(again.model).values(), strict=True):
        assert torch.equal(one, other)
    again, keep = trainer(tmp_path / "a", model=converted())
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    check_same(whole, expected.alphas[2:], again, keep.alphas)


def test_resume_from_a_checkpoint_that_lies_elsewhere(tmp_path):
    whole, expected = trainer(tmp_path / "a", "gemma3", save_strategy="steps", save_steps=2)
    whole.train()
    shutil.move(tmp_path / "a" / "checkpoint-2", tmp_path / "kept")
    other, _ = trainer(tmp_path / "b", "gemma3", save_strategy="steps", save_steps=2, seed=5)
    other.train()  # a checkpoint-2 with other frequencies, where output_dir is
    again, keep = trainer(tmp_path / "b", "gemma3")
    again.train(resume_from_checkpoint=str(tmp_path / "kept"))
    check_same(whole, expected.alphas[2:], again, keep.alphas)


def test_a_checkpoint_that_does_not_say_its_frequencies_is_refused(tmp_path):
    made, _ = trainer(tmp_path, "gemma3", callbacks=[], save_strategy="steps", save_steps=2)
    made.train()
    again, _ = trainer(tmp_path, "gemma3")
    with pytest.raises(ValueError, match="written without LeropeCallback"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_callback_that_joins_at_a_resume(tmp_path):
    """Llama's frequencies are among its weights; Trainer saves no state of a callback that it did not find before."""
    made, expected = trainer(tmp_path, callbacks=[], save_strategy="steps", save_steps=2)
    made.train()
    again, keep = trainer(tmp_path, save_strategy="steps", save_steps=2)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(keep.alphas) == 2
    assert not torch.equal(keep.alphas[1][0], expected.alphas[3][0])  # without decay now
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert "LeropeCallback" in saved["stateful_callbacks"]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_resume_with_peft(family, tmp_path):
    peft = pytest.importorskip("peft")

    def adapted():
        config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["rotary_emb"], r=2)
        torch.manual_seed(0)
        return peft.get_peft_model(lerope.convert(make(family)), config)

    whole, expected = trainer(tmp_path / "a", model=adapted(), save_strategy="steps", save_steps=2)
    whole.train()
    again, keep = trainer(tmp_path / "a", model=adapted())
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    check_same(whole, expected.alphas[2:], again, keep.alphas)


def test_what_trainer_saves_of_peft_warns_where_frequencies_would_be_dropped(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["rotary_emb"], r=2)
    model = peft.get_peft_model(lerope.convert(make()), config)
    made, _ = trainer(tmp_path, model=model, save_strategy="steps", save_steps=4)
    made.train()
    made.save_model(str(tmp_path / "saved"))
    for folder in (tmp_path / "checkpoint-4", tmp_path / "saved"):
        with pytest.warns(UserWarning, match="frequencies_need_lerope.interop.adapters.load_adapter"):
            peft.PeftModel.from_pretrained(make(), folder)
        loaded = load_adapter(make(), folder)
        assert torch.equal(rotary_of(loaded).inv_freq.alpha, rotary_of(model).inv_freq.alpha)
    without = peft.get_peft_model(lerope.convert(make()), peft.LoraConfig(target_modules=["q_proj"], r=2))
    trainer(tmp_path, model=without)[0].save_model(str(tmp_path / "without"))
    assert "lerope" not in (tmp_path / "without" / "adapter_config.json").read_text()


def test_vllm_inside_a_trainer_would_keep_old_frequencies(tmp_path):
    """TRL hands it weights by name, and it skips all that are called rotary_emb.inv_freq."""
    made, _ = trainer(tmp_path, max_steps=1)
    made.args.use_vllm = True
    with pytest.warns(UserWarning, match="vLLM is given new weights but no new frequencies"):
        made.train()


@pytest.mark.slow
@pytest.mark.parametrize("event", ["after a step", "within a step"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_training_again_after_an_interrupt(family, event, tmp_path):
    whole, expected = trainer(tmp_path / "a", family)
    whole.train()
    callback = LeropeCallback()
    stops = [callback, Interrupt(3, event)]
    made, keep = trainer(tmp_path / "b", family, callbacks=stops, save_strategy="steps", save_steps=2)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    keep.alphas.clear()
    made.train(resume_from_checkpoint=True)
    check_same(whole, expected.alphas[2:], made, keep.alphas)
    assert made.args.max_grad_norm == 0.05
    assert len(made.optimizer.param_groups) == len(whole.optimizer.param_groups)


def test_arguments_of_an_interrupted_trainer_still_clip(tmp_path):
    made, _ = trainer(tmp_path / "a", callbacks=[LeropeCallback(), Interrupt(1, "after a step")])
    with pytest.raises(KeyboardInterrupt):
        made.train()
    again, keep = trainer(tmp_path / "a", args=made.args)
    again.train()
    assert keep.norms == pytest.approx([0.05] * 4, rel=1e-3)
    assert again.args.max_grad_norm == 0.05


@pytest.mark.parametrize("encoding", ["lerope", "lerope,sharing=layer"])
def test_ladder_models(encoding, tmp_path):
    def loaded():
        return AutoModelForCausalLM.from_pretrained(folder, encoding=encoding)

    folder = trained() / "model"
    if encoding != "lerope":
        model = untrained(odd_lerope(sharing="layer", num_layers=2))
        folder = tmp_path / "model"
        save_model(folder, model.config, model.state_dict(), model.encoding.artifact(TRAIN_LENGTH))
    whole, expected = trainer(tmp_path / "a", model=loaded(), save_strategy="steps", save_steps=2)
    whole.train()
    assert not torch.equal(expected.alphas[0][0], expected.alphas[3][0])
    line = json.loads((tmp_path / "a" / "frequencies.jsonl").read_text().splitlines()[-1])
    theta = 10_000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    found = whole.model.transformer.encoding.artifact(TRAIN_LENGTH).frequencies
    torch.testing.assert_close(torch.tensor(line["log_scales"]).double().exp() * theta, torch.tensor(found).double())
    again, keep = trainer(tmp_path / "a", model=loaded())
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    check_same(whole, expected.alphas[2:], again, keep.alphas)


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
    made, _ = trainer(tmp_path, model=AutoModelForCausalLM.from_pretrained(trained() / "model"))
    with pytest.raises(ValueError, match=r"no learnable frequencies.*from_pretrained\(.*encoding='lerope'\)"):
        made.train()
