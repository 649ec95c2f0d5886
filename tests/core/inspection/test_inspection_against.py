"""Comparison of two checkpoints: real quantized files and the weights they were made from."""

import math

import numpy as np
import pytest
from gguf_models import write_gguf
from packed_models import gptq_layer, save_model, under
from told_truly import faults_of

from qtui_core.errors import ModelError, UsageError
from qtui_core.inspection.comparison.compare import compare_models
from qtui_core.inspection.comparison.pairing import Pair, pair_weights
from qtui_core.job import Job
from qtui_core.models import open_model
from qtui_core.quant import Scheme, measure, quantize

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128,
}  # fmt: skip


def llama(seed=0, prefix="model."):
    """The tensors of a small Llama with 4 query heads of 32 rows and 2 key heads."""
    rng = np.random.default_rng(seed)

    def matrix(out, inputs):
        return (0.02 * rng.standard_normal((out, inputs))).astype(np.float32)

    weights = {f"{prefix}embed_tokens.weight": matrix(96, 128), "lm_head.weight": matrix(96, 128)}
    for layer in range(2):
        at = f"{prefix}layers.{layer}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": matrix(128, 128),
            f"{at}.self_attn.k_proj.weight": matrix(64, 128),
            f"{at}.self_attn.v_proj.weight": matrix(64, 128),
            f"{at}.self_attn.o_proj.weight": matrix(128, 128),
            f"{at}.mlp.gate_proj.weight": matrix(256, 128),
            f"{at}.mlp.up_proj.weight": matrix(256, 128),
            f"{at}.mlp.down_proj.weight": matrix(128, 256),
            f"{at}.input_layernorm.weight": 1 + matrix(1, 128)[0],
            f"{at}.post_attention_layernorm.weight": 1 + matrix(1, 128)[0],
        }
    weights[f"{prefix}norm.weight"] = 1 + matrix(1, 128)[0]
    return weights


def compare(first, second, **options):
    with open_model(first) as a, open_model(second) as b:
        return compare_models(a, b, **options)


def by_name(comparison):
    return {r.pair.name: r for r in comparison.pairs}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("original") / "m", llama(), **CONFIG)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("Q4_0", "int4:group32:signed"), ("Q4_1", "int4:group32:asym"),
     ("Q5_0", "int5:group32:signed"), ("Q8_0", "int8:group32"), ("BF16", None), ("F16", None)],
)  # fmt: skip
def test_a_gguf_file_against_its_original(tmp_path, original, kind, scheme):
    gguf = pytest.importorskip("gguf")
    stored = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "m.gguf", llama(), CONFIG, kind)
    comparison = compare(original, path)
    reports = by_name(comparison)
    assert set(reports) == set(llama())
    for name, x in llama().items():
        found = reports[name].difference
        if x.ndim == 1:
            assert found.identical
            continue
        # Rows are permuted in the file, which blocks along rows do not notice.
        y = gguf.quants.dequantize(gguf.quants.quantize(x, stored), stored).reshape(x.shape)
        d = y.astype(np.float64) - x
        assert found.mse == pytest.approx((d**2).mean(), rel=1e-9)
        assert found.max_abs_error == np.abs(d).max()
        assert reports[name].pair.b.scheme == scheme
        if scheme:
            plain = measure(x, Scheme.parse(scheme))
            assert reports[name].scheme_relative_mse == pytest.approx(plain.relative_mse)
    pairing = comparison.pairing
    assert (pairing.only_a, pairing.only_b, pairing.shapes, pairing.notes) == ((), (), (), ())
    assert comparison.unread == ()


@pytest.mark.parametrize("limit", [None, 4000])
def test_the_order_of_rows_of_queries_and_keys_is_undone(tmp_path, original, limit, monkeypatch):
    """On either side, and in a sample."""
    if limit:
        monkeypatch.setattr("qtui_core.inspection.sample.LOCAL_LIMIT", limit)
    path = write_gguf(tmp_path / "m.gguf", llama(), CONFIG, "F32")
    for first, second in ((original, path), (path, original)):
        comparison = compare(first, second)
        assert comparison.identical == len(llama())
        assert ("In a sample of" in comparison.conclusion) == (limit is not None)
        assert all(not limit or r.difference.count <= limit for r in comparison.pairs)


