"""A GRPO run with trl: from items to adapters, with everything that the run depends on recorded."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from activations import HFBackend, ModelSpec, load_backend
from experiments.grpo.config import GrpoConfig, config_to_json
from experiments.grpo.prompts import ReplyPrompt, reply_prompts
from experiments.grpo.rewards import RewardLog, read_rewards, reward_summary
from experiments.resuming import CONFIG, finished_run
from interp.errors import TrainingError
from interp.files import read_json, write_json
from interp.items import Item, write_items
from interp.records import RunRecord, Started, finish_run

__all__ = ["NAME", "REWARDS", "load_base", "train"]

NAME: Final = "grpo"
REWARDS: Final = "rewards.jsonl"
_NEEDED: Final = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "adapter_model.safetensors")
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")


def load_base(config: GrpoConfig) -> HFBackend:
    """Load the configured model.

    Raises:
        ModelError: it cannot be found or read.
    """
    return load_backend(
        ModelSpec.parse(config.model, dtype=config.dtype, device=config.device)  # type: ignore[arg-type]
    )


def train(
    config: GrpoConfig,
    seed: int,
    items: Sequence[Item],
    folder: Path,
    *,
    backend: HFBackend,
    source: Mapping[str, Any],
    command: str = "",
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> RunRecord:
    """Train one adapter; started again in the same folder, it goes on from the last checkpoint.

    The folder then holds the adapter, `checkpoint-N` folders, `rewards.jsonl` (every completion),
    `adapter_audit.jsonl` (the trajectory of the live adapter), `trainer_state.json`, `items.jsonl`,
    `config.json` and `run.json`. The base model is left as it was.

    Args:
        config: of the run; one of its seeds is used.
        seed: of the adapter's initial values, the order of the items and the sampling.
        items: open-ended ones.
        folder: of this run.
        backend: the loaded base model.
        source: described item source, for the record.
        command: as typed, for the record.
        note: called with warnings and messages.
        progress: called with the number of steps done since the last call.

    Raises:
        TrainingError: the extra is not installed, or a prompt is too long.
        CacheError: the folder holds a run with another configuration, model or items.
        ResultError: the folder holds something else.
    """
    _require_extra()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TrainingError(
            "interp grpo train runs in one process; got WORLD_SIZE = "
            f"{os.environ['WORLD_SIZE']}. For several, use trl's own script with "
            "experiments.grpo.AdapterAuditCallback."
        )
    started = Started.now()
    settings: dict[str, Any] = {
        "seed": seed,
        "config": config_to_json(config),
        "model": dict(backend.fingerprint()),
        "source": dict(source),
    }
    finished = finished_run(folder, settings)
    if finished is not None:
        note(f"{folder} is finished already; nothing is computed.")
        return finished
    prompts = reply_prompts(
        backend.tokenizer,
        items,
        prefix=config.answer_prefix,
        max_tokens=config.max_prompt_tokens,
        template_args=backend.template_args,
    )
    write_json(folder / CONFIG, settings)
    write_items(folder / "items.jsonl", items)
    rewards = RewardLog(
        folder / REWARDS,
        threshold=config.train_threshold,
        group_size=config.group_size,
        prefix=config.answer_prefix,
        warn=note,
    )
    checkpoint = _last_checkpoint(folder)
    done = 0 if checkpoint is None else int(checkpoint.name.partition("-")[2])
    rewards.keep_until(done)
    if checkpoint is not None:
        note(f"Going on from {checkpoint}")
    progress(done)
    with _trainable(backend, config) as model:
        found = _run(
            model, backend, config, seed, prompts, folder, rewards, checkpoint, note, progress
        )
    return finish_run(
        folder,
        started,
        experiment=NAME,
        command=command,
        config=settings["config"],
        seeds={"training": seed},
        model=settings["model"],
        source=source,
        metrics=found,
    )


def _run(
    model: Any,
    backend: HFBackend,
    config: GrpoConfig,
    seed: int,
    prompts: Sequence[ReplyPrompt],
    folder: Path,
    rewards: RewardLog,
    checkpoint: Path | None,
    note: Callable[[str], None],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Train, save the adapter, and sum up."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback, TrainerCallback, set_seed
    from trl import GRPOTrainer

    class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
        def on_step_end(self, *_arguments: Any, **_event: Any) -> None:
            progress(1)

        def on_save(self, args: Any, state: Any, *_arguments: Any, **_event: Any) -> None:
            _name_base(Path(args.output_dir) / f"checkpoint-{state.global_step}", config)

    audits = None
    callbacks: list[Any] = [Progress()]
    if config.audit_steps:
        from experiments.grpo.callback import AdapterAuditCallback

        audits = AdapterAuditCallback(
            config.audit_steps, stop=config.stop_if_capped, device=str(backend.device), warn=note
        )
        callbacks.append(audits)
    rows = [
        {"prompt": prompt.text, "gold": prompt.gold, "item_id": prompt.item_id}
        for prompt in prompts
    ]
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=list(config.lora_targets),
        task_type="CAUSAL_LM",
        revision=backend.fingerprint()["revision"],
    )
    # The trainer seeds itself only after PEFT has drawn the adapter's initial values.
    set_seed(seed)
    try:
        trainer = GRPOTrainer(
            model,
            rewards,
            args=_arguments(config, seed, folder, on_cpu=backend.device.type == "cpu"),
            train_dataset=Dataset.from_list(rows),
            processing_class=backend.tokenizer,
            callbacks=callbacks,
            peft_config=lora,
        )
    except ValueError as error:
        raise TrainingError(
            f"trl refuses this configuration ({str(error).splitlines()[0]}). Change it with --set."
        ) from error
    # It prints to standard output, which is for results.
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_model(str(folder))
    _name_base(folder, config)
    trainer.save_state()
    summary = reward_summary(read_rewards(rewards.path))
    if summary["zero_variance_share"] == 1:
        note(
            f"Warning: all rewards were equal in all {summary['n_groups']} groups: there was no "
            f"gradient, and the adapter is its initial value."
        )
    metrics: dict[str, Any] = {
        "n_steps": trainer.state.global_step,
        "n_groups": summary["n_groups"],
        "reward_mean": summary["mean"],
        "zero_variance_share": summary["zero_variance_share"],
    }
    if audits is not None and audits.last is not None:
        metrics |= {
            "verdict": audits.last.verdict,
            "summary": audits.last.summary,
            "max_abs_delta": audits.last.totals.max_abs_delta,
            "relative": audits.last.totals.relative,
            "bf16_changed": audits.last.totals.bf16_changed,
            "stopped": audits.stopped,
        }
    return metrics


def _arguments(config: GrpoConfig, seed: int, folder: Path, *, on_cpu: bool) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder),
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=config.warmup_steps,
        optim=config.optimizer,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        beta=config.kl_beta,
        max_steps=config.max_steps,
        per_device_train_batch_size=config.prompts_per_step * config.group_size,
        num_generations=config.group_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        activation_checkpointing=config.gradient_checkpointing,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        generation_kwargs={"stop_strings": [config.stop]} if config.stop else None,
        seed=seed,
        data_seed=seed,
        save_steps=config.save_steps,
        logging_steps=config.logging_steps,
        # Weights and adapter keep the types that they have.
        bf16=False,
        use_cpu=on_cpu,
        report_to=[],
        disable_tqdm=True,
    )


def _require_extra() -> None:
    try:
        import datasets  # noqa: F401
        import peft  # noqa: F401
        import trl  # noqa: F401
    except ImportError as error:
        raise TrainingError(
            f"Training needs trl, peft and datasets ({error}). Install them with: "
            f"pip install 'interp[train]'"
        ) from error


@contextmanager
def _trainable(backend: HFBackend, config: GrpoConfig) -> Iterator[Any]:
    """The base model as trl wants it; left as it was.

    GGUF weights are dequantised on loading, but transformers still calls the model quantised and
    refuses to train it. trl passes no tokenizer to `generate`, which stop texts need.
    """
    model = backend.model
    modules = dict(model.named_modules())
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    own = dict(model.__dict__)
    hooks = {name: dict(module._forward_hooks) for name, module in modules.items()}
    settings = dict(model.config.__dict__)
    try:
        if _is_gguf(model):
            model.is_quantized = False
            del model.config.quantization_config
        # PEFT writes it into adapter_config.json. It takes any name that is no folder for one on
        # the Hub and asks there on each save, so `_name_base` writes the name of a GGUF file.
        spec = ModelSpec.parse(config.model)
        model.name_or_path = "" if spec.kind == "gguf" else spec.location
        model.generate = partial(model.generate, tokenizer=backend.tokenizer)
        with warnings.catch_warnings():
            # Between the libraries; nothing that the caller could do about it.
            warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing\\w*` is deprecated")
            warnings.filterwarnings("ignore", ".*pin_memory.*")
            yield model
    finally:
        for name, module in modules.items():
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks[name])
            parent, _, child = name.rpartition(".")
            if child:
                modules[parent]._modules[child] = module
        if config.gradient_checkpointing:
            model.activation_checkpointing_disable()
        model.__dict__.clear()
        model.__dict__.update(own)
        model.config.__dict__.clear()
        model.config.__dict__.update(settings)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained[name])
        model.eval()


def _name_base(folder: Path, config: GrpoConfig) -> None:
    """Write which GGUF file an adapter was trained on into its configuration."""
    path = folder / "adapter_config.json"
    spec = ModelSpec.parse(config.model)
    if spec.kind == "gguf" and path.is_file():
        written = read_json(path, "an adapter configuration")
        write_json(path, written | {"base_model_name_or_path": spec.model_id})


def _is_gguf(model: Any) -> bool:
    method = getattr(getattr(model.config, "quantization_config", None), "quant_method", None)
    return "gguf" in str(getattr(method, "value", method)).lower()


def _last_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint that was written to its end."""
    complete = {}
    for path in folder.glob("checkpoint-*"):
        match = _CHECKPOINT.fullmatch(path.name)
        if match is None or not all((path / name).is_file() for name in _NEEDED):
            continue
        try:
            # It is the file that is written last.
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        except ValueError:
            continue
        if state.get("global_step") == int(match[1]):
            complete[int(match[1])] = path
    return complete[max(complete)] if complete else None
