//! Parsers accept or refuse arbitrary text without a panic. `PROPTEST_CASES` is the number of cases of each property.

use proptest::collection::vec;
use proptest::prelude::*;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use throttle::launch::{Place, Reading, Template, Units, printable, quote, steers_terminal};
use throttle_limits::store::Address;

/// Mostly what means something to a parser of rates and limits.
const RATE: &str =
    "([0-9]{1,3}|[0-9]{17,40}|[.,/+-]|[kMGTBi]|ms|s|min|h|d|unlimited|window|burst=|initial=|slack=| |\\PC){0,9}";
const ADDRESS: &str = "(rediss?:|valkey:|unix:|/|//|[a-z]{1,3}|[0-9]{1,6}|[:@?#\\[\\]%.]|password-file=|\\PC){0,12}";

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let marked = prop_oneof![Just(b'{'), Just(b'}'), Just(b'\''), Just(b'\n'), Just(b'$'), any::<u8>()];
    vec(marked, 0..20)
}

fn word() -> impl Strategy<Value = OsString> {
    let known = ["sh", "bash", "-c", "{}", "a{}b", "env", "--", "-e", "$1", "{1}", "xargs"]
        .map(|word| word.as_bytes().to_vec());
    prop_oneof![prop::sample::select(known.to_vec()), bytes()].prop_map(OsString::from_vec)
}

proptest! {
    #[test]
    fn any_text_is_a_limit_that_prints_as_it_parses_or_a_mistake(text in RATE) {
        throttle_limits::fuzzing::limit_text(text.as_bytes());
    }

    #[test]
    fn any_bytes_are_a_limit_or_a_mistake(bytes in bytes()) {
        throttle_limits::fuzzing::limit_text(&bytes);
    }

    #[test]
    fn any_text_is_an_address_or_a_mistake_and_no_password_is_shown(
        text in ADDRESS, password in "[A-Z]{9}", host in "[a-z]{1,5}",
    ) {
        let _ = Address::of_server(&text).map(|address| address.to_string());
        if let Ok(address) = text.parse::<Address>() {
            prop_assert_eq!(address.to_string().parse::<Address>().map(|again| again.to_string()), Ok(address.to_string()));
        }
        let secret = format!("redis://me:{password}@{host}/{text}");
        let shown = match secret.parse::<Address>() {
            Ok(address) => format!("{address} {address:?}"),
            Err(error) => error.to_string(),
        };
        prop_assert!(!shown.contains(&password), "{}", shown);
        prop_assert!(!Address::redacted(OsStr::new(&secret)).contains(&password));
    }

    #[test]
    fn any_command_is_filled_with_the_unit_as_it_is_or_refused(
        words in vec(word(), 0..6), unit in bytes(), max_args in 0_u64..3,
    ) {
        let reading = Reading { replace: None, max_args, place: Place::Arguments, columns: None };
        let Ok(template) = Template::new(&words, &reading) else { return Ok(()) };
        let units: Units = [&unit].into_iter().collect();
        let filled: Vec<u8> = template.fill(&units).flat_map(|word| word.as_bytes().to_vec()).collect();
        let given: Vec<u8> = words.iter().flat_map(|word| word.as_bytes().to_vec()).collect();
        let marks = words.iter().map(|word| word.to_string_lossy().matches("{}").count()).sum::<usize>();
        let copies = if max_args == 0 { 0 } else { marks.max(1) };
        prop_assert_eq!(filled.len(), given.len() - 2 * marks + copies * unit.len());
    }

    #[test]
    fn any_word_is_quoted_for_the_shell_and_steers_no_terminal(word in bytes(), text in "\\PC{0,9}[\\x00-\\x1f\u{202a}-\u{202e}]{0,3}") {
        let word: Vec<u8> = word.into_iter().filter(|byte| *byte != 0).collect();
        let read: Option<Vec<Vec<u8>>> = shlex::bytes::Shlex::new(&quote(&word, false)).map(Some).collect();
        prop_assert_eq!(read, Some(vec![word.clone()]));
        let shown = String::from_utf8(quote(&word, true));
        prop_assert!(shown.is_ok_and(|shown| !shown.contains(steers_terminal)));
        prop_assert!(!printable(&text).contains(steers_terminal));
    }
}
