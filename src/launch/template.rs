//! The command template. It is parsed once and then filled with units, which are bytes and stay unchanged.

use super::columns::{Columns, Separator, placeholders};
use super::units::{LONGEST_UNIT, Units, room_for_units, size_of_word};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

mod shells;

use shells::{Language, Script, uses_arguments, uses_name};

/// The command for each unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    words: Vec<Word>,
    /// Whether the units follow the words.
    append: bool,
    unused: Unused,
    /// How a unit is split into columns; `None`: it is not split.
    columns: Option<Columns>,
}

/// The units that a shell's script gets as arguments and does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// None: the script uses them, or they are not arguments of a script.
    None,
    /// All units.
    All,
    /// All units, and the script has a gap where the calling shell has probably replaced a `$1` by nothing. An example
    /// is `-c "echo $1"`.
    Lost,
    /// All but the first: the script gets several units and uses only `$1`.
    AllButFirst,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// The units, one word each.
    Units,
    /// The columns of the unit, one word each.
    Columns,
    /// One word. Without a placeholder, it is a single text.
    Parts(Vec<Part>),
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(OsString),
    Unit,
    /// The column with this number, from 1.
    Column(usize),
}

/// The highest column number that a placeholder may have.
const MAX_COLUMN: usize = 99;

/// Where a command gets its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In place of `{}`, or after the words.
    Arguments,
    /// On the command's standard input.
    StandardInput,
    /// In place of `{}` only.
    Nowhere,
}

/// The options for parsing a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The placeholder for the unit, if it is not `{}`.
    pub replace: Option<OsString>,
    /// Units for each command.
    pub max_args: u64,
    /// Where a command gets its units.
    pub place: Place,
    /// The separator of a unit's columns, if the command gets columns.
    pub columns: Option<Separator>,
}

/// GNU parallel's placeholders, and the shell code for each with the unit in `"$1"`.
const PARALLEL_FORMS: [(&str, &str); 5] = [
    ("{.}", "… \"${1%.*}\""),
    ("{/}", "… \"${1##*/}\""),
    ("{//}", "… \"$(dirname \"$1\")\""),
    ("{#}", "… \"$THROTTLE_SEQ\""),
    ("{%}", "… \"$THROTTLE_SLOT\""),
];

