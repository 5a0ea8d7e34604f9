//! The command template: parsed once, then filled with units, which are bytes and stay as they are.

use super::units::{LONGEST_UNIT, Units, room_for_units, size_of_word};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use thiserror::Error;

mod shells;

use shells::Script;

/// What is run for each unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    words: Vec<Word>,
    /// Whether the units come behind the words.
    append: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// As it was written.
    Plain(OsString),
    /// The units, a word each.
    Units,
    /// Pieces of text with the one unit between each two.
    Around(Vec<OsString>),
}

/// Where the units go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the place of `{}`, or behind the words.
    Arguments,
    /// To the command's standard input.
    StandardInput,
    /// In the place of `{}` only.
    Nowhere,
}

/// How a template is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What stands for the unit, where it is not `{}`.
    pub replace: Option<OsString>,
    /// Units for each command.
    pub max_args: u64,
    /// Where the units go.
    pub place: Place,
}

/// A template that would not do what was meant.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum TemplateError {
    #[error("the command is missing")]
    Empty,
    #[error("-I: what stands for the unit is empty; write -I {{}}")]
    EmptyReplace,
    #[error(
        "'{word}': {{}} inside a word with -n {max_args}; a word that is just {{}} becomes {max_args} words, or write -n 1"
    )]
    InsideWordOfMany { word: String, max_args: u64 },
    #[error(
        "{{}} in the script of '{shell} -c' would run the unit as code; write {spelling}, where the unit is \"$1\" \
         (or -I {{}} if it is meant)"
    )]
    UnitAsCode { shell: String, spelling: String },
    #[error("{form} is GNU parallel's; here the shell says it: -c '{spelling}'")]
    Parallel { form: &'static str, spelling: &'static str },
    #[error("{{}} beside {flag}: no unit goes into the arguments; leave one of them out")]
    NothingToReplace { flag: &'static str },
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
    /// What would not do what was meant, with what to write instead.
    pub fn new(words: &[OsString], reading: &Reading) -> Result<Self, TemplateError> {
        if words.is_empty() {
            return Err(TemplateError::Empty);
        }
        let replace = reading.replace.as_deref().unwrap_or(OsStr::new("{}"));
        if replace.is_empty() {
            return Err(TemplateError::EmptyReplace);
        }
        if reading.replace.is_none() {
            refuse_parallel_forms(words)?;
            refuse_unit_as_code(words)?;
        }
        let words: Vec<Word> = words.iter().map(|word| Word::new(word, replace)).collect();
        let replaces = words.iter().any(|word| !matches!(word, Word::Plain(_)));
        let template =
            Template { words, append: !replaces && reading.place == Place::Arguments && reading.max_args > 0 };
        match (replaces, reading) {
            (true, Reading { place: Place::StandardInput, .. }) => {
                Err(TemplateError::NothingToReplace { flag: "--stdin" })
            }
            (true, Reading { max_args: 0, .. }) => Err(TemplateError::NothingToReplace { flag: "-n 0" }),
            _ => template.fits(reading.max_args),
        }
    }

    /// `sh -c SCRIPT throttle UNIT…`: the unit is `"$1"`.
    #[must_use]
    pub fn shell(script: &OsStr, reading: &Reading) -> Self {
        let words = [OsStr::new("sh"), OsStr::new("-c"), script, OsStr::new("throttle")];
        let words = words.map(|word| Word::Plain(word.to_owned())).to_vec();
        Template { words, append: reading.place == Place::Arguments && reading.max_args > 0 }
    }

    /// The command's name, where it does not depend on the unit.
    #[must_use]
    pub fn name(&self) -> Option<&OsStr> {
        match self.words.first() {
            Some(Word::Plain(name)) => Some(name),
            _ => None,
        }
    }

    /// The words of the command for `units`.
    #[must_use]
    pub fn fill<'a>(&'a self, units: &'a Units) -> Words<'a> {
        Words { template: self, units }
    }

    /// What the units of one command may take, each with its end and the pointer to it, where they stand once.
    pub(super) fn room_for_units(&self) -> usize {
        let fixed = self.words.iter().map(|word| match word {
            Word::Plain(text) => size_of_word(text.len()),
            Word::Units => 0,
            Word::Around(pieces) => pieces.iter().map(|piece| size_of_word(piece.len())).sum(),
        });
        room_for_units(fixed.sum()) / self.copies().max(1)
    }

    /// How often the units stand in the command.
    fn copies(&self) -> usize {
        let places = self.words.iter().map(|word| match word {
            Word::Plain(_) => 0,
            Word::Units => 1,
            Word::Around(pieces) => pieces.len() - 1,
        });
        places.sum::<usize>() + usize::from(self.append)
    }

    fn fits(self, max_args: u64) -> Result<Self, TemplateError> {
        let around = self.words.iter().find_map(|word| match word {
            Word::Around(pieces) => Some(pieces.join(OsStr::new("{}")).to_string_lossy().into_owned()),
            _ => None,
        });
        match around {
            Some(word) if max_args > 1 => Err(TemplateError::InsideWordOfMany { word, max_args }),
            _ => Ok(self),
        }
    }
}

