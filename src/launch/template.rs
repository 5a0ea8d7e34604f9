//! The command template: parsed once, then filled with units, which are bytes and stay as they are.

use super::columns::{Columns, Separator, placeholders};
use super::units::{LONGEST_UNIT, Units, room_for_units, size_of_word};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

mod shells;

use shells::{Language, Script, uses_arguments, uses_name};

/// What is run for each unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    words: Vec<Word>,
    /// Whether the units follow the words.
    append: bool,
    unused: Unused,
    /// How a unit is split into columns, if it is.
    columns: Option<Columns>,
}

/// Which of the units a shell's script gets as arguments and does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// It uses them, or they are no arguments of a script.
    None,
    /// As after `-c "echo $1"`, in which the calling shell has replaced the `$1`.
    All,
    /// It gets several, and uses only `$1`.
    AllButFirst,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// The units, a word each.
    Units,
    /// Pieces of text with the one unit between each two; a single piece is as it was written.
    Pieces(Vec<OsString>),
    /// The columns of the one unit, a word each.
    Columns,
    /// A word with columns in it.
    Parts(Vec<Part>),
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Pieces of text with the unit between each two.
    Pieces(Vec<OsString>),
    /// The column with this number, from 1.
    Column(usize),
}

/// The last column that a command can have in the middle of its words.
const LAST_COLUMN: usize = 99;

/// Where a command gets its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the place of `{}`, or after the words.
    Arguments,
    /// To the command's standard input.
    StandardInput,
    /// In the place of `{}` only.
    Nowhere,
}

/// How a template is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The placeholder for the unit, if it is not `{}`.
    pub replace: Option<OsString>,
    /// Units for each command.
    pub max_args: u64,
    /// Where a command gets its units.
    pub place: Place,
    /// What separates the columns of a unit, if a command gets them.
    pub columns: Option<Separator>,
}

/// GNU parallel's forms, and how a shell says the same of `"$1"`.
const PARALLEL_FORMS: [(&str, &str); 5] = [
    ("{.}", "… \"${1%.*}\""),
    ("{/}", "… \"${1##*/}\""),
    ("{//}", "… \"$(dirname \"$1\")\""),
    ("{#}", "… \"$THROTTLE_SEQ\""),
    ("{%}", "… \"$THROTTLE_SLOT\""),
];

impl Template {
    /// Reads the words of a command.
    ///
    /// # Errors
    /// If the words would not do what the user means; the message says what to write instead.
    pub fn new(words: &[OsString], reading: &Reading) -> Result<Self, String> {
        if words.is_empty() {
            return Err("the command is missing".to_owned());
        }
        let replace = reading.replace.as_deref().unwrap_or(OsStr::new("{}"));
        if replace.is_empty() {
            return Err("-I: the placeholder is empty; write -I {}".to_owned());
        }
        if reading.replace.is_none() {
            refuse_parallel_forms(words, reading)?;
            refuse_unit_as_code(words, reading)?;
        }
        let columns = columns(words, reading)?;
        let unused = unused_units(&with_units(words, replace, reading), replace, reading)?;
        let has_columns = columns.is_some();
        let words: Vec<Word> = words.iter().map(|word| Word::new(word, replace, has_columns)).collect();
        let around = words.iter().find_map(|word| match word {
            Word::Pieces(pieces) if pieces.len() > 1 => {
                Some(pieces.join(OsStr::new("{}")).to_string_lossy().into_owned())
            }
            _ => None,
        });
        let has_parts = words.iter().any(|word| matches!(word, Word::Parts(_)));
        let replaces = around.is_some() || has_parts || words.contains(&Word::Units);
        let append = !replaces && reading.place == Place::Arguments && reading.max_args > 0;
        let nothing_to_replace =
            |flag| Err(format!("{{}} beside {flag}: no unit goes into the arguments; leave one of them out"));
        match (around, reading.place, reading.max_args) {
            (_, Place::StandardInput, _) if replaces => nothing_to_replace("--stdin"),
            (_, _, 0) if replaces => nothing_to_replace("-n 0"),
            (Some(word), _, max_args @ 2..) => Err(format!(
                "'{word}': {{}} inside a word with -n {max_args}; a word that is just {{}} becomes {max_args} words, or \
                 write -n 1"
            )),
            _ if append && reading.replace.is_some() => {
                let marker = quoted_text(&replace.to_string_lossy());
                Err(format!(
                    "-I {marker}: the command has no {marker} for the unit, and xargs would run it without the unit; write \
                     {marker} where the unit goes, or -n 0 for no unit, or leave -I out to append the unit"
                ))
            }
            _ => Ok(Template { words, append, unused, columns }),
        }
    }

