//! The time by which the system may end a sleep late.

use std::num::NonZeroU64;

/// Runs `act` with the default timer slack of this thread, so that a process started in it does not inherit the
/// sharpened slack.
pub fn with_usual_slack<T>(act: impl FnOnce() -> T) -> T {
    set_slack(None);
    let result = act();
    sharpen_this_thread();
    result
}

/// Makes this thread's sleeps end within a few microseconds of their time, instead of the usual fifty.
///
/// Linux may delay a timer by the thread's slack, 50 µs by default, to wake less often (`PR_SET_TIMERSLACK` in
/// prctl(2)). A child started by this thread would inherit the slack: see [`with_usual_slack`]. Does nothing on systems
/// without this setting.
pub fn sharpen_this_thread() {
    set_slack(NonZeroU64::new(1));
}

/// `None` restores the thread's default. Some sandboxes refuse this; then sleeps end 50 µs late, which breaks no
/// guarantee.
fn set_slack(nanos: Option<NonZeroU64>) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = rustix::thread::set_current_timer_slack(nanos);
    let _ = nanos;
}
