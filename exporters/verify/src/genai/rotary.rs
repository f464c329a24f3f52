//! Tables of cosines and sines against the frequencies that they are made of.

use crate::Tensor;

/// Positions that are all looked at, and the distance between those after them.
const FIRST: usize = 512;
const STRIDE: usize = 97;

/// Relative error of an angle: frequencies and angles of tables are computed in fp32, in several operations.
const ANGLE: f64 = 1e-6;

/// The first entry that is not the model's, in words. Tables are `[positions, frequencies]`, and the model multiplies
/// them with `scale`.
pub(super) fn difference(
    frequencies: &[f64],
    scale: f64,
    positions: usize,
    [cosines, sines]: [&Tensor; 2],
) -> Option<String> {
    let shape = [positions, frequencies.len()];
    if let Some(table) = [cosines, sines].into_iter().find(|table| table.shape != shape) {
        return Some(format!("a table has the shape {:?}, and {shape:?} is needed", table.shape));
    }
    let looked_at = (0..positions.min(FIRST)).chain((FIRST..positions).step_by(STRIDE));
    for position in looked_at {
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (angle, place) = (position as f64 * frequency, position * frequencies.len() + pair);
            for (table, meant) in [(cosines, scale * angle.cos()), (sines, scale * angle.sin())] {
                let found = table.values[place];
                // One of fp32's own steps, whatever the table is rounded to afterwards.
                let error = (angle * ANGLE * scale) as f32 + f32::EPSILON * scale.max(1.0) as f32;
                if !table.rounding.allows(meant as f32, found, place, error) {
                    return Some(format!("pair {pair} at position {position} has {found}, the model has {meant:.6}"));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rounding, architecture::frequencies};

    fn table(positions: usize, frequencies: &[f64], of: fn(f64) -> f64) -> Tensor {
        let angles = (0..positions).flat_map(|at| frequencies.iter().map(move |f| at as f64 * f));
        let values = angles.map(|angle| of(angle) as f32).collect();
        Tensor { shape: vec![positions, frequencies.len()], values, rounding: Rounding::None }
    }

    #[test]
    fn tables_of_other_frequencies_are_told_from_those_of_the_model() {
        let right = frequencies(1e4, 8);
        let scaled: Vec<f64> = right.iter().map(|frequency| frequency / 8.0).collect();
        let tables = |of: &[f64]| [table(600, of, f64::cos), table(600, of, f64::sin)];
        let [cosines, sines] = tables(&right);
        assert_eq!(difference(&right, 1.0, 600, [&cosines, &sines]), None);
        let louder = difference(&right, 1.1, 600, [&cosines, &sines]).unwrap();
        assert!(louder.contains("pair 0 at position 0 has 1, the model has 1.1"), "{louder}");
        assert_eq!(
            difference(&right, 1.0, 600, [&sines, &cosines]).unwrap(),
            "pair 0 at position 0 has 0, the model has 1.000000"
        );
        let [cosines, sines] = tables(&scaled);
        let found = difference(&right, 1.0, 600, [&cosines, &sines]).unwrap();
        assert!(found.starts_with("pair 0 at position 1 has 0.99"), "{found}");
        let found = difference(&right, 1.0, 599, [&cosines, &sines]).unwrap();
        assert!(found.contains("[600, 4], and [599, 4] is needed"), "{found}");
    }

    #[test]
    fn late_positions_are_looked_at_too() {
        let right = frequencies(1e4, 8);
        let [mut cosines, sines] = [table(700, &right, f64::cos), table(700, &right, f64::sin)];
        cosines.values[(FIRST + STRIDE) * 4 + 2] += 0.1;
        assert!(difference(&right, 1.0, 700, [&cosines, &sines]).unwrap().contains("pair 2 at position 609"));
    }
}
