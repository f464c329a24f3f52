//! Norms over the whole width of queries and of keys.

use proptest::prelude::*;
use shared::generation::rng::Stream;

use super::{
    super::{linear::Norm, parallel::Machine, simd::Isa, width_norm::norm_queries_and_keys},
    EPSILON, assert_close, normal, threads,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn all_queries_are_normed_together_and_so_are_all_keys(
        seed in any::<u64>(), tokens in 1usize..10, queries in 1usize..70, keys in 1usize..40,
    ) {
        let mut stream = Stream::new(&[seed]);
        let width = queries + 2 * keys;
        let (qkv, gammas) = (normal(&mut stream, tokens * width), [queries, keys].map(|n| normal(&mut stream, n)));
        let norms = gammas.each_ref().map(|gamma| Norm { gamma, epsilon: EPSILON });
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; qkv.len()];
            let machine = Machine { isa, threads: &threads(2), scratch: &mut Vec::new() };
            norm_queries_and_keys(norms, width, &qkv, &mut out, machine);
            prop_assert!(first.as_ref().is_none_or(|first| *first == out), "instruction sets differ");
            first = Some(out);
        }
        let expected: Vec<f64> = qkv.chunks(width).flat_map(|token| {
            let normed = |x: &[f32], gamma: &[f32]| -> Vec<f64> {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
                let factor = (mean + f64::from(EPSILON)).sqrt().recip();
                x.iter().zip(gamma).map(|(&x, &g)| f64::from(x) * factor * f64::from(g)).collect()
            };
            let (q, rest) = token.split_at(queries);
            let (k, v) = rest.split_at(keys);
            let v = v.iter().map(|&v| f64::from(v)).collect();
            [normed(q, &gammas[0]), normed(k, &gammas[1]), v].concat()
        }).collect();
        assert_close(&first.unwrap(), &expected, 1e-5);
    }
}