    /// These words, whatever is in them; no unit goes into them.
    pub fn plain(words: Vec<OsString>) -> Self {
        let words = words.into_iter().map(|word| Word::Pieces(vec![word])).collect();
        Template { words, append: false, unused: Unused::None, columns: None }
    }

    /// `sh -c SCRIPT 'throttle -c' UNIT…`: the unit is `"$1"`, and the shell's own messages begin as ours do.
    ///
    /// # Errors
    /// If a `{}` in it was meant as the unit.
    pub fn shell(script: &OsStr, reading: &Reading) -> Result<Self, String> {
        let text = script.to_string_lossy();
        let has_unit = reading.place != Place::StandardInput && reading.max_args > 0;
        if has_unit && has_unit_in(&text, reading) && !uses_arguments(&text) {
            let spelling = quoted_text(&with_argument(&text, reading));
            return Err(format!(
                "{{}} stays as it is in a script, where the unit is \"$1\"; write -c {spelling} (a script that uses \"$1\" \
                 may have a {{}} of its own)"
            ));
        }
        let words = [OsStr::new("sh"), OsStr::new("-c"), script, OsStr::new("throttle -c")];
        let words = words.map(|word| Word::Pieces(vec![word.to_owned()])).to_vec();
        let is_given = reading.place == Place::Arguments && reading.max_args > 0;
        let unused = if is_given { unused_in(&text, reading.max_args) } else { Unused::None };
        let columns = reading.columns.clone().map(|separator| Columns { separator, most: 0 });
        Ok(Template { words, append: has_unit, unused, columns })
    }

    /// Which units the command's script does not use.
    pub fn unused_units(&self) -> Unused {
        self.unused
    }

    /// Whether the unit is among the words that ssh(1) has a shell read on another machine: it is last, and not the host.
    pub fn gives_unit_to_ssh(&self) -> bool {
        let is = |word: &Word, test: fn(&OsStr) -> bool| matches!(word, Word::Pieces(pieces) if pieces.len() == 1 && test(&pieces[0]));
        let is_wrapped = self.words.first().is_some_and(|first| is(first, shells::is_wrapper));
        let place =
            self.words.iter().position(|word| is(word, shells::is_ssh)).filter(|place| is_wrapped || *place == 0);
        let is_last = self.words.last().is_some_and(|last| !is(last, |_| true));
        place.is_some_and(|place| self.append || (is_last && self.words.len() > place + 2))
    }

    /// The command's name, if it does not depend on the unit.
    pub fn name(&self) -> Option<&OsStr> {
        match self.words.first() {
            Some(Word::Pieces(pieces)) if pieces.len() == 1 => Some(&pieces[0]),
            _ => None,
        }
    }

    /// The words of the command for `units`, each made when it is asked for: together they may be large.
    pub fn fill<'a>(&'a self, units: &'a Units) -> impl Iterator<Item = Cow<'a, OsStr>> {
        let appended = self.append.then_some(if self.columns.is_some() { &Word::Columns } else { &Word::Units });
        self.words.iter().chain(appended).flat_map(|word| word.fill(units, self.columns.as_ref()))
    }

    /// How a unit is split into columns, if it is.
    pub(super) fn columns(&self) -> Option<&Columns> {
        self.columns.as_ref()
    }

    /// Whether the system takes these words as arguments, for which it has `room` in all.
    pub fn fits(&self, units: &Units, mut room: usize) -> bool {
        self.fill(units).all(|word| {
            let size = size_of_word(word.len());
            let fits = word.len() <= LONGEST_UNIT && size <= room;
            room = room.saturating_sub(size);
            fits
        })
    }