def test_two_gguf_files_pair_by_their_own_names_and_unknown_architectures_are_doubted(tmp_path):
    kinds = {"F16": "llama", "Q8_0": "llama", "F32": "exaone"}
    a, b, other = (
        write_gguf(tmp_path / f"{kind}.gguf", llama(), CONFIG, kind, architecture)
        for kind, architecture in kinds.items()
    )
    comparison = compare(a, b)
    assert "blk.1.attn_q.weight" in by_name(comparison)
    assert comparison.sqnr_db > 40
    doubted = compare(save_model(tmp_path / "m", llama(), **CONFIG), other)
    assert "exaone" in doubted.pairing.notes[0]


def test_norms_of_gemma_are_stored_plus_one(tmp_path):
    weights = llama()
    plus = {n: w + np.float32(1) if w.ndim == 1 else w for n, w in weights.items()}
    first = save_model(tmp_path / "a", weights, **CONFIG)
    second = write_gguf(tmp_path / "m.gguf", plus, CONFIG, "F32", architecture="gemma")
    comparison = compare(first, second)
    assert all(r.difference.max_abs_error < 1e-6 for r in comparison.pairs)
    assert len(comparison.pairs) == len(weights) - len(comparison.pairing.only_a)


def test_experts_pair_with_their_part_of_the_merged_tensor(tmp_path):
    rng = np.random.default_rng(3)
    experts = rng.standard_normal((4, 64, 128)).astype(np.float32)
    names = "model.layers.0.block_sparse_moe.experts.{}.w1.weight"
    first = save_model(tmp_path / "a", {names.format(i): e for i, e in enumerate(experts)})
    merged = {"layers.0.feed_forward.experts.w1.weight": experts}
    second = write_gguf(tmp_path / "m.gguf", merged, CONFIG, "F32")
    for one, other in ((first, second), (second, first)):
        comparison = compare(one, other)
        assert set(by_name(comparison)) == {names.format(i) for i in range(4)}
        assert comparison.identical == 4
        assert comparison.bits_b == 32


def test_bitsandbytes_is_as_good_as_plain_rounding(tmp_path, original):
    torch = pytest.importorskip("torch")
    bnb = pytest.importorskip("bitsandbytes.functional")
    from safetensors.torch import save_file

    state = {}
    for name, x in llama().items():
        if "proj" not in name:
            state[name] = torch.from_numpy(x)
            continue
        codes, packed = bnb.quantize_4bit(
            torch.from_numpy(x), blocksize=64, compress_statistics=True, quant_type="nf4"
        )
        state[name] = codes
        state |= {f"{name}.{k}": v for k, v in packed.as_dict(packed=True).items()}
    folder = save_model(tmp_path, {}, {"load_in_4bit": True}, **CONFIG)
    save_file(state, folder / "model.safetensors")
    comparison = compare(original, folder)
    report = by_name(comparison)["model.layers.1.mlp.up_proj.weight"]
    assert report.scheme == "nf4:block64:dq"
    assert report.gain_db == pytest.approx(0, abs=0.01)
    x = llama()["model.layers.1.mlp.up_proj.weight"]
    y = quantize(x, Scheme.parse("nf4:block64:dq")).dequantize()
    assert report.difference.mse == pytest.approx(
        ((y - x.astype(np.float64)) ** 2).mean(), rel=1e-4
    )
    assert len(comparison.rounded) == 14
    assert "as plain rounding to its levels would" in comparison.conclusion
    assert "7 tensors are identical" in comparison.conclusion
    total = sum(w.size for w in llama().values())
    bits = 8 * sum(r.pair.b.nbytes for r in comparison.pairs) / total
    assert comparison.bits_b == pytest.approx(bits)
    assert f"{bits:.2f} bits per parameter" in comparison.conclusion


def test_a_calibrated_file_with_more_weight_error_than_rounding_is_explained(tmp_path):
    """GPTQ codes with scales a third too large are worse than rounding each group by itself."""
    weight, tensors = gptq_layer(np.random.default_rng(4), 64, 128, 4, 32, v2=True)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False,
                "checkpoint_format": "gptq_v2"}  # fmt: skip
    rng = np.random.default_rng(5)
    step = tensors["scales"].astype(np.float64).repeat(32, axis=0).T
    x = (weight + step * rng.uniform(-1.2, 1.2, weight.shape)).astype(np.float32)
    first = save_model(tmp_path / "a", {"fc.weight": x})
    second = save_model(tmp_path / "b", under("fc", tensors), settings)
    comparison = compare(first, second)
    (report,) = comparison.pairs
    d = weight - x.astype(np.float64)
    assert report.difference.mse == pytest.approx((d**2).mean(), rel=1e-6)
    assert report.gain_db < -3
    assert "less than plain rounding to its levels" in comparison.conclusion


