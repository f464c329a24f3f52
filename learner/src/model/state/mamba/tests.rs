//! The chunked state space and its derivative against the one that is written token by token, with libtorch's autograd.

use tch::{Device, Kind, Tensor};

use super::{
    super::{
        passes,
        testing::{largest, plain, trees},
    },
    scan::Inputs,
};

const GROUPS: i64 = 2;
const HEADS: i64 = 6;
/// Of a state and of a head.
const WIDTHS: [i64; 2] = [5, 3];

/// Inputs of so many tokens: C, B, v and g.
fn inputs(tokens: i64) -> [Tensor; 4] {
    let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Double, Device::Cpu));
    [
        random(&[tokens, GROUPS, WIDTHS[0]]),
        random(&[tokens, GROUPS, WIDTHS[0]]),
        random(&[tokens, HEADS, WIDTHS[1]]),
        -random(&[tokens, HEADS]).abs() * 0.3,
    ]
}

fn of([c, b, v, g]: &[Tensor; 4]) -> Inputs {
    let [c, b, v, g] = [c, b, v, g].map(Tensor::shallow_clone);
    Inputs { c, b, v, g }
}

/// The outputs of one text after a state, and the state at its end.
fn steps([c, b, v, g]: &[Tensor; 4], rows: std::ops::Range<i64>, mut state: Tensor) -> (Vec<Tensor>, Tensor) {
    let mut out = Vec::new();
    for t in rows {
        let [c, b] = [c, b].map(|x| x.get(t).repeat_interleave_self_int(HEADS / GROUPS, 0, None).unsqueeze(-1));
        // Autograd follows, so nothing is changed in place.
        state = state * g.get(t).exp().view([HEADS, 1, 1]) + b.matmul(&v.get(t).unsqueeze(1));
        out.push(c.mt().matmul(&state).squeeze_dim(1));
    }
    (out, state)
}

#[test]
fn chunks_and_their_derivative_agree_with_the_state_space_token_by_token() {
    tch::manual_seed(7);
    let many = [1_i64; 40];
    let cases: [&[(i64, &[i64])]; 4] =
        [&[(1, &[])], &[(64, &[1, 65]), (3, &[])], &[(150, &[]), (63, &[64, 64, 2]), (65, &[130, 1])], &[(2, &many)]];
    for case in cases {
        let (trees, tokens) = trees(case);
        let mut given = inputs(tokens);
        for x in &mut given {
            *x = x.set_requires_grad(true);
        }
        let zero = Tensor::zeros([HEADS, WIDTHS[0], WIDTHS[1]], (Kind::Double, Device::Cpu));
        let expected = plain(&trees, &zero, |rows, state| steps(&given, rows, state));
        let above = Tensor::randn(expected.size(), (Kind::Double, Device::Cpu));
        let gradients = Tensor::run_backward(&[(&expected * &above).sum(None)], &given, false, false);

        let inputs = of(&given.each_ref().map(Tensor::detach));
        let ruled = passes::forward(&inputs, &trees);
        assert!(largest(&(&ruled.out_TND - expected.detach())) < 1e-12 * largest(&expected), "{case:?}");
        let found = passes::backward(&inputs, &ruled, &above, &trees);
        let found = [&found.c, &found.b, &found.v, &found.g];
        for (name, (found, expected)) in ["C", "B", "v", "g"].iter().zip(found.iter().zip(&gradients)) {
            let difference = largest(&(*found - expected));
            assert!(difference < 1e-11 * largest(expected).max(1.0), "{case:?}: {name} differs by {difference}");
        }
    }
}

#[test]
fn a_text_does_not_see_its_neighbours() {
    tch::manual_seed(8);
    let (trees, tokens) = trees(&[(70, &[5, 9]), (70, &[]), (66, &[])]);
    let given = inputs(tokens);
    let out = passes::forward(&of(&given), &trees).out_TND;
    let (start, length) = (trees[1].start, trees[1].stem);
    let other = given.each_ref().map(|x| {
        let x = x.copy();
        let _ = x.narrow(0, start, length).g_mul_scalar_(0.5);
        x
    });
    let changed = passes::forward(&of(&other), &trees).out_TND;
    for tree in [&trees[0], &trees[2]] {
        let all = tree.stem + tree.branches.iter().sum::<i64>();
        assert_eq!(out.narrow(0, tree.start, all), changed.narrow(0, tree.start, all));
    }
    assert_ne!(out.narrow(0, start, length), changed.narrow(0, start, length));
}
