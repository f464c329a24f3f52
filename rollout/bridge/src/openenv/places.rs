//! The places of a server, which are learnt from its refusals.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

/// How often an episode that waits says so, and tries again where others may have left a place.
const AGAIN: Duration = Duration::from_secs(1);

/// The places of a server: as many as are wanted, until it refuses one.
#[derive(Debug, Default)]
pub struct Places {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// The number of places; none as long as the server has refused nobody.
    limit: Option<usize>,
}

/// A place. Dropping it gives it back.
#[derive(Debug)]
pub struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.state().taken -= 1;
        self.0.freed.notify_one();
    }
}

impl Places {
    /// Takes a place as soon as there is one, and calls `waiting` every second until then.
    pub async fn take(self: &Arc<Self>, waiting: &(dyn Fn() + Send + Sync)) -> Place {
        loop {
            {
                let mut state = self.state();
                if state.limit.is_none_or(|limit| state.taken < limit) {
                    state.taken += 1;
                    return Place(Arc::clone(self));
                }
            }
            waiting();
            let _ = timeout(AGAIN, self.freed.notified()).await;
        }
    }

    /// The server has refused the place that was taken last, and has so many in all, where it said so. Others may have
    /// taken some.
    pub async fn refused(&self, all: Option<usize>, waiting: &(dyn Fn() + Send + Sync)) {
        {
            let mut state = self.state();
            let known = all.unwrap_or(state.taken.saturating_sub(1)).max(1);
            state.limit = Some(state.limit.map_or(known, |limit| limit.min(known)));
        }
        waiting();
        tokio::time::sleep(AGAIN).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_refusal_teaches_how_many_places_there_are() {
        let (places, waits) = (Arc::new(Places::default()), Arc::new(AtomicUsize::new(0)));
        let waiting: Arc<dyn Fn() + Send + Sync> = {
            let waits = Arc::clone(&waits);
            Arc::new(move || {
                waits.fetch_add(1, Ordering::Relaxed);
            })
        };
        let (first, second) = (places.take(&*waiting).await, places.take(&*waiting).await);
        places.refused(None, &*waiting).await;
        drop(second);
        let asked = tokio::spawn({
            let (places, waiting) = (Arc::clone(&places), Arc::clone(&waiting));
            async move { places.take(&*waiting).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!asked.is_finished() && waits.load(Ordering::Relaxed) >= 2);
        drop(first);
        let third = asked.await.unwrap();
        places.refused(Some(4), &*waiting).await;
        drop(third);
        let _held = places.take(&*waiting).await;
        let more = timeout(Duration::from_millis(50), places.take(&*waiting)).await;
        assert!(more.is_err(), "the smallest number counts");
    }
}
