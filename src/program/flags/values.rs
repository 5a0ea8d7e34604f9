//! How the numbers behind options are read.

use super::{Format, Repeat};

pub(super) fn jobs(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a number of commands, like -j 8, or -j 0 for no cap".to_owned())
}

pub(super) fn max_args(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a number of units, like -n 10".to_owned())
}

pub(super) fn repeat(text: &str) -> Result<Repeat, String> {
    match text {
        "inf" => Ok(Repeat::Endless),
        _ => text
            .parse()
            .map(Repeat::Times)
            .map_err(|_| "write a number, like --repeat 100, or --repeat inf for no end".to_owned()),
    }
}

pub(super) fn format(text: &str) -> Result<Format, String> {
    match text {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err("write --show or --show json".to_owned()),
    }
}