    /// What the units of one command may take, each with its end and the pointer to it, if they appear once.
    pub(super) fn room_for_units(&self) -> usize {
        let (mut fixed, mut copies) = (0, usize::from(self.append));
        for word in &self.words {
            let pieces = if let Word::Pieces(pieces) = word { &pieces[..] } else { &[] };
            fixed += pieces.iter().map(|piece| size_of_word(piece.len())).sum::<usize>();
            // Once in a word of their own, and between each two pieces.
            copies += pieces.len().abs_diff(1);
        }
        room_for_units(fixed) / copies.max(1)
    }
}

impl Word {
    fn fill<'a>(
        &'a self,
        units: &'a Units,
        columns: Option<&Columns>,
    ) -> impl Iterator<Item = Cow<'a, OsStr>> + use<'a> {
        let unit = units.first().unwrap_or_default();
        let split = || columns.map_or_else(Vec::new, |columns| columns.split(unit));
        let (one, columns) = match self {
            Word::Pieces(pieces) => (Some(pieces.join(OsStr::from_bytes(unit)).into()), Vec::new()),
            Word::Parts(parts) => (Some(joined(parts, unit, &split()).into()), Vec::new()),
            Word::Columns => (None, split()),
            Word::Units => (None, Vec::new()),
        };
        let columns = columns.into_iter().map(|column| match column {
            Cow::Borrowed(column) => Cow::Borrowed(OsStr::from_bytes(column)),
            Cow::Owned(column) => Cow::Owned(OsString::from_vec(column)),
        });
        let all = (*self == Word::Units).then(|| units.iter().map(|unit| Cow::Borrowed(OsStr::from_bytes(unit))));
        one.into_iter().chain(columns).chain(all.into_iter().flatten())
    }

    fn new(word: &OsStr, replace: &OsStr, has_columns: bool) -> Self {
        let text = word.as_bytes();
        let places = if has_columns { placeholders(text) } else { Vec::new() };
        if !places.is_empty() {
            return Word::parts(text, replace, places);
        }
        let pieces = split(word.as_bytes(), replace.as_bytes());
        match &pieces[..] {
            [before, after] if before.is_empty() && after.is_empty() => Word::Units,
            _ => Word::Pieces(pieces),
        }
    }

    /// A word with columns at these places, and perhaps units between them.
    fn parts(text: &[u8], replace: &OsStr, places: Vec<(Range<usize>, usize)>) -> Self {
        let (mut parts, mut start) = (Vec::new(), 0);
        for (place, number) in places {
            parts.push(Part::Pieces(split(&text[start..place.start], replace.as_bytes())));
            parts.push(Part::Column(number));
            start = place.end;
        }
        parts.push(Part::Pieces(split(&text[start..], replace.as_bytes())));
        Word::Parts(parts)
    }
}

/// A word made of `parts`, of which a unit with too few columns has empty ones.
fn joined(parts: &[Part], unit: &[u8], columns: &[Cow<'_, [u8]>]) -> OsString {
    let texts = parts.iter().map(|part| match part {
        Part::Pieces(pieces) => Cow::Owned(pieces.join(OsStr::from_bytes(unit)).into_vec()),
        Part::Column(number) => columns.get(number - 1).map_or(Cow::Borrowed(&[][..]), |column| Cow::Borrowed(column)),
    });
    OsString::from_vec(texts.collect::<Vec<_>>().concat())
}

/// The pieces of `text` between the occurrences of `marker`.
fn split(text: &[u8], marker: &[u8]) -> Vec<OsString> {
    let mut places: Vec<usize> = memchr::memmem::find_iter(text, marker).collect();
    places.push(text.len());
    let mut start = 0;
    let pieces = places.into_iter().map(|end| {
        let piece = OsString::from_vec(text[start..end].to_vec());
        start = end + marker.len();
        piece
    });
    pieces.collect()
}

fn refuse_parallel_forms(words: &[OsString], reading: &Reading) -> Result<(), String> {
    // In a longer word {1} may be part of a regular expression.
    let is_column = |word: &&OsString| {
        let text = word.as_bytes();
        matches!(&placeholders(text)[..], [(place, 1..)] if place.len() == text.len())
    };
    if let Some(column) = words.iter().find(is_column).filter(|_| reading.columns.is_none()) {
        let column = column.display();
        return Err(format!(
            "{column} is a column of the unit; write --columns to split units at blanks, or --columns=, at commas, \
             like --columns COMMAND {column}"
        ));
    }
    let is_in_a_word =
        |form: &str| words.iter().any(|word| memchr::memmem::find(word.as_bytes(), form.as_bytes()).is_some());
    match PARALLEL_FORMS.into_iter().find(|(form, _)| is_in_a_word(form)) {
        Some((form, spelling)) => Err(format!("{form} is GNU parallel's; here the shell says it: -c '{spelling}'")),
        None => Ok(()),
    }
}

/// How the unit is split into the columns that `words` name, if it is.
///
/// # Errors
/// A number that no column has.
fn columns(words: &[OsString], reading: &Reading) -> Result<Option<Columns>, String> {
    let Some(separator) = reading.columns.clone() else { return Ok(None) };
    let mut columns = Columns { separator, most: 0 };
    for word in words {
        for (place, number) in placeholders(word.as_bytes()) {
            if !(1..=LAST_COLUMN).contains(&number) {
                let column = String::from_utf8_lossy(&word.as_bytes()[place]);
                return Err(format!("{column}: columns are {{1}} to {{{LAST_COLUMN}}}; {{}} is the whole unit"));
            }
            columns.most = columns.most.max(number);
        }
    }
    Ok(Some(columns))
}

/// `words` with `marker` in the place of each column.
fn with_units<'a>(words: &'a [OsString], marker: &OsStr, reading: &Reading) -> Cow<'a, [OsString]> {
    if reading.columns.is_none() {
        return words.into();
    }
    words
        .iter()
        .map(|word| OsString::from_vec(without_columns(word.as_bytes(), |_| marker.as_bytes().to_vec())))
        .collect()
}