def test_a_weight_with_permuted_rows_is_not_attributed_to_calibration(tmp_path, original):
    """The rows of one weight are in another order in the file."""
    pytest.importorskip("gguf")
    name = "model.layers.1.self_attn.v_proj.weight"
    weights = llama()
    weights[name] = weights[name][::-1].copy()
    comparison = compare(original, write_gguf(tmp_path / "m.gguf", weights, CONFIG, "Q8_0"))
    assert comparison.pairs[0].pair.name == name
    assert comparison.pairs[0].difference.sqnr_db < 0
    assert comparison.sqnr_db > 6
    assert f"worst is {name!r} with -" in comparison.conclusion
    assert "check the order of its rows" in comparison.conclusion


def test_a_model_after_training(tmp_path, original):
    rng = np.random.default_rng(6)
    tuned = llama()
    for name in tuned:
        if "up_proj" in name:
            tuned[name] += (0.001 * rng.standard_normal(tuned[name].shape)).astype("f4")
    target = "model.layers.1.mlp.up_proj.weight"
    tuned[target][200:, 100:] += 0.05
    comparison = compare(original, save_model(tmp_path, tuned, **CONFIG))
    assert comparison.pairs[0].pair.name == target
    assert comparison.identical == len(tuned) - 2
    assert f"{target!r} moved furthest" in comparison.conclusion
    assert "moved 2 of 21 weights" in comparison.conclusion
    x = llama()
    matrices = [n for n in x if x[n].ndim == 2]
    error = sum(((tuned[n].astype(np.float64) - x[n]) ** 2).sum() for n in matrices)
    power = sum((x[n].astype(np.float64) ** 2).sum() for n in matrices)
    assert comparison.relative_mse == pytest.approx(error / power, rel=1e-9)
    assert comparison.sqnr_db == pytest.approx(-10 * math.log10(error / power))


def test_a_wrapper_around_the_model_does_not_matter(tmp_path, original):
    bare = save_model(tmp_path, llama(prefix=""), **CONFIG)
    comparison = compare(original, bare)
    assert comparison.identical == len(comparison.pairs) == 21
    assert comparison.pairing.only_a == comparison.pairing.only_b == ()
    assert comparison.conclusion.startswith("21 weights are identical to the bit in ")


def test_tensors_in_one_model_only_or_of_other_shapes_are_listed(tmp_path, original):
    weights = llama()
    weights["lm_head.weight"] = weights["lm_head.weight"][:90]
    weights["extra.weight"] = weights.pop("model.norm.weight")
    comparison = compare(original, save_model(tmp_path, weights, **CONFIG))
    assert comparison.pairing.only_a == ("model.norm.weight",)
    assert comparison.pairing.only_b == ("extra.weight",)
    assert comparison.pairing.shapes == (("lm_head.weight", (96, 128), (90, 128)),)
    assert "1 tensor has another shape" in comparison.conclusion
    assert f"1 tensor exists only in {tmp_path}" in comparison.conclusion


def test_nothing_in_common(tmp_path, original):
    other = save_model(tmp_path, {"conv1.weight": np.ones((4, 4), np.float32)})
    with pytest.raises(ModelError, match=r"no tensor in common: .*conv1.*Give two checkpoints"):
        compare(original, other)


def test_a_pattern_that_matches_nothing(original):
    with pytest.raises(UsageError, match=r"matches '\*\.conv\.\*'\. Names look like"):
        compare(original, original, pattern="*.conv.*")
    chosen = compare(original, original, pattern="*.mlp.*")
    assert len(chosen.pairs) == 6
    assert chosen.pairing.only_a == ()


def test_a_weight_that_cannot_be_decoded_leaves_the_others(tmp_path):
    _, tensors = gptq_layer(np.random.default_rng(7), 64, 128, 4, 32)
    good = np.ones((8, 8), np.float32)
    first = save_model(
        tmp_path / "a", {"fc.weight": np.ones((64, 128), np.float32), "norm.weight": good}
    )
    tensors["qzeros"] = tensors["qzeros"][:, :-1]
    settings = {"quant_method": "gptq", "bits": 4}
    second = save_model(tmp_path / "b", {**under("fc", tensors), "norm.weight": good}, settings)
    comparison = compare(first, second)
    assert [r.pair.name for r in comparison.pairs] == ["norm.weight"]
    ((name, reason),) = comparison.unread
    assert name == "fc.weight"
    assert "zero points" in reason
    assert "1 tensor could not be read" in comparison.conclusion
    alone = save_model(tmp_path / "c", under("fc", tensors), settings)
    with pytest.raises(ModelError, match="zero points"):
        compare(first, alone)


X = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
SHORT = (X.view(np.uint32) & 0xFFFF0000).view(np.float32)
BROKEN = X.copy()
BROKEN[3, 4] = np.nan
STATES = {  # the weights of a and b -> what is said, what must not be
    "a is zero": ({"w": 0 * X}, {"w": X}, " where that is zero, first in 'w'", "holds the same"),
    "zero in a alone": ({"v": X, "w": 0 * X}, {"v": X, "w": 0 * X + 1e-6}, "first in 'w'", "moved"),
    "other bits": ({"w": SHORT}, {"w": SHORT.astype(np.float16)}, "holds the same values as",
                   "identical to the bit"),
    "below float32": ({"w": np.full((4, 4), 1.0)}, {"w": np.full((4, 4), 1 + 1e-12)},
                      "as far as float32 tells", "instead of"),
    "signs of zeros": ({"w": 0 * abs(X)}, {"w": -0.0 * abs(X)}, "as far as float32", "identical"),
    "one NaN": ({"w": X}, {"w": BROKEN}, "find out where it comes from", "they"),
    "only NaN": ({"w": X}, {"w": X * np.nan}, "no figure counts them", "finite rest"),
    "unrelated": ({"w": X}, {"w": X[::-1].copy()}, "has almost nothing of", "moved"),
    "norms alone": ({"w": X, "norm": 0 * X[0] + 1}, {"w": X, "norm": 0 * X[0] + np.float32(1.1)},
                    "moved 1 of 2 weights", "holds the same"),
    "all moved": ({"w": X}, {"w": X * 1.01}, "moved 1 of 1 weight, by 1%", "1 weights"),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_the_sentence_of_every_state(tmp_path, state):
    a, b, said, never = STATES[state]
    b = {name: v.astype(a[name].dtype if v.dtype == np.float64 else v.dtype)
         for name, v in b.items()}  # fmt: skip
    conclusion = compare(save_model(tmp_path / "a", a), save_model(tmp_path / "b", b)).conclusion
    conclusion = conclusion.replace(str(tmp_path), "")
    assert said in conclusion
    assert never not in conclusion
    assert not faults_of(conclusion)


def test_full_reads_everything_in_bounded_memory_and_progress_ends(original, tmp_path):
    seen = []
    job = Job(lambda done, total, name: seen.append((done / total, name)))
    path = write_gguf(tmp_path / "m.gguf", llama(), CONFIG, "Q8_0")
    comparison = compare(original, path, full=True, job=job)
    assert all(r.difference.count == r.pair.info.elements for r in comparison.pairs)
    shares, names = zip(*seen, strict=True)
    assert (list(shares), shares[-1], set(names)) == (sorted(shares), 1, set(llama()))


def test_gpt2_stores_its_matrices_transposed_even_square_ones(tmp_path):
    rng = np.random.default_rng(10)
    weights = {
        "transformer.h.0.attn.c_proj.weight": rng.standard_normal((128, 128)).astype(np.float32),
        "transformer.h.0.mlp.c_fc.weight": rng.standard_normal((128, 512)).astype(np.float32),
        "transformer.wte.weight": rng.standard_normal((96, 128)).astype(np.float32),
    }
    turned = {n: w.T if ".c_" in n else w for n, w in weights.items()}
    first = save_model(tmp_path / "a", weights)
    second = write_gguf(tmp_path / "m.gguf", turned, CONFIG, "F32", architecture="gpt2")
    for one, other in ((first, second), (second, first)):
        assert compare(one, other).identical == 3


def test_dimensions_of_one_element_do_not_matter(tmp_path):
    x = np.arange(64, dtype=np.float32)
    first = save_model(tmp_path / "a", {"gate.weight": x[None], "conv.weight": x.reshape(8, 1, 8)})
    second = save_model(tmp_path / "b", {"gate.weight": x, "conv.weight": x.reshape(8, 8)})
    comparison = compare(first, second)
    assert comparison.identical == 2
    assert comparison.pairing.shapes == ()


def test_pairing_takes_one_look_at_each_weight(tmp_path, monkeypatch):
    """Checkpoints with experts have tens of thousands of weights."""
    a, b = (
        open_model(save_model(tmp_path / str(odd), {
            f"layers.{i}.weight": np.ones((1, 4 + odd * (i % 2)), np.float32) for i in range(50)
        })) for odd in (0, 1)
    )  # fmt: skip
    monkeypatch.setattr(Pair, "__eq__", lambda *_: pytest.fail("two pairs were compared"))
    pairing = pair_weights(a, b)
    assert len(pairing.pairs) == len(pairing.shapes) == 25
