//! What newcomers take for a fault: a loss near 0.

use shared::{
    metrics::{self, Figure},
    run::notices::{Notice, NoticeKind},
};

use super::{Detector, Seen};

/// A loss below this looks like none; gradients are of the order of 1.
const NEAR_ZERO: f64 = 1e-3;

/// The loss is near 0 in the first step with a gradient. Later, whoever looks has seen what it is like.
#[derive(Default)]
pub struct NearZero {
    has_looked: bool,
}

impl Detector for NearZero {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let of = |metric| seen.record.get(metric);
        let (Some(loss), Some(norm)) = (of(metrics::LOSS), of(metrics::GRAD_NORM)) else {
            return Vec::new();
        };
        if norm == 0.0 || std::mem::replace(&mut self.has_looked, true) || loss.abs() >= NEAR_ZERO {
            return Vec::new();
        }
        let text = format!(
            "a loss near 0 ({loss:.1e}) is as it should be: the ratio is 1 in the first pass over a batch, and the \
             advantages of a group cancel out"
        );
        let remedy = format!("look at the gradient norm, which is {:.2}, and at the reward", Figure(norm));
        vec![Notice::new(NoticeKind::LossNearZero, seen.step(), text, remedy)]
    }
}

#[cfg(test)]
mod tests {
    use shared::config::TrainConfig;

    use super::{super::testing::told, *};

    #[test]
    fn a_loss_near_0_is_explained_where_there_is_a_gradient() {
        let after = |loss: f64, norm: f64| {
            told(&mut NearZero::default(), &TrainConfig::default(), 2, |record| {
                record.set(metrics::LOSS, loss).set(metrics::GRAD_NORM, norm);
            })
        };
        assert_eq!((after(1e-9, 0.0), after(-0.2, 0.83), after(f64::NAN, 0.83)), (vec![], vec![], vec![]));
        let mut found = after(-3e-9, 0.83);
        assert_eq!(found.len(), 1, "the second step is not looked at");
        let notice = found.remove(0);
        assert!(notice.text.contains("(-3.0e-9)") && notice.remedy.contains("which is 0.83"), "{notice}");
    }
}