/// A template with units in it: the words of a command, each made when it is asked for. Together they may be large.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    template: &'a Template,
    units: &'a Units,
}

impl<'a> Words<'a> {
    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Cow<'a, OsStr>> {
        let appended = self.template.append.then_some(&Word::Units);
        self.template.words.iter().chain(appended).flat_map(move |word| word.fill(self.units))
    }

    /// The memory that copies of them take, roughly: a pointer, a length and an allocation each.
    pub(super) fn memory(self) -> usize {
        const EACH: usize = 48;
        (self.units.length() + self.units.count() * EACH) * self.template.copies()
    }

    /// Whether the system takes them as arguments, for which it has `room` in all.
    #[must_use]
    pub fn fit(self, mut room: usize) -> bool {
        self.iter().all(|word| {
            let size = size_of_word(word.len());
            let fits = word.len() <= LONGEST_UNIT && size <= room;
            room = room.saturating_sub(size);
            fits
        })
    }
}

impl Word {
    fn fill<'a>(&'a self, units: &'a Units) -> impl Iterator<Item = Cow<'a, OsStr>> {
        let one = match self {
            Word::Plain(text) => Some(Cow::Borrowed(text.as_os_str())),
            Word::Around(pieces) => Some(Cow::Owned(pieces.join(OsStr::from_bytes(units.first().unwrap_or_default())))),
            Word::Units => None,
        };
        let all = one.is_none().then(|| units.iter().map(|unit| Cow::Borrowed(OsStr::from_bytes(unit))));
        one.into_iter().chain(all.into_iter().flatten())
    }

    fn new(word: &OsStr, replace: &OsStr) -> Self {
        let pieces = split(word.as_bytes(), replace.as_bytes());
        match &pieces[..] {
            [_] => Word::Plain(word.to_owned()),
            [before, after] if before.is_empty() && after.is_empty() => Word::Units,
            _ => Word::Around(pieces),
        }
    }
}

/// The pieces of `text` between the places where `marker` stands.
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

fn refuse_parallel_forms(words: &[OsString]) -> Result<(), TemplateError> {
    let stands = |form: &str| words.iter().any(|word| memchr::memmem::find(word.as_bytes(), form.as_bytes()).is_some());
    match PARALLEL_FORMS.into_iter().find(|(form, _)| stands(form)) {
        Some((form, spelling)) => Err(TemplateError::Parallel { form, spelling }),
        None => Ok(()),
    }
}

/// `sh -c 'rm {}'` with a unit of `; rm -r /` is the classic accident.
fn refuse_unit_as_code(words: &[OsString]) -> Result<(), TemplateError> {
    let Some(Script { text, shell, is_wrapped }) = Script::in_words(words) else { return Ok(()) };
    let text = text.to_string_lossy();
    if !text.contains("{}") {
        return Ok(());
    }
    let fixed = text.replace("'{}'", "{}").replace("\"{}\"", "{}").replace("{}", "\"$1\"");
    // Our own -c would leave out what starts the shell.
    let spelling = if is_wrapped { format!("… {shell} -c '{fixed}' {shell} {{}}") } else { format!("-c '{fixed}'") };
    Err(TemplateError::UnitAsCode { shell: shell.to_owned(), spelling })
}

/// A command as one would type it.
///
/// What it could not run, a NUL byte, is left out.
#[must_use]
pub fn quoted(words: Words<'_>) -> Vec<u8> {
    joined(words.iter(), quote)
}

/// The same for a terminal, which would obey control characters: they are written as `$'\033'`, which bash, zsh, ksh, busybox
/// and POSIX (since 2024) read.
#[must_use]
pub fn quoted_for_terminal(words: Words<'_>) -> Vec<u8> {
    joined(words.iter(), quote_for_terminal)
}

fn joined(words: impl Iterator<Item = impl AsRef<OsStr>>, quote: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut line = Vec::new();
    for (place, word) in words.enumerate() {
        line.extend_from_slice(if place > 0 { b" " } else { b"" });
        line.extend(quote(word.as_ref().as_bytes()));
    }
    line
}

fn quote(word: &[u8]) -> Vec<u8> {
    let quoter = shlex::bytes::Quoter::new().allow_nul(true);
    quoter.quote(word).map(Cow::into_owned).unwrap_or_default()
}

fn quote_for_terminal(word: &[u8]) -> Vec<u8> {
    if is_printable(word) { quote(word) } else { escaped(word) }
}

