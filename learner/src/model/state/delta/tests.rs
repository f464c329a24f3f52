//! The chunked rule and its derivative against the rule as it is written, token by token, with libtorch's autograd.

use tch::{Device, Kind, Tensor};

use super::{
    super::{
        passes,
        testing::{largest, plain, trees},
    },
    rule::Rules,
};

const KEY_HEADS: i64 = 2;
const VALUE_HEADS: i64 = 4;
const WIDTHS: [i64; 2] = [5, 3];

/// Inputs of the rule for so many tokens, q, k, v, g and β.
fn inputs(tokens: i64) -> [Tensor; 5] {
    let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Double, Device::Cpu));
    let unit = |x: Tensor| &x / x.norm_scalaropt_dim(2.0, [-1i64].as_slice(), true);
    [
        unit(random(&[tokens, KEY_HEADS, WIDTHS[0]])),
        unit(random(&[tokens, KEY_HEADS, WIDTHS[0]])),
        random(&[tokens, VALUE_HEADS, WIDTHS[1]]),
        -random(&[tokens, VALUE_HEADS]).abs() * 0.3,
        random(&[tokens, VALUE_HEADS]).sigmoid(),
    ]
}

fn rules([q, k, v, g, beta]: &[Tensor; 5]) -> Rules {
    let [q, k, v, g, beta] = [q, k, v, g, beta].map(Tensor::shallow_clone);
    Rules { q, k, v, g, beta }
}

/// The outputs of one text after a state, and the state at its end.
fn steps([q, k, v, g, beta]: &[Tensor; 5], rows: std::ops::Range<i64>, mut state: Tensor) -> (Vec<Tensor>, Tensor) {
    let shared = VALUE_HEADS / KEY_HEADS;
    let mut out = Vec::new();
    for t in rows {
        let [q, k] = [q, k].map(|x| x.get(t).repeat_interleave_self_int(shared, 0, None).unsqueeze(-1));
        let (v, beta) = (v.get(t).unsqueeze(1), beta.get(t).view([VALUE_HEADS, 1, 1]));
        // Autograd follows, so nothing is changed in place.
        let decayed = state * g.get(t).exp().view([VALUE_HEADS, 1, 1]);
        let residual = v - k.mt().matmul(&decayed);
        state = decayed + k.matmul(&(residual * beta));
        out.push(q.mt().matmul(&state).squeeze_dim(1));
    }
    (out, state)
}

#[test]
fn chunks_and_their_derivative_agree_with_the_rule_token_by_token() {
    tch::manual_seed(7);
    let many = [1_i64; 40];
    let cases: [&[(i64, &[i64])]; 4] =
        [&[(1, &[])], &[(64, &[1, 65]), (3, &[])], &[(150, &[]), (63, &[64, 64, 2]), (65, &[130, 1])], &[(2, &many)]];
    for of in cases {
        let (trees, tokens) = trees(of);
        let mut inputs = inputs(tokens);
        for x in &mut inputs {
            *x = x.set_requires_grad(true);
        }
        let zero = Tensor::zeros([VALUE_HEADS, WIDTHS[0], WIDTHS[1]], (Kind::Double, Device::Cpu));
        let expected = plain(&trees, &zero, |rows, state| steps(&inputs, rows, state));
        let above = Tensor::randn(expected.size(), (Kind::Double, Device::Cpu));
        let gradients = Tensor::run_backward(&[(&expected * &above).sum(None)], &inputs, false, false);

        let detached = inputs.each_ref().map(Tensor::detach);
        let rules = rules(&detached);
        let ruled = passes::forward(&rules, &trees);
        assert!(largest(&(&ruled.out_TND - expected.detach())) < 1e-12, "{of:?}");
        let found = passes::backward(&rules, &ruled, &above, &trees);
        let found = [&found.q, &found.k, &found.v, &found.g, &found.beta];
        for (name, (found, expected)) in ["q", "k", "v", "g", "beta"].iter().zip(found.iter().zip(&gradients)) {
            let difference = largest(&(*found - expected));
            assert!(difference < 1e-11 * largest(expected).max(1.0), "{of:?}: {name} differs by {difference}");
        }
    }
}

#[test]
fn a_text_does_not_see_its_neighbours() {
    tch::manual_seed(8);
    let (trees, tokens) = trees(&[(70, &[5, 9]), (70, &[]), (66, &[])]);
    let inputs = inputs(tokens);
    let out = passes::forward(&rules(&inputs), &trees).out_TND;
    let (start, length) = (trees[1].start, trees[1].stem);
    let other = inputs.each_ref().map(|x| {
        let x = x.copy();
        let _ = x.narrow(0, start, length).g_mul_scalar_(0.5);
        x
    });
    let changed = passes::forward(&rules(&other), &trees).out_TND;
    for tree in [&trees[0], &trees[2]] {
        let all = tree.stem + tree.branches.iter().sum::<i64>();
        assert_eq!(out.narrow(0, tree.start, all), changed.narrow(0, tree.start, all));
    }
    assert_ne!(out.narrow(0, start, length), changed.narrow(0, start, length));
}