impl Template {
    /// Parses the words of a command.
    ///
    /// # Errors
    /// The words would not do what the user means. The message shows what to write instead.
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
        let replaces = words.iter().any(|word| word.text().is_none());
        let around = words.iter().find_map(|word| match word {
            Word::Parts(parts) if parts.contains(&Part::Unit) => {
                Some(joined(parts, b"{}", &[]).to_string_lossy().into_owned())
            }
            _ => None,
        });
        let append = !replaces && reading.place == Place::Arguments && reading.max_args > 0;
        let nothing_to_replace = |flag| {
            Err(format!(
                "{{}} cannot be used with {flag}, because no unit goes into the arguments; leave one of them out"
            ))
        };
        match (around, reading.place, reading.max_args) {
            (_, Place::StandardInput, _) if replaces => nothing_to_replace("--stdin"),
            (_, _, 0) if replaces => nothing_to_replace("-n 0"),
            (Some(word), _, max_args @ 2..) => Err(format!(
                "'{word}': with -n {max_args}, {{}} must be a word of its own; write {{}} as a separate word, or -n 1"
            )),
            _ if append && reading.replace.is_some() => {
                let marker = quoted_text(&replace.to_string_lossy());
                Err(format!(
                    "-I {marker}: the command does not contain {marker}; write {marker} where the unit goes, \
                     leave -I out to append the unit, or write -n 0 for a command without the unit"
                ))
            }
            _ => Ok(Template { words, append, unused, columns }),
        }
    }

    /// A template of fixed words: no unit goes into them.
    pub fn plain(words: Vec<OsString>) -> Self {
        let words = words.into_iter().map(Word::fixed).collect();
        Template { words, append: false, unused: Unused::None, columns: None }
    }

    /// A template for `sh -c SCRIPT 'throttle -c' UNIT…`. The unit is `"$1"`, and the shell's own messages begin as
    /// ours do.
    ///
    /// # Errors
    /// The script has a `{}` that was meant as the unit.
    pub fn shell(script: &OsStr, reading: &Reading) -> Result<Self, String> {
        let text = script.to_string_lossy();
        let has_unit = reading.place != Place::StandardInput && reading.max_args > 0;
        if has_unit && has_unit_in(&text, reading) && !uses_arguments(&text) {
            let spelling = quoted_text(&with_argument(&text, reading));
            return Err(format!(
                "{{}} is not replaced in a script, where the unit is \"$1\"; write -c {spelling} (a script that \
                 uses \"$1\" may contain {{}})"
            ));
        }
        let words = [OsStr::new("sh"), OsStr::new("-c"), script, OsStr::new("throttle -c")];
        let words = words.map(|word| Word::fixed(word.to_owned())).to_vec();
        let is_given = reading.place == Place::Arguments && reading.max_args > 0;
        let unused = if is_given { unused_in(&text, reading.max_args) } else { Unused::None };
        let columns = reading.columns.clone().map(|separator| Columns { separator, most: 0 });
        Ok(Template { words, append: has_unit, unused, columns })
    }

    /// The units that the command's script does not use.
    pub fn unused_units(&self) -> Unused {
        self.unused
    }

    /// Whether the unit is among the words that ssh(1) passes to a shell on another machine. The unit is then the last
    /// word, and not the host.
    pub fn gives_unit_to_ssh(&self) -> bool {
        let is_wrapped = self.name().is_some_and(shells::is_wrapper);
        let place = self.words.iter().position(|word| word.text().is_some_and(shells::is_ssh));
        let place = place.filter(|place| is_wrapped || *place == 0);
        let is_last = self.words.last().is_some_and(|last| last.text().is_none());
        place.is_some_and(|place| self.append || (is_last && self.words.len() > place + 2))
    }

    /// The command's name, if it does not depend on the unit.
    pub fn name(&self) -> Option<&OsStr> {
        self.words.first().and_then(Word::text)
    }

    /// The words of the command for `units`. Each is made when the iterator reaches it: together the words may be
    /// large.
    pub fn fill<'a>(&'a self, units: &'a Units) -> impl Iterator<Item = Cow<'a, OsStr>> {
        let appended = self.append.then_some(if self.columns.is_some() { &Word::Columns } else { &Word::Units });
        self.words.iter().chain(appended).flat_map(|word| word.fill(units, self.columns.as_ref()))
    }

    /// How a unit is split into columns; `None`: it is not split.
    pub(super) fn columns(&self) -> Option<&Columns> {
        self.columns.as_ref()
    }

    /// Whether the system accepts these words as arguments, if they may take `room` bytes together.
    pub fn fits(&self, units: &Units, mut room: usize) -> bool {
        self.fill(units).all(|word| {
            let size = size_of_word(word.len());
            let fits = word.len() <= LONGEST_UNIT && size <= room;
            room = room.saturating_sub(size);
            fits
        })
    }

    /// The most bytes that the units of one command may take, each with its end and its pointer.
    pub(super) fn room_for_units(&self) -> usize {
        let (mut fixed, mut copies) = (0, usize::from(self.append));
        for word in &self.words {
            // In a word of its own, the unit appears once.
            let parts = if let Word::Parts(parts) = word { &parts[..] } else { &[Part::Unit] };
            for part in parts {
                if let Part::Text(text) = part {
                    fixed += size_of_word(text.len());
                } else {
                    copies += 1;
                }
            }
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
            Word::Parts(parts) => {
                let joined = || joined(parts, unit, &split()).into();
                (Some(self.text().map_or_else(joined, Cow::Borrowed)), Vec::new())
            }
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
        let (mut parts, mut start) = (Vec::new(), 0);
        for (place, number) in places {
            push_pieces(&mut parts, &text[start..place.start], replace.as_bytes());
            parts.push(Part::Column(number));
            start = place.end;
        }
        push_pieces(&mut parts, &text[start..], replace.as_bytes());
        match &parts[..] {
            [Part::Text(before), Part::Unit, Part::Text(after)] if before.is_empty() && after.is_empty() => Word::Units,
            _ => Word::Parts(parts),
        }
    }

    fn fixed(text: OsString) -> Self {
        Word::Parts(vec![Part::Text(text)])
    }

    /// The text of a word without a placeholder.
    fn text(&self) -> Option<&OsStr> {
        let Word::Parts(parts) = self else { return None };
        if let [Part::Text(text)] = &parts[..] { Some(text) } else { None }
    }
}

