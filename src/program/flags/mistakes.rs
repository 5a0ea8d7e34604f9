//! What is said about a command line that makes no sense.

use super::super::exit::Exit;
use super::super::tally::printable_text;
use super::{habits, shared};
use clap::error::{ContextKind, ContextValue};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use throttle::limits::PlanError;
use throttle::store::Address;

/// Prints the mistake, or the help that was asked for, and says how to exit.
pub(super) fn tell(error: &clap::Error, args: &[OsString]) -> Exit {
    let own = &args[..habits::own_words(args)];
    // Where this cannot be printed, there is nobody to tell.
    let _ = match harmless(error, own) {
        Some(text) => std::io::stderr().write_all(text.as_bytes()),
        None => error.print(),
    };
    let once = own.iter().any(|arg| arg == "--once");
    if error.use_stderr() { shared::own_error(once, Exit::Usage) } else { Exit::Success }
}

/// What the error says, where it would repeat what may be a password, or steers a terminal.
fn harmless(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let said = error.render().to_string();
    let mut text = said.clone();
    for word in words.iter().map(|word| word.to_string_lossy()) {
        // As a whole, or what is attached to an option.
        let repeated = word.char_indices().map(|(place, _)| &word[place..]).find(|tail| text.contains(tail));
        if let Some(tail) = repeated {
            text = text.replace(tail, &Address::redacted(tail.as_ref()));
        }
    }
    if std::io::stderr().is_terminal() {
        text = text.split('\n').map(printable_text).collect::<Vec<_>>().join("\n");
    }
    (text != said && error.use_stderr()).then_some(text)
}

/// What is wrong between the options, with their names.
pub(super) fn in_limits(error: &PlanError) -> String {
    match error {
        PlanError::None | PlanError::UnlimitedAlone | PlanError::InitialAboveBurst { .. } => format!("--rate: {error}"),
        PlanError::BytesBesideUnits { .. } => {
            format!("--rate: {error}; run two throttles one after the other for both")
        }
        PlanError::BurstTwice(limit) => {
            format!("--burst: the limit '{limit}' already names its burst; leave one of them out, like -r 5/s -b 10")
        }
        PlanError::BurstOnWindow(limit) => {
            format!(
                "--burst: the fastest limit '{limit},window' is a window, which has no burst; write -r {limit} -b N"
            )
        }
        _ => format!("--burst: {error}"),
    }
}

/// The word that clap did not understand.
pub(super) fn offending_word(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(word) => Some(word),
        _ => None,
    }
}
