"""Attaching a PEFT adapter to a running model, and making sure that it is attached."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from activations.hf import HFBackend
from activations.manifests import tolerance_of
from interp.adapters.config import read_config
from interp.adapters.targets import idle_targets, targeted
from interp.adapters.tensors import open_tensors
from interp.errors import ModelError
from interp.files import sha256_file, sha256_json

__all__ = ["adapted", "adapter_sha256", "require_effect", "require_in_place"]

_CONFIG = "adapter_config.json"
_TRIED_TOKENS = 8
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")  # in the order that PEFT takes them


def adapter_sha256(path: Path) -> str:
    """Fingerprint of an adapter folder: its configuration and its tensors.

    Raises:
        ModelError: a file is missing.
    """
    weights = _weights(path)
    if weights is None or not (path / _CONFIG).is_file():
        missing = _WEIGHTS[0] if (path / _CONFIG).is_file() else _CONFIG
        raise ModelError(
            f"{path} has no {missing}; expected a PEFT adapter folder with {_CONFIG} and "
            f"{_WEIGHTS[0]} or {_WEIGHTS[1]}."
        )
    return sha256_json({file.name: sha256_file(file) for file in (path / _CONFIG, weights)})


def _weights(path: Path) -> Path | None:
    return next((path / name for name in _WEIGHTS if (path / name).is_file()), None)


def _tensor_names(path: Path) -> set[str]:
    """Names of the tensors in an adapter's file; a pickle is read with `weights_only`.

    Raises:
        ModelError: the file cannot be read, or holds more than tensors.
    """
    weights = _weights(path)
    with open_tensors(*([] if weights is None else [weights])) as tensors:
        for found in tensors.findings:
            raise ModelError(f"The adapter {path} was not loaded: {found.message} {found.remedy}")
        return set(tensors)


def _peft_is_there() -> bool:
    try:
        import peft  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def adapted(backend: HFBackend, path: Path) -> Iterator[HFBackend]:
    """The same model with an adapter attached, as long as the context lasts.

    The adapter's layers are put into the model in place and taken out again at the end. Its tensors
    are compared by name with those that the model expects: PEFT itself ignores tensors that match
    nothing, and leaves the rest at their initial values.

    Args:
        backend: a running model; do not use it inside the context.
        path: PEFT adapter folder, with safetensors or a `.bin`.

    Raises:
        ModelError: peft is not installed, the folder is no adapter of this model, some of its
            targets or tensors do not match the model (these are named), a part of what it does
            happens outside the model's modules, or accelerate keeps weights elsewhere than where
            they are used.
    """
    if not _peft_is_there():
        raise ModelError(
            "Attaching an adapter needs peft. Install it with: pip install 'interp[train]'"
        )
    digest = adapter_sha256(path)
    names = _tensor_names(path)  # before anything else reads the file
    require_in_place(backend, path)
    model = backend.model
    modules = dict(model.named_modules())
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    _require_all_targets(modules, path, backend.model_id)
    kept = _rewritten_weights(model, path)
    try:
        with _attached(model, path, backend.model_id) as wrapped:
            _require_all_tensors(wrapped, names, path, backend.model_id)
            _require_inside(wrapped, path, backend)
            yield HFBackend(
                wrapped.get_base_model(),
                backend.tokenizer,
                model_id=f"{backend.model_id}+{path.resolve().name}",
                weights=backend.fingerprint()["weights"],
                revision=backend.fingerprint()["revision"],
                adapter=digest,
                padding=backend.padding,
                template_args=backend.template_args,
            )
    finally:
        # PEFT's own `unload` leaves saved modules in place, and a failed attachment its layers.
        for name, module in modules.items():
            parent, _, child = name.rpartition(".")
            if child:
                modules[parent]._modules[child] = module
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained[name])
            if name in kept:
                parameter.data = kept[name]


def require_in_place(backend: HFBackend, path: Path) -> None:
    """Raise `ModelError` if accelerate keeps weights elsewhere than where they are used.

    PEFT would dispatch the model anew, and leave it without weights at the end.
    """
    if any(parameter.device.type == "meta" for parameter in backend.model.parameters()):
        raise ModelError(
            f"The adapter {path} cannot be attached while some weights of {backend.model_id} are "
            f"kept away from the device that runs them (on disk, or in memory beside a GPU). Use a "
            f"--device-map whose devices hold the whole model, or merge the adapter into it first."
        )


def _rewritten_weights(model: Any, path: Path) -> dict[str, torch.Tensor]:
    """Copies of the weights that attaching an adapter takes something out of, by name.

    Initialisations such as PiSSA and OLoRA are run again on load: they replace the base's weights,
    some of them in place, and PEFT does not put them back.
    """
    config, _ = read_config(path / _CONFIG)
    if config is None or not (config.rewrites_base or config.unknown_init):
        return {}
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if name.endswith(".weight") and targeted(config, name.removesuffix(".weight")) is not False
    }


def require_effect(backend: HFBackend, path: Path, ids: Sequence[int]) -> None:
    """Make sure that the adapter's parameters reach the output, whatever their values are.

    They are moved for one pass, and put back: an adapter whose factors are still zero must differ
    then too, or it is attached to something that the model does not use.

    Args:
        backend: the adapted model.
        path: of the adapter, for the message.
        ids: token ids to run.

    Raises:
        ModelError: the logits stay the same.
    """
    everything = range(backend.model.get_output_embeddings().weight.shape[0])
    before = backend.logits([ids], everything)
    parameters = [p for name, p in backend.model.named_parameters() if ".default" in name]
    kept = [parameter.detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter.device, parameter.dtype), alpha=0.1)
        after = backend.logits([ids], everything)
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    if torch.equal(before, after):
        raise ModelError(
            f"The adapter {path} is attached, but moving its {len(parameters)} parameters leaves "
            f"the output as it is: it sits where {backend.model_id} does not use it."
        )


@contextmanager
def _attached(model: Any, path: Path, model_id: str) -> Iterator[Any]:
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            # Between peft and transformers; nothing that the caller could do about it.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
            # Missing tensors are an error here, which names them.
            warnings.filterwarnings("ignore", "Found missing adapter keys")
            wrapped = PeftModel.from_pretrained(model, str(path), is_trainable=False)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(
            f"There is no room for the adapter {path} beside {model_id} ({_reason(error)})."
        ) from error
    except Exception as error:
        raise ModelError(
            f"The adapter {path} cannot be attached to {model_id} ({_reason(error)}). Check that "
            f"it was trained on this model."
        ) from error
    try:
        yield wrapped
    finally:
        # Some kinds have none; `adapted` puts back what they have taken the place of.
        getattr(wrapped, "unload", lambda: None)()


def _reason(error: BaseException) -> str:
    """An error in one line; what did not fit stands in the second line of torch's."""
    lines = " ".join(str(error).split("\n")[:2]).split()
    return f"{type(error).__name__}: {' '.join(lines)[:300]}".rstrip(": .")


