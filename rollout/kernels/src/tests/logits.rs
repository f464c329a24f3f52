//! Statistics of tokens and gradients of logits.

use half::bf16;
use shared::generation::rng::Stream;

use super::{assert_close, normal, threads};
use crate::{
    logits::{Rows, TokenDerivatives, TokenStatistics},
    parallel::Machine,
    simd::Isa,
};

/// Stands for a probability of 0.
const OUTSIDE: f32 = -1e30;

#[test]
fn log_probs_entropies_and_gradients_are_those_of_the_softmax_and_the_same_everywhere() {
    let mut stream = Stream::new(&[71]);
    for (tokens, vocabulary, temperature) in [(1, 1, 1.0), (3, 16, 0.7), (4, 77, 1.0), (5, 1000, 1.6)] {
        let mut logits: Vec<f32> = normal(&mut stream, tokens * vocabulary).into_iter().map(|x| x * 6.0).collect();
        let ids: Vec<i64> = (0..tokens).map(|_| stream.below(vocabulary as u64) as i64).collect();
        for (i, logit) in logits.iter_mut().enumerate() {
            let (token, place) = (i / vocabulary, i % vocabulary);
            if token == 1 && place % 3 == 0 && place as i64 != ids[token] {
                *logit = OUTSIDE;
            }
        }
        let [of_logprobs, of_entropies] = [(); 2].map(|()| normal(&mut stream, tokens));
        let (mut logprobs, mut entropies, mut gradient) = (Vec::new(), Vec::new(), Vec::new());
        for (token, row) in logits.chunks(vocabulary).enumerate() {
            let z: Vec<f64> = row.iter().map(|&z| f64::from(z) / temperature).collect();
            let largest = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = largest + z.iter().map(|z| (z - largest).exp()).sum::<f64>().ln();
            let entropy = -z.iter().map(|z| (z - lse).exp() * (z - lse)).filter(|x| x.is_finite()).sum::<f64>();
            let id = ids[token] as usize;
            logprobs.push(z[id] - lse);
            entropies.push(entropy);
            let [of_logprob, of_entropy] = [&of_logprobs, &of_entropies].map(|all| f64::from(all[token]));
            gradient.extend(z.iter().enumerate().map(|(j, z)| {
                let (log, here) = (z - lse, f64::from(u8::from(j == id)));
                let p = log.exp();
                let entropy_part = if p == 0.0 { 0.0 } else { p * (log + entropy) };
                (of_logprob * (here - p) - of_entropy * entropy_part) / temperature
            }));
        }
        let rows = Rows { logits: &logits, ids: &ids, temperature: temperature as f32 };
        let mut all = Vec::new();
        for isa in Isa::available() {
            let mut found = vec![TokenStatistics::default(); tokens];
            let mut out = vec![0x7fc0; logits.len()];
            rows.statistics(&mut found, Machine { isa, threads: &threads(2), scratch: &mut Vec::new() });
            let of = TokenDerivatives { statistics: &found, logprobs: &of_logprobs, entropies: Some(&of_entropies) };
            rows.gradient(of, &mut out, Machine { isa, threads: &threads(1), scratch: &mut Vec::new() });
            all.push((found, out));
        }
        assert!(all.iter().all(|one| *one == all[0]), "instruction sets differ");
        let (found, out) = &all[0];
        assert_close(&found.iter().map(|x| x.logprob).collect::<Vec<_>>(), &logprobs, 1e-6);
        assert_close(&found.iter().map(|x| x.entropy).collect::<Vec<_>>(), &entropies, 3e-6);
        let out: Vec<f32> = out.iter().map(|&x| bf16::from_bits(x).to_f32()).collect();
        assert_close(&out, &gradient, 4e-3);
        assert!(logits.iter().zip(&out).all(|(&z, &g)| z != OUTSIDE || g.abs() < 1e-30), "hidden logits have none");
    }
}

/// At a low temperature, the rounding of a large logit would show as a probability above 1.
#[test]
fn no_probability_exceeds_one_and_no_entropy_falls_below_zero() {
    let mut stream = Stream::new(&[73]);
    let vocabulary = 77;
    for temperature in [1.0_f32, 0.3, 0.05, 0.003, 1e3] {
        let logits: Vec<f32> = normal(&mut stream, 50 * vocabulary).into_iter().map(|x| x * 30.0).collect();
        let largest = |row: &[f32]| (0..vocabulary).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i64;
        let ids: Vec<i64> = logits.chunks(vocabulary).map(largest).collect();
        let mut found = vec![TokenStatistics::default(); ids.len()];
        let machine = Machine { isa: Isa::detect(), threads: &threads(1), scratch: &mut Vec::new() };
        Rows { logits: &logits, ids: &ids, temperature }.statistics(&mut found, machine);
        let (worst, least) = found.iter().fold((f32::MIN, f32::MAX), |(p, h), x| (p.max(x.logprob), h.min(x.entropy)));
        assert!(worst <= 0.0 && least >= 0.0, "temperature {temperature}: log-prob {worst}, entropy {least}");
    }
}

/// Without derivatives of entropies, the gradient is that of the log-probs alone.
#[test]
fn a_loss_of_log_probs_alone_gives_the_gradient_of_log_probs() {
    let mut stream = Stream::new(&[72]);
    let (logits, ids) = (normal(&mut stream, 2 * 40), [3, 39]);
    let rows = Rows { logits: &logits, ids: &ids, temperature: 1.0 };
    let pool = threads(1);
    let mut scratch = Vec::new();
    let mut found = [TokenStatistics::default(); 2];
    rows.statistics(&mut found, Machine { isa: Isa::detect(), threads: &pool, scratch: &mut scratch });
    let [mut without, mut with] = [(); 2].map(|()| vec![0; logits.len()]);
    for (entropies, out) in [(None, &mut without), (Some(&[0.0; 2][..]), &mut with)] {
        let of = TokenDerivatives { statistics: &found, logprobs: &[1.5, -0.5], entropies };
        rows.gradient(of, out, Machine { isa: Isa::detect(), threads: &pool, scratch: &mut scratch });
    }
    assert_eq!(without, with);
    let sum: f32 = without[..40].iter().map(|&x| bf16::from_bits(x).to_f32()).sum();
    assert!(sum.abs() < 0.01, "a gradient of logits adds up to 0, and not to {sum}");
}
