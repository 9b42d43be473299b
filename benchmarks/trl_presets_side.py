"""TRL's half of presets.py: its trainer on the same policy, prompts, samples and settings. Runs in TRL's environment.

Usage: PYTHONPATH=<this repository> python trl_presets_side.py WORK.json
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from workload import peak_memory_mb, report

from burnish.rewards.exact import ends_with_answer


def main() -> None:
    work = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    torch.set_num_threads(work["threads"])
    batch = work["prompts"] * work["samples"]
    shared: dict[str, Any] = {
        "use_cpu": True,
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"},
        "gradient_checkpointing": False,
        # One round's samples are drawn at once and cut into `steps` optimizer steps, as Burnish does.
        "per_device_train_batch_size": batch // work["steps"],
        "generation_batch_size": batch,
        "num_generations": work["samples"],
        "max_completion_length": work["new_tokens"],
        "max_steps": work["rounds"] * work["steps"],
        "learning_rate": work["learning_rate"],
        "lr_scheduler_type": "constant",
        "max_grad_norm": work["max_grad_norm"],
        "weight_decay": 0.0,
        "temperature": work["temperature"],
        "beta": work["kl_coef"],
        "epsilon": work["clip_low"],
        "epsilon_high": work["clip_high"],
        "shuffle_dataset": False,
        "seed": work["seed"],
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    rewards: list[float] = []

    def reward(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        scores = [float(ends_with_answer(text, wanted)) for text, wanted in zip(texts, answer, strict=True)]
        rewards.append(sum(scores) / len(scores))
        return scores

    trainer_type, config_type = (
        (trl.RLOOTrainer, trl.RLOOConfig) if work["preset"] == "rloo" else (trl.GRPOTrainer, trl.GRPOConfig)
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_type(
            model=work["policy"],
            reward_funcs=reward,
            args=config_type(output_dir=folder, **(shared | _OWN[work["preset"]])),
            train_dataset=Dataset.from_list(work["rows"]),
        )
        started = time.process_time()
        trainer.train()
        seconds = time.process_time() - started
        trainer.save_model(work["trained"])
        trainer.processing_class.save_pretrained(work["trained"])
    report({"reward": rewards, "cpu_s": seconds, "peak_mb": peak_memory_mb(), "trl": trl.__version__})


_OWN: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "scale_rewards": "group"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "scale_rewards": "group", "mask_truncated_completions": True},
    "gspo": {"loss_type": "grpo", "scale_rewards": "group", "importance_sampling_level": "sequence"},
    # TRL's epsilon_high is the bound itself, ours its distance from 1.
    "cispo": {"loss_type": "cispo", "scale_rewards": "group", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo", "scale_rewards": "group"},
    "rloo": {},
}


if __name__ == "__main__":
    main()
