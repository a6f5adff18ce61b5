"""lm-evaluation-harness by its own command and without a hub: an export without lerope, a run's folder with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lerope
from lerope.cli.main import main
from lerope.data.tokenizer import Tokenizer
from lerope.model.saved import load_model
from tests.interop.toys import make, shake
from tests.interop.trained import VOCAB_SIZE, tokenizer_path, trained

COMMAND = Path(sys.executable).parent / "lm_eval"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMMAND.exists(), reason="lm_eval is not installed: pip install lm-eval"),
]

QUESTIONS = [
    {"text": "def loads(s", "choices": [", *, cls=None", "zzzzzzzz"], "answer": 0},
    {"text": "    return", "choices": [" zq8zqz", " self"], "answer": 1},
]
TASK = """\
task: toy
dataset_path: json
dataset_kwargs:
  data_files:
    test: questions.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def export_ladder(folder):
    """By the command of the docs."""
    main(["export", str(trained()), str(folder), "--format", "hf"])
    return load_model(trained())


def export_llama(folder):
    model = lerope.convert(make("llama", vocab_size=VOCAB_SIZE))
    shake(model)
    tokenizer = folder.parent / "tokenizer"
    lerope.export(trained(), tokenizer)
    lerope.export(model, folder, tokenizer=tokenizer)
    return lambda tokens: model(tokens).logits


def no_export(folder):
    """A run's own folder, for the longer command of docs/huggingface.md."""
    shutil.copytree(trained() / "model", folder)
    return load_model(trained())


@pytest.mark.parametrize("export", [export_ladder, export_llama, no_export])
def test_the_command_scores_as_the_model_in_memory(export, tmp_path):
    logits = export(tmp_path / "served")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "toy.yaml").write_text(TASK)
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    program = [str(COMMAND)]
    if export is no_export:
        environment["PYTHONPATH"] = str(Path(lerope.__file__).parents[1])
        imports = "import lerope.interop.auto, lm_eval.__main__; lm_eval.__main__.cli_evaluate()"
        program = [sys.executable, "-c", imports]
    options = (
        f"--model hf --model_args pretrained={tmp_path / 'served'},dtype=float32 --tasks toy --include_path "
        f"{tasks} --device cpu --batch_size 2 --log_samples --output_path {tmp_path / 'results'}"
    )
    done = subprocess.run([*program, *options.split()], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {}
    for path in (tmp_path / "results").rglob("samples_*.jsonl"):
        for line in path.read_text().splitlines():
            sample = json.loads(line)
            found[sample["doc_id"]] = [float(response[0]) for response in sample["filtered_resps"]]
    tokenizer = Tokenizer(tokenizer_path())
    for number, question in enumerate(QUESTIONS):
        for score, choice in zip(found[number], question["choices"], strict=True):
            texts = (question["text"], question["text"] + choice)
            start, whole = (tokenizer.encode([text])[0][:-1].tolist() for text in texts)  # from BOS, as in training
            ids = start + whole[len(start) :]
            with torch.no_grad():
                scores = logits(torch.tensor([ids]))[0].log_softmax(-1)
            expected = sum(scores[at - 1, ids[at]].item() for at in range(len(start), len(ids)))
            assert score == pytest.approx(expected, abs=1e-3)
    (results,) = (tmp_path / "results").rglob("results_*.json")
    accuracy = json.loads(results.read_text())["results"]["toy"]["acc,none"]
    assert accuracy == sum(found[i][q["answer"]] == max(found[i]) for i, q in enumerate(QUESTIONS)) / len(QUESTIONS)
