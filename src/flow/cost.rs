//! Costs: how much of a limit each unit takes.

use super::selector::{Part, SelectorError, TooLarge, escaped, meant_as_json};
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use thiserror::Error;
use throttle_limits::rate::Amount;

/// How much of a limit a unit takes: `800`, `f3`, `/max_tokens` or `bytes/4`, or a sum of them; then perhaps `,else=100`.
///
/// ```
/// use throttle::flow::cost::Cost;
/// let cost: Cost = "f2+bytes/4+300".parse()?;
/// assert_eq!(cost.of(b"hello 50"), Some(352));
/// # Ok::<(), throttle::flow::cost::CostError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// They are added.
    terms: Vec<Term>,
    /// The cost of a unit whose cost cannot be read.
    otherwise: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Fixed(u64),
    Part(Part),
    /// Its bytes divided by this, rounded up.
    Bytes(NonZeroU64),
}

/// What may follow a term.
const ENDS: [char; 2] = [',', '+'];

impl Cost {
    /// The cost of `unit`, which is given without its delimiter: a whole number, 0 passes free. `None` if it cannot be read
    /// and nothing is to be taken instead. What is more than 64 bits hold is 2^64-1.
    #[must_use]
    pub fn of(&self, unit: &[u8]) -> Option<u64> {
        self.sum(unit.len() as u64, |part| part.of(unit).and_then(|text| whole_number(&text)))
    }

    /// The cost of a unit of so many bytes that no buffer holds: what can be said without its bytes, or what `else=`
    /// says. `None` if that is not known: see [`too_large`](Self::too_large).
    #[must_use]
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

    /// Whether the bytes of a unit have to be read: it is not enough to know how long it is.
    #[must_use]
    pub fn looks_inside(&self) -> bool {
        self.terms.iter().any(|term| matches!(term, Term::Part(_)))
    }

    /// The cost if there is no unit: the fixed number, or what `else=` says.
    #[must_use]
    pub fn unread(&self) -> Option<u64> {
        self.fixed().or(self.otherwise)
    }

    /// The cost of every unit, if it is the same.
    fn fixed(&self) -> Option<u64> {
        let number = |term: &Term| if let Term::Fixed(number) = term { Some(*number) } else { None };
        self.terms.iter().try_fold(0_u64, |sum, term| Some(sum.saturating_add(number(term)?)))
    }

    /// The error for a unit that no buffer holds, so that its cost cannot be read.
    #[must_use]
    pub fn too_large(&self) -> TooLarge {
        TooLarge { by: format!("cost={self}"), advice: "add what a longer one costs, like else=1000".to_owned() }
    }

    /// Whether both count the same; what a unit without it costs does not matter.
    #[must_use]
    pub fn is_kind_of(&self, other: &Cost) -> bool {
        self.terms == other.terms
    }

    /// What it counts, without what a unit without it costs.
    #[must_use]
    pub fn kind(&self) -> Cost {
        Cost { otherwise: None, ..self.clone() }
    }

    /// Reads the cost at the beginning of `text`, without `else=`, and returns the rest: it begins with a comma, or is empty.
    ///
    /// # Errors
    /// What is wrong, with a right spelling.
    pub fn read(text: &str) -> Result<(Self, &str), CostError> {
        let mut cost = Cost::default();
        let mut rest = cost.add(text)?;
        while let Some(next) = rest.strip_prefix('+') {
            rest = cost.add(next)?;
        }
        Ok((cost, rest))
    }

    /// Adds the first term of `text`, and returns what follows it.
    fn add<'a>(&mut self, text: &'a str) -> Result<&'a str, CostError> {
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

    /// The same cost, and `otherwise` for a unit whose cost cannot be read.
    ///
    /// # Errors
    /// It can always be read.
    pub fn or_else(self, otherwise: u64) -> Result<Self, CostError> {
        match self.fixed() {
            Some(cost) => Err(CostError::ElseNeverUsed(cost)),
            None => Ok(Cost { otherwise: Some(otherwise), ..self }),
        }
    }

    /// Reads the number after `else=`.
    ///
    /// # Errors
    /// It is none.
    pub fn read_else(text: &str) -> Result<u64, CostError> {
        amount(text).ok_or_else(|| CostError::Else(text.to_owned()))
    }
}

