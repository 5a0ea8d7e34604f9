use super::*;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

fn sleeper() -> (Child, Target) {
    let child = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
    let target = Target::Group(Pid::from_child(&child));
    (child, target)
}

/// Takes a slot for this job.
fn take(slots: &Slots, seq: u64) -> u32 {
    slots.take(|| Some((seq, ()))).unwrap().0
}

/// Waits until another thread has stopped the process. Returns whether that happened.
fn is_stopped(target: Target) -> bool {
    let status = waitid(WaitId::Pid(target.pid()), WaitIdOptions::STOPPED | WaitIdOptions::EXITED).unwrap();
    status.is_some_and(|status| status.stopped())
}

/// Whether another thread has resumed the process.
fn has_gone_on(target: Target) -> bool {
    let options = WaitIdOptions::CONTINUED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    waitid(WaitId::Pid(target.pid()), options).unwrap().is_some_and(|status| status.continued())
}

#[test]
fn a_suspend_stops_commands_that_start() {
    let slots = Slots::new(0, 9);
    assert_eq!((take(&slots, 1), take(&slots, 2)), (0, 1));
    let ((mut running, first), (mut starting, second)) = (sleeper(), sleeper());
    slots.started(1, first);
    thread::scope(|scope| {
        let suspending = scope.spawn(|| {
            slots.suspend();
            slots.lock().starting
        });
        assert!(is_stopped(first));
        slots.started(2, second);
        assert!(is_stopped(second));
        assert_eq!(suspending.join().unwrap(), 0, "it has waited for the starting command");
        let next = scope.spawn(|| take(&slots, 3));
        thread::sleep(Duration::from_millis(50));
        assert!(!next.is_finished());
        slots.resume();
        assert_eq!(next.join().unwrap(), 2);
    });
    for child in [&mut running, &mut starting] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A call of `--once` lost USR1 if it came between the start of its command and the record of it.
#[test]
fn a_signal_that_comes_during_a_start_reaches_the_command() {
    let slots = Slots::new(0, 9);
    let ((mut starting, target), (mut next, other)) = (sleeper(), sleeper());
    take(&slots, 1);
    slots.pass_on(Signal::USR1);
    slots.started(1, target);
    take(&slots, 2);
    slots.started(2, other);
    let ended = std::os::unix::process::ExitStatusExt::signal(&starting.wait().unwrap());
    assert_eq!(ended, Some(Signal::USR1.as_raw()));
    assert!(next.try_wait().unwrap().is_none(), "a later command gets nothing");
    next.kill().unwrap();
    next.wait().unwrap();
}

/// The next attempt of a job may start at the same moment.
#[test]
fn a_job_that_is_released_may_take_a_slot_again() {
    let slots = Slots::new(2, 9);
    let (mut child, target) = sleeper();
    thread::scope(|scope| {
        let mut again = None;
        let slot = take(&slots, 1);
        slots.started(1, target);
        slots.release(1, slot, || again = Some(scope.spawn(|| take(&slots, 1))));
        assert_eq!(again.unwrap().join().unwrap(), slot, "only after the slot is free");
    });
    assert_eq!((slots.count(), slots.lock().starting), (1, 1));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The output of a command may wait for a reader long after the end of the command.
#[test]
fn a_process_with_the_number_of_a_reaped_one_gets_no_signal() {
    let slots = Slots::new(0, 9);
    let (mut stranger, target) = sleeper();
    take(&slots, 1);
    slots.started(1, target);
    slots.suspend();
    assert!(is_stopped(target));
    let rest = slots.waited_for(1, target);
    slots.resume();
    slots.end_with(Signal::KILL);
    thread::sleep(Duration::from_millis(50));
    assert!(!rest.survives() && stranger.try_wait().unwrap().is_none() && !has_gone_on(target));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn what_a_command_that_was_waited_for_has_left_gets_signals() {
    let slots = Slots::new(0, 9);
    let mut command = Command::new("sh");
    let mut leader = command.args(["-c", "sleep 100 &"]).process_group(0).spawn().unwrap();
    let target = Target::Group(Pid::from_child(&leader));
    take(&slots, 1);
    slots.started(1, target);
    leader.wait().unwrap();
    let rest = slots.waited_for(1, target);
    assert!(rest.survives());
    slots.end_with(Signal::KILL);
    let begun = Instant::now();
    while rest.survives() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it still runs");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn processes_of_a_command_that_ended_stopped_are_resumed() {
    let slots = Slots::new(0, 9);
    let slot = take(&slots, 1);
    let (mut child, target) = sleeper();
    slots.started(1, target);
    slots.suspend();
    assert!(is_stopped(target));
    slots.release(1, slot, || ());
    let ran = slots.ran();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(slots.ran(), ran, "no time goes by");
    slots.resume();
    assert!(has_gone_on(target));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Each took a part of what would have been enough for one.
#[test]
fn starts_without_room_try_again_one_at_a_time() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_time().build().unwrap();
    let (slots, within) = (Arc::new(Slots::new(0, 9)), Arc::new(AtomicU32::new(0)));
    let starts = (0..4).map(|_| {
        let (slots, within) = (Arc::clone(&slots), Arc::clone(&within));
        runtime.spawn(async move {
            let mut tries = 0;
            let start = || {
                tries += 1;
                let others = within.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(5));
                within.fetch_sub(1, Ordering::SeqCst);
                if tries == 1 || others > 0 { Err(rustix::io::Errno::MFILE.into()) } else { Ok(()) }
            };
            slots.once_there_is_room(start, |_| ()).await.unwrap();
            tries
        })
    });
    let starts: Vec<_> = starts.collect();
    let tries: Vec<u32> = starts.into_iter().map(|start| runtime.block_on(start).unwrap()).collect();
    assert_eq!(tries, [2; 4]);
}