def _require_inside(wrapped: Any, path: Path, backend: HFBackend) -> None:
    """Make sure that the model inside PEFT's wrapper does all that the wrapped model does.

    The backend runs the one inside. Virtual tokens, and adapters that begin at some token of the
    text, are put in by the wrapper: without it the model would be the base.
    """
    config = wrapped.active_peft_config
    kind = getattr(config.peft_type, "value", config.peft_type)
    what = f"The adapter {path} ({kind}) does not work in {backend.model_id} by itself"
    instead = "Give one that changes the model's own modules and nothing else, as LoRA does."
    if config.is_prompt_learning:
        raise ModelError(f"{what}: it puts virtual tokens before each prompt. {instead}")
    if getattr(config, "alora_invocation_tokens", None):
        raise ModelError(f"{what}: it begins at its invocation tokens in a prompt. {instead}")
    n_vocab = wrapped.get_input_embeddings().weight.shape[0]
    ids = torch.arange(_TRIED_TOKENS, device=backend.device)[None] % n_vocab
    wrapped.eval()
    with torch.inference_mode():
        try:
            inside = wrapped.get_base_model()(input_ids=ids).logits
            whole = wrapped(input_ids=ids).logits
        except Exception as error:
            raise ModelError(
                f"{what}: it needs more than a prompt ({_reason(error)}). {instead}"
            ) from error
    room = tolerance_of(str(inside.dtype).removeprefix("torch.")) * float(inside.abs().max())
    # What is not finite is the run's to report.
    if not torch.isfinite(inside).all():
        return
    if whole.shape != inside.shape or not torch.allclose(whole, inside, rtol=0, atol=room):
        raise ModelError(f"{what}: PEFT's wrapper around it gives other logits. {instead}")


def _require_all_targets(modules: Iterable[str], path: Path, model_id: str) -> None:
    """PEFT itself is content if one of the targets is there."""
    config, _ = read_config(path / _CONFIG)
    idle = [] if config is None else idle_targets(config, modules)
    if idle:
        raise ModelError(
            f"The adapter {path} does not fit {model_id}: the model has no module for "
            f"{', '.join(map(repr, idle))} among its targets. Check that it was trained on this "
            f"model."
        )


def _require_all_tensors(wrapped: Any, saved: set[str], path: Path, model_id: str) -> None:
    from peft import get_peft_model_state_dict

    # Left to itself, PEFT would ask the Hub whether the base's vocabulary was changed, and expect
    # whole embeddings if so. They may be in the file, and need not be.
    expected = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    allowed = expected | set(get_peft_model_state_dict(wrapped, save_embedding_layers=True))
    lost, missing = sorted(saved - allowed), sorted(expected - saved)
    faults = []
    if lost:
        faults.append(f"{len(lost)} of its tensors match no module (first: {lost[:2]})")
    if missing:
        faults.append(
            f"{len(missing)} that the model expects are not in the file (first: {missing[:2]})"
        )
    if faults:
        raise ModelError(
            f"The adapter {path} does not fit {model_id}: {', and '.join(faults)}. Check that it "
            f"was trained on this model."
        )