/// `text` with what `instead` returns for the number of each column in its place.
fn without_columns(text: &[u8], instead: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let (mut replaced, mut start) = (Vec::new(), 0);
    for (place, number) in placeholders(text) {
        replaced.extend_from_slice(&text[start..place.start]);
        replaced.extend(instead(number));
        start = place.end;
    }
    [&replaced, &text[start..]].concat()
}

/// Whether a script has the unit or a column in it.
fn has_unit_in(script: &str, reading: &Reading) -> bool {
    script.contains("{}") || reading.columns.is_some() && !placeholders(script.as_bytes()).is_empty()
}

/// `sh -c 'rm {}'` with a unit of `; rm -r /` is the classic accident.
fn refuse_unit_as_code(words: &[OsString], reading: &Reading) -> Result<(), String> {
    let replaced = with_units(words, OsStr::new("{}"), reading);
    if let Some((option, Language { instead: [spelling, argument], .. })) = shells::code_with_unit(&replaced) {
        return Err(format!(
            "{{}} in the code of '{option}' would run the unit as code; write {spelling} {{}}, where the unit is {argument} \
             (or -I {{}} if it is meant)"
        ));
    }
    let Some(Script { text, shell, is_wrapped, .. }) = Script::in_words(words) else { return Ok(()) };
    let text = text.to_string_lossy();
    if !has_unit_in(&text, reading) {
        return Ok(());
    }
    let fixed = quoted_text(&with_argument(&text, reading));
    // Our own -c would leave out the command that starts the shell.
    let arguments = if reading.columns.is_some() { "{1} {2}" } else { "{}" };
    let spelling =
        if is_wrapped { format!("… {shell} -c {fixed} {shell} {arguments}") } else { format!("-c {fixed}") };
    Err(format!(
        "{{}} in the script of '{shell} -c' would run the unit as code; write {spelling}, where the unit is \"$1\" \
         (or -I {{}} if it is meant)"
    ))
}

/// A script with `"$1"` in place of `{}`, or with `"$@"` if there are several units or columns, and `"$2"` in place of `{2}`.
fn with_argument(script: &str, reading: &Reading) -> String {
    let has_several = reading.max_args > 1 || reading.columns.is_some();
    let argument = if has_several { "\"$@\"" } else { "\"$1\"" };
    let column = |number: usize| format!("\"${{{number}}}\"").into_bytes();
    let script = match &reading.columns {
        Some(_) => String::from_utf8_lossy(&without_columns(script.as_bytes(), column)).into_owned(),
        None => script.to_owned(),
    };
    script.replace("'{}'", "{}").replace("\"{}\"", "{}").replace("{}", argument)
}

fn quoted_text(text: &str) -> String {
    String::from_utf8_lossy(&quote(text.as_bytes(), false)).into_owned()
}

