//! Costs: how much of a limit each unit takes.

use super::mark::without_mark;
use super::selector::{Part, escaped, meant_as_json, number_alone, too_large};
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use throttle_limits::rate::Amount;

/// The cost of a unit: `800`, `f3`, `/max_tokens` or `bytes/4`, or a sum of these. `,else=100` may follow.
///
/// ```
/// use throttle::flow::cost::Cost;
/// let cost: Cost = "f2+bytes/4+300".parse()?;
/// assert_eq!(cost.of(b"hello 50"), Some(352));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The terms of the sum.
    terms: Vec<Term>,
    /// The cost of a unit whose cost cannot be read.
    otherwise: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Fixed(u64),
    Part(Part),
    /// The unit's bytes divided by this number, rounded up.
    Bytes(NonZeroU64),
}

/// Characters that may follow a term.
const ENDS: [char; 2] = [',', '+'];

const NOT_DIVIDED: &str = "only bytes can be divided, and only by a whole number; write for example bytes/4+300";

impl Cost {
    /// The cost of `unit`, which has no delimiter. The cost is a whole number; a unit with cost 0 passes free. `None`
    /// if it cannot be read and there is no `else=`. Costs above 64 bits become 2^64-1. A byte-order mark at the
    /// beginning of the unit counts as bytes, but is not parsed.
    pub fn of(&self, unit: &[u8]) -> Option<u64> {
        let text = without_mark(unit);
        self.sum(unit.len() as u64, |part| part.of(text).and_then(|number| whole_number(&number)))
    }

    /// The cost of a unit of this length that fits into no buffer: from its length alone, or from `else=`. `None` if
    /// neither is enough: see [`too_large`](Self::too_large).
    pub fn of_length(&self, bytes: u64) -> Option<u64> {
        self.sum(bytes, |_| None)
    }

    fn sum(&self, bytes: u64, read: impl Fn(&Part) -> Option<u64>) -> Option<u64> {
        let value = |term: &Term| match term {
            Term::Fixed(number) => Some(*number),
            Term::Part(part) => read(part),
            Term::Bytes(per) => Some(bytes.div_ceil(per.get())),
        };
        let sum = self.terms.iter().try_fold(0_u64, |sum, term| Some(sum.saturating_add(value(term)?)));
        sum.or(self.otherwise)
    }

    /// Whether the bytes of a unit must be read: its length is not enough.
    pub fn looks_inside(&self) -> bool {
        self.terms.iter().any(|term| matches!(term, Term::Part(_)))
    }

    /// The cost if there is no unit: the fixed number, or the number of `else=`.
    pub fn unread(&self) -> Option<u64> {
        self.fixed().or(self.otherwise)
    }

    /// The cost of every unit, if it is fixed.
    fn fixed(&self) -> Option<u64> {
        let number = |term: &Term| if let Term::Fixed(number) = term { Some(*number) } else { None };
        self.terms.iter().try_fold(0_u64, |sum, term| Some(sum.saturating_add(number(term)?)))
    }

    /// The error for a unit that fits into no buffer, so that its cost cannot be read.
    pub fn too_large(&self) -> String {
        too_large(&format!("cost={self}"), "add the cost of a longer unit, like else=1000")
    }

    /// Whether both have the same terms. Their `else=` may differ.
    pub fn is_kind_of(&self, other: &Cost) -> bool {
        self.terms == other.terms
    }

    /// This cost without `else=`.
    #[must_use]
    pub fn kind(&self) -> Cost {
        Cost { otherwise: None, ..self.clone() }
    }

    /// Parses the cost at the beginning of `text`, without `else=`. Returns the rest, which is empty or begins with a
    /// comma.
    ///
    /// # Errors
    /// The message shows a right spelling.
    pub fn read(text: &str) -> Result<(Self, &str), String> {
        let mut cost = Cost::default();
        let mut rest = cost.add(text)?;
        while let Some(next) = rest.strip_prefix('+') {
            rest = cost.add(next)?;
        }
        Ok((cost, rest))
    }

