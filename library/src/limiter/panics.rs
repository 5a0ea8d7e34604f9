//! Handles panics of wakers and timers, which run foreign code. If one panics, the others must still be woken. A waker
//! belongs to the task that waits: its panic ends here, and not in the call of the task that wakes it. A timer belongs
//! to the limiter: its panic continues in the call that sets it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs a waker, which is code of another task. A panic ends here; the panic hook of the process has already reported
/// it.
pub(crate) fn contained(action: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(action));
}

/// Keeps the first panic of several actions until every action has run.
#[derive(Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    pub(crate) fn hold(&mut self, action: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(action)) {
            self.0.get_or_insert(panic);
        }
    }

    /// Resumes the panic, unless this thread already panics: a second panic would abort the process.
    pub(crate) fn resume(self) {
        if let Some(panic) = self.0.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
        }
    }
}