/// Why a text is no cost. The message shows how to write it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum CostError {
    #[error("how much? write a number, f3, /max_tokens or bytes/4, like cost=800")]
    Empty,
    #[error("{0}")]
    Part(#[from] SelectorError),
    #[error("a cost is a whole number that is not negative, like cost=800")]
    NotWhole,
    #[error("field {0} is f{0}")]
    Field(u64),
    #[error("only bytes are divided, by a whole number; anything can be added: bytes/4+300")]
    Bytes,
    #[error("a cost is called bytes: write cost=bytes, or cost=bytes/4")]
    Byte,
    #[error("nothing can be divided by 0; write for example bytes/4")]
    DividedByZero,
    #[error("a cost is a number in the unit: f3 or /max_tokens; or of its bytes: bytes/4")]
    NoNumber,
    #[error("no cost is called '{word}'; JSON: {pointer}; else write 800, f3 or bytes/4")]
    Unknown { word: String, pointer: String },
    #[error("a number that is fixed can always be read; write cost={0} alone, or cost=f3,else=100")]
    ElseNeverUsed(u64),
    #[error("what follows the cost is no part of it: '{0}'; a comma in a JSON Pointer is \\,, a plus \\+")]
    More(String),
    #[error("else=N is the cost of a unit whose own cannot be read: a whole number, like else=100")]
    Else(String),
}

/// What follows `bytes`.
fn divisor(text: &str) -> Result<NonZeroU64, CostError> {
    let per = if text.is_empty() { Some(1) } else { text.strip_prefix('/').and_then(amount) };
    NonZeroU64::new(per.ok_or(CostError::Bytes)?).ok_or(CostError::DividedByZero)
}

/// A number in an option: `800` or `4k`.
fn amount(text: &str) -> Option<u64> {
    text.parse().ok().filter(|amount: &Amount| !amount.is_bytes()).map(|amount| amount.value())
}

/// A number in a unit: digits, perhaps among blanks.
fn whole_number(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    let add = |number: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        Some(number.saturating_mul(10).saturating_add(digit.into()))
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// What a word that is no cost was meant to be.
fn unknown(word: &str) -> CostError {
    let number = word.trim_start_matches(['$', '{', 'F']).trim_end_matches('}');
    match word {
        "" => CostError::Empty,
        "byte" | "Bytes" | "size" | "length" | "len" => CostError::Byte,
        "host" => CostError::NoNumber,
        _ if word.starts_with("re:") => CostError::NoNumber,
        _ if word.split_once('/').is_some_and(|(divided, _)| divided.parse::<Cost>().is_ok()) => CostError::Bytes,
        _ if number.len() < word.len() && number.parse::<u64>().is_ok_and(|number| number > 0) => {
            CostError::Field(number.parse().unwrap_or(1))
        }
        _ if word.trim_start_matches(['+', '-', '.']).starts_with(|c: char| c.is_ascii_digit()) => CostError::NotWhole,
        _ => match meant_as_json(word) {
            Some(error) => CostError::Part(error),
            None => CostError::Unknown { word: word.to_owned(), pointer: format!("/{}", escaped(word)) },
        },
    }
}

impl FromStr for Cost {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Self, CostError> {
        match Cost::read(text)? {
            (cost, "") => Ok(cost),
            (cost, rest) => match rest.strip_prefix(",else=") {
                Some(otherwise) => cost.or_else(Cost::read_else(otherwise)?),
                None => Err(CostError::More(rest.to_owned())),
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
