//! What the sampler has done between two records.

use shared::{
    channel::{FleetStatus, SamplerStatus},
    metrics::{self, MetricRecord},
};

/// The sampler's counters at the last record.
#[derive(Debug, Default)]
pub struct SamplerCounters(SamplerStatus);

impl SamplerCounters {
    /// Adds what the sampler and its workers did since the last record. A process that was started in between has
    /// counted from zero.
    pub fn record(&mut self, now: SamplerStatus, line: &mut MetricRecord) {
        let Self(last) = self;
        let zero = SamplerStatus::default();
        let before = if last.incarnation == now.incarnation { &*last } else { &zero };
        let since = |pick: fn(&SamplerStatus) -> u64| pick(&now).saturating_sub(pick(before)) as f64;
        let busy = since(|s| s.busy_micros) / 1e6;
        line.set(metrics::ROLLOUT_SWAP_S, now.swap_micros as f64 / 1e6);
        line.set(metrics::ROLLOUT_GATE_S, now.gate_micros as f64 / 1e6);
        line.set(metrics::ROLLOUT_SWAP_STALL_S, now.swap_stall_micros as f64 / 1e6);
        let idle = since(|s| s.idle_micros) / 1e6;
        line.set(metrics::ROLLOUT_BUSY_S, busy);
        line.set(metrics::ROLLOUT_IDLE_S, idle);
        line.set(metrics::ROLLOUT_IDLE_SHARE, idle / (busy + idle));
        line.set(metrics::ROLLOUT_TOKENS_PER_S, since(|s| s.generated_tokens) / busy);
        record_fleet(last, &now, line);
        *last = now;
    }
}

/// What the workers are, and what they did since the last record; nothing where there are none.
fn record_fleet(before: &SamplerStatus, now: &SamplerStatus, line: &mut MetricRecord) {
    let Some(fleet) = now.fleet else { return };
    let before = before.fleet.filter(|_| before.incarnation == now.incarnation).unwrap_or_default();
    let since = |pick: fn(&FleetStatus) -> u64| pick(&fleet).saturating_sub(pick(&before));
    line.count(metrics::FLEET_WORKERS, fleet.workers);
    line.count(metrics::FLEET_TOKENS_PER_S, fleet.tokens_per_s);
    line.count(metrics::FLEET_STALENESS_MAX, fleet.staleness);
    line.count(metrics::FLEET_LEASES_EXPIRED, since(|f| f.expired));
    line.count(metrics::FLEET_COMPLETIONS_TWICE, since(|f| f.twice));
    line.count(metrics::FLEET_VERIFIED, since(|f| f.verified));
    line.count(metrics::FLEET_DISPUTED, since(|f| f.disputed));
    line.count(metrics::FLEET_STORED_BYTES, since(|f| f.stored_bytes));
    line.count(metrics::FLEET_FETCHED_BYTES, since(|f| f.fetched_bytes));
    line.set(metrics::FLEET_ALONE_S, since(|f| f.alone_micros) as f64 / 1e6);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_told_by_step_and_a_run_without_workers_has_none() {
        let fleet =
            |expired, workers| FleetStatus { workers, expired, alone_micros: 500_000, ..FleetStatus::default() };
        let status = |incarnation, fleet| SamplerStatus { incarnation, fleet, ..SamplerStatus::default() };
        let mut counters = SamplerCounters::default();
        let mut record = |now: SamplerStatus| {
            let mut line = MetricRecord::default();
            counters.record(now, &mut line);
            line
        };
        let busy = |seconds: u64, status| SamplerStatus { busy_micros: seconds * 1_000_000, ..status };
        let _ = record(busy(2, status(1, Some(fleet(3, 4)))));
        let line = record(busy(5, status(1, Some(fleet(5, 2)))));
        assert_eq!(
            (line.get(metrics::ROLLOUT_BUSY_S), line.get(metrics::FLEET_LEASES_EXPIRED)),
            (Some(3.0), Some(2.0))
        );
        assert_eq!((line.get(metrics::FLEET_WORKERS), line.get(metrics::FLEET_ALONE_S)), (Some(2.0), Some(0.0)));
        // Another process counts from zero.
        let line = record(busy(6, status(2, Some(fleet(7, 2)))));
        assert_eq!(
            (line.get(metrics::ROLLOUT_BUSY_S), line.get(metrics::FLEET_LEASES_EXPIRED)),
            (Some(6.0), Some(7.0))
        );
        assert_eq!(line.get(metrics::FLEET_ALONE_S), Some(0.5));
        assert_eq!(record(status(2, None)).get(metrics::FLEET_LEASES_EXPIRED), None);
    }
}