    /// Adds the first term of `text`, and returns the rest.
    fn add<'a>(&mut self, text: &'a str) -> Result<&'a str, String> {
        if let Some(part) = Part::read(text, &ENDS) {
            let (part, rest) = part?;
            self.terms.push(Term::Part(part));
            return Ok(rest);
        }
        let (word, rest) = text.split_at(text.find(ENDS).unwrap_or(text.len()));
        match word.strip_prefix("bytes") {
            Some(per) => self.terms.push(Term::Bytes(divisor(per)?)),
            None => self.terms.push(Term::Fixed(amount(word).ok_or_else(|| unknown(word))?)),
        }
        Ok(rest)
    }

    /// This cost with an `else=` of `otherwise`, for units whose cost cannot be read.
    ///
    /// # Errors
    /// This cost can always be read, so `otherwise` would never be used.
    pub fn or_else(self, otherwise: u64) -> Result<Self, String> {
        match self.fixed() {
            Some(cost) => {
                Err(format!("else= is never used with a fixed number; write cost={cost} alone, or cost=f3,else=100"))
            }
            None => Ok(Cost { otherwise: Some(otherwise), ..self }),
        }
    }

    /// Parses the number after `else=`.
    ///
    /// # Errors
    /// The text is not a number.
    pub fn read_else(text: &str) -> Result<u64, String> {
        let why =
            "else= needs a whole number, the cost of a unit whose own cost cannot be read; write for example else=100";
        amount(text).ok_or_else(|| why.to_owned())
    }
}

/// Parses the text after `bytes`.
fn divisor(text: &str) -> Result<NonZeroU64, String> {
    let per = if text.is_empty() { Some(1) } else { text.strip_prefix('/').and_then(amount) };
    let zero = || "nothing can be divided by 0; write for example bytes/4".to_owned();
    NonZeroU64::new(per.ok_or(NOT_DIVIDED)?).ok_or_else(zero)
}

/// Parses a number in an option: `800` or `4k`.
fn amount(text: &str) -> Option<u64> {
    text.parse().ok().filter(|amount: &Amount| !amount.is_bytes()).map(|amount| amount.value())
}

/// Parses a number in a unit: digits, perhaps with blanks around them.
fn whole_number(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    let add = |number: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        Some(number.saturating_mul(10).saturating_add(digit.into()))
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// The message about a word that is not a cost, with a guess at its meaning.
fn unknown(word: &str) -> String {
    let number = word.trim_start_matches(['$', '{', 'F']).trim_end_matches('}');
    let is_divided = || word.split_once('/').is_some_and(|(divided, _)| divided.parse::<Cost>().is_ok());
    let text = match word {
        "" => "the cost is missing; write a number, f3, /max_tokens or bytes/4, like cost=800",
        "byte" | "Bytes" | "size" | "length" | "len" => {
            "the number of bytes is named bytes; write cost=bytes or cost=bytes/4"
        }
        _ if word == "host" || word.starts_with("re:") => {
            "a cost is a number in the unit or its number of bytes; write for example f3, /max_tokens or bytes/4"
        }
        _ if is_divided() => NOT_DIVIDED,
        _ if number.len() < word.len() && number.parse::<u64>().is_ok_and(|number| number > 0) => {
            return number_alone(number.parse().unwrap_or(1));
        }
        _ if word.trim_start_matches(['+', '-', '.']).starts_with(|c: char| c.is_ascii_digit()) => {
            "a cost is a whole number that is not negative, like cost=800"
        }
        _ => {
            return meant_as_json(word).unwrap_or_else(|| {
                let pointer = escaped(word);
                format!("unknown cost '{word}'; write /{pointer} for JSON, otherwise for example 800, f3 or bytes/4")
            });
        }
    };
    text.to_owned()
}

impl FromStr for Cost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match Cost::read(text)? {
            (cost, "") => Ok(cost),
            (cost, rest) => match rest.strip_prefix(",else=") {
                Some(otherwise) => cost.or_else(Cost::read_else(otherwise)?),
                None => Err(format!(
                    "unexpected text after the cost: '{rest}'; a comma in a JSON Pointer is \\,, a plus \\+"
                )),
            },
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, term) in self.terms.iter().enumerate() {
            f.write_str(if place > 0 { "+" } else { "" })?;
            match term {
                Term::Fixed(number) => write!(f, "{number}"),
                Term::Part(part) => part.fmt(f),
                Term::Bytes(per) if per.get() > 1 => write!(f, "bytes/{per}"),
                Term::Bytes(_) => f.write_str("bytes"),
            }?;
        }
        self.otherwise.map_or(Ok(()), |otherwise| write!(f, ",else={otherwise}"))
    }
}

#[cfg(test)]
mod tests;
