//! Events, in a process of their own: whether somebody wants an event is kept for the whole process, and if a thread
//! without a subscriber is the first to come by, nobody does.
#![cfg(feature = "tracing")]

use futures_util::FutureExt;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use throttle_limits::{Limiter, Semaphore};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps all events as text, and looks at a limiter while it does: no lock is held.
struct Keep(Arc<Mutex<String>>, Limiter);

impl Visit for Keep {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?};").unwrap();
    }
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "throttle_limits"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        assert_eq!(self.1.available(), 0);
        event.record(&mut Keep(Arc::clone(&self.0), self.1.clone()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn only_waits_and_refusals_are_events() {
    let (limiter, events) = (Limiter::new(1, 1).unwrap(), Arc::default());
    let _guard = tracing::subscriber::set_default(Keep(Arc::clone(&events), limiter.clone()));
    let all = |events: &Mutex<String>| std::mem::take(&mut *events.lock().unwrap());
    limiter.acquire(1).await.unwrap();
    assert_eq!(all(&events), "");
    limiter.acquire(1).await.unwrap();
    assert_eq!(all(&events), "message=a wait begins;message=a wait ends;");
    let _ = limiter.try_acquire(1);
    assert_eq!(all(&events), "message=refused;error=1 would have to wait 1s, which is longer than allowed;");
    let mut waits = Box::pin(limiter.acquire(1));
    assert!((&mut waits).now_or_never().is_none());
    drop(waits);
    assert_eq!(all(&events), "message=a wait begins;message=a wait ends;");
    let places = Semaphore::new(0, 1).unwrap();
    assert!(places.try_acquire().is_err());
    assert_eq!(all(&events), "message=refused;error=not enough places are free; acquire to wait for them;");
}