/// Joins `parts` to a word. If the unit has too few columns, the missing columns are empty.
fn joined(parts: &[Part], unit: &[u8], columns: &[Cow<'_, [u8]>]) -> OsString {
    let texts = parts.iter().map(|part| match part {
        Part::Text(text) => text.as_bytes(),
        Part::Unit => unit,
        Part::Column(number) => columns.get(number - 1).map_or(&[][..], |column| column),
    });
    OsString::from_vec(texts.collect::<Vec<_>>().concat())
}

/// Adds the pieces of `text`, with the unit in place of each `marker`.
fn push_pieces(parts: &mut Vec<Part>, text: &[u8], marker: &[u8]) {
    let mut start = 0;
    for end in memchr::memmem::find_iter(text, marker) {
        parts.extend([Part::Text(OsStr::from_bytes(&text[start..end]).to_owned()), Part::Unit]);
        start = end + marker.len();
    }
    parts.push(Part::Text(OsStr::from_bytes(&text[start..]).to_owned()));
}

fn refuse_parallel_forms(words: &[OsString], reading: &Reading) -> Result<(), String> {
    // In a longer word, {1} may be part of a regular expression.
    let is_column = |word: &&OsString| {
        let text = word.as_bytes();
        matches!(&placeholders(text)[..], [(place, 1..)] if place.len() == text.len())
    };
    if let Some(column) = words.iter().find(is_column).filter(|_| reading.columns.is_none()) {
        let column = column.display();
        return Err(format!(
            "{column} is a column of the unit and needs --columns; write --columns COMMAND {column} to split \
             units at blanks, or --columns=',' to split them at commas"
        ));
    }
    let is_in_a_word =
        |form: &str| words.iter().any(|word| memchr::memmem::find(word.as_bytes(), form.as_bytes()).is_some());
    match PARALLEL_FORMS.into_iter().find(|(form, _)| is_in_a_word(form)) {
        Some((form, spelling)) => Err(format!("{form} is a placeholder of GNU parallel; here write -c '{spelling}'")),
        None => Ok(()),
    }
}

/// The columns that `words` use, if units are split into columns.
///
/// # Errors
/// A column number is out of range.
fn columns(words: &[OsString], reading: &Reading) -> Result<Option<Columns>, String> {
    let Some(separator) = reading.columns.clone() else { return Ok(None) };
    let mut columns = Columns { separator, most: 0 };
    for word in words {
        for (place, number) in placeholders(word.as_bytes()) {
            if !(1..=MAX_COLUMN).contains(&number) {
                let column = String::from_utf8_lossy(&word.as_bytes()[place]);
                return Err(format!(
                    "{column} is not a column; write {{1}} to {{{MAX_COLUMN}}}, or {{}} for the whole unit"
                ));
            }
            columns.most = columns.most.max(number);
        }
    }
    Ok(Some(columns))
}

/// Replaces the placeholder of each column in `words` by `marker`.
fn with_units<'a>(words: &'a [OsString], marker: &OsStr, reading: &Reading) -> Cow<'a, [OsString]> {
    if reading.columns.is_none() {
        return words.into();
    }
    words
        .iter()
        .map(|word| OsString::from_vec(without_columns(word.as_bytes(), |_| marker.as_bytes().to_vec())))
        .collect()
}

