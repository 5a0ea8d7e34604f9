//! What a limiter does with requests that cannot be granted at once.

use crate::limits::Limits;
use std::sync::Arc;

/// What happens to a cost above the burst. The bucket never holds that much at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oversize {
    /// It is refused at once, with [`AcquireError::AboveBurst`](super::AcquireError::AboveBurst).
    #[default]
    Reject,
    /// It waits until enough has come in, and the waiters behind it wait as well.
    Wait,
}

/// What happens to a new waiter when the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// It joins the queue all the same, so the bound has no effect.
    #[default]
    Wait,
    /// It is refused at once, with [`AcquireError::Full`](super::AcquireError::Full).
    Fail,
}

/// The fixed settings of a queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// New requests do not wait while others wait; see `Queue::overtakes`.
    pub(crate) unfair: bool,
    /// What happens if a cost of some kind is above its burst.
    pub(crate) oversize: Oversize,
    /// The kinds of costs that are refused above their bursts, of several. If there is one kind, `oversize` says it.
    pub(crate) refused: Option<Arc<[bool]>>,
    /// If this many wait, another waiter is refused.
    pub(crate) most_waiters: Option<usize>,
    /// The index of the limit whose rate can be changed, if there is one.
    pub(crate) place: Option<usize>,
}

impl Rules {
    /// The most of each kind of cost that a request may ask for: more is refused as above the burst, or as never granted.
    pub(crate) fn most(&self, limits: &Limits) -> Box<[(u64, u64)]> {
        let is_refused = |kind: usize| match &self.refused {
            Some(refused) => refused.get(kind).copied().unwrap_or(false),
            None => self.oversize == Oversize::Reject,
        };
        let most = |kind| {
            let (burst, ever) = limits.most(kind);
            (if is_refused(kind) { burst } else { u64::MAX }, ever)
        };
        (0..self.refused.as_ref().map_or(1, |refused| refused.len())).map(most).collect()
    }
}
