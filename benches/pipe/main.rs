//! What a pipe through `throttle` costs and how exact it is, compared with other tools, in one table:
//!
//!     cargo bench --bench pipe                   # the table, and benches/arrivals.svg anew
//!     cargo bench --bench pipe -- --quick        # less input, fewer rounds; the picture is left alone
//!     cargo bench --bench pipe -- speed memory   # only these parts
//!     cargo bench --profile dist --bench pipe    # the program as it is packaged: smaller, see Cargo.toml
//!
//! Every tool gets its input from the same producer and writes to the same reader: plain read(2) and write(2) of 128
//! KiB. The tools take turns in rounds, and the first round is not counted; the table shows medians.

#![allow(clippy::cast_precision_loss, reason = "measurements")]

use anyhow::{Result, bail};

mod arrivals;
mod flow;
mod parts;
mod picture;
mod table;
mod tool;

use table::Table;

/// How much is measured.
struct Size {
    bytes: u64,
    lines: u64,
    rounds: usize,
    seconds: u64,
    starts: usize,
}

const FULL: Size = Size { bytes: 2 << 30, lines: 6_000_000, rounds: 9, seconds: 5, starts: 300 };
const QUICK: Size = Size { bytes: 256 << 20, lines: 1_000_000, rounds: 3, seconds: 1, starts: 50 };

type Part = fn(&Size, &mut Table) -> Result<()>;

const PARTS: [(&str, Part); 6] = [
    ("speed", parts::speed),
    ("cpu", parts::cpu),
    ("exact", parts::exact),
    ("late", parts::late),
    ("start", parts::start),
    ("memory", parts::memory),
];

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let (options, names): (Vec<_>, Vec<_>) = words.iter().map(String::as_str).partition(|word| word.starts_with('-'));
    let known = |name: &&str| *name == "picture" || PARTS.iter().any(|(part, _)| part == name);
    if options.iter().any(|option| *option != "--quick") || !names.iter().all(known) {
        bail!("usage: cargo bench --bench pipe -- [--quick] [speed|cpu|exact|late|start|memory|picture]…");
    }
    let quick = !options.is_empty();
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    let mut table = Table::default();
    for (_, part) in PARTS.iter().filter(|(name, _)| wanted(name)) {
        part(if quick { &QUICK } else { &FULL }, &mut table)?;
    }
    print!("{}\n{table}", table::machine()?);
    if wanted("picture") && !quick {
        picture::draw()?;
    }
    Ok(())
}
