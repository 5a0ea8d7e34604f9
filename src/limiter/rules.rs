//! What a limiter does with requests that cannot be granted at once.

/// What happens to a cost above the burst. The bucket never holds that much at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oversize {
    /// It is refused at once.
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
    /// It is refused at once.
    Fail,
}

/// The fixed settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// New requests wait while others wait. If false, see `Queue::overtakes`.
    pub(crate) fair: bool,
    pub(crate) oversize: Oversize,
    /// If this many wait, another waiter is refused.
    pub(crate) most_waiters: Option<usize>,
}
