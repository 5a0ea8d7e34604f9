//! The rules of a limiter for requests that cannot be granted at once.

use crate::limits::Limits;
use std::sync::Arc;

/// The treatment of a cost above the burst. The bucket never holds that much at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Oversize {
    /// The request is refused at once, with [`AcquireError::AboveBurst`](super::AcquireError::AboveBurst).
    #[default]
    Reject,
    /// The request waits until enough units have been gained, and the waiters behind it wait as well.
    Wait,
}

/// The treatment of a new waiter when the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// The waiter joins the queue anyway, so the bound has no effect.
    #[default]
    Wait,
    /// The waiter is refused at once, with [`AcquireError::Full`](super::AcquireError::Full).
    Fail,
}

/// The fixed settings of a queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// New requests do not wait while others wait; see `Queue::overtakes`.
    pub(crate) unfair: bool,
    /// The treatment of a cost above the burst, if there is one kind of costs.
    pub(crate) oversize: Oversize,
    /// With several kinds of costs: whether each kind is refused above its burst. `None` if there is one kind, for
    /// which `oversize` decides.
    pub(crate) refused: Option<Arc<[bool]>>,
    /// The number of waiters at which another waiter is refused.
    pub(crate) most_waiters: Option<usize>,
    /// The index of the limit whose rate can be changed, if there is one.
    pub(crate) place: Option<usize>,
}

impl Rules {
    /// The largest costs of each kind, see [`most_of`](Self::most_of).
    pub(crate) fn most(&self, limits: &Limits) -> Box<[(u64, u64)]> {
        let kinds = self.refused.as_ref().map_or(1, |refused| refused.len());
        (0..kinds).map(|kind| self.most_of(kind, limits)).collect()
    }

    /// The largest costs of a kind: at one instant, and after any wait. A cost above the first is refused as above the
    /// burst; a cost above the second is refused as never granted.
    pub(crate) fn most_of(&self, kind: usize, limits: &Limits) -> (u64, u64) {
        let is_refused = match &self.refused {
            Some(refused) => refused.get(kind).copied().unwrap_or(false),
            None => self.oversize == Oversize::Reject,
        };
        let (burst, ever) = limits.most(kind);
        (if is_refused { burst } else { u64::MAX }, ever)
    }
}