/// Whether a terminal does not show this character but obeys it: a control character, or one that turns the direction of
/// what is around it (Unicode's `Bidi_Control`).
#[must_use]
pub fn steers_terminal(c: char) -> bool {
    let turns = ['\u{61c}', '\u{200e}', '\u{200f}'].contains(&c)
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c);
    c.is_control() || turns
}

/// Whether a terminal shows it as it is.
fn is_printable(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|text| !text.contains(steers_terminal))
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
mod tests {
    use super::*;

    fn reading(max_args: u64, place: Place) -> Reading {
        Reading { replace: None, max_args, place }
    }

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn filled(template: &str, max_args: u64, units: &[&str]) -> Vec<String> {
        let template = Template::new(&words(template), &reading(max_args, Place::Arguments)).unwrap();
        words_of(&template, units).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    fn words_of<T: AsRef<[u8]>>(template: &Template, units: &[T]) -> Vec<OsString> {
        template.fill(&units.iter().collect()).iter().map(Cow::into_owned).collect()
    }

    #[test]
    fn units_stand_where_the_braces_are_or_at_the_end() {
        assert_eq!(filled("echo", 1, &["a b"]), ["echo", "a b"]);
        assert_eq!(filled("echo {} x", 1, &["{}"]), ["echo", "{}", "x"]);
        assert_eq!(filled("cp {} {}.bak", 1, &["f"]), ["cp", "f", "f.bak"]);
        assert_eq!(filled("echo a{}b{}c", 1, &["-"]), ["echo", "a-b-c"]);
        assert_eq!(filled("echo", 3, &["1", "2"]), ["echo", "1", "2"]);
        assert_eq!(filled("echo {} end", 3, &["1", "2", "3"]), ["echo", "1", "2", "3", "end"]);
        assert_eq!(filled("echo", 0, &["1"]), ["echo"]);
    }

    #[test]
    fn bytes_that_are_no_text_pass_through() {
        let template = Template::new(&words("x {}.y"), &reading(1, Place::Arguments)).unwrap();
        assert_eq!(words_of(&template, &[b"\xff\n'"])[1].as_bytes(), b"\xff\n'.y");
    }

    #[test]
    fn another_marker_may_stand_for_the_unit() {
        let marker = Reading { replace: Some("@".into()), ..reading(1, Place::Arguments) };
        let template = Template::new(&words("sh -c @ {}"), &marker).unwrap();
        assert_eq!(words_of(&template, &["u"]), ["sh", "-c", "u", "{}"].map(OsString::from));
    }

    #[test]
    fn the_shell_gets_the_unit_as_its_first_argument() {
        let template = Template::shell(OsStr::new("echo \"$1\" {}"), &reading(1, Place::Arguments));
        assert_eq!(words_of(&template, &["u"]), ["sh", "-c", "echo \"$1\" {}", "throttle", "u"].map(OsString::from));
    }

    #[test]
    fn what_is_quoted_for_a_terminal_does_nothing_to_it() {
        let shown = |words: &[&[u8]]| {
            let words: Vec<OsString> = words.iter().map(|word| OsString::from_vec(word.to_vec())).collect();
            String::from_utf8(joined(words.iter(), quote_for_terminal)).unwrap()
        };
        assert_eq!(shown(&[b"echo", b"a b", "ü".as_bytes(), b""]), "echo 'a b' 'ü' ''");
        assert_eq!(shown(&[b"\x1b[31m it's \\"]), r"$'\033[31m it\'s \\'");
        assert_eq!(shown(&[b"a\nb\tc", b"\x7f1", b"\xff9"]), r"$'a\nb\tc' $'\1771' $'\3779'");
        assert_eq!(shown(&["\u{9b}31m".as_bytes()]), r"$'\302\23331m'", "one character in place of ESC [");
    }

    #[test]
    fn what_would_surprise_is_refused_with_the_right_spelling() {
        let error = |text: &str, reading: &Reading| Template::new(&words(text), reading).unwrap_err().to_string();
        let one = reading(1, Place::Arguments);
        let refused = error("bash -ec rm_'{}' x", &one);
        assert!(refused.contains("-c 'rm_\"$1\"'"), "{refused}");
        assert!(error("ffmpeg -i {} {.}.mp3", &one).contains("${1%.*}"));
        assert!(error("echo {#}", &one).contains("$THROTTLE_SEQ"));
        assert!(error("echo x{}", &reading(2, Place::Arguments)).contains("-n 1"));
        assert!(error("echo {}", &reading(1, Place::StandardInput)).contains("--stdin"));
        assert!(error("echo {}", &reading(0, Place::Arguments)).contains("-n 0"));
        let marker = Reading { replace: Some("".into()), ..one };
        assert!(error("echo", &marker).contains("-I"));
    }
}