/// Which units a shell's script gets as arguments and does not use.
///
/// # Errors
/// If it uses its arguments, but the unit is not one of them.
fn unused_units(words: &[OsString], marker: &OsStr, reading: &Reading) -> Result<Unused, String> {
    let Some(Script { text, shell, arguments, .. }) = Script::in_words(words) else { return Ok(Unused::None) };
    let has_marker = |word: &OsString| memchr::memmem::find(word.as_bytes(), marker.as_bytes()).is_some();
    let is_appended = !words.iter().any(has_marker) && reading.place == Place::Arguments && reading.max_args > 0;
    let place = if is_appended { Some(arguments.len()) } else { arguments.iter().position(has_marker) };
    let text = text.to_string_lossy();
    match place {
        None => Ok(Unused::None),
        Some(0) if uses_name(&text) => Ok(Unused::None),
        Some(0) if uses_arguments(&text) => {
            let (script, marker) = (quoted_text(&text), marker.to_string_lossy());
            Err(format!(
                "the unit would be $0 of the script, not $1: the first word after it is its name; write \
                 {shell} -c {script} {shell} {marker}"
            ))
        }
        Some(_) => Ok(unused_in(&text, reading.max_args)),
    }
}

/// Variables that differ from unit to unit.
const OF_UNIT: [&str; 4] = ["THROTTLE_SEQ", "THROTTLE_SLOT", "THROTTLE_ID", "THROTTLE_KEY"];

/// The number, the slot, the identity and the key of a unit count as uses, too.
fn unused_in(script: &str, max_args: u64) -> Unused {
    let uses_others = || uses_arguments(&script.replace("$1", "").replace("${1", "${_"));
    match uses_arguments(script) {
        true if max_args > 1 && !uses_others() => Unused::AllButFirst,
        false if !uses_name(script) && !OF_UNIT.iter().any(|name| script.contains(name)) => Unused::All,
        _ => Unused::None,
    }
}

/// A command as one would type it.
///
/// NUL bytes, which no argument can hold, are left out. A terminal would obey control characters: for one they are written as
/// `$'\033'`, which bash, zsh, ksh, busybox and POSIX (since 2024) read.
pub fn quoted<'a>(words: impl Iterator<Item = Cow<'a, OsStr>>, for_terminal: bool) -> Vec<u8> {
    let words: Vec<Vec<u8>> = words.map(|word| quote(word.as_bytes(), for_terminal)).collect();
    words.join(&b' ')
}

/// One word as one would type it.
pub fn quote(word: &[u8], for_terminal: bool) -> Vec<u8> {
    let is_shown = || std::str::from_utf8(word).is_ok_and(|text| !text.contains(steers_terminal));
    if for_terminal && !is_shown() {
        return escaped(word);
    }
    let quoter = shlex::bytes::Quoter::new().allow_nul(true);
    quoter.quote(word).map(Cow::into_owned).unwrap_or_default()
}

/// Whether a terminal does not show this character but obeys it: a control character, or one that turns the direction of
/// what is around it (Unicode's `Bidi_Control`).
pub fn steers_terminal(c: char) -> bool {
    let turns = ['\u{61c}', '\u{200e}', '\u{200f}'].contains(&c)
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c);
    c.is_control() || turns
}

/// `text` with the characters escaped that a terminal would obey.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| if steers_terminal(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

fn escaped(word: &[u8]) -> Vec<u8> {
    let mut text = b"$'".to_vec();
    for piece in word.utf8_chunks() {
        piece.valid().chars().for_each(|c| push_escaped(&mut text, c));
        push_octal(&mut text, piece.invalid());
    }
    text.push(b'\'');
    text
}

fn push_escaped(text: &mut Vec<u8>, c: char) {
    let mut buffer = [0; 4];
    let bytes = c.encode_utf8(&mut buffer).as_bytes();
    match c {
        '\n' => text.extend(b"\\n"),
        '\t' => text.extend(b"\\t"),
        '\'' | '\\' => text.extend([b'\\', bytes[0]]),
        c if steers_terminal(c) => push_octal(text, bytes),
        _ => text.extend(bytes),
    }
}

/// Always three digits: a digit that follows is not one of them.
fn push_octal(text: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        text.extend([b'\\', b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)]);
    }
}

#[cfg(test)]
mod tests;
