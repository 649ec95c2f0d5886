"""The loss in tiles equals the whole loss, in the memory that the estimate gives."""

from __future__ import annotations

import pytest
from every import over
from lazy_imports import LazyImport, lazy_names

from qtui_core.errors import UsageError

torch = LazyImport("torch")
nn = LazyImport("torch.nn")
functional = LazyImport("torch.nn.functional")
AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM = lazy_names(
    "transformers", "AutoConfig", "AutoModelForCausalLM", "AutoModelForMaskedLM"
)
loss_of_4_48, use_tiled_loss = lazy_names(
    "qtui_core.training.model.losses", "loss_of_4_48", "use_tiled_loss"
)
tiled_cross_entropy = LazyImport("qtui_core.training.model.losses", "tiled_cross_entropy")


@over("small", [False, True])
@over(("scale", "softcap", "bias"), [(None, None, False), (0.5, 3.0, True)])
def test_the_loss_and_its_gradients_are_those_of_the_whole(
    small, scale, softcap, bias, monkeypatch
):
    if small:  # several of tokens and of words, with a rest, folded by rows
        for name, size in (("TILE_TOKENS", 8), ("TILE_WORDS", 13), ("_FOLDED", 30)):
            monkeypatch.setattr(f"qtui_core.training.model.losses.{name}", size)
    torch.manual_seed(1)
    head = nn.Linear(8, 50, bias=bias)
    hidden = torch.randn(2, 12, 8, requires_grad=True)
    labels = torch.randint(0, 50, (2, 12))
    labels[0, 3:6] = -100

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, [hidden, *head.parameters()]))

    logits = head(hidden) * (1.0 if scale is None else scale)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    shifted, targets = logits[:, :-1].reshape(-1, 50), labels[:, 1:].reshape(-1)
    whole = functional.cross_entropy(shifted, targets, ignore_index=-100)
    found = tiled_cross_entropy(hidden, head, labels, scale, softcap)
    torch.testing.assert_close(found.loss, whole)
    for mine, theirs in zip(gradients(found.loss), gradients(whole), strict=True):
        torch.testing.assert_close(mine, theirs)
    valid = targets != -100
    right = (shifted.argmax(-1) == targets)[valid].float().mean()
    torch.testing.assert_close(found.accuracy, right)
    unsure = torch.distributions.Categorical(logits=shifted[valid]).entropy().mean()
    torch.testing.assert_close(found.entropy, unsure)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {"intermediate_size": 32}),
        ("gemma2", {"intermediate_size": 32, "head_dim": 8, "final_logit_softcapping": 5.0}),
        ("cohere", {"intermediate_size": 32, "logit_scale": 0.25}),
        ("granite", {"intermediate_size": 32, "logits_scaling": 3.0}),
        ("gpt2", {"n_embd": 16, "n_head": 2, "n_layer": 1}),
    ],
)
def test_models_that_change_their_logits_keep_their_loss(kind, settings):
    torch.manual_seed(2)
    common = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "pad_token_id": 0}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    of_kind = settings if kind == "gpt2" else {**common, **heads, **settings}
    config = AutoConfig.for_model(kind, **{"vocab_size": 40, **of_kind})
    model = AutoModelForCausalLM.from_config(config).train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # logits that are far apart
    ids = torch.randint(0, 40, (2, 9))
    whole = model(input_ids=ids, labels=ids).loss
    logits = model(input_ids=ids).logits
    torch.testing.assert_close(loss_of_4_48(logits, ids, vocab_size=40), whole)
    use_tiled_loss(model)
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, whole)
    # Without labels the model behaves as before.
    torch.testing.assert_close(model(input_ids=ids).logits, logits)


def test_tiles_of_16_bits_are_summed_in_float32():
    """The result equals one product of the same 16-bit gradients of logits, rounded once."""
    torch.manual_seed(3)
    hidden = torch.randn(2, 40, 32, dtype=torch.bfloat16, requires_grad=True)
    head = nn.Linear(32, 300, bias=False, dtype=torch.bfloat16)
    labels = torch.randint(0, 300, (2, 40))
    found = tiled_cross_entropy(hidden, head, labels)
    mine = torch.autograd.grad(found.loss, [hidden, head.weight])
    logits = (hidden[:, :-1] @ head.weight.t()).reshape(-1, 300).detach().requires_grad_()
    loss = functional.cross_entropy(logits.float(), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(found.loss, loss)
    (of_logits,) = torch.autograd.grad(loss, logits)
    rows = hidden[:, :-1].reshape(-1, 32).detach()
    of_weight = (of_logits.double().t() @ rows.double()).float()
    of_rows = (of_logits.double() @ head.weight.detach().double()).float()
    torch.testing.assert_close(mine[1].float(), of_weight, rtol=2**-7, atol=1e-5)
    torch.testing.assert_close(
        mine[0][:, :-1].reshape(-1, 32).float(), of_rows, rtol=2**-7, atol=1e-5
    )


def test_a_model_that_predicts_no_next_token_is_refused():
    config = AutoConfig.for_model(
        "bert", hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16
    )
    with pytest.raises(UsageError, match="--loss stock"):
        use_tiled_loss(AutoModelForMaskedLM.from_config(config))
