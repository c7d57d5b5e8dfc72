from __future__ import annotations

import cmath
import itertools
import math

import pytest
import torch
from torch import Tensor

from milepost import ComplexOrder, Scheme, attend, causal, complex_attend
from tests.oracles import assert_same, attention

VARIANTS = list(itertools.product(["words", "shared"], ["words", "none"]))


def stirred(method: ComplexOrder) -> ComplexOrder:
    generator = torch.Generator().manual_seed(1)
    method = method.double()
    for weight in method.parameters():
        torch.nn.init.normal_(weight, generator=generator)
    return method


def wave(method: ComplexOrder, word: int, place: float, n: int) -> complex:
    """r · e^(i(ωk + ϑ)) of one word, place and channel."""
    omega = 10000 ** (-n / method.model_dim) + float(
        method.offset.detach()[word if method.frequencies == "words" else 0, n]
    )
    phase = 0.0 if method.phase is None else float(method.phase.detach()[word, n])
    return float(method.size.detach()[word, n]) * cmath.exp(1j * (omega * place + phase))


def waves(method: ComplexOrder, words: Tensor, places: Tensor) -> Tensor:
    """All of them, complex [b t dim]."""
    b, t = words.shape
    made = [
        [
            [wave(method, int(words[row, i]), float(places[row, i]), n) for n in range(method.model_dim)]
            for i in range(t)
        ]
        for row in range(b)
    ]
    return torch.tensor(made, dtype=torch.complex128)


WORDS = torch.tensor([[3, 0, 3, 6, 5], [1, 1, 4, 2, 0]])
COUNTED = torch.arange(5).expand(2, 5)


@pytest.mark.parametrize(("frequencies", "phases"), VARIANTS)
def test_each_word_is_a_wave_that_turns_with_its_position(frequencies, phases):
    method = stirred(ComplexOrder(7, 4, frequencies=frequencies, phases=phases, real=False))
    ours, oracle = method.embed(WORDS), waves(method, WORDS, COUNTED)
    assert ours.dtype == torch.complex128
    assert_same(torch.view_as_real(ours), torch.view_as_real(oracle))


@pytest.mark.parametrize(("frequencies", "phases"), VARIANTS)
def test_the_real_form_puts_the_cosines_before_the_sines(frequencies, phases):
    method = stirred(ComplexOrder(7, 4, frequencies=frequencies, phases=phases))
    oracle = waves(method, WORDS, COUNTED)
    assert_same(method.embed(WORDS), torch.cat([oracle.real, oracle.imag], -1))


@pytest.mark.parametrize("index", [[4, 0, 9, 9, 1], [[0, 1, 2, 3, 4], [7, 7, 0, 2, 30]], [0.5, 1.0, -2.25, 3.0, 0.1]])
def test_indices_choose_the_positions(index):
    method = stirred(ComplexOrder(7, 4))
    at = torch.tensor(index, dtype=torch.float64 if isinstance(index[0], float) else torch.int64)
    oracle = waves(method, WORDS, at.expand(2, 5))
    assert_same(method.embed(WORDS, at), torch.cat([oracle.real, oracle.imag], -1))


def test_the_size_of_a_word_does_not_depend_on_its_position():
    method = stirred(ComplexOrder(7, 4, real=False))
    assert_same(method.embed(WORDS, 1000 * COUNTED).abs(), method.size.abs()[WORDS])


def test_moving_a_word_multiplies_it_by_what_depends_on_the_distance_alone():
    method = stirred(ComplexOrder(7, 4, real=False))
    word = torch.full((1, 8), 5)
    made = method.embed(word, torch.tensor([0, 3, 40, 43, 7, 10, 1000, 1003]))[0].detach()
    turns = made[1::2] / made[::2]
    omega = 10000 ** (-torch.arange(4, dtype=torch.float64) / 4) + method.offset.detach()[5]
    assert_same(torch.view_as_real(turns), torch.view_as_real(torch.exp(3j * omega).expand(4, 4)))


def test_the_sinusoidal_waves_are_the_words_of_size_one_that_share_frequencies():
    method = ComplexOrder(7, 6, frequencies="shared", phases="none").double()
    torch.nn.init.ones_(method.size)
    ours = method.embed(WORDS).detach()
    for i, n in itertools.product(range(5), range(6)):
        # Sinusoidal positions of 12 channels have the frequencies 10000^(−2n/12).
        angle = i * 10000 ** (-2 * n / 12)
        for row in range(2):
            assert abs(float(ours[row, i, n]) - math.cos(angle)) <= 1e-12
            assert abs(float(ours[row, i, 6 + n]) - math.sin(angle)) <= 1e-12


def test_words_begin_with_the_same_frequencies_and_without_phases():
    torch.manual_seed(0)
    method = ComplexOrder(500, 40, real=False).double()
    # Their sizes apart, any two words are the same wave at first.
    ours = (method.embed(WORDS) / method.size[WORDS]).detach()
    omega = 10000 ** (-torch.arange(40, dtype=torch.float64) / 40)
    expected = torch.exp(1j * torch.arange(5)[:, None] * omega)
    assert_same(torch.view_as_real(ours), torch.view_as_real(expected.expand(2, 5, 40)))


def test_sizes_begin_uniform_between_minus_one_and_one():
    torch.manual_seed(0)
    size = ComplexOrder(500, 40).size.detach()
    assert -1 <= float(size.min()) < -0.999
    assert 0.999 < float(size.max()) <= 1
    # The mean of 20000 draws is known to 0.0041; five of these are allowed.
    assert abs(float(size.mean())) < 0.0205


