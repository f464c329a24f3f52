//! Axes: ranges, round tick values and short number texts.

/// How values become heights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By their decimal logarithm; values of 0 and below have no place and leave a gap.
    Log,
}

/// A range of values with the ticks shown beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Values of the ticks, ascending.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// An axis that holds all values; nothing when no value can be shown.
    pub fn around(values: impl Iterator<Item = f64>, scale: Scale, from_zero: bool) -> Option<Self> {
        let shown = values.filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return None;
        }
        Some(match scale {
            Scale::Linear => Self::linear(if from_zero { low.min(0.0) } else { low }, high),
            Scale::Log => Self::logarithmic(low, high),
        })
    }

    /// A horizontal axis that ends exactly at its data.
    pub fn exact(low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = round_step((high - low) / 6.0).max(1.0);
        let first = (low / step).ceil() * step;
        let ticks = (0..).map(|i| first + f64::from(i) * step).take_while(|t| *t <= high).collect();
        Self { scale: Scale::Linear, low, high, ticks }
    }

    fn linear(low: f64, high: f64) -> Self {
        // A flat line gets room above and below.
        let (low, high) = if high - low > 1e-12 * high.abs().max(low.abs()) {
            (low, high)
        } else {
            let room = if low == 0.0 { 1.0 } else { 0.5 * low.abs() };
            (if low == 0.0 { 0.0 } else { low - room }, high + room)
        };
        let step = round_step((high - low) / 4.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = (last - first).round() as u32;
        let ticks: Vec<f64> = (0..=count).map(|i| (first + f64::from(i)) * step).collect();
        Self { scale: Scale::Linear, low: ticks[0], high: ticks[ticks.len() - 1], ticks }
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let last = last.max(first + 1);
        let stride = usize::try_from((last - first).div_euclid(5) + 1).unwrap_or(1);
        let ticks = (first..=last).step_by(stride).map(|e| 10_f64.powi(e)).collect();
        Self { scale: Scale::Log, low: f64::from(first), high: f64::from(last), ticks }
    }

    /// Place of a value between 0 (low end) and 1 (high end); nothing for one that cannot be shown.
    pub fn place(&self, value: f64) -> Option<f64> {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log if value > 0.0 => value.log10(),
            Scale::Log => return None,
        };
        let place = (value - self.low) / (self.high - self.low);
        place.is_finite().then_some(place)
    }
}

/// The next larger of 1, 2, 2.5 and 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.abs().max(f64::MIN_POSITIVE).log10().floor());
    [1.0, 2.0, 2.5, 5.0].iter().map(|m| m * power).find(|s| *s >= step * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// A number in a few characters: `0.25`, `1200`, `45.3k`, `3.2e-12`.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e9).contains(&size) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    let (scaled, suffix) = match size {
        s if s >= 1e6 => (value / 1e6, "M"),
        s if s >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        s if s >= 1000.0 => 0,
        s if s >= 100.0 => 1,
        s if s >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{scaled:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

/// A number to three digits: `14.3`, `0.0671`, `4650`.
pub fn brief(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return short(value);
    }
    let unit = 10_f64.powi(value.abs().log10().floor() as i32 - 2);
    short((value / unit).round() * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_holds_its_values_between_round_ticks() {
        let axis = Axis::around([0.13, 1.94].into_iter(), Scale::Linear, false).unwrap();
        assert_eq!(axis.ticks, [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(axis.place(1.0), Some(0.5));
    }

    #[test]
    fn a_flat_line_lies_in_the_middle() {
        let axis = Axis::around([4.0, 4.0].into_iter(), Scale::Linear, false).unwrap();
        let place = axis.place(4.0).unwrap();
        assert!((0.3..0.7).contains(&place), "{place}");
        assert!(Axis::around([0.0].into_iter(), Scale::Linear, false).unwrap().place(0.0).is_some());
    }

    #[test]
    fn a_logarithmic_axis_leaves_zeros_out() {
        let axis = Axis::around([0.0, 1e-14, 3e-12].into_iter(), Scale::Log, false).unwrap();
        assert_eq!(axis.place(1e-14), Some(0.0));
        assert_eq!(axis.place(0.0), None);
        assert_eq!(Axis::around([0.0].into_iter(), Scale::Log, false), None);
    }

    #[test]
    fn what_is_no_number_makes_no_axis() {
        assert_eq!(Axis::around([f64::NAN, f64::INFINITY].into_iter(), Scale::Linear, true), None);
    }

    #[test]
    fn step_ticks_are_whole() {
        assert_eq!(Axis::exact(1.0, 4.0).ticks, [1.0, 2.0, 3.0, 4.0]);
        assert!(Axis::exact(1.0, 1.0).place(1.0).is_some());
        assert!(Axis::exact(1.0, 10_000.0).ticks.len() <= 7);
    }

    #[test]
    fn three_digits_are_enough_for_a_headline() {
        let cases = [(14.263, "14.3"), (0.06712, "0.0671"), (4646.0, "4650"), (0.0, "0"), (1e-13, "1e-13")];
        for (value, text) in cases {
            assert_eq!(brief(value), text);
        }
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (2.5, "2.5"),
            (1200.0, "1200"),
            (45_300.0, "45.3k"),
            (3.2e-12, "3.2e-12"),
            (-0.5, "-0.5"),
            (100.0, "100"),
            (2_000_000.0, "2M"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }
}
