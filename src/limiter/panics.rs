//! Wakers and timers are foreign code, and one that panics must not keep the others from being woken.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Holds back the first panic of several actions until all are done.
#[derive(Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    pub(crate) fn hold(&mut self, action: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(action)) {
            self.0.get_or_insert(panic);
        }
    }

    /// Goes on with it, unless this thread is already on its way out: a second one would end the process.
    pub(crate) fn resume(self) {
        if let Some(panic) = self.0.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
        }
    }
}
