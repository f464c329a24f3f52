//! The distribution of numbers.

use super::proto::Histogram;

/// Buckets of equal width: as many as TensorBoard shows.
const BUCKETS: usize = 30;

/// The distribution of numbers; none without any. Numbers that are not finite are left out.
pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Histogram> {
    let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    let min = values.iter().copied().reduce(f64::min)?;
    let max = values.iter().copied().fold(min, f64::max);
    let mut histogram = Histogram {
        min,
        max,
        num: values.len() as f64,
        sum: values.iter().sum(),
        sum_squares: values.iter().map(|value| value * value).sum(),
        ..Histogram::default()
    };
    if min == max {
        histogram.bucket_limit.push(max);
        histogram.bucket.push(histogram.num);
        return Some(histogram);
    }
    let width = (max - min) / BUCKETS as f64;
    histogram.bucket_limit = (1..BUCKETS).map(|bucket| min + bucket as f64 * width).chain([max]).collect();
    histogram.bucket = vec![0.0; BUCKETS];
    for value in values {
        histogram.bucket[(((value - min) / width) as usize).min(BUCKETS - 1)] += 1.0;
    }
    Some(histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_in_the_bucket_between_its_limits() {
        let histogram = of([0.0, 0.05, 1.02, 2.95, 3.0, f64::NAN]).unwrap();
        assert_eq!((histogram.min, histogram.max, histogram.num), (0.0, 3.0, 5.0));
        assert!((histogram.sum - 7.02).abs() < 1e-12 && (histogram.sum_squares - 18.7454).abs() < 1e-12);
        let filled: Vec<_> = histogram.bucket.iter().enumerate().filter(|(_, count)| **count > 0.0).collect();
        assert_eq!(filled, [(0, &2.0), (10, &1.0), (29, &2.0)]);
        assert_eq!((histogram.bucket_limit.len(), histogram.bucket_limit[29]), (30, 3.0));
    }

    #[test]
    fn equal_numbers_are_one_bucket_and_none_are_nothing() {
        let histogram = of([2.0, 2.0]).unwrap();
        assert_eq!((histogram.bucket_limit, histogram.bucket), (vec![2.0], vec![2.0]));
        assert_eq!(of([f64::INFINITY]), None);
    }
}
