//! The speed of libtorch's matrix products at the shapes of a model, with which its forward and backward passes are
//! compared.

use std::time::{Duration, Instant};

use shared::{ModelConfig, run::memory_plan::head_chunk};
use tch::{Device, Kind, Tensor};

/// Each product is repeated for at least this long, and this often.
const SHORTEST: (Duration, u32) = (Duration::from_millis(100), 3);

/// Cost of a token.
#[derive(Default)]
struct Total {
    seconds: f64,
    operations: f64,
}

impl Total {
    fn add(&mut self, times: f64, [inputs, outputs]: [usize; 2], seconds: f64) {
        self.seconds += times * seconds;
        self.operations += times * (6 * inputs * outputs) as f64;
    }
}

/// Floating-point operations per second of the products alone, forwards and for both gradients. Linear layers have
/// `tokens` rows, and the head as many as it computes at once. Each product counts as often as a step needs it.
/// `head_share` is the share of the tokens that the head sees.
pub fn rate(config: &ModelConfig, tokens: i64, head_share: f64, kind: Kind, device: Device) -> f64 {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let [queries, keys] = [config.num_attention_heads, config.num_key_value_heads].map(|heads| heads * config.head_dim);
    let kinds = [(1, hidden, queries), (2, hidden, keys), (1, queries, hidden), (2, hidden, inner), (1, inner, hidden)];
    let mut total = Total::default();
    for (count, inputs, outputs) in kinds {
        let times = (count * config.num_hidden_layers) as f64;
        total.add(times, [inputs, outputs], per_row(tokens, [inputs, outputs], kind, device));
    }
    let (chunk, _) = head_chunk(4 * config.vocab_size as u64);
    let head = [hidden, config.vocab_size];
    total.add(head_share, head, per_row(chunk as i64, head, Kind::Float, device));
    total.operations / total.seconds
}

/// Seconds of the three products of a layer, divided by the rows.
fn per_row(rows: i64, [inputs, outputs]: [usize; 2], kind: Kind, device: Device) -> f64 {
    let [inputs, outputs] = [inputs, outputs].map(|n| n as i64);
    let random = |rows, columns| Tensor::randn([rows, columns], (Kind::Float, device)).to_kind(kind);
    let (x, weight, gradient) = (random(rows, inputs), random(outputs, inputs), random(rows, outputs));
    let products = || [x.mm(&weight.tr()), gradient.mm(&weight), gradient.tr().mm(&x)];
    // The last product has ended when one of its numbers is here.
    let finish = |[.., last]: [Tensor; 3]| last.double_value(&[0, 0]);
    finish(products());
    let (begin, mut repeats) = (Instant::now(), 0);
    while repeats < SHORTEST.1 || begin.elapsed() < SHORTEST.0 {
        finish(products());
        repeats += 1;
    }
    begin.elapsed().as_secs_f64() / f64::from(repeats) / rows as f64
}