/// Replaces the placeholder of each column in `text` by the result of `instead` for the column's number.
fn without_columns(text: &[u8], instead: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let (mut replaced, mut start) = (Vec::new(), 0);
    for (place, number) in placeholders(text) {
        replaced.extend_from_slice(&text[start..place.start]);
        replaced.extend(instead(number));
        start = place.end;
    }
    [&replaced, &text[start..]].concat()
}

/// Whether a script contains a placeholder for the unit or for a column.
fn has_unit_in(script: &str, reading: &Reading) -> bool {
    script.contains("{}") || reading.columns.is_some() && !placeholders(script.as_bytes()).is_empty()
}

/// Refuses a command like `sh -c 'rm {}'`: a unit of `; rm -r /` would run as code.
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

/// Replaces `{}` in a script by `"$1"`, or by `"$@"` for several units or columns, and `{2}` by `"$2"`.
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

/// The units that a shell's script gets as arguments and does not use.
///
/// # Errors
/// The script uses its arguments, but the unit is not one of them.
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
                "the unit would be $0 of the script, not $1; write a name for the script before it, like {shell} \
                 -c {script} {shell} {marker}"
            ))
        }
        Some(_) => Ok(unused_in(&text, reading.max_args)),
    }
}

/// Variables that differ from unit to unit.
const UNIT_VARIABLES: [&str; 4] = ["THROTTLE_SEQ", "THROTTLE_SLOT", "THROTTLE_ID", "THROTTLE_KEY"];

/// The units that `script` does not use. A use of the unit's number, slot, identity or key counts as a use.
fn unused_in(script: &str, max_args: u64) -> Unused {
    let uses_others = || uses_arguments(&script.replace("$1", "").replace("${1", "${_"));
    match uses_arguments(script) {
        true if max_args > 1 && !uses_others() => Unused::AllButFirst,
        true => Unused::None,
        false if uses_name(script) || UNIT_VARIABLES.iter().any(|name| script.contains(name)) => Unused::None,
        false if has_gap(script) => Unused::Lost,
        false => Unused::All,
    }
}

/// Whether a script has the traces of an empty variable: a blank at its end, two blanks, or empty quotes.
fn has_gap(script: &str) -> bool {
    !script.contains('\n') && (script.ends_with(' ') || ["  ", " \"\"", " ''"].iter().any(|gap| script.contains(gap)))
}

/// Quotes the words of a command for a shell.
///
/// NUL bytes, which no argument can hold, are left out. A terminal would obey control characters. For a terminal they
/// are written as `$'\033'`, which bash, zsh, ksh, busybox and POSIX (since 2024) read.
pub fn quoted<'a>(words: impl Iterator<Item = Cow<'a, OsStr>>, for_terminal: bool) -> Vec<u8> {
    let words: Vec<Vec<u8>> = words.map(|word| quote(word.as_bytes(), for_terminal)).collect();
    words.join(&b' ')
}

/// Quotes one word for a shell.
pub fn quote(word: &[u8], for_terminal: bool) -> Vec<u8> {
    let is_shown = || std::str::from_utf8(word).is_ok_and(|text| !text.contains(steers_terminal));
    if for_terminal && !is_shown() {
        return escaped(word);
    }
    let quoter = shlex::bytes::Quoter::new().allow_nul(true);
    quoter.quote(word).map(Cow::into_owned).unwrap_or_default()
}

/// Whether a terminal obeys this character rather than showing it. True for control characters, and for characters that
/// change the direction of the surrounding text (Unicode's `Bidi_Control`).
pub fn steers_terminal(c: char) -> bool {
    let turns = ['\u{61c}', '\u{200e}', '\u{200f}'].contains(&c)
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c);
    c.is_control() || turns
}

/// Escapes the characters in `text` that a terminal would obey.
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

/// Appends each byte as three octal digits: a digit that follows cannot belong to it.
fn push_octal(text: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        text.extend([b'\\', b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)]);
    }
}

#[cfg(test)]
mod tests;
