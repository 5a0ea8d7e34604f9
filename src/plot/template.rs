//! Fills in the page's template, `page.html`. Text that is filled in cannot become markup.

use crate::launch::steers_terminal;

/// Parts of the page. Each begins with a line `<!-- part: NAME -->`.
const PAGE: &str = include_str!("page.html");

/// The value for a name in double braces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// Data.
    Text(&'a str),
    /// Markup from other parts and charts.
    Markup(&'a str),
}

/// Escapes text for HTML and its attributes. Characters that are invisible, or that change the direction of text, are
/// replaced by their codes.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other if steers_terminal(other) => html.extend(other.escape_default()),
            other => html.push(other),
        }
    }
    html
}

/// Fills the values into the part of the page with this name.
pub(super) fn fill(part: &str, values: &[(&str, Value<'_>)]) -> String {
    let mut parts = PAGE.split("<!-- part: ").filter_map(|part| part.split_once(" -->\n"));
    let template = parts.find(|(name, _)| *name == part).map_or("", |(_, text)| text.trim_end());
    let mut pieces = template.split("{{");
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or((piece, ""));
        match values.iter().find(|(known, _)| *known == name) {
            Some((_, Value::Text(text))) => filled.push_str(&escaped(text)),
            Some((_, Value::Markup(markup))) => filled.push_str(markup),
            None => debug_assert!(false, "{part} has no value for {name}"),
        }
        filled.push_str(rest);
    }
    filled.push('\n');
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a href='x'>&\"{{title}}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;{{title}}");
        assert_eq!(escaped("a\0\u{1b}[31m\u{202e}é"), "a\\u{0}\\u{1b}[31m\\u{202e}é");
        let tile = fill("tile", &[("value", Value::Text("{{name}}</p>")), ("name", Value::Text("<b>"))]);
        assert!(tile.contains("{{name}}&lt;/p&gt;") && tile.contains("&lt;b&gt;"), "{tile}");
    }
}