@pytest.mark.parametrize(
    ("frequencies", "phases", "count"),
    [
        ("words", "words", 3 * 7 * 4),
        ("shared", "words", 2 * 7 * 4 + 4),
        ("words", "none", 2 * 7 * 4),
        ("shared", "none", 7 * 4 + 4),
    ],
)
def test_what_is_learned_depends_on_what_is_shared(frequencies, phases, count):
    assert (
        sum(weight.numel() for weight in ComplexOrder(7, 4, frequencies=frequencies, phases=phases).parameters())
        == count
    )


def test_only_the_words_that_are_read_learn():
    method = stirred(ComplexOrder(4, 2))
    method.embed(torch.tensor([[1, 3, 1]]), torch.tensor([1, 2, 5])).sum().backward()
    for weight in (method.size, method.offset, method.phase):
        assert weight is not None
        assert weight.grad is not None
        assert weight.grad.bool().any(-1).tolist() == [False, True, False, True]


def test_gradients_are_those_of_the_formula():
    method = stirred(ComplexOrder(7, 2, real=False))
    weights = [each.detach().clone().requires_grad_() for each in method.parameters()]
    size, offset, phase = (each[WORDS] for each in weights)
    omega = 10000 ** (-torch.arange(2, dtype=torch.float64) / 2) + offset
    angle = COUNTED[..., None] * omega + phase
    pull = torch.randn(2, 5, 2, 2, dtype=torch.float64)
    (torch.view_as_real(method.embed(WORDS)) * pull).sum().backward()
    (torch.stack([size * angle.cos(), size * angle.sin()], -1) * pull).sum().backward()
    for ours, theirs in zip(method.parameters(), weights, strict=True):
        assert_same(ours.grad, theirs.grad)


def test_far_positions_keep_the_accuracy_of_float32():
    method = ComplexOrder(7, 4)
    wide = ComplexOrder(7, 4).double()
    wide.load_state_dict(method.state_dict())
    far = torch.tensor([10**7 + 1])
    word = torch.tensor([[2]])
    # The cosine, the size and their product are each rounded once.
    assert_same(method.embed(word, far), wide.embed(word, far), within=3 * 2**-24)


def test_attention_reads_the_real_form_through_its_projections():
    method = stirred(ComplexOrder(7, 4))
    made = waves(method, WORDS, COUNTED)
    x = torch.cat([made.real, made.imag], -1)
    wq, wk, wv = torch.randn(3, 8, 16, dtype=torch.float64)

    def heads(y: Tensor, w: Tensor, count: int) -> Tensor:
        return (y @ w[:, : 4 * count]).view(2, 5, count, 4).transpose(1, 2)

    q, k, v = heads(x, wq, 4), heads(x, wk, 2), heads(x, wv, 2)
    oracle = attention(
        (2, 4, 5, 5),
        lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / 2 if j <= i else -math.inf,
        lambda b, h, i, j: v[b, h // 2, j],
    )
    scheme = Scheme(method, causal)
    y = scheme.embed(WORDS)
    assert_same(attend(heads(y, wq, 4), heads(y, wk, 2), heads(y, wv, 2), scheme.attention), oracle)


def test_words_that_share_frequencies_meet_in_complex_attention_by_distance_alone():
    method = stirred(ComplexOrder(7, 4, frequencies="shared", real=False))
    values = method.embed(WORDS)[:, None]

    def read(shift: int, conjugate: bool) -> Tensor:
        x = method.embed(WORDS, torch.arange(5) + shift)[:, None]
        return torch.view_as_real(complex_attend(x, x, values, Scheme(causal), conjugate=conjugate)).detach()

    assert_same(read(32, conjugate=True), read(0, conjugate=True))
    # Without the conjugate of the keys phases add up, and a shift shows.
    assert float((read(32, conjugate=False) - read(0, conjugate=False)).abs().max()) > 0.1


def test_the_dtype_of_the_weights_is_that_of_the_embeddings():
    assert ComplexOrder(7, 4).embed(WORDS).dtype == torch.float32
    assert ComplexOrder(7, 4, real=False).embed(WORDS).dtype == torch.complex64


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"vocabulary": 0}, ValueError, r"ComplexOrder\(vocabulary=0\): vocabulary must be at least 1"),
        ({"model_dim": -4}, ValueError, r"ComplexOrder\(model_dim=-4\): model_dim must be at least 1"),
        ({"model_dim": 4.0}, TypeError, r"ComplexOrder\(model_dim=4.0\): model_dim must be an integer, not float"),
        ({"frequencies": "word"}, ValueError, r"frequencies must be one of 'words', 'shared'"),
        ({"phases": None}, ValueError, r"ComplexOrder\(phases=None\): phases must be one of 'words', 'none'"),
        ({"real": 1}, TypeError, r"ComplexOrder\(real=1\): real is True or False, not int"),
    ],
)
def test_what_is_no_dictionary_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        ComplexOrder(**{"vocabulary": 7, "model_dim": 4, **options})


@pytest.mark.parametrize("x", [torch.zeros(2, 5), torch.zeros(2, 5, 8), torch.zeros(5).long(), WORDS > 2])
def test_what_is_no_text_is_refused(x):
    with pytest.raises(TypeError, match=r"ComplexOrder\(vocabulary=7\): it embeds token numbers, integers \[b, t\]"):
        ComplexOrder(7, 4).embed(x)


@pytest.mark.parametrize("word", [-1, 7])
def test_words_outside_the_vocabulary_are_refused(word):
    with pytest.raises(ValueError, match=rf"ComplexOrder\(vocabulary=7\): token numbers run from {word} to {word}"):
        ComplexOrder(7, 4).embed(torch.tensor([[word]]))


def test_an_index_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"ComplexOrder: index must be \[5\] or \[2, 5\], given \[4\]"):
        ComplexOrder(7, 4).embed(WORDS, torch.arange(4))
