use super::*;
use crate::rounds::rounds;
use proptest::prelude::*;
use url::Url;

fn key(selector: &str, unit: &str) -> Option<String> {
    let selector: Selector = selector.parse().unwrap();
    selector.key(unit.as_bytes()).map(|key| String::from_utf8_lossy(&key).into_owned())
}

#[track_caller]
fn finds(selector: &str, cases: &[(&str, Option<&str>)]) {
    for (unit, expected) in cases {
        assert_eq!(key(selector, unit).as_deref(), *expected, "{selector} of {unit:?}");
    }
}

#[test]
fn a_host_is_that_of_the_first_url() {
    finds(
        "host",
        &[
            ("http://Example.ORG/a", Some("example.org")),
            ("https://user:pass@word@a.org:8080", Some("a.org")),
            ("see http://a.org, then http://b.org", Some("a.org")),
            ("(http://a.org)", Some("a.org")),
            ("{\"url\":\"http://a.org\",\"x\":1}", Some("a.org")),
            (r#"{"url":"http:\/\/a.org\/x","x":1}"#, Some("a.org")),
            (r#"{"url":"https:\/\/me@A.org:80"}"#, Some("a.org")),
            (r"http:\/a.org", None),
            ("<a href='http://a.org'>", Some("a.org")),
            ("http://a.org;x", Some("a.org")),
            ("http://a.org.", Some("a.org")),
            ("http://a.org?q=http://b.org", Some("a.org")),
            ("http://a.org#x@b.org", Some("a.org")),
            ("http:///a.org", Some("a.org")),
            ("http://a.org:bad/", Some("a.org")),
            ("file:///etc/passwd http://a.org", Some("a.org")),
            ("file:///etc/passwd", None),
            ("ssh://git@A.org/x", Some("a.org")),
            ("1http://a.org", Some("a.org")),
            ("http://[::1]:80/", Some("[::1]")),
            ("http://[::1", None),
            ("http://0x7f.1/", Some("127.0.0.1")),
            ("http://bücher.example/", Some("xn--bcher-kva.example")),
            ("http://b%C3%BCcher.example/", Some("xn--bcher-kva.example")),
            ("http://a_b.org", Some("a_b.org")),
            ("http://", None),
            ("://a.org", None),
            ("http://.", None),
            ("a.org/path", None),
            ("", None),
        ],
    );
}

#[test]
fn without_a_url_a_host_is_that_of_the_first_address() {
    finds(
        "host",
        &[
            ("a@B.org", Some("b.org")),
            ("Bob <bob@b.org>, eve@c.org", Some("b.org")),
            ("mailto:a@b.org", Some("b.org")),
            ("git@b.org:x/y.git", Some("b.org")),
            ("write to a@b.org.", Some("b.org")),
            ("a@b@c.org", Some("c.org")),
            ("a@bücher.example", Some("xn--bcher-kva.example")),
            ("@name", None),
            ("hi @name, a@b.org", Some("b.org")),
            ("a@b.org http://c.org", Some("c.org")),
            ("@", None),
            ("a@", None),
        ],
    );
}

#[test]
fn fields_end_at_blanks_or_at_one_byte() {
    finds("f2", &[("a b c", Some("b")), ("  a\t\tb", Some("b")), ("a\nb", Some("b")), ("a ", None), ("", None)]);
    finds("f1", &[(" a", Some("a")), ("a", Some("a")), (" ", None)]);
    finds("f2:,", &[("a,b,c", Some("b")), ("a,,c", Some("")), ("a,", Some("")), ("a b", None)]);
    finds("f2:\\t", &[("a b\tc d\te", Some("c d"))]);
    finds("f1:\\", &[("a\\b", Some("a"))]);
    finds("f2::", &[("a:b", Some("b"))]);
    finds("f1: ", &[(" a", Some(""))]);
    finds("f99999999999999999999999", &[("a b c", None)]);
}

#[test]
fn a_json_pointer_finds_strings_numbers_and_truths() {
    finds(
        "/user/id",
        &[
            (r#"{"user":{"id":"a"}}"#, Some("a")),
            (r#" {"x":[1,{"y":2}], "user" : {"name":"\"", "id" : "a\nb\u00fc\\" } }"#, Some("a\nbü\\")),
            (r#"{"user":{"id":1.50E+2}}"#, Some("1.50E+2")),
            (r#"{"user":{"id":-0}}"#, Some("-0")),
            (r#"{"user":{"id":123456789012345678901234567890}}"#, Some("123456789012345678901234567890")),
            (r#"{"user":{"id":true}}"#, Some("true")),
            (r#"{"user":{"id":""}}"#, Some("")),
            (r#"{"us\u0065r":{"id":"a"}}"#, Some("a")),
            (r#"{"\ud800":0,"user":{"id":"a"}}"#, Some("a")),
            (r#"{"user":{"id":"a"},"user":{"id":"b"}}"#, Some("b")),
            (r#"{"user":{"id":null}}"#, None),
            (r#"{"user":{"id":{}}}"#, None),
            (r#"{"user":{"id":["a"]}}"#, None),
            (r#"{"user":null}"#, None),
            (r#"{"user":{"id":"\ud800"}}"#, None),
            (r#"{"user":"id"}"#, None),
            (r#"{"id":"a"}"#, None),
            (r#"["user","id"]"#, None),
            (r#"{"user":{"id":"a"}"#, None),
            (r#"{"user":{"id":"a"}} x"#, None),
            (r#"{"user":{"id":"a"}}{}"#, None),
            ("user id", None),
            ("", None),
        ],
    );
    finds("/1", &[("[1,\"b\"]", Some("b")), ("[1]", None), ("[1,2,", None), (r#"{"1":"x"}"#, Some("x"))]);
    finds("/01", &[("[1,2]", None), (r#"{"01":"x"}"#, Some("x"))]);
    finds("/-", &[("[1,2]", None)]);
    finds("/+1", &[("[1,2]", None)]);
    finds("/", &[(r#"{"":"x"}"#, Some("x"))]);
    finds("/a~1b/~0/~01", &[(r#"{"a/b":{"~":{"~1":"x"}}}"#, Some("x"))]);
    finds("/a\\,b", &[(r#"{"a,b":"x"}"#, Some("x"))]);
}

#[test]
fn the_last_of_equal_names_counts_whatever_the_others_have() {
    finds(
        "/a/0/b",
        &[
            (r#"{"a":[{"c":1}],"a":[{"b":"x"}]}"#, Some("x")),
            (r#"{"a":[],"a":[{"b":"x"}]}"#, Some("x")),
            (r#"{"a":{"b":1},"a":{"0":{"b":"x"}}}"#, Some("x")),
            (r#"{"a":null,"a":true,"a":1,"a":-1,"a":1.5,"a":"t","a":[{"b":0,"b":"x"}]}"#, Some("x")),
            (r#"{"a":[{"b":"x"}],"a":null}"#, None),
            (r#"{"a":[{"b":"x"}],"a":[]}"#, None),
            (r#"{"a":[{"b":"x"},2],"a":{"c":[]}}"#, None),
        ],
    );
}

/// Invalid text can be neither a name nor a value, but may occur next to valid names and values.
#[test]
fn json_that_is_not_all_text_is_looked_into_all_the_same() {
    let selector: Selector = "/a".parse().unwrap();
    assert_eq!(selector.key(b"{\"b\":\"\xff\",\"\xff\":1,\"a\":\"x\"}").as_deref(), Some(&b"x"[..]));
    assert_eq!(selector.key(b"{\"a\":\"\xff\"}"), None);
}

#[test]
fn a_regular_expression_gives_its_first_group_or_the_match() {
    finds("re:[a-z]+", &[("12ab34", Some("ab")), ("12", None)]);
    finds("re:id=([0-9]+)(x)?", &[("an id=12x", Some("12")), ("id=", None)]);
    finds("re:a(b)?", &[("ab", Some("b")), ("a", Some("a"))]);
    finds("re:(?s).*", &[("a\nb", Some("a\nb")), ("", Some(""))]);
    finds("re:a,b", &[("xa,b", Some("a,b"))]);
    let selector: Selector = "re:x(.)".parse().unwrap();
    assert_eq!(selector.key(b"x\xff").as_deref(), Some(&b"\xff"[..]), "bytes match, not characters");
}

#[test]
fn each_mistake_has_its_own_words() {
    let deep = "/a".repeat(101);
    let mistakes = [
        ("2", "field 2 is written f2"),
        ("$3", "field 3 is written f3"),
        ("F2", "field 2 is written f2"),
        ("0", "fields count from 1"),
        ("f0", "fields count from 1"),
        ("f:,", "a field needs a number after the f, like f2"),
        ("f2:", "exactly one byte; write for example f2:; or"),
        ("f2:é", "exactly one byte"),
        (".user.id", "for a value in JSON write /user/id"),
        (".user", "for a value in JSON write /user"),
        ("$.a[0].b", "for a value in JSON write /a/0/b"),
        ("$['a']", "for a value in JSON write /a"),
        ("#/a/b", "for a value in JSON write /a/b"),
        ("user/id", "for a value in JSON write /user/id"),
        ("f2.x", "for a value in JSON write /f2/x"),
        ("/a~0~2", "write /a~0~02"),
        ("/~", "write /~0"),
        (&deep, "at most 100 names"),
        ("re:(?=a)", "look-around"),
        ("re:\\p{L}", "not a regular expression: Unicode not allowed here;"),
        ("domain", "write host"),
        ("regex:a", "write re:REGEX, like re:^[a-z]+"),
        ("host,f2", "unexpected text after the selector: ',f2'; a comma in a JSON Pointer is \\,"),
    ];
    for (text, words) in mistakes {
        let error = text.parse::<Selector>().expect_err(text);
        assert!(error.contains(words) && !error.contains('\n'), "{text:?}: {error}");
    }
    for right in ["host", "f2", "f2:;", "f2:\\t", "/user/id", "re:^[a-z]+", "/a~0b", "/a~0~02", "/~0", "/ip"] {
        right.parse::<Selector>().expect(right);
    }
}

#[test]
fn what_follows_a_comma_is_left_in_a_list() {
    for (text, selector, rest) in [
        ("host,jobs=2", "host", ",jobs=2"),
        ("f2,jobs=2", "f2", ",jobs=2"),
        ("f2:,,jobs=2", "f2:,", ",jobs=2"),
        ("f2:\\t,jobs=2", "f2:\\t", ",jobs=2"),
        ("/a\\,b,jobs=2", "/a\\,b", ",jobs=2"),
        ("re:a,jobs=2", "re:a,jobs=2", ""),
    ] {
        let (found, unread) = Selector::read(text).unwrap();
        assert_eq!((found.to_string().as_str(), unread, found.is_last()), (selector, rest, rest.is_empty()));
        assert_eq!(selector.parse::<Selector>(), Ok(found), "it prints as it is written");
    }
}

#[test]
fn a_unit_that_is_too_large_is_said_with_the_largest_size() {
    let error = "/id".parse::<Selector>().unwrap().too_large();
    assert_eq!(error, "'per=/id' can read units of at most 64 MiB; make the units shorter, or leave per= out");
}

/// Pieces for building many URLs.
const PIECES: [&str; 34] = [
    "http",
    "https",
    "://",
    ":",
    "/",
    "//",
    "@",
    ".",
    "a",
    "B",
    "org",
    "xn--",
    "xn--bcher-kva",
    "1",
    "127",
    "0x7f",
    "[::1]",
    "[",
    "]",
    "%41",
    "%",
    "ü",
    "ß",
    "_",
    "-",
    "?",
    "#",
    "\\",
    "80",
    "9999999",
    "ssh",
    "file",
    "..",
    "~",
];

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "{", "}", "[", "]", "\"", "\"id\"", ":", ",", "\\", "\\u00e9", "\\ud800", "1", "-", "e", ".", " ", "\t",
        "true", "null", "://", "http", "@", "a", "f", "é",
    ]);
    let piece =
        prop_oneof![piece.prop_map(|piece| piece.as_bytes().to_vec()), prop::collection::vec(any::<u8>(), 1..3)];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(100_000)))]

    #[test]
    fn any_bytes_are_looked_into(unit in any_bytes()) {
        crate::fuzzing::json_unit(&unit);
    }

    #[test]
    fn a_host_is_the_one_that_the_crate_url_reads(
        rest in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..8),
        scheme in prop::sample::select(vec!["http", "https", "HTTP", "ws", "ftp"]),
    ) {
        let unit = format!("{scheme}://{}", rest.concat());
        let host = Url::parse(&unit).ok().and_then(|url| Some(url.host_str()?.trim_end_matches('.').to_owned()));
        if let Some(host) = host.filter(|host| !host.is_empty()) {
            prop_assert_eq!(key("host", &unit), Some(host), "{}", unit);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(10_000)))]

    #[test]
    fn any_text_is_read_or_refused_in_one_line(
        text in "(host|bytes|else=|f|/|re:|[0-9]|[:,.~$\\\\(+-]|[a-z]|\\PC){0,8}",
    ) {
        crate::fuzzing::selector(text.as_bytes());
    }
}
